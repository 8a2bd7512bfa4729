"""`hg.map`: a fan-out as one step of a workflow, in virtual time and in real processes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.fanout.core.queries import FanoutQueries
from tests.scenarios import map_handlers

app = hg.App("mapping")
ended: list[dict[str, Any]] = []


@app.workflow
async def doubled(count: int) -> list[int]:
    mapped = await hg.map(map_handlers.double, range(count))
    return mapped.results or []


@app.workflow
async def summed(numbers: list[int], chunk_size: int) -> list[int]:
    mapped = await hg.map(map_handlers.total, numbers, chunk_size=chunk_size, each=False)
    return mapped.results or []


@app.workflow
async def scaled(numbers: list[int], factor: int) -> list[list[int]]:
    mapped = await hg.map(map_handlers.scaled, numbers, chunk_size=2, each=False, params={"factor": factor})
    return mapped.results or []


@app.workflow
async def picked(numbers: list[int]) -> str:
    try:
        await hg.map(map_handlers.picky, numbers)
    except hg.FanoutFailure as failure:
        return f"{failure.summary.status} {failure.summary.completed}/{failure.summary.chunks}"
    return "all"


@app.workflow
async def tolerant(numbers: list[int]) -> list[int | None]:
    mapped = await hg.map(map_handlers.picky, numbers, allow_failures=True)
    return mapped.results or []


@app.workflow
async def limited(numbers: list[int], tolerated_failures: int) -> list[int | None] | str:
    policy = hg.Policy(tolerated_failures=tolerated_failures)
    try:
        mapped = await hg.map(map_handlers.picky, numbers, policy=policy)
    except hg.FanoutFailure as failure:
        return f"{failure.summary.status}: {failure.summary.reason}"
    return mapped.results or []


@app.workflow
async def patient(numbers: list[int]) -> list[int]:
    policy = hg.Policy(max_attempts=3, backoff_seconds=60)
    mapped = await hg.map(map_handlers.flaky, numbers, policy=policy)
    return mapped.results or []


@app.workflow
async def two_at_once(count: int) -> list[int]:
    one, other = await asyncio.gather(
        hg.map(map_handlers.double, range(count)), hg.map(map_handlers.double, range(count, 2 * count))
    )
    return [*(one.results or []), *(other.results or [])]


@app.on_event("headgate.fanout.ended")
def note(event: hg.Event) -> None:
    ended.append(event.data)


@pytest.fixture
def env() -> Iterator[hg.testing.Environment]:
    ended.clear()
    map_handlers.calls.clear()
    with hg.testing.Environment(app) as environment:
        yield environment


def test_map__range__gives_results_in_the_order_of_the_items(env: hg.testing.Environment) -> None:
    assert env.result(env.start(doubled, 7)) == [0, 2, 4, 6, 8, 10, 12]


def test_map__nothing__gives_nothing(env: hg.testing.Environment) -> None:
    assert env.result(env.start(doubled, 0)) == []


def test_map__whole_chunks__gives_a_result_for_each(env: hg.testing.Environment) -> None:
    assert env.result(env.start(summed, [1, 2, 3, 4, 5], 2)) == [3, 7, 5]


def test_map__handler_that_takes_the_work__has_items_and_params(env: hg.testing.Environment) -> None:
    assert env.result(env.start(scaled, [1, 2, 3], 10)) == [[10, 20], [30]]


def test_map__one_item_fails_for_good__raises_with_what_came_of_it(env: hg.testing.Environment) -> None:
    assert env.result(env.start(picked, [1, 2, 3, 4])) == "PARTIAL 3/4"


def test_map__failures_allowed__gives_none_for_what_failed(env: hg.testing.Environment) -> None:
    assert env.result(env.start(tolerant, [2, 3, 4])) == [2, None, 4]


def test_map__no_more_failures_than_tolerated__succeeds_with_none_for_them(env: hg.testing.Environment) -> None:
    assert env.result(env.start(limited, [2, 3, 4], 1)) == [2, None, 4]


def test_map__more_failures_than_tolerated__raises_with_the_reason(env: hg.testing.Environment) -> None:
    assert env.result(env.start(limited, [2, 3, 4], 0)) == "FAILED: 1 item failed, and 0 are tolerated"


def test_map__chunks_that_have_to_be_tried_again__are_after_their_pauses(env: hg.testing.Environment) -> None:
    before = env.now

    assert env.result(env.start(patient, [5, 6])) == [5, 6]
    assert map_handlers.calls.count(5) == 3
    assert (env.now - before).total_seconds() >= 180


def test_map__two_at_once__do_not_mix(env: hg.testing.Environment) -> None:
    assert env.result(env.start(two_at_once, 10)) == [2 * number for number in range(20)]


def test_map__its_end__is_reported_on_the_bus(env: hg.testing.Environment) -> None:
    env.result(env.start(picked, [1, 3]))
    env.run()

    assert [(each["status"], each["failed"]) for each in ended] == [("PARTIAL", 1)]


def test_map__handler_of_no_module__is_refused_by_name(env: hg.testing.Environment) -> None:
    @app.workflow(name="nested", check=False)
    async def nested() -> str:
        def inner(item: int) -> int:
            return item

        await hg.map(inner, [1])
        return "?"

    try:
        with pytest.raises(hg.ExecutionFailure, match="a function of a module"):
            env.result(env.start(nested))
    finally:
        del app.workflows["nested"]


def test_map__in_real_processes__is_the_same(tmp_path: Path) -> None:
    with hg.connect(app, home=tmp_path):
        assert doubled.start(50).result(60) == [2 * number for number in range(50)]
        assert picked.start([1, 2, 3]).result(60) == "PARTIAL 2/3"


def test_map__workflow_is_cancelled__cancels_the_fan_out(tmp_path: Path) -> None:
    with hg.connect(app, home=tmp_path, work=False) as service:
        service.start()
        handle = doubled.start(3)
        _until(lambda: handle.describe().turn >= 2)
        handle.cancel("no longer wanted")
        with pytest.raises(hg.ExecutionFailure):
            handle.result(30)
        found = FanoutQueries(service.store, service.clock).active().fanouts
        assert [fanout.cancelled_at is not None for fanout in found] == [True]


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(400):
        if holds():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it did not come to that")
