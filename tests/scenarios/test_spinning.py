"""Workflow code that never comes to rest: it is interrupted, nothing of its turn is written, and it can be repaired."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from time import monotonic

import pytest

import headgate as hg
from headgate.durable.engine import stuck
from headgate.durable.replay import turn_timeout
from headgate.errors import QueryTimeoutError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind

Code = Callable[[], Awaitable[None]]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stuck, "ATTEMPTS_MAX", 2)
    with turn_timeout.each_turn(0.2):
        yield


def spin() -> None:
    while True:
        pass


async def plainly() -> None:
    spin()


async def in_a_task() -> None:
    async def one() -> None:
        await asyncio.sleep(0)
        spin()

    await asyncio.gather(one(), one(), return_exceptions=True)


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(plainly())


async def and_catches_everything() -> None:
    try:
        spin()
    except BaseException:
        hg.continue_as_new()


async def and_again_when_it_is_asked_to_go() -> None:
    async def unstoppable() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            spin()

    left = [asyncio.ensure_future(unstoppable()) for _ in range(2)]
    await asyncio.sleep(0)
    assert left
    spin()


async def in_a_condition() -> None:
    def never_at_rest() -> bool:
        spin()
        return True

    await hg.wait_condition(never_at_rest)


async def in_a_signal_handler() -> None:
    hg.on_signal("go", lambda _: spin())
    await hg.sleep("1h")


@pytest.mark.parametrize(
    "code",
    [
        plainly,
        in_a_task,
        in_a_group,
        and_catches_everything,
        and_again_when_it_is_asked_to_go,
        in_a_condition,
        in_a_signal_handler,
    ],
)
def test_workflow__that_spins__is_stuck_with_the_line_and_goes_on_when_repaired(
    open_env: OpenEnvironment, code: Code
) -> None:
    mine = hg.App("mine")

    @mine.activity
    def echo(value: str) -> str:
        return value

    @mine.workflow
    async def spins() -> str:
        first = await echo("first")
        hg.emit("never.happens")
        await code()
        return first

    async def repaired() -> str:
        return f"{await echo('first')} and mended"

    env = open_env(mine)
    handle = spins.start(id="s-1")
    handle.signal("go", None)
    env.run()
    with pytest.raises(hg.ExecutionFailure, match=r"execution s-1: interrupted after .*test_spinning.py:\d+ in spin;"):
        env.result(handle)

    assert handle.status() is hg.Status.STUCK
    assert handle.describe().failures == 2
    assert issued(env, handle) == ["start_activity"]
    del mine.workflows["spins"]
    mine.workflow(name="spins")(repaired)
    env.service.client.redrive(handle.id)
    assert env.result(handle) == "first and mended"
    assert left_behind(env) == {}


def test_workflow__that_ended_and_whose_leftovers_spin__has_ended(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def leaves_something() -> str:
        async def unstoppable() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                spin()

        left = asyncio.ensure_future(unstoppable())
        await asyncio.sleep(0)
        return "done" if not left.done() else "not there"

    env = open_env(mine)
    assert env.result(env.start(leaves_something)) == "done"


def test_query__that_spins__fails_for_the_caller_and_harms_nothing(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def answers() -> str:
        hg.on_query("spin", spin)
        hg.on_query("well", lambda: "well")
        word: str = await hg.wait_signal("word")
        return word

    env = open_env(mine)
    handle = env.start(answers)
    with pytest.raises(
        QueryTimeoutError, match=r"query spin has no answer after 0.3 s: .*test_spinning.py:\d+ in spin"
    ):
        handle.query("spin", timeout_seconds=0.3)
    assert handle.query("well") == "well"
    handle.signal("word", "over")
    assert env.result(handle) == "over"


def test_query__whose_replay_takes_too_long__says_how_far_it_came(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow(check=False)
    async def heavy() -> None:
        hg.on_query("well", lambda: "well")
        for _ in range(6):
            ends_at = monotonic() + 0.1
            while is_slow[0] and monotonic() < ends_at:
                continue
            await hg.sleep(1)

    is_slow = [False]
    env = open_env(mine)
    handle = env.start(heavy)
    env.advance("10s")
    assert handle.query("well") == "well"
    is_slow[0] = True
    with pytest.raises(QueryTimeoutError, match=r"replayed up to turn [1-6]|interrupted after .* in heavy"):
        handle.query("well", timeout_seconds=0.35)
