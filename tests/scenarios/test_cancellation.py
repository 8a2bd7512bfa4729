"""Cancelling, terminating, and the time limit of an execution: catchable, with clean-up, and final when asked to be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headgate as hg
from headgate.errors import ExecutionClosedError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind, notes, turns

app = hg.App("cancellation")
undone: list[str] = []


@app.activity
def undo(what: str) -> str:
    undone.append(what)
    return what


@app.activity
def slow() -> Any:
    return hg.complete_later()


@app.workflow
async def waits() -> str:
    return str(await hg.wait_signal("never"))


@app.workflow
async def cleans_up(name: str) -> str:
    try:
        await hg.sleep("1d")
    finally:
        await undo(name)
    return "slept"


@app.workflow
async def cleans_up_in_layers(name: str) -> None:
    try:
        try:
            await hg.wait_signal("never")
        finally:
            await undo(f"{name} inner")
            hg.log("inner done")
    finally:
        try:
            await undo(f"{name} outer")
        finally:
            hg.log("outer done")


@app.workflow
async def refuses() -> str:
    try:
        await hg.sleep("1d")
    except asyncio.CancelledError as exc:
        await hg.sleep("1m")
        return f"refused: {exc}"
    return "slept"


@app.workflow
async def fails_in_cleanup() -> None:
    try:
        await hg.sleep("1d")
    finally:
        raise ValueError("clean-up broke")


@app.workflow
async def deaf() -> str:
    while True:
        try:
            await hg.sleep("1d")
        except asyncio.CancelledError:
            hg.log("no")
            continue
        return "slept"


@app.workflow
async def holds_activity() -> None:
    await slow()


@app.workflow
async def shields() -> str:
    async def careful() -> str:
        await hg.sleep("1h")
        return await undo("shielded")

    work = asyncio.ensure_future(careful())
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        return f"{await work} and then cancelled"


@pytest.fixture(autouse=True)
def nothing_undone() -> None:
    undone.clear()


def test_cancel__code_that_does_not_mind__ends_cancelled_with_the_reason(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits)
    handle.cancel("changed my mind")
    with pytest.raises(hg.ExecutionFailure, match="changed my mind") as caught:
        env.result(handle)
    assert caught.value.status == "CANCELLED"
    assert left_behind(env) == {}


def test_cancel__before_the_first_turn__ends_it_too(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = waits.start()
    handle.cancel()
    env.run()
    assert handle.status() is hg.Status.CANCELLED


def test_cancel__of_a_delayed_start__it_never_runs(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cleans_up, "delayed", delay="1h")
    handle.cancel("not needed")
    env.run()
    env.advance("2d")
    assert handle.status() is hg.Status.CANCELLED
    assert undone == []


def test_terminate__of_a_delayed_start__it_never_runs(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cleans_up, "delayed", delay="1h")
    handle.terminate("not needed")
    env.run()
    env.advance("2d")
    assert handle.status() is hg.Status.TERMINATED
    assert undone == []
    assert left_behind(env) == {}


def test_cancel__with_clean_up_that_awaits__runs_it_to_its_end(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cleans_up, "it")
    handle.cancel()
    env.run()
    assert undone == ["it"]
    assert handle.status() is hg.Status.CANCELLED
    assert issued(env, handle) == ["start_timer", "cancel_timer", "start_activity", "close"]


def test_cancel__with_clean_up_in_layers__runs_all_of_it_once(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cleans_up_in_layers, "it")
    handle.cancel()
    env.run()
    assert undone == ["it inner", "it outer"]
    assert notes(env, handle) == ["inner done", "outer done"]
    assert handle.status() is hg.Status.CANCELLED


def test_eviction__of_code_with_clean_up__does_nothing_of_it(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cleans_up_in_layers, "it")
    for _ in range(3):
        handle.signal("unrelated")
        env.run()
        env.worker.engine.drop()
    assert undone == []
    assert notes(env, handle) == []
    assert handle.status() is hg.Status.RUNNING


def test_cancel__refused_by_the_code__it_ends_as_it_likes(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(refuses)
    handle.cancel("please")
    assert env.result(handle) == "refused: please"
    assert handle.status() is hg.Status.SUCCEEDED


def test_cancel__clean_up_that_raises__fails(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(fails_in_cleanup)
    handle.cancel()
    env.run()
    assert handle.status() is hg.Status.FAILED


def test_cancel__without_sigint_code__goes_on_and_can_be_asked_again_and_terminated(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(deaf)
    for _ in range(3):
        handle.cancel()
        env.run()
    assert notes(env, handle) == ["no"] * 3
    handle.terminate("enough")
    env.run()
    assert handle.status() is hg.Status.TERMINATED
    assert left_behind(env) == {}


def test_cancel__while_an_activity_runs__the_activity_is_let_go(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(holds_activity)
    handle.cancel()
    env.run()
    assert handle.status() is hg.Status.CANCELLED
    assert issued(env, handle) == ["start_activity", "cancel_activity", "close"]
    assert left_behind(env) == {}


def test_cancel__shielded_work__is_finished_first(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(shields)
    handle.cancel()
    assert env.result(handle) == "shielded and then cancelled"


def test_cancel__twice_in_one_turn__is_received_as_often_as_the_code_allows(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits)
    handle.cancel("one")
    handle.cancel("two")
    env.run()
    with pytest.raises(hg.ExecutionFailure, match="one"):
        env.result(handle)
    assert left_behind(env) == {}


def test_cancel__and_result_in_one_turn__the_first_wins(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def either() -> str:
        return str(await hg.wait_signal("go"))

    env = open_env(mine)
    first, second = env.start(either), env.start(either)
    first.signal("go", "signal")
    first.cancel()
    second.cancel()
    second.signal("go", "signal")
    env.run()
    assert first.status() is hg.Status.SUCCEEDED
    assert second.status() is hg.Status.CANCELLED
    assert left_behind(env) == {}


def test_terminate__code__is_not_asked(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cleans_up, "it")
    handle.terminate("at once")
    with pytest.raises(hg.ExecutionFailure, match="at once") as caught:
        env.result(handle)
    assert caught.value.status == "TERMINATED"
    assert undone == []
    assert left_behind(env) == {}


def test_terminate__before_the_first_turn__ends_it(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = waits.start()
    handle.terminate()
    env.run()
    assert handle.status() is hg.Status.TERMINATED
    with pytest.raises(ExecutionClosedError):
        handle.signal("x")
    assert left_behind(env) == {}


def test_terminate__with_much_open__leaves_nothing_behind(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity
    def stays() -> Any:
        return hg.complete_later()

    @mine.workflow
    async def inner() -> None:
        await hg.sleep("1d")

    @mine.workflow
    async def much() -> None:
        await asyncio.gather(
            *(hg.sleep(1000 + n) for n in range(130)),
            *(stays() for _ in range(130)),
            *(inner() for _ in range(10)),
        )

    env = open_env(mine)
    handle = env.start(much)
    handle.terminate()
    env.run()
    assert handle.status() is hg.Status.TERMINATED
    rows = env.service.client.list(parent_id=handle.id).executions
    assert {row.status for row in rows} == {hg.Status.TERMINATED}
    assert left_behind(env) == {}


# The time limit of an execution.


def test_timeout__of_the_execution__ends_timed_out(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(waits, timeout="1h")
    with pytest.raises(hg.ExecutionFailure, match="time limit") as caught:
        env.result(handle)
    assert caught.value.status == "TIMED_OUT"
    assert env.now.timestamp() == 1_750_003_600
    assert left_behind(env) == {}


def test_timeout__of_the_execution__runs_clean_up(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cleans_up, "late", timeout="1h")
    with pytest.raises(hg.ExecutionFailure) as caught:
        env.result(handle)
    assert caught.value.status == "TIMED_OUT"
    assert undone == ["late"]


def test_timeout__of_the_definition__holds_unless_the_caller_says_otherwise(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow(timeout="10m")
    async def limited() -> None:
        await hg.wait_signal("never")

    env = open_env(mine)
    by_definition, by_caller = env.start(limited), env.start(limited, timeout="20m")
    env.advance("10m")
    assert by_definition.status() is hg.Status.TIMED_OUT
    assert by_caller.status() is hg.Status.RUNNING
    env.advance("10m")
    assert by_caller.status() is hg.Status.TIMED_OUT


def test_timeout__finished_before_it__leaves_no_timer(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cleans_up, "in time", timeout="2d")
    assert env.result(handle) == "slept"
    assert left_behind(env) == {}
    before = len(turns(env, handle))
    env.advance("3d")
    assert len(turns(env, handle)) == before


def test_timeout__after_a_cancel_that_was_ignored__ends_timed_out(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def ignores_one() -> None:
        try:
            await hg.sleep("1d")
        except asyncio.CancelledError:
            await hg.sleep("1d")

    env = open_env(mine)
    handle = env.start(ignores_one, timeout="1h")
    handle.cancel("early")
    env.run()
    env.advance("2h")
    assert handle.status() is hg.Status.TIMED_OUT


def test_timeout__with_a_delayed_start_and_early_mail__still_holds(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = waits.start(delay="1h", timeout="1h")
    env.run()
    env.clock.advance(3600)
    handle.signal("unrelated")
    env.run()
    env.advance("2h")
    assert handle.status() is hg.Status.TIMED_OUT


def test_cancel__of_itself_by_a_cancelled_task__is_distinguished(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def awaits_what_was_cancelled() -> None:
        task = asyncio.ensure_future(hg.sleep("1d"))
        task.cancel()
        await task

    env = open_env(mine)
    handle = env.start(awaits_what_was_cancelled)
    with pytest.raises(hg.ExecutionFailure, match="cancelled itself"):
        env.result(handle)


def test_dangling_task__with_clean_up_that_emits__does_not_keep_the_workflow_open(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")
    got: list[str] = []

    @mine.on_event("cleaned")
    def on_cleaned(event: hg.Event) -> None:
        got.append(event.type)

    @mine.workflow
    async def returns_early() -> str:
        async def background() -> None:
            try:
                await hg.sleep("1d")
            finally:
                hg.emit("cleaned")
                hg.set_tags({"cleaned": "yes"})
                hg.signal("nobody", "x")

        task = asyncio.create_task(background())
        await hg.sleep("1s")
        del task
        return "left"

    env = open_env(mine)
    handle = env.start(returns_early)
    assert env.result(handle) == "left"
    assert issued(env, handle)[-1] == "close"
    assert left_behind(env) == {}
