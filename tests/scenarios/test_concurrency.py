"""Many things at once: all, any, first, settled, nested, constants, what is done already, and left to right."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

import headgate as hg
from headgate.durable.model.history import StartActivity
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import commands, left_behind

app = hg.App("concurrency")


@app.activity(retry=hg.Retry(attempts=1))
def echo(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("bad"):
        raise ValueError(value)
    return value


async def nap(seconds: float, value: Any) -> Any:
    await hg.sleep(seconds)
    if isinstance(value, str) and value.startswith("bad"):
        raise ValueError(value)
    return value


async def first_of(*given: Awaitable[Any]) -> Any:
    """Return what the first to end returns, or raise what it raises, and cancel the others."""
    tasks = [asyncio.ensure_future(one) for one in given]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return next(task for task in tasks if task in done).result()


async def any_of(*given: Awaitable[Any]) -> Any:
    """Return the first result, whatever fails before it; raise all errors if there is none."""
    pending = {asyncio.ensure_future(one) for one in given}
    errors: list[Exception] = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if error is None:
                for left in pending:
                    left.cancel()
                return task.result()
            assert isinstance(error, Exception)
            errors.append(error)
    raise ExceptionGroup("all failed", errors)


@app.workflow
async def all_of(values: list[Any]) -> list[Any]:
    return list(await asyncio.gather(*(echo(value) for value in values)))


@app.workflow
async def all_of_constants() -> list[Any]:
    async def constant(value: Any) -> Any:
        return value

    done = echo("done before")
    await done
    return list(await asyncio.gather(constant(1), done, constant(3)))


@app.workflow
async def nothing_at_all() -> list[Any]:
    return list(await asyncio.gather())


@app.workflow
async def all_of_all() -> list[Any]:
    async def pair(n: int) -> list[Any]:
        return list(await asyncio.gather(echo(n), nap(n, -n)))

    return list(await asyncio.gather(*(pair(n) for n in range(4))))


@app.workflow
async def chains() -> list[Any]:
    async def chain(name: str) -> str:
        text = name
        for n in range(3):
            text = await echo(f"{text}{n}")
        return text

    return list(await asyncio.gather(*(chain(name) for name in "abcd")))


@app.workflow
async def racing(kind: str) -> Any:
    match kind:
        case "any":
            return await any_of(nap(3, "slow"), nap(1, "bad"), nap(2, "good"))
        case "any of failures":
            try:
                await any_of(nap(3, "bad 1"), nap(1, "bad 2"))
            except ExceptionGroup as group:
                return [str(error) for error in group.exceptions]
        case "first result":
            return await first_of(nap(3, "slow"), nap(1, "quick"))
        case "first error":
            try:
                await first_of(nap(3, "slow"), nap(1, "bad"))
            except ValueError as exc:
                return str(exc)
        case "settled":
            found = await asyncio.gather(nap(2, 1), nap(1, "bad"), echo("bad too"), return_exceptions=True)
            return [str(one) for one in found]
    return None


@app.workflow
async def fails_fast() -> list[Any]:
    seen: list[Any] = []

    async def watched(n: int) -> None:
        try:
            await hg.sleep("1h")
        finally:
            seen.append(n)

    tasks = [asyncio.ensure_future(watched(n)) for n in range(3)]
    try:
        await asyncio.gather(*tasks, nap(1, "bad"))
    except ValueError as exc:
        seen.append(str(exc))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return seen


@app.workflow
async def bounded(count: int, width: int) -> list[int]:
    gate = asyncio.Semaphore(width)
    running = [0, 0]

    async def one(n: int) -> int:
        async with gate:
            running[0] += 1
            running[1] = max(running)
            await nap(1, n)
            running[0] -= 1
            return n

    found = await asyncio.gather(*(one(n) for n in range(count)))
    return [*found, running[1]]


def test_gather__of_activities__keeps_the_order_of_its_arguments(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = env.start(all_of, [3, 1, 2])
    assert env.result(handle) == [3, 1, 2]
    asked = [bytes(command.input) for command in commands(env, handle) if isinstance(command, StartActivity)]
    assert asked == [b"3", b"1", b"2"]


def test_gather__of_constants_and_what_is_done__needs_no_more_turns(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(all_of_constants)) == [1, "done before", 3]
    assert env.result(env.start(nothing_at_all)) == []


def test_gather__of_gathers_and_chains__gives_each_its_own(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(all_of_all)) == [[0, 0], [1, -1], [2, -2], [3, -3]]
    assert env.result(env.start(chains)) == ["a012", "b012", "c012", "d012"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("any", "good"),
        ("any of failures", ["bad 2", "bad 1"]),
        ("first result", "quick"),
        ("first error", "bad"),
        ("settled", ["1", "bad", "bad too"]),
    ],
)
def test_race__of_every_kind__is_decided_by_time(open_env: OpenEnvironment, kind: str, expected: Any) -> None:
    env = open_env(app)
    assert env.result(env.start(racing, kind)) == expected
    assert left_behind(env) == {}


def test_gather__one_fails__the_others_go_on_until_they_are_cancelled(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    assert env.result(env.start(fails_fast)) == ["bad", 0, 1, 2]
    assert left_behind(env) == {}


def test_semaphore__bounds_how_many_run_at_once(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    started = env.clock.seconds()
    assert env.result(env.start(bounded, 10, 3)) == [*range(10), 3]
    assert env.clock.seconds() - started == pytest.approx(4.0, abs=0.1)


def test_race__lost_calls_that_are_not_cancelled__are_let_go_at_the_end(open_env: OpenEnvironment) -> None:
    mine = hg.App("mine")

    @mine.activity
    def stays() -> Any:
        return hg.complete_later()

    @mine.workflow
    async def races() -> str:
        calls = {asyncio.ensure_future(stays()), asyncio.ensure_future(hg.sleep(1))}
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        return "decided"

    env = open_env(mine)
    assert env.result(env.start(races)) == "decided"
    assert left_behind(env) == {}
