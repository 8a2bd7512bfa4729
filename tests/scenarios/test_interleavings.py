"""A timer and two activities in every order: what is received first decides, and replay decides the same."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.model.history import ActivityEnded, Close, Event, Signal, Started, TimerFired, Turn
from headgate.durable.replay.interpreter import Interpreter
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import left_behind, turns

app = hg.App("temple")


@app.activity
def jump() -> Any:
    return hg.complete_later()


@app.activity
def run() -> Any:
    return hg.complete_later()


@app.workflow
async def temple() -> str:
    """Run before the trap closes, or be dead."""
    trap = {"closed": False}

    async def close() -> None:
        await hg.sleep(10)
        trap["closed"] = True

    closing = asyncio.create_task(close())
    await jump()
    if trap["closed"]:
        await closing
        return "dead after jump"
    await run()
    return "dead" if trap["closed"] else "alive"


def open_temple(open_env: OpenEnvironment) -> tuple[hg.testing.Environment, hg.Handle, dict[str, str]]:
    env = open_env(app)
    tokens: dict[str, str] = {}

    def keep() -> Any:
        tokens[hg.activity().name] = hg.activity().token
        return hg.complete_later()

    env.stand_in(jump).calls_with(keep)
    env.stand_in(run).calls_with(keep)
    return env, env.start(temple), tokens


def end(env: hg.testing.Environment, token: str) -> None:
    env.service.client.complete_activity(token, Raw(b'"done"'))


def test_temple__nothing_ends__waits(open_env: OpenEnvironment) -> None:
    env, handle, tokens = open_temple(open_env)
    assert set(tokens) == {"jump"}
    env.advance("9s")
    assert handle.status() is hg.Status.RUNNING


def test_temple__timer_first__dead(open_env: OpenEnvironment) -> None:
    env, handle, tokens = open_temple(open_env)
    env.advance("10s")
    assert handle.status() is hg.Status.RUNNING
    end(env, tokens["jump"])
    assert env.result(handle) == "dead after jump"


def test_temple__jump_then_timer_then_run__dead(open_env: OpenEnvironment) -> None:
    env, handle, tokens = open_temple(open_env)
    end(env, tokens["jump"])
    env.run()
    env.advance("10s")
    end(env, tokens["run"])
    assert env.result(handle) == "dead"


def test_temple__jump_and_run_before_the_timer__alive(open_env: OpenEnvironment) -> None:
    env, handle, tokens = open_temple(open_env)
    end(env, tokens["jump"])
    env.advance("5s")
    end(env, tokens["run"])
    assert env.result(handle) == "alive"
    assert left_behind(env) == {}


def test_temple__run_and_timer_in_one_turn__mail_is_received_before_time(open_env: OpenEnvironment) -> None:
    env, handle, tokens = open_temple(open_env)
    end(env, tokens["jump"])
    env.run()
    env.clock.advance(10)
    end(env, tokens["run"])
    env.run()
    assert env.result(handle) == "alive"
    hg.testing.replay(temple, handle.id, turns(env, handle))
    assert left_behind(env) == {}


# At the level of the interpreter: every order of every event, in every division into turns.


@app.workflow
async def everything() -> list[Any]:
    seen: list[Any] = []

    async def noted(name: str, what: Any) -> None:
        seen.append([name, await what])
        if name == "first":
            seen.append(["third", await echo(3)])

    async def napped() -> None:
        await hg.sleep(10)
        seen.append(["timer", None])

    async with asyncio.TaskGroup() as group:
        group.create_task(noted("first", echo(1)))
        group.create_task(noted("second", echo(2)))
        group.create_task(napped())
        group.create_task(noted("signal", hg.wait_signal("go")))
    return seen


@app.activity
def echo(n: int) -> int:
    return n


STARTED = Started("everything", Raw(b"null"), seed="seed")
LATER: dict[str, Event] = {
    "first": ActivityEnded(1, Raw(b"1")),
    "second": ActivityEnded(2, Raw(b"2")),
    "timer": TimerFired(3),
    "signal": Signal("go", Raw(b'"now"')),
    "third": ActivityEnded(4, Raw(b"3")),
}
ORDERS = [order for order in itertools.permutations(LATER) if order.index("third") > order.index("first")]


def live(batches: list[list[Event]]) -> list[Turn]:
    """Return the turns of an execution that receives these events."""
    interpreter = Interpreter(everything.function, everything.signature, "everything")
    found = []
    for number, batch in enumerate(batches, 1):
        consumed, commands = interpreter.advance(1_000 * number + 20_000, batch)
        found.append(Turn(number, 1, interpreter.at_ms, tuple(batch[:consumed]), commands))
    assert interpreter.closed is not None
    return found


def result_of(history: list[Turn]) -> list[Any]:
    """Return what the execution of these turns returned."""
    close = history[-1].commands[-1]
    assert isinstance(close, Close)
    found: list[Any] = msgspec.json.decode(bytes(close.result))
    return found


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_every_order__in_turns_of_one_and_all_together__is_seen_as_it_was_received(order: tuple[str, ...]) -> None:
    result = [LATER[name] for name in order]
    apart = live([[STARTED], *([event] for event in result)])
    together = live([[STARTED], result])
    in_pairs = live([[STARTED, result[0]], result[1:3], result[3:]])
    for history in (apart, together, in_pairs):
        hg.testing.replay(everything, "everything", history)
        assert [name for name, _ in result_of(history)] == list(order)


def test_completion__received_twice__counts_once() -> None:
    twice = [LATER["first"], LATER["first"], LATER["timer"], LATER["timer"]]
    rest = [LATER["second"], LATER["signal"], LATER["third"]]
    history = live([[STARTED], twice, rest])
    hg.testing.replay(everything, "everything", history)
    assert len(result_of(history)) == 5


def test_events__after_the_one_that_ended_the_run__are_not_consumed() -> None:
    history = live([[STARTED], [*LATER.values(), LATER["signal"], LATER["signal"]]])
    assert len(history[-1].events) == 5
