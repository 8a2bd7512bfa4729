"""Activities and children by name, and children whose cancellation is waited for."""

from __future__ import annotations

import asyncio

import pytest

import headgate as hg
from headgate.durable.model.history import CancelChild
from headgate.errors import DefinitionError, InvalidIdError, InvalidPayloadError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import commands

app = hg.App("by-name")


@app.activity(name="add")
def add(left: int, right: int) -> int:
    return left + right


@app.activity(name="double")
def double(value: int) -> int:
    return 2 * value


@app.workflow
async def child(name: str, wait: float) -> str:
    try:
        await hg.sleep(wait)
    finally:
        # Cleaning up takes a while.
        await asyncio.shield(hg.sleep(60))
    return name


@app.workflow
async def by_name() -> list[object]:
    total = await hg.call_activity("add", {"left": 2, "right": 3}, returns=int)
    doubled = await hg.call_activity("double", total, timeout="1m", retry=hg.Retry(attempts=2))
    begun = hg.start_child("child", {"name": "c", "wait": 1}, id="by-name-child", tags={"kind": "c"}, returns=str)
    return [total, doubled, begun.id, await begun]


@app.workflow
async def impatient(cancellation: str) -> list[str]:
    began = hg.now()
    try:
        async with asyncio.timeout(10):
            await child.options(cancellation=cancellation, parent_close="abandon")("slow", 3600)
    except TimeoutError:
        return [f"{(hg.now() - began).total_seconds():g}"]
    return []


@app.workflow
async def lenient() -> str:
    task = asyncio.ensure_future(hg.start_child("stubborn", cancellation="wait", returns=str))
    await hg.sleep(1)
    task.cancel()
    await hg.sleep(1)
    task.cancel()
    return await task


@app.workflow
async def stubborn() -> str:
    try:
        await hg.sleep(10)
    except asyncio.CancelledError:
        return "done all the same"
    return "not cancelled"


def test_by_name__activity_and_child__are_called_with_their_input(open_env: OpenEnvironment) -> None:
    env = open_env(app)

    assert env.result(env.start(by_name)) == [5, 10, "by-name-child", "c"]
    assert env.service.client.get("by-name-child").tags == {"kind": "c"}


@pytest.mark.parametrize(("cancellation", "seconds"), [("request", "10"), ("wait", "70")])
def test_cancelled_child__waited_for_or_not__lets_the_parent_go_on(
    open_env: OpenEnvironment, cancellation: str, seconds: str
) -> None:
    env = open_env(app)
    handle = env.start(impatient, cancellation)

    assert env.result(handle) == [seconds]
    assert sum(isinstance(each, CancelChild) for each in commands(env, handle)) == 1


def test_cancelled_child__that_succeeds_all_the_same__has_its_result(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(lenient)

    assert env.result(handle) == "done all the same"
    assert sum(isinstance(each, CancelChild) for each in commands(env, handle)) == 1


def test_by_name__not_valid__is_refused(open_env: OpenEnvironment) -> None:
    other = hg.App("refused")

    @other.workflow
    async def main(what: str) -> str:
        try:
            if what == "activity":
                await hg.call_activity("not a name")
            elif what == "option":
                await hg.call_activity("add", time_out="1m")  # type: ignore[call-overload]
            elif what == "built in":
                await hg.start_child("headgate.asl")
            else:
                await hg.start_child("child", cancellation="never")
        except (DefinitionError, InvalidIdError, InvalidPayloadError, TypeError) as exc:
            return str(exc)
        return ""

    env = open_env(other)

    assert "not a name" in env.result(env.start(main, "activity"))
    assert "no option ['time_out']" in env.result(env.start(main, "option"))
    assert "headgate.asl" in env.result(env.start(main, "built in"))
    assert "cancellation 'never': use one of ['request', 'wait']" in env.result(env.start(main, "child"))
