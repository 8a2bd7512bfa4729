"""Fan-out metrics: Prometheus series about open fan-outs, chunks by state, throughput, retries, losses and stalls.

`SERIES` is the catalogue: docs/reference/metrics.md is generated from it. No label is the id of a fan-out: `headgate
fanout ls` lists them. Reading takes store calls, so a thread calls `refresh`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headgate.fanout.core.campaigns import counts_of_row
from headgate.fanout.core.chunk_workers import ChunkWorkerRow
from headgate.fanout.core.maintenance import EXPIRING
from headgate.fanout.insight.stalls import stall_reason
from headgate.fanout.insight.stuck import StuckKind, stuck
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Fanout, fanout_of, timestamp, timestamp_ms
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.service import FanoutService
from headgate.metric_series import Series
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Query, Range, Sort

# Ended fan-outs whose counts are remembered.
REMEMBERED_MAX: Final = 2_000
# Open fan-outs that are read; with more, the gauges say "at least".
FANOUTS_MAX: Final = 1_000
# Of these, so many are examined for stuck chunks, the oldest first, up to so many chunks of each.
EXAMINED_MAX: Final = 50
STUCK_MAX: Final = 1_000
# A share of failures needs so many ended chunks.
ENDED_MIN: Final = 10

OPEN: Final = Series("headgate_fanouts_open", "gauge", ("status",), "Fan-outs that have not ended; PAUSED if they are.")
STALLED: Final = Series(
    "headgate_fanouts_stalled", "gauge", (), "Open fan-outs without progress, or without a worker for five minutes."
)
CHUNKS: Final = Series("headgate_fanout_chunks", "gauge", ("state",), "Chunks of open fan-outs by state, both lanes.")
STUCK: Final = Series(
    "headgate_fanout_stuck_chunks", "gauge", (),
    f"Chunks that are stuck, without those that will be retried, of the {EXAMINED_MAX} oldest open fan-outs.",
)  # fmt: skip
FAILURE_SHARE: Final = Series(
    "headgate_fanout_failure_share", "gauge", (),
    f"Failed share of the ended chunks, of the open fan-out with the largest; from {ENDED_MIN} ended chunks on.",
)  # fmt: skip
ENDED: Final = Series("headgate_fanout_chunks_ended", "counter", ("outcome",), "Chunks that ended.")
ATTEMPTS: Final = Series("headgate_fanout_attempts", "counter", (), "Attempts that began.")
RETRIES: Final = Series("headgate_fanout_retries", "counter", (), "Attempts after the first one.")
LOST: Final = Series("headgate_fanout_lost", "counter", (), "Attempts whose worker vanished.")
WORKERS: Final = Series("headgate_chunk_workers", "gauge", ("lane",), "Live chunk workers of a lane.")
PROCESSES: Final = Series("headgate_chunk_worker_processes", "gauge", ("lane",), "Their processes.")
SERIES: Final[Sequence[Series]] = (
    OPEN, STALLED, CHUNKS, STUCK, FAILURE_SHARE, ENDED, ATTEMPTS, RETRIES, LOST, WORKERS, PROCESSES,
)  # fmt: skip
_OUTCOMES: Final[Mapping[str, tuple[str, ...]]] = {
    "completed": ("done", "deferred"),
    "failed": ("dead", "quarantined", "slow_dead", "slow_quarantined"),
    "cancelled": ("cancelled", "slow_cancelled"),
    "skipped": ("skipped",),
}
_COUNTED: Final[Mapping[Series, tuple[str, ...]]] = {
    ATTEMPTS: ("attempts",),
    RETRIES: ("retries",),
    LOST: ("lost",),
}


class FanoutGauges(Struct, frozen=True, kw_only=True):
    """The open fan-outs of a store as last read."""

    statuses: Mapping[str, int]
    states: Mapping[str, int]
    stalled: int
    stuck: int
    failure_share: float
    workers: Sequence[ChunkWorkerRow]


class FanoutCollector(Collector):
    """Exports the series of fan-outs. Counters start at 0 with the process."""

    def __init__(self, fanouts: FanoutService) -> None:
        self._fanouts = fanouts
        self._gauges: FanoutGauges | None = None
        self._started_ms = fanouts.queries.now_ms()
        self._open: set[str] = set()
        # What was counted last, of open fan-outs and of the last ended ones: a redrive opens them again.
        self._seen: dict[str, Counts] = {}
        self._totals: dict[str, int] = {}

    def refresh(self) -> int:
        """Read the fan-outs. Returns 0, because nothing is deleted."""
        queries = self._fanouts.queries
        found = queries.active(limit=FANOUTS_MAX).fanouts
        counted = {fanout.run_id: (fanout, counts_of_row(fanout)) for fanout in found}
        self._count(counted)
        workers, now_ms = self._fanouts.chunk_workers.live(), queries.now_ms()
        self._gauges = FanoutGauges(
            statuses=_statuses(found),
            states=_states([counts for _, counts in counted.values()]),
            stalled=sum(1 for each in counted.values() if stall_reason(*each, workers, now_ms) is not None),
            stuck=sum(self._stuck(fanout, workers) for fanout in found[:EXAMINED_MAX]),
            failure_share=max((_failure_share(counts) for _, counts in counted.values()), default=0.0),
            workers=workers,
        )
        return 0

    def _count(self, counted: Mapping[str, tuple[Fanout, Counts]]) -> None:
        """Add what has changed since the last reading, also of fan-outs that have ended meanwhile."""
        ended = [self._fanouts.queries.find(run_id) for run_id in self._open - counted.keys()]
        rows = {row.run_id: row for row in (*ended, *self._just_ended()) if row is not None}
        every = [*counted.values(), *((row, counts_of_row(row)) for row in rows.values() if row.run_id not in counted)]
        for fanout, counts in every:
            is_older = fanout.created_at and timestamp_ms(fanout.created_at) < self._started_ms
            before = self._seen.pop(fanout.run_id, counts if is_older else Counts())
            self._seen[fanout.run_id] = counts
            for name in Counts.__struct_fields__:
                # Redriven chunks leave their outcome: they are counted again when they end again.
                amount = max(0, getattr(counts, name) - getattr(before, name))
                self._totals[name] = self._totals.get(name, 0) + amount
        self._open = set(counted)
        for run_id in list(self._seen)[: max(0, len(self._seen) - FANOUTS_MAX - REMEMBERED_MAX)]:
            del self._seen[run_id]

    def _just_ended(self) -> list[Fanout]:
        """Return fan-outs that have ended within a minute, of those with the usual retention."""
        until_ms = self._fanouts.queries.now_ms() + round(86_400_000 * self._fanouts.retention_days)
        sort = Sort(Range.BETWEEN, timestamp(until_ms - 60_000), f"{timestamp(until_ms)}~")
        query = Query(table=FANOUT, index="attention-index", partition=EXPIRING, sort=sort, limit=FANOUTS_MAX)
        return [fanout_of(item) for item in self._fanouts.store.query(query).items]

    def _stuck(self, fanout: Fanout, workers: Sequence[ChunkWorkerRow]) -> int:
        found = stuck(self._fanouts.queries, fanout.run_id, workers=workers, limit=STUCK_MAX)
        return sum(1 for each in found if each.kind is not StuckKind.RETRY_PENDING)

    def collect(self) -> Iterator[Metric]:
        gauges = self._gauges
        if gauges is None:
            return
        yield _gauge(OPEN, [((status,), count) for status, count in gauges.statuses.items()])
        yield _gauge(STALLED, [((), gauges.stalled)])
        yield _gauge(CHUNKS, [((state,), count) for state, count in gauges.states.items()])
        yield _gauge(STUCK, [((), gauges.stuck)])
        yield _gauge(FAILURE_SHARE, [((), gauges.failure_share)])
        lanes = {lane: [row for row in gauges.workers if row.lane == lane] for lane in (MAIN_LANE, SLOW_LANE)}
        yield _gauge(WORKERS, [((lane,), len(rows)) for lane, rows in lanes.items()])
        yield _gauge(PROCESSES, [((lane,), sum(row.processes for row in rows)) for lane, rows in lanes.items()])
        yield _counter(ENDED, [((outcome,), self._total(names)) for outcome, names in _OUTCOMES.items()])
        for series, names in _COUNTED.items():
            yield _counter(series, [((), self._total(names))])

    def _total(self, names: Sequence[str]) -> int:
        return sum(self._totals.get(name, 0) for name in names)


def _statuses(fanouts: Sequence[Fanout]) -> dict[str, int]:
    is_open = (FanoutStatus.SPLITTING, FanoutStatus.RUNNING, FanoutStatus.PARTIAL)
    found = dict.fromkeys([*(status.value for status in is_open), "PAUSED"], 0)
    for fanout in fanouts:
        status = "PAUSED" if fanout.paused_at is not None else fanout.status.value
        found[status] = found.get(status, 0) + 1
    return found


def _states(every: Sequence[Counts]) -> dict[str, int]:
    return {
        disposition.bucket: sum(
            getattr(counts, disposition.bucket) + getattr(counts, f"slow_{disposition.bucket}") for counts in every
        )
        for disposition in Disposition
    }


def _failure_share(counts: Counts) -> float:
    ended = counts.completed + counts.failed
    return counts.failed / ended if ended >= ENDED_MIN else 0.0


def _gauge(series: Series, values: Sequence[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(series.name, series.help, labels=series.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _counter(series: Series, values: Sequence[tuple[tuple[str, ...], float]]) -> Metric:
    family = CounterMetricFamily(series.name, series.help, labels=series.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family
