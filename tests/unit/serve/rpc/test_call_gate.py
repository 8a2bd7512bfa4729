"""The gate of gRPC calls: a call beyond the limit waits for a place, in order, and is refused when none is free."""

from __future__ import annotations

import asyncio

from headgate.serve.rpc.grpc import CallGate

LONG_SECONDS = 60.0


async def _started(gate: CallGate) -> asyncio.Task[bool]:
    """Return a call that waits for a place."""
    entering = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    assert not entering.done()
    return entering


def test_enter__a_place_becomes_free__the_call_that_waits_longest_gets_it() -> None:
    async def scenario() -> tuple[bool, bool]:
        gate = CallGate(1, wait_seconds=LONG_SECONDS)
        assert await gate.enter()
        first, second = await _started(gate), await _started(gate)
        gate.leave()
        has_place = await first
        is_waiting = not second.done()
        second.cancel()
        return has_place, is_waiting

    assert asyncio.run(scenario()) == (True, True)


def test_enter__no_place_in_time__is_refused_and_takes_no_place() -> None:
    async def scenario() -> tuple[bool, bool, bool]:
        gate = CallGate(1, wait_seconds=0.0)
        assert await gate.enter()
        refused = [await gate.enter(), await gate.enter()]
        gate.leave()
        return refused[0], refused[1], await gate.enter()

    assert asyncio.run(scenario()) == (False, False, True)


def test_enter__a_waiting_call_is_cancelled__the_place_goes_to_the_next() -> None:
    async def scenario() -> bool:
        gate = CallGate(1, wait_seconds=LONG_SECONDS)
        assert await gate.enter()
        gone, waiting = await _started(gate), await _started(gate)
        gone.cancel()
        await asyncio.sleep(0)
        gate.leave()
        return await waiting

    assert asyncio.run(scenario())


def test_enter__a_call_is_cancelled_as_it_gets_its_place__the_place_goes_to_the_next() -> None:
    async def scenario() -> bool:
        gate = CallGate(1, wait_seconds=LONG_SECONDS)
        assert await gate.enter()
        gone, waiting = await _started(gate), await _started(gate)
        gate.leave()
        # The place is given, and the call has not run since.
        gone.cancel()
        return await waiting

    assert asyncio.run(scenario())
