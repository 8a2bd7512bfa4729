"""Time-outs of anything by anything: a timer for many calls, a call as another's limit, catchable and with clean-up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import headgate as hg
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind, turns

app = hg.App("timeouts")


@app.activity
def stays(n: int) -> Any:
    return hg.complete_later()


@app.activity
def quick(n: int) -> int:
    return n


@app.workflow
async def one_timer_for_many(count: int) -> list[Any]:
    calls = [asyncio.ensure_future(stays(n)) for n in range(count)]
    calls.append(asyncio.ensure_future(quick(99)))
    done, pending = await asyncio.wait(calls, timeout=30)
    for call in pending:
        call.cancel()
    return [len(done), len(pending)]


@app.workflow
async def activity_as_limit() -> str:
    limit = asyncio.ensure_future(quick(1))
    work = asyncio.ensure_future(stays(1))
    await asyncio.wait({limit, work}, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        return "the other was quicker"
    return "done"


@app.workflow
async def retries_itself() -> int:
    for attempt in range(1, 4):
        try:
            async with asyncio.timeout(60):
                await stays(attempt)
        except TimeoutError:
            continue
    return attempt


@app.workflow
async def cleans_up() -> list[str]:
    seen: list[str] = []
    try:
        async with asyncio.timeout(60):
            try:
                await stays(1)
            finally:
                seen.append("cleaning")
                await quick(1)
                seen.append("clean")
    except TimeoutError:
        seen.append("timed out")
    return seen


@app.workflow
async def limits_everything(kind: str) -> Any:
    async def child_like() -> None:
        await hg.sleep("1h")

    waits: dict[str, Callable[[], Awaitable[Any]]] = {
        "signal": lambda: hg.wait_signal("never"),
        "activity": lambda: stays(1),
        "sleep": lambda: hg.sleep("1h"),
        "nested": child_like,
        "gather": lambda: asyncio.gather(stays(1), hg.sleep("1h")),
        "condition": lambda: hg.wait_condition(lambda: False),
    }
    started = hg.now()
    try:
        async with asyncio.timeout(10):
            await waits[kind]()
    except TimeoutError:
        return (hg.now() - started).total_seconds()
    return "no time-out"


@app.workflow
async def race(limit: float) -> str:
    try:
        return str(await hg.wait_signal("go", timeout=limit))
    except TimeoutError:
        return "timed out"


def test_one_timer__for_many_calls__ends_those_that_are_left(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(one_timer_for_many, 20)
    assert env.result(handle) == [1, 20]
    assert issued(env, handle).count("start_timer") == 1
    assert issued(env, handle).count("cancel_activity") == 20
    assert left_behind(env) == {}


def test_activity__as_the_limit_of_another__works(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(activity_as_limit)) == "the other was quicker"
    assert left_behind(env) == {}


def test_timeout__caught__code_goes_on_and_tries_again(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(retries_itself)
    assert env.result(handle) == 3
    assert env.now.timestamp() == 1_750_000_180
    assert left_behind(env) == {}


def test_timeout__with_clean_up_that_awaits__runs_it(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(cleans_up)) == ["cleaning", "clean", "timed out"]


@pytest.mark.parametrize("kind", ["signal", "activity", "sleep", "nested", "gather", "condition"])
def test_timeout__around_any_wait__comes_at_its_time(open_env: OpenEnvironment, kind: str) -> None:
    env = open_env(app)
    assert env.result(env.start(limits_everything, kind)) == 10.0
    assert left_behind(env) == {}


@pytest.mark.parametrize("limit", [0, 0.0004, 0.001])
def test_timeout__of_next_to_nothing__times_out(open_env: OpenEnvironment, limit: float) -> None:
    env = open_env(app)
    assert env.result(env.start(race, limit)) == "timed out"


def test_timeout__and_what_it_limits_in_one_turn__the_first_received_wins(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(race, 10)
    env.advance("10s")
    assert handle.status() is hg.Status.SUCCEEDED
    assert env.result(handle) == "timed out"
    other = env.start(race, 10)
    env.clock.advance(9.999)
    other.signal("go", "in time")
    env.run()
    assert env.result(other) == "in time"


def test_workflow__that_timed_out__does_nothing_afterwards(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    tokens: list[str] = []

    @mine.activity
    def waits() -> Any:
        tokens.append(hg.activity().token)
        return hg.complete_later()

    @mine.workflow
    async def limited() -> None:
        await asyncio.gather(waits(), hg.sleep("2h"), hg.wait_signal("go"))
        hg.emit("never")

    env = open_env(mine)
    handle = env.start(limited, timeout="1h")
    env.advance("1h")
    assert handle.status() is hg.Status.TIMED_OUT
    count = len(turns(env, handle))
    env.advance("2h")
    assert len(turns(env, handle)) == count
    assert "emit_event" not in issued(env, handle)
    assert left_behind(env) == {}
