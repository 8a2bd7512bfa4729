"""Execution metrics: Prometheus series about executions, turns, activities, queues and the worker of a process.

The series below are the catalogue: the collectors export them, and docs/reference/metrics.md is generated from them.
Labels are names of workflows, activities and queues, of a bounded number; no label is an id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headgate.clock import Clock, epoch_ms
from headgate.durable.engine.membership import list_members
from headgate.durable.engine.turn_commit import queue_partition
from headgate.durable.model.history import Status
from headgate.durable.model.meters import OTHER, MeterReading, SecondsReading
from headgate.durable.model.records import INBOX, TIMERS_DUE
from headgate.durable.worker.status import WorkerStatus
from headgate.metric_series import Series
from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, INBOXES, TIMERS
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Table
from headgate.store.port import Store

# How often the gauges of the store are read.
REFRESHED_EVERY_SECONDS: Final = 15.0
# Beyond this a count says "at least". DynamoDB bills each item that is counted.
COUNTED_MAX: Final = 50_000
COUNTED_MAX_DYNAMODB: Final = 1_000
WORKFLOWS_MAX: Final = 100
QUEUES_MAX: Final = 50

OPEN: Final = Series("headgate_executions_open", "gauge", ("status", "workflow"), "Open executions: RUNNING and STUCK.")
CLOSED: Final = Series("headgate_executions_closed", "counter", ("status", "workflow"), "Executions that ended.")
START: Final = Series(
    "headgate_execution_start_seconds", "histogram", ("workflow",),
    "From the stored start, or the end of its delay, until the code begins.",
)  # fmt: skip
TURN: Final = Series(
    "headgate_turn_seconds", "histogram", ("workflow",), "Time to compute a turn, a replay before it included."
)
COMMIT: Final = Series("headgate_turn_commit_seconds", "histogram", (), "Commit of the turns that were ready together.")
TURNS_FAILED: Final = Series(
    "headgate_turn_failures", "counter", ("workflow",),
    "Turns that could not be computed. After five in a row the execution is STUCK.",
)  # fmt: skip
CONFLICTS: Final = Series("headgate_turn_conflicts", "counter", (), "Turns that another worker had overtaken.")
REPLAYS: Final = Series("headgate_replays", "counter", ("workflow",), "Executions that were replayed into memory.")
REPLAYED: Final = Series("headgate_replayed_turns", "counter", (), "Turns that these replays took.")
TIMER_LAG: Final = Series("headgate_timer_lag_seconds", "histogram", (), "From the due time of a timer to its turn.")
CACHED: Final = Series("headgate_execution_cache_size", "gauge", (), "Executions in the memory of the worker.")
CACHE_HITS: Final = Series("headgate_execution_cache_hits", "counter", (), "Turns of executions that were in memory.")
EVICTIONS: Final = Series("headgate_execution_cache_evictions", "counter", (), "Open executions that left memory.")
WAIT: Final = Series(
    "headgate_activity_wait_seconds", "histogram", ("activity",), "From scheduling to the begin of the first attempt."
)
RUN: Final = Series("headgate_activity_run_seconds", "histogram", ("activity",), "Duration of an attempt.")
ATTEMPTS: Final = Series(
    "headgate_activity_attempts", "counter", ("activity", "outcome"),
    "Attempts by how they ended: succeeded, retried (failed, and tried again), failed, timed_out, external.",
)  # fmt: skip
CLAIMS_LOST: Final = Series(
    "headgate_activity_claims_lost", "counter", (), "Results that were refused, because the claim was lost."
)
LEASES_LOST: Final = Series("headgate_worker_leases_lost", "counter", (), "Leases of this worker that expired.")
SLOTS: Final = Series(
    "headgate_worker_slots", "gauge", ("kind",), "Activities that may run at once: thread, async, isolated."
)
SLOTS_USED: Final = Series("headgate_worker_slots_used", "gauge", ("kind",), "Slots in which an activity runs.")
CLAIMED: Final = Series("headgate_worker_claimed_activities", "gauge", (), "Claimed activities that wait for a thread.")
DEPTH: Final = Series("headgate_activity_queue_depth", "gauge", ("queue",), "Activities that wait for a worker.")
AGE: Final = Series(
    "headgate_activity_queue_age_seconds", "gauge", ("queue",), "How long the first of them has been available."
)
MESSAGES: Final = Series("headgate_inbox_messages", "gauge", (), "Messages that no turn has consumed.")
MESSAGE_AGE: Final = Series("headgate_inbox_age_seconds", "gauge", (), "Age of the oldest of these messages.")
TIMER_OVERDUE: Final = Series(
    "headgate_timers_overdue_seconds", "gauge", (), "How long the first timer that has not fired has been due."
)
WORKERS: Final = Series("headgate_workers_live", "gauge", (), "Workers with a valid lease.")

PROCESS_SERIES: Final[Sequence[Series]] = (
    START, TURN, COMMIT, TURNS_FAILED, CONFLICTS, REPLAYS, REPLAYED, TIMER_LAG, CLOSED, WAIT, RUN, ATTEMPTS,
    CLAIMS_LOST, LEASES_LOST, CACHED, CACHE_HITS, EVICTIONS, SLOTS, SLOTS_USED, CLAIMED,
)  # fmt: skip
STORE_SERIES: Final[Sequence[Series]] = (OPEN, DEPTH, AGE, MESSAGES, MESSAGE_AGE, TIMER_OVERDUE, WORKERS)


class StoreGauges(Struct, frozen=True, kw_only=True):
    """Pending work of a store as last read."""

    executions: Mapping[tuple[str, str], int]
    queues: Mapping[str, tuple[int, float]]
    messages: int
    message_age_seconds: float
    timer_overdue_seconds: float
    workers: int


def read_store_gauges(store: Store, clock: Clock, *, counted_max: int = COUNTED_MAX) -> StoreGauges:
    """Read the pending work of a store: counts of index partitions, and the first entry of each."""
    now_ms = epoch_ms(clock)
    alive = [member for member in list_members(store) if member.seems_alive(now_ms)]
    queues = sorted({"default", *(queue for member in alive for queue in member.queues)})[:QUEUES_MAX]
    executions: dict[tuple[str, str], int] = {}
    for status in (Status.RUNNING, Status.STUCK):
        query = Query(table=EXECUTIONS, index="status-index", partition=status.value, limit=1)
        for workflow, count in _few(store.count(query, "workflow", most=counted_max)).items():
            executions[status.value, workflow] = count
    inbox = Query(table=INBOXES, index="ready-index", partition=INBOX, limit=1)
    return StoreGauges(
        executions=executions,
        queues={queue: _queue(store, queue, now_ms, counted_max) for queue in queues},
        messages=store.count(inbox, most=counted_max).get("", 0),
        message_age_seconds=_age_seconds(store, INBOXES, "ready-index", INBOX, "at_ms", now_ms),
        timer_overdue_seconds=_age_seconds(store, TIMERS, "due-index", TIMERS_DUE, "due_at_ms", now_ms),
        workers=len(alive),
    )


def _queue(store: Store, queue: str, now_ms: int, counted_max: int) -> tuple[int, float]:
    partition = queue_partition(queue)
    available = Sort(Range.AT_MOST, now_ms)
    query = Query(table=ACTIVITIES, index="queue-index", partition=partition, sort=available, limit=1)
    depth = store.count(query, most=counted_max).get("", 0)
    return depth, _age_seconds(store, ACTIVITIES, "queue-index", partition, "available_at_ms", now_ms)


def _age_seconds(store: Store, table: Table, index: str, partition: str, attribute: str, now_ms: int) -> float:
    """Return how long ago the first entry of an index was due; 0 if there is none or it is not due yet."""
    page = store.query(Query(table=table, index=index, partition=partition, limit=1))
    return max((max(0, now_ms - item[attribute]) / 1000 for item in page.items), default=0.0)


def _few(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of the most frequent names, with the others together."""
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    few = dict(ordered[:WORKFLOWS_MAX])
    if len(ordered) > WORKFLOWS_MAX:
        few[OTHER] = few.get(OTHER, 0) + sum(count for _, count in ordered[WORKFLOWS_MAX:])
    return few


class WorkerCollector(Collector):
    """Exports the series of a process that runs workflows and activities."""

    def __init__(self, reading: Callable[[], MeterReading], status: Callable[[], WorkerStatus | None]) -> None:
        self._reading = reading
        self._status = status

    def collect(self) -> Iterator[Metric]:
        reading = self._reading()
        yield _histograms(START, _by_name(reading.starts))
        yield _histograms(TURN, _by_name(reading.turns))
        yield _histograms(COMMIT, [((), reading.commits)])
        yield _histograms(TIMER_LAG, [((), reading.timer_lag)])
        yield _histograms(WAIT, _by_name(reading.activity_waits))
        yield _histograms(RUN, _by_name(reading.activity_runs))
        yield _counters(TURNS_FAILED, _counted(reading.turns_failed))
        yield _counters(CONFLICTS, [((), reading.turn_conflicts)])
        yield _counters(REPLAYS, _counted(reading.replays))
        yield _counters(REPLAYED, [((), reading.replayed_turns)])
        yield _counters(CLOSED, [((status, name), count) for (name, status), count in reading.closed.items()])
        yield _counters(ATTEMPTS, reading.attempts.items())
        yield _counters(CLAIMS_LOST, [((), reading.claims_lost)])
        yield _counters(LEASES_LOST, [((), reading.leases_lost)])
        yield _counters(CACHE_HITS, [((), reading.cache_hits)])
        yield _counters(EVICTIONS, [((), reading.cache_evictions)])
        status = self._status()
        if status is None:
            return
        limits, usage = status.limits, status.usage
        yield _gauges(CACHED, [((), usage.cached)])
        slots = (("thread", limits.threads_max), ("async", limits.async_max), ("isolated", limits.isolated_max))
        used = (("thread", usage.in_threads), ("async", usage.in_async), ("isolated", usage.in_isolated))
        yield _gauges(SLOTS, [((kind,), count) for kind, count in slots])
        yield _gauges(SLOTS_USED, [((kind,), count) for kind, count in used])
        yield _gauges(CLAIMED, [((), usage.queued)])


class StoreCollector(Collector):
    """Exports the pending work of a store. Reading it takes store calls, so a thread calls `refresh`."""

    def __init__(self, read: Callable[[], StoreGauges]) -> None:
        self._read = read
        self._gauges: StoreGauges | None = None

    def refresh(self) -> int:
        """Read the gauges. Returns 0, because nothing is deleted."""
        self._gauges = self._read()
        return 0

    def collect(self) -> Iterator[Metric]:
        gauges = self._gauges
        if gauges is None:
            return
        yield _gauges(OPEN, gauges.executions.items())
        yield _gauges(DEPTH, [((queue,), depth) for queue, (depth, _) in gauges.queues.items()])
        yield _gauges(AGE, [((queue,), age) for queue, (_, age) in gauges.queues.items()])
        yield _gauges(MESSAGES, [((), gauges.messages)])
        yield _gauges(MESSAGE_AGE, [((), gauges.message_age_seconds)])
        yield _gauges(TIMER_OVERDUE, [((), gauges.timer_overdue_seconds)])
        yield _gauges(WORKERS, [((), gauges.workers)])


def _by_name(readings: Mapping[str, SecondsReading]) -> Iterator[tuple[tuple[str, ...], SecondsReading]]:
    return (((name,), reading) for name, reading in readings.items())


def _counted(counts: Mapping[str, int]) -> Iterator[tuple[tuple[str, ...], int]]:
    return (((name,), count) for name, count in counts.items())


def _counters(series: Series, values: Iterable[tuple[tuple[str, ...], int]]) -> Metric:
    family = CounterMetricFamily(series.name, series.help, labels=series.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _gauges(series: Series, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    family = GaugeMetricFamily(series.name, series.help, labels=series.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _histograms(series: Series, values: Iterable[tuple[tuple[str, ...], SecondsReading]]) -> Metric:
    family = HistogramMetricFamily(series.name, series.help, labels=series.labels)
    for labels, reading in values:
        family.add_metric(labels, reading.buckets(), reading.sum_seconds)
    return family
