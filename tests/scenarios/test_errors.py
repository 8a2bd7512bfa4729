"""Errors in workflow code: caught, uncaught, in nested functions, in clean-up, and in what is not awaited."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headgate as hg
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind, notes, turns

app = hg.App("errors")


class Odd(Exception):
    """An error with data."""

    def __init__(self, detail: dict[str, int]) -> None:
        super().__init__("odd")
        self.detail = detail


@app.activity(retry=hg.Retry(attempts=1))
def fails(text: str) -> None:
    raise ValueError(text)


@app.activity
def echo(value: Any) -> Any:
    return value


@app.workflow
async def catches() -> str:
    try:
        await fails("caught")
    except ValueError as exc:
        return f"caught {exc}"
    return "no error"


@app.workflow
async def raises(kind: str) -> None:
    errors: dict[str, BaseException] = {
        "error": RuntimeError("plain"),
        "type": TypeError("of a type"),
        "data": Odd({"n": 5}),
        "group": ExceptionGroup("both", [ValueError("a"), KeyError("b")]),
        "stop": StopAsyncIteration("stopped"),
        "assertion": AssertionError("claimed"),
    }
    raise errors[kind]


@app.workflow
async def raises_after_await() -> None:
    await echo(1)
    raise RuntimeError("after an await")


@app.workflow
async def nested() -> None:
    async def inner() -> None:
        def innermost() -> None:
            raise LookupError("deep")

        await echo(1)
        innermost()

    await inner()


@app.workflow
async def layers() -> list[str]:
    seen: list[str] = []
    try:
        try:
            await fails("first")
        except ValueError:
            seen.append(await echo("in except"))
            raise KeyError("second") from None
        finally:
            seen.append(await echo("in finally"))
    except KeyError:
        seen.append(await echo("in outer"))
    return seen


@app.workflow
async def dangling_in_except() -> str:
    try:
        await fails("first")
    except ValueError:
        echo("nobody awaits this")
    return "done"


@app.workflow
async def not_awaited_failure() -> str:
    fails("nobody looks")
    await hg.sleep(1)
    return "fine"


@app.workflow
async def reraises() -> None:
    try:
        await fails("root")
    except ValueError as exc:
        raise RuntimeError("wrapped") from exc


def test_error__of_an_activity__is_caught_by_its_class(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(catches)) == "caught caught"


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("error", "RuntimeError", "plain"),
        ("type", "TypeError", "of a type"),
        ("data", "Odd", "odd"),
        ("group", "ExceptionGroup", "both"),
        ("stop", "RuntimeError", "StopAsyncIteration"),
        ("assertion", "AssertionError", "claimed"),
    ],
)
def test_error__that_escapes__fails_the_execution_with_its_class_and_message(
    open_env: OpenEnvironment, kind: str, name: str, text: str
) -> None:
    env = open_env(app)
    handle = env.start(raises, kind)
    with pytest.raises(hg.ExecutionFailure) as caught:
        env.result(handle)
    assert handle.status() is hg.Status.FAILED
    if kind != "stop":
        assert (caught.value.type, text in caught.value.message) == (name, True)
    assert caught.value.execution_id == handle.id
    assert "tests/scenarios/test_errors.py" in caught.value.info.trace or kind == "stop"


def test_error__with_data__hands_it_out(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    with pytest.raises(hg.ExecutionFailure) as caught:
        env.result(env.start(raises, "data"))
    assert caught.value.data == {"detail": {"n": 5}}


@pytest.mark.parametrize("name", ["raises_after_await", "nested"])
def test_error__after_an_await_or_deep_down__fails_the_execution(open_env: OpenEnvironment, name: str) -> None:
    env = open_env(app)
    handle = env.start(app.workflows[name])
    with pytest.raises(hg.ExecutionFailure, match=r"after an await|deep"):
        env.result(handle)
    assert issued(env, handle) == ["start_activity", "close"]
    assert left_behind(env) == {}


def test_error__through_except_and_finally_that_await__keeps_its_order(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(layers)) == ["in except", "in finally", "in outer"]


def test_call__dangling_in_except__does_not_hold_up_the_result(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(dangling_in_except)) == "done"
    assert left_behind(env) == {}


def test_activity__failing_with_no_one_awaiting__fails_nothing(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(not_awaited_failure)
    assert env.result(handle) == "fine"
    assert len(turns(env, handle)) == 3


def test_error__wrapped__reports_its_cause(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    with pytest.raises(hg.ExecutionFailure) as caught:
        env.result(env.start(reraises))
    info = caught.value.info
    chain = []
    while info is not None:
        chain.append(info.type)
        info = info.cause  # type: ignore[assignment]
    assert chain[:2] == ["RuntimeError", "ValueError"]


def test_execution__that_failed__can_be_run_again_from_its_beginning(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity(retry=hg.Retry(attempts=1))
    def sometimes(n: int) -> int:
        raise OSError("not this time")

    @mine.workflow
    async def asks(n: int) -> int:
        return await sometimes(n)

    env = open_env(mine)
    env.stand_in(sometimes).raises_once(OSError("not this time")).returns(7)
    handle = env.start(asks, 5, tags={"a": "b"})
    assert handle.status() is hg.Status.FAILED
    again = env.service.client.retry(handle.id)
    assert env.result(again) == 7
    assert again.describe().tags == {"a": "b"}
    assert again.describe().run == 2


def test_error__in_a_task_group__says_why_and_is_chained_for_the_reader(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity(retry=hg.Retry(attempts=1))
    def breaks(n: int) -> None:
        raise OSError(f"disk {n} is full")

    @mine.workflow
    async def groups() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(_awaited(breaks(1)))

    env = open_env(mine)
    with pytest.raises(hg.ExecutionFailure, match=r"1 sub-exception\): OSError: disk 1 is full") as caught:
        env.result(env.start(groups))
    error = caught.value.__cause__
    assert isinstance(error, OSError)
    assert str(error) == "disk 1 is full"
    assert isinstance(error.__cause__, hg.Failure)


async def _awaited(call: Any) -> Any:
    return await call


def test_error__of_an_execution__is_caused_by_what_caused_it(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    with pytest.raises(hg.ExecutionFailure, match="wrapped") as caught:
        env.result(env.start(reraises))
    assert isinstance(caught.value.__cause__, ValueError)
    assert str(caught.value.__cause__) == "root"


def test_error__in_a_callback__is_noted_and_fails_nothing(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def calls_back() -> str:
        def bad() -> None:
            raise ValueError("in a callback")

        asyncio.get_running_loop().call_later(1, bad)
        await hg.sleep(2)
        return "fine"

    env = open_env(mine)
    handle = env.start(calls_back)
    assert env.result(handle) == "fine"
    assert any("in a callback" in text for text in notes(env, handle))


def test_recursion_without_end__in_a_workflow__fails_it(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def deep() -> None:
        def down(n: int) -> int:
            return down(n + 1)

        down(0)

    env = open_env(mine)
    handle = env.start(deep)
    with pytest.raises(hg.ExecutionFailure, match="recursion"):
        env.result(handle)
    assert handle.status() is hg.Status.FAILED
