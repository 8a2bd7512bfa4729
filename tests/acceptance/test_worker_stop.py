"""A worker that is asked to stop: its running activities get notice, and every attempt that began is recorded."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate as hg
from headgate.durable.model.history import ActivityEnded
from headgate.durable.service import Service
from tests.acceptance.program import until

app = hg.App("stops")
began: list[int] = []
seen: list[str] = []
released = threading.Event()


@app.activity(retry=hg.Retry(attempts=1))
def once() -> str:
    began.append(hg.activity().attempt)
    released.wait(60)
    return "done"


@app.activity(retry=hg.Retry(attempts=2))
def twice() -> int:
    began.append(hg.activity().attempt)
    if hg.activity().attempt == 1:
        released.wait(60)
    return hg.activity().attempt


@app.activity(retry=hg.Retry(attempts=1))
def beating() -> str:
    began.append(hg.activity().attempt)
    while not released.is_set():
        if hg.activity().is_worker_stopping and "notice" not in seen:
            seen.append("notice")
        try:
            hg.heartbeat()
        except hg.Cancelled as exc:
            seen.append(str(exc))
            raise
        time.sleep(0.01)
    return "done"


@app.activity(retry=hg.Retry(attempts=1))
async def waiting() -> str:
    began.append(hg.activity().attempt)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    return "done"


@app.activity(retry=hg.Retry(attempts=1))
def saving() -> str:
    began.append(hg.activity().attempt)
    try:
        while True:
            hg.heartbeat()
            time.sleep(0.01)
    except hg.Cancelled:
        return "saved"


@app.activity(retry=hg.Retry(attempts=1))
def finishing() -> str:
    began.append(hg.activity().attempt)
    while not hg.activity().is_worker_stopping:
        time.sleep(0.01)
    return "done"


@app.activity(retry=hg.Retry(attempts=1), isolate=True)
def isolated(mark: str) -> str:
    Path(mark).touch()
    try:
        while True:
            hg.heartbeat()
            time.sleep(0.01)
    except hg.Cancelled as exc:
        return f"saved: {exc}"


_BODIES = {each.name: each for each in (once, twice, beating, waiting, saving, finishing)}


@app.workflow
async def calling(name: str) -> str:
    try:
        return str(await _BODIES[name]())
    except hg.ActivityFailure as exc:
        return f"{exc.info.type} after {exc.attempts}"


@app.workflow
async def calling_both() -> list[str]:
    first, second = await asyncio.gather(finishing(), once(), return_exceptions=True)
    return [str(first), second.info.type if isinstance(second, hg.ActivityFailure) else str(second)]


@app.workflow
async def calling_isolated(mark: str) -> str:
    return await isolated(mark)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    began.clear()
    seen.clear()
    released.clear()
    yield
    released.set()


def _stopped(home: Path, activity: str, grace_seconds: float) -> str:
    """Start an execution, stop the worker once its activity runs, and return the id of the execution."""
    with hg.connect(app, home=home) as service:
        handle = calling.start(activity)
        until(lambda: bool(began), "the activity")
        service.stop(grace_seconds)
        return handle.id


def _ended(service: Service, execution_id: str) -> ActivityEnded:
    events = [event for turn in service.client.history(execution_id) for event in turn.events]
    return next(event for event in events if isinstance(event, ActivityEnded))


def test_stop__activity_of_one_attempt_runs_on__it_ends_and_never_runs_again(tmp_path: Path) -> None:
    execution_id = _stopped(tmp_path, "once", 0.2)
    with hg.connect(app, home=tmp_path) as service:
        assert service.client.handle(execution_id).result(30) == "WorkerStopped after 1"
        assert "stopped while it ran" in str(_ended(service, execution_id).error)
    assert began == [1]


def test_stop__activity_with_attempts_left__its_attempt_counts(tmp_path: Path) -> None:
    execution_id = _stopped(tmp_path, "twice", 0.2)
    with hg.connect(app, home=tmp_path) as service:
        assert service.client.handle(execution_id).result(30) == "2"
    assert began == [1, 2]


def test_stop__heartbeating_activity__gets_notice_then_cancellation_with_the_reason(tmp_path: Path) -> None:
    execution_id = _stopped(tmp_path, "beating", 2.0)
    assert seen == ["notice", "the worker is stopping"]
    with hg.connect(app, home=tmp_path) as service:
        assert service.client.handle(execution_id).result(30) == "WorkerStopped after 1"


def test_stop__async_activity__is_cancelled_within_the_grace_period(tmp_path: Path) -> None:
    execution_id = _stopped(tmp_path, "waiting", 2.0)
    assert seen == ["cancelled"]
    with hg.connect(app, home=tmp_path) as service:
        assert service.client.handle(execution_id).result(30) == "WorkerStopped after 1"


def test_stop__activity_returns_a_result_on_cancellation__the_result_counts(tmp_path: Path) -> None:
    execution_id = _stopped(tmp_path, "saving", 2.0)
    with hg.connect(app, home=tmp_path) as service:
        assert service.client.handle(execution_id).result(30) == "saved"


def test_stop__activity_in_a_process_of_its_own__gets_the_cancellation_at_its_heartbeat(tmp_path: Path) -> None:
    mark = tmp_path / "running"
    with hg.connect(app, home=tmp_path / "home") as service:
        handle = calling_isolated.start(str(mark))
        until(mark.exists, "the process")
        service.stop(4.0)
    with hg.connect(app, home=tmp_path / "home") as service:
        assert service.client.handle(handle.id).result(30) == "saved: the worker is stopping"


def test_stop__activity_that_watches_for_the_notice__ends_well_and_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    execution_id = _stopped(tmp_path, "finishing", 30.0)
    assert time.monotonic() - started < 14
    with hg.connect(app, home=tmp_path) as service:
        assert service.client.handle(execution_id).result(30) == "done"


def test_stop__activity_ends_while_another_outlasts_the_grace_period__its_result_is_kept(tmp_path: Path) -> None:
    with hg.connect(app, home=tmp_path) as service:
        handle = calling_both.start()
        until(lambda: len(began) == 2, "both activities")
        service.stop(0.5)
    with hg.connect(app, home=tmp_path) as service:
        assert service.client.handle(handle.id).result(15) == ["done", "WorkerStopped"]
    assert began == [1, 1]


def test_stop__grace_period_longer_than_the_lease__no_other_worker_takes_the_activity(tmp_path: Path) -> None:
    with hg.connect(app, home=tmp_path, work=False) as first, hg.connect(app, home=tmp_path, work=False) as second:
        first.start(lease_seconds=1.0)
        handle = calling.start("twice")
        until(lambda: bool(began), "the activity")
        second.start(lease_seconds=1.0)
        stopping = threading.Thread(target=first.stop, args=(10.0,))
        stopping.start()
        # Three lease times: long enough for the second worker to see an expired lease.
        stopping.join(3.0)
        assert began == [1]
        released.set()
        stopping.join(20)
        assert handle.result(30) == "1"
