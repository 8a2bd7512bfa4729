"""Activities that are cancelled while they run: they are notified, stopped where that can be, and dropped."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

import headgate as hg
from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.history import CancelActivity
from headgate.durable.model.records import Activity
from headgate.durable.worker.async_executor import AsyncExecutor
from headgate.durable.worker.poll_schedule import SWEEP_SECONDS
from headgate.durable.worker.worker import Worker
from tests.process_state import is_gone
from tests.scenarios.conftest import OpenEnvironment
from tests.scenarios.histories import commands, left_behind

WITHIN_SECONDS = 20.0

app = hg.App("unwanted")
begun = threading.Event()
reports: list[str] = []


@app.activity(retry=hg.Retry(attempts=3))
def blocks(n: int) -> int:
    return n


@app.activity(limit=hg.Limit(concurrency=1))
def limited(n: int) -> int:
    return n


@app.activity(isolate=True)
def spins(path: str) -> None:
    written = Path(f"{path}.new")
    written.write_text(str(os.getpid()))
    written.rename(path)
    while True:
        time.sleep(0.02)


@app.activity
async def dozes(n: int) -> int:
    begun.set()
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        reports.append("cancelled")
        raise
    return n


@app.workflow
async def wants(n: int) -> int:
    return await blocks(n)


@app.workflow
async def wants_for_a_minute(n: int) -> int:
    async with asyncio.timeout(60):
        return await blocks(n)


@app.workflow
async def wants_limited(n: int) -> int:
    return await limited(n)


@app.workflow
async def wants_many(n: int) -> int:
    return sum(await asyncio.gather(*[blocks(each) for each in range(n)]))


@app.workflow
async def wants_spinning(path: str) -> None:
    await spins(path)


@app.workflow
async def wants_dozing(n: int) -> int:
    return await dozes(n)


@pytest.fixture(autouse=True)
def nothing_reported() -> None:
    begun.clear()
    reports.clear()


@pytest.fixture
def performers() -> Iterator[list[AsyncExecutor]]:
    made: list[AsyncExecutor] = []
    yield made
    for each in made:
        each.stop()


def step(worker: Worker) -> None:
    """Look, and lead until none is ready, without performing anything."""
    for _ in range(3):
        worker.poll()
        while worker.engine.has_work:
            worker.turn()


def claimed(worker: Worker) -> Activity:
    step(worker)
    return worker.queue.popleft()


def until(holds: Callable[[], Any], what: str) -> None:
    ends_at = time.monotonic() + WITHIN_SECONDS
    while not holds():
        assert time.monotonic() < ends_at, f"{what}: not within {WITHIN_SECONDS:g} s"
        time.sleep(0.01)


@pytest.mark.parametrize("ends", [hg.Handle.cancel, hg.Handle.terminate], ids=["cancel", "terminate"])
def test_unwanted__in_a_thread__is_reported_at_once_and_its_result_dropped(
    open_env: OpenEnvironment, ends: Callable[[hg.Handle], None]
) -> None:
    env = open_env(app)
    handle = wants.start(1)
    activity = claimed(env.worker)
    running = env.worker.begin(activity)
    ends(handle)
    step(env.worker)
    assert handle.status().is_closed
    assert running.context.cancelled
    env.worker.finish(activity, AttemptResult())
    assert env.worker.running == {}
    assert left_behind(env) == {}


def test_unwanted__a_call_that_was_cancelled_or_an_execution_out_of_time__is_reported_too(
    open_env: OpenEnvironment,
) -> None:
    env = open_env(app)
    for workflow, limit in ((wants_for_a_minute, None), (wants, "30s")):
        handle = workflow.start(1, timeout=limit)
        running = env.worker.begin(claimed(env.worker))
        env.clock.advance(61)
        step(env.worker)
        assert handle.status() in (hg.Status.FAILED, hg.Status.TIMED_OUT)
        assert running.context.cancelled
        env.worker.finish(running.activity, AttemptResult())


def test_unwanted__of_many_more_than_one_transaction_takes__all_are_reported(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = wants_many.start(150)
    step(env.worker)
    running = []
    while env.worker.queue:
        running.append(env.worker.begin(env.worker.queue.popleft()))
        step(env.worker)
    assert len(running) == 150
    handle.terminate()
    step(env.worker)
    assert sum(isinstance(each, CancelActivity) for each in commands(env, handle)) == 150
    assert all(each.context.cancelled for each in running)


def test_unwanted__waits_here_for_a_thread__is_never_begun(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = wants.start(1)
    step(env.worker)
    assert len(env.worker.queue) == 1
    handle.cancel()
    step(env.worker)
    assert not env.worker.queue


def test_unwanted__cancelled_by_another_process__is_reported_with_the_next_sweep(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    worker, other = env.worker, env.service.worker()
    other.join()
    first, waiting = wants.start(1, id="first"), wants.start(2, id="waiting")
    running = worker.begin(claimed(worker))
    assert len(worker.queue) == 1
    for handle in (first, waiting):
        handle.cancel()
        other.engine.read_inbox(handle.id)
        while other.engine.has_work:
            other.turn()
        assert handle.status() is hg.Status.CANCELLED
    # Nothing of it was committed here, and no other process has notified this worker.
    worker.engine.ready.take(10)
    worker.engine.ready.end_batch()
    assert not running.context.cancelled
    env.clock.advance(SWEEP_SECONDS)
    worker.poll()
    assert running.context.cancelled
    assert not worker.queue
    worker.finish(running.activity, AttemptResult())
    assert worker.running == {}


def test_unwanted__held_and_wanted__is_left_alone_by_sweeps(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = wants.start(7)
    running = env.worker.begin(claimed(env.worker))
    for _ in range(3):
        env.clock.advance(SWEEP_SECONDS)
        step(env.worker)
    assert not running.context.cancelled
    env.worker.finish(running.activity, AttemptResult(result=Raw(b"7")))
    step(env.worker)
    assert handle.result(0) == 7


def test_unwanted__with_a_limit__gives_its_slot_to_the_next(open_env: OpenEnvironment) -> None:
    env = open_env(app)
    handle = wants_limited.start(1, id="first")
    running = env.worker.begin(claimed(env.worker))
    assert running.activity.limit_slot is not None
    handle.cancel()
    step(env.worker)
    assert running.context.cancelled
    assert env.result(env.start(wants_limited, 2, id="second")) == 2


def test_unwanted__in_a_process_of_its_own__is_killed(open_env: OpenEnvironment, tmp_path: Path) -> None:
    env = open_env(app)
    path = tmp_path / "pid"
    handle = wants_spinning.start(str(path))
    activity = claimed(env.worker)
    thread = threading.Thread(target=env.worker.perform, args=(activity,), daemon=True)
    thread.start()
    until(path.exists, "the start of the process")
    handle.cancel()
    step(env.worker)
    thread.join(WITHIN_SECONDS)
    assert not thread.is_alive()
    pid = int(path.read_text())
    until(lambda: is_gone(pid), "the end of the process")
    assert env.worker.running == {}
    assert handle.status() is hg.Status.CANCELLED


def test_unwanted__on_an_event_loop__is_cancelled_there(
    open_env: OpenEnvironment, performers: list[AsyncExecutor]
) -> None:
    env = open_env(app)
    ended = threading.Event()
    failures: list[Exception] = []
    performers.append(AsyncExecutor(env.worker, on_ended=ended.set, on_failed=failures.append))
    handle = wants_dozing.start(1)
    performers[0].perform(claimed(env.worker))
    assert begun.wait(WITHIN_SECONDS)
    handle.cancel()
    step(env.worker)
    assert ended.wait(WITHIN_SECONDS)
    assert reports == ["cancelled"]
    assert env.worker.running == {}
    assert failures == []
    assert left_behind(env) == {}


def test_unwanted__on_an_event_loop_before_it_began__never_begins(
    open_env: OpenEnvironment, performers: list[AsyncExecutor]
) -> None:
    env = open_env(app)
    ended = threading.Event()
    failures: list[Exception] = []
    performers.append(AsyncExecutor(env.worker, on_ended=ended.set, on_failed=failures.append))
    wants_dozing.start(1)
    activity = claimed(env.worker)
    begin = env.worker.begin

    def begin_unwanted(activity: Activity) -> Any:
        running = begin(activity)
        running.abandon()
        return running

    env.worker.begin = begin_unwanted  # type: ignore[method-assign]
    performers[0].perform(activity)
    assert ended.wait(WITHIN_SECONDS)
    assert not begun.is_set()
    assert env.worker.running == {}
