"""Activities that end while the store is busy, with real threads: each is reported once it recovers, and once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate as hg
from headgate.clock import SystemClock
from headgate.durable.model.history import ActivityEnded
from headgate.durable.service import Service
from headgate.errors import OutcomeUnknownError, StoreBusyError
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.keyring import Keyring
from tests.acceptance.program import until
from tests.simulation.durable_processes import ProcessStore
from tests.stores import open_sqlite

COUNT = 5
# What reports are made of. Signs of life go through: they are not what is looked at here.
REPORTS = frozenset({"transact", "transact_many"})

app = hg.App("reporting")
called: Counter[tuple[str, int]] = Counter()
release = threading.Event()
hung = threading.Event()


@app.activity(retry=hg.Retry(attempts=1))
def plain(number: int) -> int:
    called["plain", number] += 1
    release.wait(30)
    return number


@app.activity(retry=hg.Retry(attempts=1))
async def waiting(number: int) -> int:
    called["waiting", number] += 1
    while not release.is_set():
        await asyncio.sleep(0.01)
    return number


@app.activity(retry=hg.Retry(attempts=1), limit=hg.Limit(concurrency=COUNT, key="reports"))
def limited(number: int) -> int:
    called["limited", number] += 1
    release.wait(30)
    return number


@app.activity(retry=hg.Retry(attempts=2, first="50ms"))
def failing(number: int) -> int:
    called["failing", number] += 1
    if hg.activity().attempt == 1:
        release.wait(30)
        raise LookupError(f"not at first: {number}")
    return number


@app.activity(retry=hg.Retry(attempts=2, first="50ms"), timeout="300ms")
def hanging(number: int) -> int:
    called["hanging", number] += 1
    if hg.activity().attempt == 1:
        hung.set()
        release.wait(30)
    return number


@app.workflow
async def reporting(number: int) -> list[int]:
    return list(await asyncio.gather(plain(number), waiting(number), limited(number), failing(number)))


@app.workflow
async def patient(number: int) -> int:
    return await hanging(number)


class BusyStore(ProcessStore):
    """A store that does not take reports for a while, or takes them and does not say so."""

    error: type[StoreBusyError] | type[OutcomeUnknownError] | None = None
    refused = 0

    def _call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        error = self.error
        if error is None or name not in REPORTS:
            return super()._call(name, method, args, kwargs)
        if error is OutcomeUnknownError:
            super()._call(name, method, args, kwargs)
        self.refused += 1
        raise error("simulated")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[BusyStore]:
    opened = open_sqlite(tmp_path)
    yield BusyStore(opened)
    opened.close()


@pytest.fixture
def service(store: Any, tmp_path: Path) -> Iterator[Service]:
    called.clear()
    release.clear()
    hung.clear()
    clock = SystemClock()
    made = Service(app, store, clock, Keyring.open(tmp_path / "keys.json", clock), FolderBlobs(tmp_path / "blobs"))
    failures: list[BaseException] = []
    made.start(on_fatal=failures.append)
    yield made
    release.set()
    store.error = None
    made.stop()
    assert failures == []


def ended(service: Service, execution_id: str) -> dict[int, list[ActivityEnded]]:
    """Return how the activities of an execution ended, and how often each did."""
    found: dict[int, list[ActivityEnded]] = {}
    for turn in service.client.history(execution_id):
        for event in turn.events:
            if isinstance(event, ActivityEnded):
                found.setdefault(event.seq, []).append(event)
    return found


@pytest.mark.parametrize("error", [StoreBusyError, OutcomeUnknownError])
def test_report__store_busy_when_activities_end__each_is_reported_once_when_it_recovers(
    service: Service, store: BusyStore, error: type[StoreBusyError] | type[OutcomeUnknownError]
) -> None:
    handles = [reporting.start(number) for number in range(COUNT)]
    until(lambda: len(called) == 4 * COUNT, "all activities")

    store.error = error
    release.set()
    until(lambda: store.refused >= COUNT, "reports that the store does not take")
    store.error = None

    assert [handle.result(30) for handle in handles] == [[number] * 4 for number in range(COUNT)]
    for handle in handles:
        ends = ended(service, handle.id)
        assert [(len(result), result[0].attempts) for _, result in sorted(ends.items())] == [
            (1, 1),
            (1, 1),
            (1, 1),
            (1, 2),
        ]
    assert called == {
        (name, number): times
        for number in range(COUNT)
        for name, times in {"plain": 1, "waiting": 1, "limited": 1, "failing": 2}.items()
    }


@pytest.mark.parametrize("error", [StoreBusyError, OutcomeUnknownError])
def test_time_out__store_busy_when_it_passes__is_tried_again_and_reported_once(
    service: Service, store: BusyStore, error: type[StoreBusyError] | type[OutcomeUnknownError]
) -> None:
    handle = patient.start(7)
    assert hung.wait(30)

    store.error = error
    until(lambda: store.refused >= 1, "the time-out, which the store does not take")
    store.error = None

    assert handle.result(30) == 7
    release.set()
    (result,) = ended(service, handle.id)[1]
    assert (result.attempts, result.error, result.timeout) == (2, None, None)
    assert called == {("hanging", 7): 2}
