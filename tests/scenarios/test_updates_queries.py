"""Queries read what the code knows; updates change it, may wait, may be refused, and are answered once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg
from headgate.errors import ExecutionClosedError, NotFoundError, WorkflowViolationError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import issued, left_behind, turns

app = hg.App("asking")


@app.activity
def double(n: int) -> int:
    return 2 * n


@app.workflow
async def cart() -> list[str]:
    items: list[str] = []
    state = {"open": True}

    def add(item: str) -> int:
        items.append(item)
        return len(items)

    def check(item: str) -> None:
        if not item:
            raise ValueError("an empty item")

    async def add_later(seconds: float) -> int:
        await hg.sleep(seconds)
        items.append("later")
        return await double(len(items))

    async def breaks() -> None:
        raise LookupError("the handler broke")

    def close() -> str:
        state["open"] = False
        return "closed"

    hg.on_query("items", lambda: items)
    hg.on_query("item", lambda place: items[place])
    hg.on_update("add", add, validator=check)
    hg.on_update("add_later", add_later)
    hg.on_update("breaks", breaks)
    hg.on_update("close", close)
    await hg.wait_condition(lambda: not state["open"])
    return items


# Queries.


def test_query__of_a_running_execution__answers_from_its_code(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    assert handle.query("items") == []
    handle.update("add", "apple")
    assert handle.query("items") == ["apple"]
    assert handle.query("item", 0) == "apple"


def test_query__of_one_that_has_ended__still_answers(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    handle.update("add", "apple")
    handle.update("close")
    assert env.result(handle) == ["apple"]
    assert handle.query("items") == ["apple"]


def test_query__of_one_that_was_terminated__still_answers(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    handle.terminate()
    env.run()
    assert handle.query("items") == []


def test_query__unknown__names_what_there_is(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    with pytest.raises(NotFoundError, match="items"):
        handle.query("nothing")
    with pytest.raises(NotFoundError, match="nobody"):
        env.service.client.handle("nobody").query("items")


def test_query__that_raises__raises_for_the_caller_and_harms_nothing(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    with pytest.raises(Exception, match="list index out of range"):
        handle.query("item", 5)
    assert handle.status() is hg.Status.RUNNING


@pytest.mark.parametrize("kind", ["activity", "emit", "signal", "sleep", "tags", "side effect", "random"])
def test_query__that_would_do_something__is_refused(open_env: OpenEnvironment, kind: str) -> None:
    mine = hg.App("mine")

    @mine.activity
    def act() -> None: ...

    @mine.workflow
    async def asked() -> None:
        def meddle() -> None:
            meddling: dict[str, Callable[[], object]] = {
                "activity": lambda: act(),
                "emit": lambda: hg.emit("x"),
                "signal": lambda: hg.signal("other", "x"),
                "sleep": lambda: asyncio.get_running_loop().call_later(1, int),
                "tags": lambda: hg.set_tags({"a": "b"}),
                "side effect": lambda: hg.side_effect(int),
                "random": lambda: hg.random().random(),
            }
            meddling[kind]()

        hg.on_query("meddle", meddle)
        await hg.wait_signal("end")

    env = open_env(mine)
    handle = env.start(asked)
    before = turns(env, handle)
    if kind == "random":
        handle.query("meddle")
    else:
        with pytest.raises(WorkflowViolationError, match="only reads"):
            handle.query("meddle")
    assert turns(env, handle) == before
    handle.signal("end")
    env.run()
    assert handle.status() is hg.Status.SUCCEEDED


def test_query__with_an_async_function__is_refused_where_it_is_declared(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def asked() -> str:
        async def slow() -> int:
            return 1

        try:
            hg.on_query("slow", slow)
        except Exception as exc:
            return type(exc).__name__
        return "taken"

    env = open_env(mine)
    assert env.result(env.start(asked)) != "taken"


# Updates.


def test_update__answers_and_changes(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    assert handle.update("add", "apple") == 1
    assert handle.update("add", "pear") == 2
    assert handle.update("close") == "closed"
    assert env.result(handle) == ["apple", "pear"]
    assert issued(env, handle).count("answer_update") == 3


def test_update__refused_by_its_validator__changes_nothing(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    with pytest.raises(hg.ExecutionFailure, match="an empty item"):
        handle.update("add", "")
    assert handle.query("items") == []


@pytest.mark.parametrize("value", [5, None, ["x"]])
def test_update__input_that_does_not_fit__is_refused(open_env: OpenEnvironment, value: Any) -> None:
    env = open_env(app)
    handle = env.start(cart)
    with pytest.raises(hg.ExecutionFailure, match="update add"):
        handle.update("add", value)
    assert handle.query("items") == []


def asked_elsewhere(env: hg.testing.Environment, ask: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Ask in another thread, and return once the question is in the store, with where the answer will be."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(ask())
        except hg.ExecutionFailure as exc:
            found.append(str(exc))

    before = env.service.store.generation()
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert env.service.store.wait(before, 10.0) != before
    return caller, found


def test_update__that_waits__is_answered_when_it_is_done(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    caller, found = asked_elsewhere(env, lambda: handle.update("add_later", 5, timeout_seconds=1000))
    env.advance("4s")
    assert found == []
    env.advance("1s")
    caller.join(10.0)
    assert found == [2]


def test_update__whose_handler_raises__reports_the_caller_and_not_the_workflow(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    with pytest.raises(hg.UpdateFailure, match=r"update 'breaks' failed: .*the handler broke") as caught:
        handle.update("breaks")
    assert not caught.value.is_refused
    assert handle.status() is hg.Status.RUNNING


def test_update__unknown__names_what_there_is(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    with pytest.raises(hg.UpdateFailure, match="add_later") as caught:
        handle.update("nothing")
    assert str(caught.value).startswith(f"execution {handle.id!r}: update 'nothing' was refused: NotFoundError: ")
    assert caught.value.is_refused
    # Code that caught the earlier class still does.
    assert isinstance(caught.value, hg.ExecutionFailure)


def test_update__open_when_the_workflow_ends__is_answered_so(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    caller, found = asked_elsewhere(env, lambda: handle.update("add_later", 500, timeout_seconds=1000))
    env.run()
    assert handle.update("close") == "closed"
    caller.join(10.0)
    (answer,) = found
    assert "ended before it answered" in answer
    assert left_behind(env) == {}


def test_update__of_one_that_has_ended__is_refused(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    handle.terminate()
    env.run()
    with pytest.raises(ExecutionClosedError):
        handle.update("add", "late")


def test_update__no_one_answers_in_time__raises_and_does_not_hang(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(cart)
    with pytest.raises(TimeoutError, match="update add_later"):
        handle.update("add_later", 500, timeout_seconds=1)
    env.advance("1h")
    assert handle.query("items") == ["later"]


def test_query__before_the_first_turn__waits_for_it() -> None:
    app = hg.App("early")

    @app.workflow
    async def early(value: int) -> None:
        hg.on_query("value", lambda: value)
        await hg.wait_signal("go")

    with hg.testing.Environment(app) as env:
        assert early.start(5, id="now").query("value") == 5
        later = early.start(6, id="later", delay="1h")
        with pytest.raises(NotFoundError, match="no query 'value'"):
            later.query("value")
        env.advance("2h")
        assert later.query("value") == 6
