"""Children: called, failing, timing out, cancelled, signalled, and what becomes of them when their parent ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import headgate as hg
from headgate.durable.model.history import ChildEnded, StartChild
from headgate.errors import AlreadyStartedError, InvalidIdError, InvalidPayloadError
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import commands, events, issued, left_behind

app = hg.App("children")


class Unlucky(Exception):
    """An error that a child fails with."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")
        self.number = number


@app.activity
def double(n: int) -> int:
    return 2 * n


@app.workflow
async def child(n: int) -> int:
    return await double(n)


@app.workflow
async def unlucky(n: int) -> None:
    raise Unlucky(n)


@app.workflow
async def sleepy(duration: str) -> str:
    try:
        await hg.sleep(duration)
    except asyncio.CancelledError:
        hg.log("the child was cancelled")
        raise
    return "slept"


@app.workflow
async def stubborn(duration: str) -> str:
    try:
        await hg.sleep(duration)
    except asyncio.CancelledError:
        return "cleaned up"
    return "slept"


@app.workflow
async def parent(n: int) -> int:
    return int(await child(n)) + 1


@app.workflow
async def parent_of_many(count: int) -> list[int]:
    return list(await asyncio.gather(*(child(n) for n in range(count))))


@app.workflow
async def parent_of_unlucky() -> dict[str, Any]:
    try:
        await unlucky(13)
    except Unlucky as exc:
        failure = exc.__cause__
        assert isinstance(failure, hg.ChildFailure)
        return {"number": exc.number, "text": str(exc), "status": failure.status, "child": failure.execution_id}
    return {}


@app.workflow
async def grandparent(n: int) -> int:
    return int(await parent(n)) + 100


@app.workflow
async def with_a_limit(limit: str) -> dict[str, Any]:
    try:
        return {"result": await sleepy.options(timeout=limit)("1h")}
    except hg.ChildFailure as exc:
        return {"status": exc.status, "at": hg.now().timestamp()}


@app.workflow
async def gives_up() -> str:
    call = sleepy("1d")
    await hg.sleep("1m")
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return call.id
    return "waited"


@app.workflow
async def leaves_behind(policy: str) -> str:
    call = sleepy.options(parent_close=policy)("1h")
    await hg.sleep("1m")
    return call.id


@app.workflow
async def leaves_at_once(policy: str) -> str:
    return sleepy.options(parent_close=policy)("1h").id


@app.workflow
async def with_an_id(child_id: str) -> Any:
    try:
        return await child.options(id=child_id, tags={"of": "parent"})(21)
    except AlreadyStartedError as exc:
        return f"taken: {exc}"


# Ping and pong.


@app.workflow
async def ponger() -> int:
    result = 0
    while True:
        ball = await hg.wait_signal("ping")
        if ball is None:
            return result
        result += 1
        await hg.signal(ball["from"], "pong", ball["n"] + 1)


@app.workflow
async def pinger(rounds: int) -> list[int]:
    other = ponger()
    got = []
    for n in range(rounds):
        await other.signal("ping", {"from": hg.info().execution_id, "n": n})
        got.append(await hg.wait_signal("pong"))
    await other.signal("ping", None)
    return [*got, await other]


def test_child__called__is_an_execution_of_its_own(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(parent, 4)
    assert env.result(handle) == 9
    assert issued(env, handle) == ["start_child", "close"]
    (row,) = env.service.client.list(parent_id=handle.id).executions
    assert (row.workflow, row.status, row.result) == ("child", hg.Status.SUCCEEDED, "8")
    assert left_behind(env) == {}


def test_child__of_a_child__works_as_deep_as_it_goes(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(grandparent, 4)) == 109


@pytest.mark.parametrize("count", [5, 120])
def test_children__many_at_once__all_run_once(open_env: OpenEnvironment, count: int) -> None:
    env = open_env(app)
    handle = env.start(parent_of_many, count)
    assert env.result(handle) == [2 * n for n in range(count)]
    assert len([event for event in events(env, handle) if isinstance(event, ChildEnded)]) == count
    assert left_behind(env) == {}


def test_child__fails__its_error_reaches_the_parent_as_it_was(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(parent_of_unlucky)
    found = env.result(handle)
    (started,) = [command for command in commands(env, handle) if isinstance(command, StartChild)]
    assert found == {"number": 13, "text": "number 13", "status": "FAILED", "child": started.child_id}


def test_child__fails_uncaught__fails_the_parent_with_the_chain(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner() -> None:
        raise ValueError("deep down")

    @mine.workflow
    async def outer() -> None:
        await inner()

    env = open_env(mine)
    with pytest.raises(hg.ExecutionFailure, match="deep down") as caught:
        env.result(env.start(outer))
    assert caught.value.type == "ValueError"


def test_child__with_a_time_limit__ends_timed_out(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    found = env.result(env.start(with_a_limit, "10m"))
    assert found == {"status": "TIMED_OUT", "at": 1_750_000_600.0}
    assert env.result(env.start(with_a_limit, "2h")) == {"result": "slept"}
    assert left_behind(env) == {}


def test_child__cancelled_by_its_parent__receives_it(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(gives_up)
    child_id = env.result(handle)
    assert env.service.client.get(child_id).status is hg.Status.CANCELLED
    assert "cancel_child" in issued(env, handle)
    assert [note.text for note in env.service.client.logs(child_id)] == ["the child was cancelled"]
    assert left_behind(env) == {}


@pytest.mark.parametrize(
    ("policy", "status"),
    [
        ("terminate", hg.Status.TERMINATED),
        ("cancel", hg.Status.CANCELLED),
        ("abandon", hg.Status.SUCCEEDED),
    ],
)
def test_child__open_when_the_parent_returns__is_treated_as_asked(
    open_env: OpenEnvironment, policy: str, status: hg.Status
) -> None:
    env = open_env(app)
    child_id = env.result(env.start(leaves_behind, policy))
    env.advance("2h")
    assert env.service.client.get(child_id).status is status
    assert left_behind(env) == {}


@pytest.mark.parametrize("how", ["terminate", "fail", "cancel", "time out"])
def test_child__open_when_the_parent_ends_otherwise__is_ended_too(open_env: OpenEnvironment, how: str) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner() -> None:
        await hg.wait_signal("never")

    @mine.workflow
    async def outer() -> None:
        call = inner.options(id="inner")()
        await hg.wait_signal("fail")
        raise ValueError(call.id)

    env = open_env(mine)
    handle = env.start(outer, timeout="1h")
    ends: dict[str, Callable[[], None]] = {
        "terminate": handle.terminate,
        "cancel": handle.cancel,
        "fail": lambda: handle.signal("fail"),
        "time out": lambda: env.advance("1h"),
    }
    ends[how]()
    env.run()
    assert handle.status().is_closed
    assert env.service.client.get("inner").status is hg.Status.TERMINATED
    assert left_behind(env) == {}


def test_child__abandoned_in_the_parents_last_turn__is_started(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    child_id = env.result(env.start(leaves_at_once, "abandon"))
    env.advance("2h")
    assert env.service.client.get(child_id).status is hg.Status.SUCCEEDED


def test_child__cancelled_but_stubborn__its_result_is_of_no_interest(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner() -> str:
        try:
            await hg.wait_signal("never")
        except asyncio.CancelledError:
            return "refused to die"
        return ""

    @mine.workflow
    async def outer() -> str:
        call = inner.options(id="inner")()
        try:
            async with asyncio.timeout(10):
                await call
        except TimeoutError:
            await hg.sleep(10)
            return "went on"
        return "waited"

    env = open_env(mine)
    assert env.result(env.start(outer)) == "went on"
    assert env.service.client.get("inner").status is hg.Status.SUCCEEDED


def test_child__under_an_id_of_its_own__is_found_by_it(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(with_an_id, "mine-alone")) == 42
    row = env.service.client.get("mine-alone")
    assert row.tags == {"of": "parent"}


def test_child__under_an_id_that_is_taken__fails_in_the_parent(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    env.start(child, 1, id="taken")
    assert env.result(env.start(with_an_id, "taken")).startswith("taken: ")


@pytest.mark.parametrize("child_id", ["", "a b", "x" * 201])
def test_child__under_what_cannot_be_an_id__raises_in_the_parent(open_env: OpenEnvironment, child_id: str) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def outer() -> str:
        try:
            outer.options(id=child_id)
        except InvalidIdError:
            return "refused"
        return "taken"

    env = open_env(mine)
    assert env.result(env.start(outer)) == "refused"


def test_child__knows_its_parent(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner() -> str | None:
        return hg.info().parent_id

    @mine.workflow
    async def outer() -> bool:
        return bool(await inner() == hg.info().execution_id)

    env = open_env(mine)
    assert env.result(env.start(outer)) is True


def test_ping_pong__between_parent_and_child__every_ball_is_received_once(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(pinger, 10)) == [*range(1, 11), 10]
    assert left_behind(env) == {}


def test_child__that_is_stuck__holds_its_parent_until_redriven(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def inner(n: int) -> int:
        inner.start(n)
        return n

    @mine.workflow
    async def outer() -> int:
        return int(await inner.options(id="inner")(1))

    env = open_env(mine)
    handle = env.start(outer)
    env.advance("1h")
    assert env.service.client.get("inner").status is hg.Status.STUCK
    assert handle.status() is hg.Status.RUNNING
    env.service.client.terminate("inner", "beyond help")
    with pytest.raises(hg.ExecutionFailure, match="beyond help") as caught:
        env.result(handle)
    assert caught.value.type == "ChildFailure"


def test_child__input_that_does_not_fit__raises_at_the_call(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.workflow
    async def counts(n: int) -> int:
        return n

    @mine.workflow
    async def asks(n: Any) -> Any:
        try:
            return await counts(n)
        except InvalidPayloadError as exc:
            await hg.sleep("1m")
            return str(exc)

    env = open_env(mine)
    handle = env.start(asks, "abc")
    assert "input of workflow counts: parameter 'n'" in env.result(handle)
    assert issued(env, handle) == ["start_timer", "close"]
    assert env.result(env.start(asks, 5)) == 5


def test_child__whose_parameter_has_changed_since_it_was_called__still_replays(open_env: OpenEnvironment) -> None:
    def declare(kind: Any) -> Any:
        mine = hg.App("mine")

        async def counts(n: Any) -> str:
            return str(n)

        counts.__annotations__["n"] = kind
        child = mine.workflow(counts)

        @mine.workflow
        async def asks(n: Any) -> str:
            return str(await child(n))

        return mine, asks

    mine, asks = declare(str)
    env = open_env(mine)
    handle = env.start(asks, "abc")
    assert env.result(handle) == "abc"
    _, changed = declare(int)
    hg.testing.replay(changed, handle.id, env.service.client.history(handle.id))
