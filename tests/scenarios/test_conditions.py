"""Conditions: asked when the code has come to rest, so that a flag set after an await counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headgate as hg
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind, turns

app = hg.App("conditions")


@app.activity
def echo(value: Any) -> Any:
    return value


@app.workflow
async def at_once() -> bool:
    return await hg.wait_condition(lambda: True)


@app.workflow
async def never(limit: str | None = None) -> bool:
    return await hg.wait_condition(lambda: False, timeout=limit)


@app.workflow
async def flagged(limit: str | None = None) -> list[Any]:
    state = {"flag": False}

    def put(value: bool) -> None:
        state["flag"] = value

    hg.on_signal("flag", put)
    return [await hg.wait_condition(lambda: state["flag"], timeout=limit), hg.now().timestamp()]


@app.workflow
async def flagged_after_await() -> bool:
    state = {"flag": False}

    async def put() -> None:
        await echo(1)
        await asyncio.sleep(0)
        state["flag"] = True

    hg.on_signal("flag", put)
    return await hg.wait_condition(lambda: state["flag"])


@app.workflow
async def flagged_by_a_task() -> bool:
    state = {"flag": False}

    async def put() -> None:
        await hg.sleep(5)
        state["flag"] = True

    task = asyncio.create_task(put())
    held = await hg.wait_condition(lambda: state["flag"])
    await task
    return held


@app.workflow
async def chain() -> list[int]:
    seen: list[int] = []

    async def link(n: int) -> None:
        await hg.wait_condition(lambda: len(seen) == n)
        seen.append(n)

    await asyncio.gather(*(link(n) for n in (3, 2, 1, 0)))
    return seen


def test_condition__that_holds_already__does_not_wait(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(at_once)
    assert env.result(handle) is True
    assert len(turns(env, handle)) == 1


def test_condition__that_never_holds__waits_for_ever(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(never)
    env.advance("365d")
    assert handle.status() is hg.Status.RUNNING
    assert issued(env, handle) == []


def test_condition__time_out__is_false_and_not_an_error(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(never, "10m")
    assert env.result(handle) is False
    assert issued(env, handle) == ["start_timer", "close"]


def test_condition__set_by_a_handler__holds_in_the_same_turn(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(flagged)
    handle.signal("flag", False)
    env.run()
    assert handle.status() is hg.Status.RUNNING
    handle.signal("flag", True)
    assert env.result(handle)[0] is True
    assert len(turns(env, handle)) == 3


def test_condition__set_and_taken_back_before_it_is_asked__holds_for_the_event_that_set_it(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    handle = env.start(flagged)
    handle.signal("flag", True)
    handle.signal("flag", False)
    assert env.result(handle)[0] is True


def test_condition__toggled_within_one_step__never_holds(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def toggles() -> bool:
        state = {"flag": False}

        def toggle() -> None:
            state["flag"] = True
            state["flag"] = False

        hg.on_signal("toggle", toggle)
        return await hg.wait_condition(lambda: state["flag"], timeout="1m")

    env = open_env(mine)
    handle = env.start(toggles)
    handle.signal("toggle")
    assert env.result(handle) is False


def test_condition__flag_set_after_an_await__is_seen_without_another_event(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(flagged_after_await)
    handle.signal("flag")
    assert env.result(handle) is True


def test_condition__flag_set_by_another_task__is_seen_at_rest(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(flagged_by_a_task)) is True


def test_conditions__each_waking_the_next__all_hold_in_one_turn(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(chain)
    assert env.result(handle) == [0, 1, 2, 3]
    assert len(turns(env, handle)) == 1


def test_condition__success_before_the_time_out__cancels_the_timer(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(flagged, "1h")
    handle.signal("flag", True)
    assert env.result(handle)[0] is True
    assert left_behind(env) == {}


def test_condition__time_out_before_success__stays_false(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(flagged, "1h")
    env.advance("1h")
    assert env.result(handle) == [False, 1_750_003_600.0]


def test_condition__that_raises__raises_where_it_is_awaited(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def raising() -> str:
        state: dict[str, int] = {"n": 1}
        hg.on_signal("go", lambda: state.clear())
        try:
            await hg.wait_condition(lambda: state["n"] > 5)
        except KeyError as exc:
            return f"no {exc}"
        return "held"

    env = open_env(mine)
    handle = env.start(raising)
    handle.signal("go")
    assert env.result(handle) == "no 'n'"


def test_condition__cancelled__is_asked_no_more(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    asked: list[int] = []

    @mine.workflow
    async def gives_up() -> str:
        def look() -> bool:
            asked.append(1)
            return False

        task = asyncio.ensure_future(hg.wait_condition(look))
        await hg.sleep(1)
        task.cancel()
        await hg.sleep(1)
        asked.clear()
        await hg.sleep(1)
        return "done" if not asked else "still asked"

    env = open_env(mine)
    assert env.result(env.start(gives_up)) == "done"


@pytest.mark.parametrize("limit", ["0s", 0, 0.0])
def test_condition__with_no_time_at_all__is_asked_once(open_env: OpenEnvironment, limit: Any) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def asks() -> list[bool]:
        return [
            await hg.wait_condition(lambda: True, timeout=limit),
            await hg.wait_condition(lambda: False, timeout=limit),
        ]

    env = open_env(mine)
    assert env.result(env.start(asks)) == [True, False]
