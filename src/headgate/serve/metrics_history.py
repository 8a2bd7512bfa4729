"""Metrics history: samples of the registry in memory, for the charts of the operations page.

A sample holds rates since the sample before it, latencies of that time, and gauges. The ring has a fixed size; it is
empty after a start. Prometheus keeps what has to outlive the process.
"""

from __future__ import annotations

import enum
import math
import threading
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric

from headgate.clock import Clock
from headgate.store.catalogue.tables import EVIDENCE_CACHE, INCIDENT_INDEX, SIGNAL_STATE

SAMPLE_SECONDS: Final = 15.0
SAMPLES_MAX: Final = 6 * 3600 // 15
_P99: Final = 0.99
# Whole readings are kept at longer intervals, for an hour.
_READING_MS: Final = 300_000
_READINGS_MAX: Final = 13
_READ_LATENCY: Final = "dynamodb_read_latency"
_WRITE_LATENCY: Final = "dynamodb_write_latency"
_API_LATENCY: Final = "api_latency"
_CAPACITY: Final = "dynamodb_consumed_capacity"
_TRANSITIONS: Final = "signal_state_state_transitions"
_ROWS: Final = "headgate_store_rows"


class Measure(enum.IntEnum):
    """A value of a sample: a rate a second, a gauge, a latency in milliseconds, or a share. The value is its place."""

    # Rates.
    READS = 0
    WRITES = enum.auto()
    COMMITS = enum.auto()
    CONFLICTS = enum.auto()
    THROTTLES = enum.auto()
    CACHE_HITS = enum.auto()
    CACHE_LOOKUPS = enum.auto()
    REQUESTS = enum.auto()
    ERRORS = enum.auto()
    SHED = enum.auto()
    LIMITED = enum.auto()
    FAILED_LOGINS = enum.auto()
    SIGNAL_UPDATES = enum.auto()
    TRANSITIONS = enum.auto()
    ALERT_FAILURES = enum.auto()
    # Gauges.
    STORE_BYTES = enum.auto()
    WAL_BYTES = enum.auto()
    MEMORY_BYTES = enum.auto()
    WORK_ACCEPTED = enum.auto()
    # Latencies.
    SIGNAL_READ_P99 = enum.auto()
    SIGNAL_WRITE_P99 = enum.auto()
    INCIDENT_READ_P99 = enum.auto()
    INCIDENT_WRITE_P99 = enum.auto()
    EVIDENCE_READ_P99 = enum.auto()
    EVIDENCE_WRITE_P99 = enum.auto()
    API_P99 = enum.auto()
    # Percent.
    CACHE_HIT_PERCENT = enum.auto()


_M = Measure
# The series that each rate sums, with the labels that select them.
_RATES: Final[Mapping[str, tuple[Measure, Mapping[str, str]]]] = {
    "headgate_store_reads_total": (_M.READS, {}),
    "headgate_store_queries_total": (_M.READS, {}),
    "headgate_store_writes_total": (_M.WRITES, {}),
    "headgate_store_transactions_total": (_M.WRITES, {}),
    "headgate_store_batches_total": (_M.WRITES, {}),
    "headgate_store_commits_total": (_M.COMMITS, {}),
    "headgate_store_conflicts_total": (_M.CONFLICTS, {}),
    "headgate_store_throttles_total": (_M.THROTTLES, {}),
    # The first layer answers most reads; what it misses is looked up in the second.
    "cache_lookups_total": (_M.CACHE_LOOKUPS, {"cache_layer": "l1"}),
    "api_request_count_total": (_M.REQUESTS, {}),
    "headgate_http_requests_shed_total": (_M.SHED, {}),
    "headgate_limited_writes_total": (_M.LIMITED, {}),
    "headgate_failed_logins_total": (_M.FAILED_LOGINS, {}),
    "signal_state_updates_total": (_M.SIGNAL_UPDATES, {}),
    f"{_TRANSITIONS}_total": (_M.TRANSITIONS, {}),
    "headgate_alerts_failed_total": (_M.ALERT_FAILURES, {}),
}
_GAUGES: Final[Mapping[str, Measure]] = {
    "headgate_store_bytes": _M.STORE_BYTES,
    "headgate_store_wal_bytes": _M.WAL_BYTES,
    "process_resident_memory_bytes": _M.MEMORY_BYTES,
    "headgate_work_accepted": _M.WORK_ACCEPTED,
}
_LATENCIES: Final[Mapping[tuple[str, str], Measure]] = {
    (_READ_LATENCY, SIGNAL_STATE.name): _M.SIGNAL_READ_P99,
    (_WRITE_LATENCY, SIGNAL_STATE.name): _M.SIGNAL_WRITE_P99,
    (_READ_LATENCY, INCIDENT_INDEX.name): _M.INCIDENT_READ_P99,
    (_WRITE_LATENCY, INCIDENT_INDEX.name): _M.INCIDENT_WRITE_P99,
    (_READ_LATENCY, EVIDENCE_CACHE.name): _M.EVIDENCE_READ_P99,
    (_WRITE_LATENCY, EVIDENCE_CACHE.name): _M.EVIDENCE_WRITE_P99,
}

# Cumulative counts by upper bound.
Buckets = Mapping[float, float]


class Reading(Struct, frozen=True, kw_only=True):
    """The registry at one time: totals since the start, gauges, and the buckets of latencies."""

    totals: Mapping[Measure, float]
    gauges: Mapping[Measure, float]
    latencies: Mapping[Measure, Buckets]
    # Consumed write units by table, transitions by states, and rows by table.
    write_units: Mapping[str, float] = {}
    transitions: Mapping[tuple[str, str], float] = {}
    rows: Mapping[str, int] = {}


class Sample(Struct, frozen=True):
    """The values of one time. A value that is not known is not a number."""

    at_ms: int
    values: array[float]

    def __getitem__(self, measure: Measure) -> float:
        return self.values[measure]


class Changes(Struct, frozen=True, kw_only=True):
    """What was counted within the last hour, or since the first sample."""

    since_ms: int
    write_units: Mapping[str, float]
    transitions: Mapping[tuple[str, str], float]
    rows: Mapping[str, int]


def read(metrics: Iterable[Metric]) -> Reading:
    """Read what samples hold from the metrics of a registry."""
    totals: dict[Measure, float] = {}
    gauges: dict[Measure, float] = {}
    latencies: dict[Measure, dict[float, float]] = {}
    units: dict[str, float] = {}
    transitions: dict[tuple[str, str], float] = {}
    rows: dict[str, int] = {}
    for metric in metrics:
        for name, labels, value, *_ in metric.samples:
            if name in _GAUGES:
                gauges[_GAUGES[name]] = value
            elif name.endswith("_bucket"):
                bound = float(labels["le"])
                for measure in _latencies(metric.name, labels):
                    buckets = latencies.setdefault(measure, {})
                    buckets[bound] = buckets.get(bound, 0.0) + value
            elif name == f"{_CAPACITY}_total" and labels["capacity_type"] == "WRITE":
                units[labels["table"]] = value
            elif name == _ROWS:
                rows[labels["table"]] = int(value)
            elif name in _RATES:
                _add(totals, name, labels, value)
                if metric.name == _TRANSITIONS:
                    moved = labels["from_state"], labels["to_state"]
                    transitions[moved] = transitions.get(moved, 0.0) + value
    return Reading(
        totals=totals, gauges=gauges, latencies=latencies, write_units=units, transitions=transitions, rows=rows
    )


def _add(totals: dict[Measure, float], name: str, labels: Mapping[str, str], value: float) -> None:
    measure, wanted = _RATES[name]
    if any(labels.get(label) != text for label, text in wanted.items()):
        return
    totals[measure] = totals.get(measure, 0.0) + value
    if measure is Measure.CACHE_LOOKUPS and labels["outcome"] == "hit":
        totals[Measure.CACHE_HITS] = totals.get(Measure.CACHE_HITS, 0.0) + value
    if measure is Measure.REQUESTS and _is_error(labels["status_code"]):
        totals[Measure.ERRORS] = totals.get(Measure.ERRORS, 0.0) + value


def _is_error(status: str) -> bool:
    """Whether a status of HTTP or gRPC is a fault of the server."""
    return status.startswith("5") or status in ("INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS")


def _latencies(name: str, labels: Mapping[str, str]) -> list[Measure]:
    if name == _API_LATENCY:
        return [Measure.API_P99]
    # A transaction names all of its tables, and counts for each of them.
    tables = labels.get("table", "").split("+")
    return [_LATENCIES[name, table] for table in tables if (name, table) in _LATENCIES]


def sample_of(before: Reading | None, now: Reading, *, at_ms: int, seconds: float) -> Sample:
    """Return the sample of a time, from the reading before it. Without one, rates and latencies are not known."""
    values = array("d", [math.nan]) * len(Measure)
    for measure, value in now.gauges.items():
        values[measure] = value
    if before is None or seconds <= 0:
        return Sample(at_ms, values)
    for measure in {each for each, _ in _RATES.values()} | {Measure.CACHE_HITS, Measure.ERRORS}:
        values[measure] = max(0.0, now.totals.get(measure, 0.0) - before.totals.get(measure, 0.0)) / seconds
    if values[Measure.CACHE_LOOKUPS]:
        values[Measure.CACHE_HIT_PERCENT] = 100 * values[Measure.CACHE_HITS] / values[Measure.CACHE_LOOKUPS]
    for measure, buckets in now.latencies.items():
        found = quantile(_P99, buckets, before.latencies.get(measure, {}))
        if found is not None:
            values[measure] = found
    return Sample(at_ms, values)


def quantile(share: float, now: Buckets, before: Buckets) -> float | None:
    """Return a quantile of what was observed between two readings, interpolated within its bucket; None if nothing."""
    counts = [(bound, now[bound] - before.get(bound, 0.0)) for bound in sorted(now)]
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    rank, low, below = share * total, 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            # Beyond the last bound only that is known.
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (count - below)
        low, below = bound, count
    return low


class MetricsHistory:
    """The latest samples of a registry. `sample` is called in intervals; thread-safe."""

    def __init__(self, registry: CollectorRegistry, clock: Clock, *, samples_max: int = SAMPLES_MAX) -> None:
        self._registry = registry
        self._clock = clock
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=samples_max)
        # Of the last hour, for what is counted by table and state.
        self._readings: deque[tuple[int, Reading]] = deque(maxlen=_READINGS_MAX)
        self._last: tuple[float, Reading] | None = None

    def sample(self) -> None:
        """Take a sample."""
        reading = read(self._registry.collect())
        now, at_ms = self._clock.monotonic(), int(self._clock.seconds() * 1000)
        with self._lock:
            before, seconds = (None, 0.0) if self._last is None else (self._last[1], now - self._last[0])
            self._samples.append(sample_of(before, reading, at_ms=at_ms, seconds=seconds))
            self._last = now, reading
            if not self._readings or at_ms - self._readings[-1][0] >= _READING_MS:
                self._readings.append((at_ms, reading))

    def samples(self, since_ms: int = 0) -> Sequence[Sample]:
        """Return the samples since a time, oldest first."""
        with self._lock:
            return [each for each in self._samples if each.at_ms >= since_ms]

    def changes(self) -> Changes | None:
        """Return what was counted since the oldest reading of the last hour; None before the first sample."""
        with self._lock:
            if self._last is None:
                return None
            (since_ms, before), now = self._readings[0], self._last[1]
        return Changes(
            since_ms=since_ms,
            write_units=_grown(before.write_units, now.write_units),
            transitions=_grown(before.transitions, now.transitions),
            rows=now.rows,
        )


K = TypeVar("K", str, tuple[str, str])


def _grown(before: Mapping[K, float], now: Mapping[K, float]) -> dict[K, float]:
    """Return what was counted between two readings, without zeros."""
    grown = {name: count - before.get(name, 0.0) for name, count in now.items()}
    return {name: count for name, count in grown.items() if count > 0}
