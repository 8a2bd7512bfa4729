"""The sweeper keeps sweeping: at once after a full batch, after a pause otherwise, and also after an error."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headgate.bootstrap.store import OpenedStore
from headgate.errors import StoreClosedError
from headgate.serve.background import store_sweepers
from headgate.serve.probes import Check, ServerProbes, Status
from headgate.serve.sweeper import BATCH_MAX, DEMAND_SECONDS, Demand, Sweeper
from tests.integration.serve.conftest import Application


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true within 10 s"
        time.sleep(0.001)


def test_sweep__full_batches_then_a_partial_one__goes_on_at_once_and_then_pauses() -> None:
    batches = [BATCH_MAX, BATCH_MAX, 3]
    asked: list[int] = []

    def sweep(limit: int) -> int:
        asked.append(limit)
        return batches.pop(0)

    sweeper = Sweeper("rows", sweep, interval_seconds=3600)
    sweeper.start()
    _until(lambda: sweeper.deleted == 2 * BATCH_MAX + 3)
    sweeper.stop()

    assert asked == [BATCH_MAX] * 3


def test_sweep__nothing_to_delete__comes_back_after_the_interval() -> None:
    swept = threading.Semaphore(0)

    def sweep(_limit: int) -> int:
        swept.release()
        return 0

    sweeper = Sweeper("rows", sweep, interval_seconds=0.01)
    sweeper.start()
    times = [swept.acquire(timeout=10) for _ in range(3)]
    sweeper.stop()

    assert times == [True] * 3


def test_sweep__raises__is_counted_and_kept_until_it_works_again() -> None:
    broken = threading.Event()
    broken.set()

    def sweep(_limit: int) -> int:
        if broken.is_set():
            raise OSError("disk on fire")
        return 0

    sweeper = Sweeper("rows", sweep, interval_seconds=0.01)
    sweeper.start()
    _until(lambda: sweeper.failures >= 2)
    assert sweeper.last_error == "OSError: disk on fire"
    broken.clear()
    _until(lambda: sweeper.last_error is None)
    sweeper.stop()

    assert sweeper.failures >= 2


def test_stop__while_it_pauses__returns_at_once() -> None:
    sweeper = Sweeper("rows", lambda _limit: 0, interval_seconds=3600)
    sweeper.start()

    started_at = time.monotonic()
    sweeper.stop()

    assert time.monotonic() - started_at < 5


def test_stop__never_started__is_harmless() -> None:
    Sweeper("rows", lambda _limit: 0, interval_seconds=3600).stop()


def test_health__a_sweep_fails__is_degraded_and_still_200(application: Application, opened: OpenedStore) -> None:
    # The real sweep of a store that is gone from under it.
    opened.store.close()
    application.sweeper.start()
    _until(lambda: application.sweeper.failures > 0)
    application.sweeper.stop()

    answer = application.ask("GET", "/health")

    assert answer.status_code == 200
    assert answer.json()["status"] == "degraded"
    assert "StoreClosedError" in answer.json()["checks"][1]["fact"]


def test_probe__two_servers_at_once__neither_takes_the_other_for_a_lost_write(
    application: Application, opened: OpenedStore
) -> None:
    other = ServerProbes(version="1", store=opened.store, sweepers=[], clock=application.clock, disk=None)
    failed: list[Check] = []

    def probe(health: ServerProbes) -> None:
        for _ in range(25):
            failed.extend(check for check in health.probe().checks if check.status is Status.FAILED)

    other.phase = application.health.phase
    threads = [threading.Thread(target=probe, args=(health,)) for health in (application.health, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []


def test_stop__a_sweep_takes_long__does_not_wait_for_it_and_does_not_complain_afterwards() -> None:
    under_way, release = threading.Event(), threading.Event()

    def sweep(_limit: int) -> int:
        under_way.set()
        release.wait(60)
        raise StoreClosedError("the store was closed")

    sweeper = Sweeper("rows", sweep, interval_seconds=3600)
    sweeper.start()
    assert under_way.wait(10)
    started_at = time.monotonic()
    sweeper.stop(0.05)
    took_seconds = time.monotonic() - started_at
    release.set()
    sweeper.stop()

    assert took_seconds < 5
    assert sweeper.failures == 0


def test_stop__blobs_are_swept__the_sweep_ends_between_two_of_them(opened: OpenedStore, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "blobs" / "spill" / "2020010100"
    folder.mkdir(parents=True)
    for number in range(3000):
        content = b'["observability-health-check",["row-%d",null],"payload"]\n{"value":"x"}' % number
        (folder / hashlib.sha256(content).hexdigest()).write_bytes(content)
    _, blobs = store_sweepers(opened)

    def condemned() -> int:
        return sum(path.is_file() for path in (tmp_path / "home" / "blobs").rglob("*")) - 3000

    blobs.start()
    _until(lambda: condemned() > 0)
    blobs.stop()

    assert blobs.last_error is None
    assert 0 < condemned() < 3000


def test_health__first_sweep_has_not_ended__says_so(application: Application) -> None:
    before = application.ask("GET", "/health").json()
    application.sweeper.start()
    _until(lambda: application.sweeper.has_run)
    application.sweeper.stop()
    after = application.ask("GET", "/health").json()

    assert before["status"] == after["status"] == "ok"
    assert before["checks"][1]["fact"] == "not run yet"
    assert after["checks"][1]["fact"] == "last sweep succeeded"


def test_sweep__without_demand__is_made_once_and_again_while_there_is_demand() -> None:
    now = [1_000.0]
    demand, swept = Demand(lambda: now[0]), list[int]()

    def sweep(limit: int) -> int:
        swept.append(limit)
        return 0

    sweeper = Sweeper("gauges", sweep, interval_seconds=0.001, demand=demand)
    sweeper.start()

    _until(lambda: sweeper.has_run)
    time.sleep(0.05)
    assert len(swept) == 1
    assert not demand.ask()
    _until(lambda: len(swept) > 3)
    assert demand.ask()
    now[0] += DEMAND_SECONDS
    time.sleep(0.05)
    seen = len(swept)
    time.sleep(0.05)
    sweeper.stop()

    assert len(swept) == seen
    # After a pause, a request has them read.
    assert not demand.ask()
    assert sweeper.sweep_once() == 0
    assert len(swept) == seen + 1
