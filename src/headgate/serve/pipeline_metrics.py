"""Pipeline metrics: Prometheus series about runs, deadlines, waiting runs and pools.

`SERIES` is the catalogue: the collector exports it, and docs/reference/metrics.md is generated from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headgate.clock import epoch_ms
from headgate.metric_series import Series
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.run_meters import MeterReading, Tally
from headgate.pipelines.service import PipelineService

# How often open runs and pools are read.
REFRESHED_EVERY_SECONDS: Final = 15.0
# Beyond this the gauges of open runs say "at least".
_OPEN_MAX: Final = 20_000


RUNS: Final = Series("headgate_pipeline_runs", "counter", ("status",), "Runs that took a status.")
EVENTS: Final = Series(
    "headgate_pipeline_events",
    "counter",
    ("event",),
    "Pipeline events of severity warning and critical.",
)
EXPECTATIONS: Final = Series(
    "headgate_pipeline_expectations", "counter", ("kind", "verdict"), "Verdicts of the watchdog: MET, MISSED, WAIVED."
)
READINESS_WAIT: Final = Series(
    "headgate_pipeline_readiness_wait_seconds",
    "histogram",
    (),
    "From the creation of a run to its trigger.",
)
TRIGGER: Final = Series(
    "headgate_pipeline_trigger_seconds", "histogram", (), "From the trigger until the start of the job is confirmed."
)
START: Final = Series(
    "headgate_pipeline_start_seconds",
    "histogram",
    (),
    "From the arrival of the sensor, or the creation of the run, until the job has started.",
)
JOB: Final = Series("headgate_pipeline_job_seconds", "histogram", (), "Duration of jobs that ended.")
SLA_MARGIN: Final = Series(
    "headgate_pipeline_sla_margin_seconds", "histogram", (), "Time left at the verdict on a deadline; negative: late."
)
OPEN_RUNS: Final = Series("headgate_pipeline_open_runs", "gauge", ("status",), "Runs that have not ended, by status.")
OLDEST_PENDING: Final = Series(
    "headgate_pipeline_oldest_pending_seconds", "gauge", (), "Age of the oldest run whose job has not started."
)
POOL_SIZE: Final = Series("headgate_pool_slots", "gauge", ("pool",), "Slots of a pool.")
POOL_USED: Final = Series("headgate_pool_slots_used", "gauge", ("pool",), "Slots of a pool that runs hold.")
POOL_WAITING: Final = Series("headgate_pool_waiting", "gauge", ("pool",), "Runs that wait for a pool, up to 1,000.")
SERIES: Final[Sequence[Series]] = (
    RUNS, EVENTS, EXPECTATIONS, READINESS_WAIT, TRIGGER, START, JOB, SLA_MARGIN, OPEN_RUNS, OLDEST_PENDING, POOL_SIZE,
    POOL_USED, POOL_WAITING,
)  # fmt: skip


class PoolUse(NamedTuple):
    """The use of a pool."""

    size: int
    used: int
    waiting: int


class Gauges(Struct, frozen=True):
    """Open runs and pools as last read."""

    open_runs: Mapping[str, int]
    oldest_pending_seconds: float
    pools: Mapping[str, PoolUse]


def read_gauges(pipelines: PipelineService) -> Gauges:
    """Read the open runs and the pools of a store."""
    counts: Counter[str] = Counter({status.value: 0 for status in RunStatus if not status.is_terminal})
    oldest_ms = now_ms = epoch_ms(pipelines.clock)
    for number, run in enumerate(pipelines.stores.run_index.open_runs(), 1):
        counts[run.status.value] += 1
        if run.status is RunStatus.PENDING:
            oldest_ms = min(oldest_ms, run.created_at_ms)
        if number == _OPEN_MAX:
            break
    pools = {state.name: PoolUse(state.size or 0, state.pool.used, len(state.queue)) for state in pipelines.pools.ls()}
    return Gauges(dict(counts), (now_ms - oldest_ms) / 1000, pools)


class PipelineCollector(Collector):
    """Exports the series of pipelines. Reading the gauges takes store calls, so a thread calls `refresh`."""

    def __init__(self, reading: Callable[[], MeterReading], gauges: Callable[[], Gauges]) -> None:
        self._reading = reading
        self._read_gauges = gauges
        self._gauges: Gauges | None = None

    def refresh(self) -> int:
        """Read the gauges. Returns 0, because nothing is deleted."""
        self._gauges = self._read_gauges()
        return 0

    def collect(self) -> Iterator[Metric]:
        reading = self._reading()
        yield _counter(RUNS, {(status,): count for status, count in reading.runs.items()})
        yield _counter(EVENTS, {(name,): count for name, count in reading.events.items()})
        yield _counter(EXPECTATIONS, {(kind, verdict): count for (kind, verdict), count in reading.verdicts.items()})
        for series, tally in (
            (READINESS_WAIT, reading.readiness_wait),
            (TRIGGER, reading.trigger),
            (START, reading.start),
            (JOB, reading.job),
            (SLA_MARGIN, reading.sla_margin),
        ):
            yield _histogram(series, tally)
        gauges = self._gauges
        if gauges is None:
            return
        yield _gauge(OPEN_RUNS, {(status,): count for status, count in gauges.open_runs.items()})
        yield _gauge(OLDEST_PENDING, {(): gauges.oldest_pending_seconds})
        yield _gauge(POOL_SIZE, {(name,): use.size for name, use in gauges.pools.items()})
        yield _gauge(POOL_USED, {(name,): use.used for name, use in gauges.pools.items()})
        yield _gauge(POOL_WAITING, {(name,): use.waiting for name, use in gauges.pools.items()})


def _counter(series: Series, values: Mapping[tuple[str, ...], int]) -> Metric:
    family = CounterMetricFamily(series.name, series.help, labels=series.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _gauge(series: Series, values: Mapping[tuple[str, ...], float]) -> Metric:
    family = GaugeMetricFamily(series.name, series.help, labels=series.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(series: Series, tally: Tally) -> Metric:
    family = HistogramMetricFamily(series.name, series.help, labels=series.labels)
    family.add_metric((), tally.buckets(), tally.sum_seconds)
    return family
