"""Execution metrics: what a worker and a store export, read back as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.model.meters import ExecutionMeters
from headgate.durable.service import Service
from headgate.errors import SettingsError
from headgate.serve.execution_metrics import (
    PROCESS_SERIES,
    STORE_SERIES,
    WORKFLOWS_MAX,
    StoreCollector,
    WorkerCollector,
    read_store_gauges,
)
from headgate.serve.worker_metrics import read_token
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Put
from tests.stores import open_sqlite

app = hg.App("measured")


@app.activity(retry=hg.Retry(attempts=2, first=1.0, jitter=0))
def charge(amount: int) -> int:
    if amount < 0:
        raise ValueError("negative")
    return amount


@app.workflow
async def pay(amount: int) -> int:
    return await charge(amount)


@app.workflow
async def nap(seconds: float) -> None:
    await hg.sleep(seconds)


@app.workflow
async def order() -> str:
    return str(await hg.wait_signal("go"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    clock = VirtualClock()
    store = open_sqlite(tmp_path, clock=clock)
    keyring = Keyring.open(tmp_path / "keys.json", clock)
    yield Service(app, store, clock, keyring, FolderBlobs(tmp_path / "blobs"), meters=ExecutionMeters())
    store.close()


class Run:
    """A worker that is driven by hand, and its registry."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.clock = service.clock
        assert isinstance(self.clock, VirtualClock)
        self.worker = service.worker()
        self.worker.join()
        self.registry = CollectorRegistry()
        meters = service.meters
        assert meters is not None
        self.registry.register(WorkerCollector(meters.reading, service.worker_status))
        self.pending = StoreCollector(lambda: read_store_gauges(service.store, service.clock))
        self.registry.register(self.pending)

    def settle(self) -> None:
        for _ in range(20):
            self.worker.poll()
            while self.worker.engine.has_work or self.worker.queue:
                self.worker.turn()
                while self.worker.queue:
                    self.worker.perform(self.worker.queue.popleft())

    def advance(self, seconds: float) -> None:
        assert isinstance(self.clock, VirtualClock)
        self.clock.advance(seconds)
        self.settle()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def run(service: Service) -> Run:
    return Run(service)


def test_process_series__of_executions_that_succeed_and_fail__count_each(run: Run) -> None:
    pay.start(1)
    pay.start(-1)
    run.settle()
    run.advance(2.0)

    assert run.value("headgate_executions_closed_total", workflow="pay", status="SUCCEEDED") == 1
    assert run.value("headgate_executions_closed_total", workflow="pay", status="FAILED") == 1
    assert run.value("headgate_execution_start_seconds_count", workflow="pay") == 2
    assert run.value("headgate_turn_seconds_count", workflow="pay") == 4
    assert run.value("headgate_execution_cache_hits_total") == 2
    assert (run.value("headgate_turn_commit_seconds_count") or 0) >= 3
    for outcome, count in (("succeeded", 1), ("retried", 1), ("failed", 1)):
        assert run.value("headgate_activity_attempts_total", activity="charge", outcome=outcome) == count
    assert run.value("headgate_activity_wait_seconds_count", activity="charge") == 2
    assert run.value("headgate_activity_run_seconds_count", activity="charge") == 3


def test_process_series__execution_that_left_memory__is_replayed_and_its_timer_has_a_lag(run: Run) -> None:
    nap.start(60.0)
    run.settle()
    run.worker.engine.drop()
    assert run.value("headgate_execution_cache_evictions_total") == 1
    assert run.value("headgate_replays_total", workflow="nap") is None

    run.advance(65.0)

    assert run.value("headgate_replays_total", workflow="nap") == 1
    assert run.value("headgate_replayed_turns_total") == 1
    assert run.value("headgate_timer_lag_seconds_count") == 1
    assert run.value("headgate_timer_lag_seconds_sum") == pytest.approx(5.0)


def test_store_series__of_pending_work__have_counts_and_ages(run: Run) -> None:
    order.start()
    run.settle()
    run.worker.queues = ("elsewhere",)
    pay.start(1)
    run.settle()
    assert isinstance(run.clock, VirtualClock)
    run.clock.advance(7.0)
    order.start()
    run.pending.refresh()

    assert run.value("headgate_executions_open", status="RUNNING", workflow="order") == 2
    assert run.value("headgate_executions_open", status="RUNNING", workflow="pay") == 1
    assert run.value("headgate_activity_queue_depth", queue="default") == 1
    assert run.value("headgate_activity_queue_age_seconds", queue="default") == pytest.approx(7.0)
    assert run.value("headgate_inbox_messages") == 1
    assert run.value("headgate_workers_live") == 1
    assert run.value("headgate_timers_overdue_seconds") == 0


def test_store_series__of_very_many_workflows__count_the_rest_together(run: Run) -> None:
    rows = [
        {"execution_id": f"e{n}", "workflow": f"w{n}", "status": "STUCK", "started_at": f"2040-01-01T00:{n % 60:02d}Z"}
        for n in range(WORKFLOWS_MAX + 20)
    ]
    run.service.store.batch_write([Put(EXECUTIONS, row) for row in rows])

    gauges = read_store_gauges(run.service.store, run.clock)

    assert len(gauges.executions) == WORKFLOWS_MAX + 1
    assert gauges.executions["STUCK", "other"] == 20


def test_catalogue__of_all_series__is_exported_as_it_is_documented(run: Run) -> None:
    pay.start(-1)
    nap.start(1.0)
    run.settle()
    run.advance(5.0)
    run.service.start()
    try:
        run.pending.refresh()
        families = {family.name: family for family in run.registry.collect()}
    finally:
        run.service.stop(1.0)

    for series in (*PROCESS_SERIES, *STORE_SERIES):
        assert families[series.name].type == series.kind
        for sample in families[series.name].samples:
            assert set(sample.labels) - {"le"} == set(series.labels)
    assert set(families) == {series.name for series in (*PROCESS_SERIES, *STORE_SERIES)}


def test_token__too_short_or_missing__is_refused(tmp_path: Path) -> None:
    short = tmp_path / "token"
    short.write_text("short\n")

    with pytest.raises(SettingsError, match="5 characters"):
        read_token(short)
    with pytest.raises(SettingsError, match="cannot be read"):
        read_token(tmp_path / "none")
    assert read_token(None) is None
