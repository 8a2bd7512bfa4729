"""Metrics of fan-outs: gauges of open ones, and counters that never go back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from headgate.clock import VirtualClock
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.chunk_workers import ChunkWorkerRow
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.rows import Policy, chunk_id_at
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.repair.redrive import ChunkSelection
from headgate.fanout.service import FanoutService
from headgate.ids import IdMaker
from headgate.serve.fanout_metrics import SERIES, FanoutCollector
from tests.stores import open_sqlite


class World:
    """A store with fan-outs, and what is exported of them."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store = open_sqlite(folder, clock=self.clock)
        self.fanouts = FanoutService(self.store, self.clock, IdMaker(self.clock))
        self.collector = FanoutCollector(self.fanouts)
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)

    def split(self, run_id: str, chunks: int) -> None:
        order = Order(group="g", chunk_size=1, handler="jobs:run", policy=Policy(max_attempts=1))
        self.fanouts.splitter.split(order, RangeSource(0, chunks), run_id=run_id)

    def end(self, run_id: str, number: int, *, is_failed: bool = False) -> None:
        claim = self.fanouts.tracker.start(run_id, chunk_id_at(number, 7), worker="w").claim
        assert claim is not None
        if is_failed:
            self.fanouts.tracker.fail(claim, AttemptFailure("ValueError", "bad"))
        else:
            self.fanouts.tracker.complete(claim, AttemptResult())

    def value(self, name: str, **labels: str) -> float | None:
        self.clock.advance(15)
        self.fanouts.maintenance.run_once()
        self.collector.refresh()
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


def test_gauges__open_fan_outs__count_chunks_by_state_and_the_worst_share(world: World) -> None:
    world.split("a", 40)
    world.split("b", 5)
    for number in range(12):
        world.end("a", number, is_failed=number < 3)

    assert world.value("headgate_fanout_chunks", state="queued") == 33
    assert world.value("headgate_fanout_chunks", state="dead") == 3
    assert world.value("headgate_fanouts_open", status="RUNNING") == 2
    assert world.value("headgate_fanout_failure_share") == 0.25


def test_gauges__no_worker__chunks_are_stuck_and_the_fan_out_stalls(world: World) -> None:
    world.split("a", 3)
    assert world.value("headgate_fanout_stuck_chunks") == 0
    world.clock.advance(60)
    assert world.value("headgate_fanout_stuck_chunks") == 3
    assert world.value("headgate_fanouts_stalled") == 0
    world.clock.advance(300)
    assert world.value("headgate_fanouts_stalled") == 1

    world.clock.advance(15)
    row = ChunkWorkerRow(worker_id="far|1|x", lane="main", processes=4, started_at="2026-01-01T00:00:00Z")
    world.fanouts.chunk_workers.beat(row)

    assert world.value("headgate_fanouts_stalled") == 0
    assert world.value("headgate_chunk_worker_processes", lane="main") == 4


def test_counters__fan_outs_that_end_and_are_redriven__only_grow(world: World) -> None:
    world.split("before", 2)
    world.end("before", 0)
    world.fanouts.maintenance.run_once()
    # A server that starts later counts from there.
    world.clock.advance(1)
    collector = FanoutCollector(world.fanouts)
    world.registry.unregister(world.collector)
    world.registry.register(collector)
    world.collector = collector
    assert world.value("headgate_fanout_chunks_ended_total", outcome="completed") == 0

    world.end("before", 1)
    assert world.value("headgate_fanout_chunks_ended_total", outcome="completed") == 1

    # Begins and ends between two readings.
    world.split("short", 2)
    world.end("short", 0)
    world.end("short", 1, is_failed=True)
    assert world.value("headgate_fanout_chunks_ended_total", outcome="completed") == 2
    assert world.value("headgate_fanout_chunks_ended_total", outcome="failed") == 1

    world.fanouts.redriver.redrive("short", ChunkSelection(all=True))
    assert world.value("headgate_fanout_chunks_ended_total", outcome="failed") == 1
    world.end("short", 1)
    assert world.value("headgate_fanout_chunks_ended_total", outcome="completed") == 3
    assert world.value("headgate_fanout_retries_total") == 1
    assert world.value("headgate_fanout_attempts_total") == 4


def test_series__all_that_is_documented__is_exported_with_its_labels(world: World) -> None:
    world.split("a", 1)
    world.value("headgate_fanouts_stalled")

    exported = {family.name: family for family in world.registry.collect()}

    assert exported.keys() == {each.name for each in SERIES}
    for each in SERIES:
        assert {tuple(sample.labels) for sample in exported[each.name].samples} == {each.labels}
