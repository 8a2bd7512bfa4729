"""Continuing as new: a fresh history under the same id, with what was not consumed, and nothing of the old run."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.model.history import Started
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import events, issued, left_behind, turns

app = hg.App("continuing")


@app.activity
def double(n: int) -> int:
    return 2 * n


@app.workflow
async def counts(n: int, limit: int) -> list[int]:
    await double(n)
    if n < limit:
        hg.continue_as_new(n + 1, limit)
    return [n, hg.info().run]


@app.workflow
async def takes_one_each(taken: list[Any]) -> list[Any]:
    taken = [*taken, await hg.wait_signal("item")]
    if len(taken) < 4:
        hg.continue_as_new(taken)
    return taken


def test_continue__several_times__keeps_the_id_and_begins_each_history_anew(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(counts, 1, 5)
    assert env.result(handle) == [5, 5]
    started = [event for event in events(env, handle) if isinstance(event, Started)]
    assert [event.run for event in started] == [1, 2, 3, 4, 5]
    assert issued(env, handle) == ["start_activity", "continue_as_new"] * 4 + ["start_activity", "close"]
    assert {turn.run for turn in turns(env, handle)} == {1, 2, 3, 4, 5}
    assert handle.describe().run == 5
    assert left_behind(env) == {}


def test_continue__a_hundred_times__takes_two_turns_each(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(counts, 1, 100)
    assert env.result(handle) == [100, 100]
    assert len(turns(env, handle)) == 200


def test_continue__signals_not_taken__go_along_in_order(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(takes_one_each, [])
    for n in range(4):
        handle.signal("item", n)
    assert env.result(handle) == [0, 1, 2, 3]
    assert handle.describe().run == 4


def test_continue__signal_of_a_known_id_after_it__is_still_known(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(takes_one_each, [])
    handle.signal("item", "a", id="a")
    env.run()
    assert handle.describe().run == 2
    handle.signal("item", "a", id="a")
    env.run()
    assert handle.describe().run == 2
    for name in "bcd":
        handle.signal("item", name, id=name)
    assert env.result(handle) == ["a", "b", "c", "d"]


def test_continue__what_the_run_left_open__is_let_go(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity
    def stays() -> Any:
        return hg.complete_later()

    @mine.workflow
    async def leaves(n: int) -> int:
        if n == 0:
            both = asyncio.gather(stays(), hg.sleep("1h"))
            assert not both.done()
            await hg.sleep("1s")
            hg.continue_as_new(1)
        await hg.sleep("1d")
        return n

    env = open_env(mine)
    handle = env.start(leaves, 0)
    assert env.result(handle) == 1
    assert left_behind(env) == {}


def test_continue__child_of_the_run_before__does_not_answer_for_a_call_of_the_next(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner(n: int) -> str:
        await hg.sleep(10 if n == 0 else 60)
        return f"child of run {n}"

    @mine.workflow
    async def outer(n: int) -> str:
        call = inner.options(parent_close="abandon")(n)
        if n == 0:
            hg.continue_as_new(1)
        return str(await call)

    env = open_env(mine)
    assert env.result(env.start(outer, 0)) == "child of run 1"
    assert left_behind(env) == {}


def test_continue__child_of_the_run_before__does_not_answer_for_an_activity_of_the_next(
    open_env: OpenEnvironment,
) -> None:
    mine = hg.App("mine")

    @mine.activity
    def stays() -> Any:
        tokens.append(hg.activity().token)
        return hg.complete_later()

    @mine.workflow
    async def inner() -> str:
        await hg.sleep(10)
        return "child"

    @mine.workflow
    async def outer(n: int) -> str:
        if n == 0:
            inner.options(parent_close="abandon")()
            hg.continue_as_new(1)
        return str(await stays())

    tokens: list[str] = []
    env = open_env(mine)
    handle = env.start(outer, 0)
    env.advance("1m")
    assert handle.status() is hg.Status.RUNNING
    env.service.client.complete_activity(tokens[0], Raw(b'"activity"'))
    assert env.result(handle) == "activity"


def test_continue__completion_of_the_run_before__does_not_answer_for_a_call_of_the_next(
    open_env: OpenEnvironment,
) -> None:
    mine = hg.App("mine")
    tokens: list[str] = []

    @mine.activity
    def stays(n: int) -> Any:
        tokens.append(hg.activity().token)
        return hg.complete_later()

    @mine.workflow
    async def outer(n: int) -> str:
        call = asyncio.ensure_future(stays(n))
        if n == 0:
            await hg.wait_signal("next")
            hg.continue_as_new(1)
        return str(await call)

    env = open_env(mine)
    handle = env.start(outer, 0)
    handle.signal("next")
    env.service.client.complete_activity(tokens[0], Raw(msgspec.json.encode("old")))
    env.run()
    assert handle.describe().run == 2
    assert handle.status() is hg.Status.RUNNING
    env.service.client.complete_activity(tokens[1], Raw(msgspec.json.encode("new")))
    assert env.result(handle) == "new"
    assert left_behind(env) == {}


def test_continue__receipt_of_a_signal_sent_before__does_not_answer_for_a_call_of_the_next(
    open_env: OpenEnvironment,
) -> None:
    mine = hg.App("mine")

    @mine.activity
    def says() -> str:
        return "said"

    @mine.workflow
    async def listener() -> Any:
        return await hg.wait_signal("hello")

    @mine.workflow
    async def outer(n: int) -> str:
        if n == 0:
            hg.signal("listener", "hello", "from run 1")
            hg.continue_as_new(1)
        await hg.sleep("1s")
        return await says()

    env = open_env(mine)
    ear = env.start(listener, id="listener")
    assert env.result(env.start(outer, 0)) == "said"
    assert env.result(ear) == "from run 1"


def test_restart__under_the_same_id__receives_nothing_of_the_run_before(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner(n: int) -> str:
        await hg.sleep(100 if n == 0 else 1000)
        return f"child {n}"

    @mine.workflow
    async def outer(n: int) -> str:
        call = inner.options(parent_close="abandon")(n)
        if n == 0:
            raise ValueError("first")
        return str(await call)

    env = open_env(mine)
    assert env.start(outer, 0, id="same").status() is hg.Status.FAILED
    handle = env.start(outer, 1, id="same", reuse="closed")
    assert env.result(handle) == "child 1"


def test_continue__time_limit__is_that_of_the_execution(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def for_ever(n: int) -> None:
        await hg.sleep("10m")
        hg.continue_as_new(n + 1)

    env = open_env(mine)
    handle = env.start(for_ever, 0, timeout="1h")
    with pytest.raises(hg.ExecutionFailure) as caught:
        env.result(handle)
    assert caught.value.status == "TIMED_OUT"
    assert env.now.timestamp() == 1_750_003_600
    assert handle.describe().run in (6, 7)


def test_continue__as_a_child__the_parent_gets_the_last_result(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner(n: int) -> int:
        await hg.sleep(1)
        if n < 3:
            hg.continue_as_new(n + 1)
        return n

    @mine.workflow
    async def outer() -> int:
        return int(await inner(0))

    env = open_env(mine)
    assert env.result(env.start(outer)) == 3


def test_continue__inside_of_a_try__is_not_taken_for_an_error(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def tries(n: int) -> int:
        try:
            if n == 0:
                hg.continue_as_new(1)
        except Exception:
            return -1
        finally:
            hg.log("passing")
        return n

    env = open_env(mine)
    assert env.result(env.start(tries, 0)) == 1


def test_continue__inside_of_a_task_group__continues(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def grouped(n: int) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(hg.sleep("1h"))
            await hg.sleep("1s")
            if n == 0:
                hg.continue_as_new(1)
        return n

    env = open_env(mine)
    assert env.result(env.start(grouped, 0)) == 1


def test_continue__from_a_task_that_is_gathered__continues(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def gathered(n: int) -> int:
        async def inner() -> None:
            await hg.sleep(1)
            if n == 0:
                hg.continue_as_new(1)

        await asyncio.gather(inner(), hg.sleep(5))
        return n

    env = open_env(mine)
    assert env.result(env.start(gathered, 0)) == 1


def test_continue__random_numbers_and_ids__differ_between_runs(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def draws(seen: list[str]) -> list[str]:
        seen = [*seen, str(hg.uuid())]
        await hg.sleep(1)
        if len(seen) < 3:
            hg.continue_as_new(seen)
        return seen

    env = open_env(mine)
    assert len(set(env.result(env.start(draws, [])))) == 3


def test_continue__with_arguments_it_does_not_take__raises_in_the_workflow(open_env: OpenEnvironment) -> None:
    from headgate.errors import InvalidPayloadError

    mine = hg.App("mine")

    @mine.workflow
    async def wrong(n: int) -> str:
        try:
            hg.continue_as_new(1, 2)
        except InvalidPayloadError:
            return "refused"

    env = open_env(mine)
    assert env.result(env.start(wrong, 0)) == "refused"


def test_continue__memo_and_tags__stay(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def stays(n: int) -> Any:
        if n == 0:
            hg.set_tags({"stage": "one"})
            hg.continue_as_new(1)
        return hg.info().memo

    env = open_env(mine)
    handle = env.start(stays, 0, memo={"a": 1}, tags={"team": "red"})
    assert env.result(handle) == {"a": 1}
    assert handle.describe().tags == {"team": "red", "stage": "one"}
