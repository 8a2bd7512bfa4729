"""Health metrics: Prometheus counters, gauges and histograms of the state store.

Dots in documented metric names are underscores here, and counters end in `_total`. Labels with user-chosen values are
bounded: further values count as "other". Counting is cheap: the child of each set of labels is looked up once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headgate.errors import ThrottledError
from headgate.health.evidence.limits import Stats as EvidenceStats
from headgate.health.model.enums import Severity, SignalState, Tier
from headgate.health.registry.degraded_lookup import LookupStats
from headgate.latency_histograms import BOUNDS_MS, LatencyHistograms
from headgate.store.cache.keys import CacheKind
from headgate.store.cache.stats import CacheStats
from headgate.store.catalogue.tables import DATASET_REGISTRY, DATASET_RESOLUTION, SIGNAL_STATE
from headgate.store.resilience.circuit_breaker import BreakerChange, BreakerState, CircuitBreaker
from headgate.store.resilience.rate_limiter import RateLimiter
from headgate.store.stats import StoreStats

OTHER: Final = "other"
TEAMS_MAX: Final = 100
SIGNAL_TYPES_MAX: Final = 50
# Tables, and sets of tables in one transaction.
TABLES_MAX: Final = 200
_READS: Final = frozenset({"get", "get_raw", "get_many", "query", "query_many", "changes"})
_MTTR_BUCKETS: Final = (60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400)
# Lower bound in seconds, and label, of each bucket.
_RESOLUTION_TIMES: Final = (
    (86_400, "over_24h"), (4 * 3600, "4h_to_24h"), (3600, "1h_to_4h"), (900, "15m_to_1h"), (300, "5m_to_15m"),
    (0, "under_5m"),
)  # fmt: skip
_BREAKER_STATES: Final = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}
_CACHED_TABLES: Final[Mapping[CacheKind, str]] = {
    CacheKind.SIGNAL_STATE: SIGNAL_STATE.name,
    CacheKind.DATASET_CONFIG: DATASET_REGISTRY.name,
    CacheKind.RESOLUTION_RULE: DATASET_RESOLUTION.name,
}

M = TypeVar("M", Counter, Histogram)


class HealthMeters:
    """The metrics of one process. It is the `Watcher` of a guarded store. Safe to use from many threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, help_text: str, *labels: str) -> _Children[Counter]:
            return _Children(Counter(name, help_text, labels, registry=registry))

        def histogram(name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> _Children[Histogram]:
            return _Children(Histogram(name, help_text, labels, buckets=buckets, registry=registry))

        self._registry = registry
        # Counted in dicts and exported on scrape: hundreds of updates a second increment two or three counters each.
        self._signals_lock = threading.Lock()
        self._updates: dict[tuple[str, SignalState], int] = {}
        self._transitions: dict[tuple[SignalState, SignalState, Tier], int] = {}
        registry.register(_OnDemand(self._signal_metrics))
        self._update_conflicts = counter("signal_state_version_conflict", "Signal updates that lost a race.")
        self._update_errors = counter("signal_state_update_error", "Signal updates that failed.")
        self._created = counter("incident_created", "Incidents opened.", "severity", "owner_team")
        self._creation_failed = counter("incident_creation_failed", "Incidents that could not be opened.")
        self._resolved = counter("incident_resolved", "Incidents resolved.", "severity", "resolution_time_bucket")
        self._mttr = histogram("incident_mttr", "Seconds from opening to resolution.", _MTTR_BUCKETS, "severity")
        self._reads, self._writes = LatencyHistograms(), LatencyHistograms()
        registry.register(
            _OnDemand(lambda: _latencies("dynamodb_read_latency", "Milliseconds of a read.", self._reads))
        )
        registry.register(
            _OnDemand(lambda: _latencies("dynamodb_write_latency", "Milliseconds of a write.", self._writes))
        )
        self._throttled = counter("dynamodb_throttle", "Calls rejected by throttling or by the local limiter.", "table")
        self._failures = counter("dynamodb_errors", "Calls that failed or were rejected.", "table", "operation", "code")
        self._opened = counter("circuit_breaker_opened", "Breakers that opened.", "breaker")
        self._closed = counter("circuit_breaker_closed", "Breakers that closed again.", "breaker")
        self._cache_latency = histogram(
            "cache_latency", "Milliseconds of a cache call.", BOUNDS_MS, "cache_layer", "operation"
        )
        self._alerts = counter(
            "error_rate_alerts", "Times that failures of a kind passed their threshold a minute.", "error", "category"
        )
        self._failovers = counter("region_failover_triggered", "Failovers to another region.", "to_region")
        self._teams = _Bounded(TEAMS_MAX)
        self._signal_types = _Bounded(SIGNAL_TYPES_MAX)
        self._tables = _Bounded(TABLES_MAX)

    # Signals.

    def signals_updated(self, written: Iterable[tuple[str, SignalState, SignalState | None, Tier]]) -> None:
        """Count applied updates, and the transitions among them.

        Each is a signal's type, state, previous state (None for a new signal) and tier.
        """
        with self._signals_lock:
            for signal_type, state, previous, tier in written:
                key = self._signal_types.name(signal_type), state
                self._updates[key] = self._updates.get(key, 0) + 1
                if previous is not None and previous is not state:
                    moved = previous, state, tier
                    self._transitions[moved] = self._transitions.get(moved, 0) + 1

    def _signal_metrics(self) -> Iterator[Metric]:
        with self._signals_lock:
            updates, transitions = dict(self._updates), dict(self._transitions)
        taken = CounterMetricFamily("signal_state_updates", "Signal updates applied.", labels=["signal_type", "state"])
        for (signal_type, state), count in updates.items():
            taken.add_metric([signal_type, state], count)
        yield taken
        moved = CounterMetricFamily(
            "signal_state_state_transitions", "Signals that changed state.", labels=["from_state", "to_state", "tier"]
        )
        for labels, count in transitions.items():
            moved.add_metric(labels, count)
        yield moved
        written = sum(updates.values())
        yield CounterMetricFamily("signal_state_update_success", "Signal updates that were written.", value=written)

    def signal_conflicted(self) -> None:
        """Count an update that was rejected for a conflict."""
        self._update_conflicts.of().inc()

    def signal_failed(self) -> None:
        """Count an update that failed for another reason."""
        self._update_errors.of().inc()

    # Incidents.

    def incident_created(self, severity: Severity, owner_team: str) -> None:
        self._created.of(severity.value, self._teams.name(owner_team)).inc()

    def incident_creation_failed(self) -> None:
        self._creation_failed.of().inc()

    def incident_resolved(self, severity: Severity, seconds_open: float) -> None:
        """Count a resolution and how long it took."""
        bucket = next(name for least, name in _RESOLUTION_TIMES if seconds_open >= least or least == 0)
        self._resolved.of(severity.value, bucket).inc()
        self._mttr.of(severity.value).observe(max(0.0, seconds_open))

    # Degradation.

    def alerted(self, code: str, category: str) -> None:
        """Count an alert: the rate of one kind of error exceeded its threshold."""
        self._alerts.of(code, category).inc()

    def watch_lookups(self, stats: LookupStats) -> None:
        """Export how often dataset lookups fell back to older or default configs."""
        self._registry.register(_OnDemand(lambda: _lookup_metrics(stats)))

    def watch_inbox(self, oldest_seconds: Callable[[], float]) -> None:
        """Export the age of the oldest OpenLineage event in the inbox."""
        self._registry.register(_OnDemand(lambda: _inbox_metrics(oldest_seconds())))

    def watch_evidence(self, stats: EvidenceStats) -> None:
        """Export the outcomes of offered evidence."""
        self._registry.register(_OnDemand(lambda: _evidence_metrics(stats)))

    def failed_over(self, to_region: str) -> None:
        """Count a failover."""
        self._failovers.of(to_region).inc()

    # The cache.

    def cache_answered(self, layer: str, operation: str, seconds: float) -> None:
        """Time a call of a cache layer."""
        self._cache_latency.of(layer, operation).observe(seconds * 1000)

    def watch_cache(self, stats: CacheStats) -> None:
        """Export the hit rates of a cache, computed on scrape."""
        self._registry.register(_OnDemand(lambda: _cache_metrics(stats)))

    # The store: a `Watcher`.

    def answered(self, tables: str, operation: str, seconds: float) -> None:
        latencies = self._reads if operation in _READS else self._writes
        latencies.add((self._tables.name(tables), operation), seconds * 1000)

    def failed(self, tables: str, operation: str, error: BaseException) -> None:
        table = self._tables.name(tables)
        self._failures.of(table, operation, getattr(error, "code", type(error).__name__)).inc()
        if isinstance(error, ThrottledError):
            self._throttled.of(table).inc()

    def changed(self, change: BreakerChange) -> None:
        name = self._tables.name(change.name)
        if change.after is BreakerState.OPEN:
            self._opened.of(name).inc()
        elif change.after is BreakerState.CLOSED:
            self._closed.of(name).inc()

    def watch_store(self, stats: StoreStats) -> None:
        """Export throttled attempts and consumed capacity of the backend."""
        self._registry.register(_OnDemand(lambda: _backend_metrics(stats)))

    def watch_guards(
        self, breakers: Callable[[], Iterable[CircuitBreaker]], limiters: Callable[[], Iterable[RateLimiter]]
    ) -> None:
        """Export the state of circuit breakers and the rates of limiters."""
        self._registry.register(_OnDemand(lambda: _guard_metrics(breakers(), limiters())))


class _Children(Generic[M]):
    """The children of one metric by their labels."""

    __slots__ = ("_found", "_metric")

    def __init__(self, metric: M) -> None:
        self._metric: M = metric
        self._found: dict[tuple[str, ...], M] = {}

    def of(self, *labels: str) -> M:
        found = self._found.get(labels)
        if found is None:
            # Prometheus keeps one child for a set of labels, whichever thread creates it first.
            found = self._found[labels] = self._metric.labels(*labels) if labels else self._metric
        return found


class _Bounded:
    """Label values, distinct up to a limit."""

    __slots__ = ("_known", "_names_max")

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._known: dict[str, str] = {}

    def name(self, given: str) -> str:
        found = self._known.get(given)
        if found is None:
            if len(self._known) >= self._names_max:
                return OTHER
            found = self._known[given] = given
        return found


class _OnDemand(Collector):
    """Metrics that are computed on scrape."""

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterator[Metric]:
        return self._collect()


def _latencies(name: str, help_text: str, timings: LatencyHistograms) -> Iterator[Metric]:
    family = HistogramMetricFamily(name, help_text, labels=["table", "operation"])
    for labels, timing in timings.snapshot():
        family.add_metric(labels, timing.buckets(), timing.sum_ms)
    yield family


def _cache_metrics(stats: CacheStats) -> Iterator[Metric]:
    rate = GaugeMetricFamily(
        "cache_hit_rate", "Percent of lookups that a layer answered, since the start.", labels=["cache_layer", "table"]
    )
    lookups = CounterMetricFamily(
        "cache_lookups", "Lookups in a layer, by whether it had the answer.", labels=["cache_layer", "table", "outcome"]
    )
    stale = CounterMetricFamily(
        "stale_cache_used", "Expired entries served because the store was unavailable.", labels=["table"]
    )
    for kind, counts in stats.snapshot().items():
        table = _CACHED_TABLES[kind]
        stale.add_metric([table], counts["stale_served"])
        for layer in ("l1", "l2"):
            hits, misses = counts[f"hits_{layer}"], counts[f"misses_{layer}"]
            lookups.add_metric([layer, table, "hit"], hits)
            lookups.add_metric([layer, table, "miss"], misses)
            if hits + misses:
                rate.add_metric([layer, table], 100 * hits / (hits + misses))
    yield rate
    yield lookups
    yield stale


def _lookup_metrics(stats: LookupStats) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "default_config_used", "Lookups answered with the lenient default config.", value=stats.default_config_used
    )
    yield CounterMetricFamily(
        "last_known_config_used", "Lookups answered with the last known config.", value=stats.last_known_used
    )
    yield CounterMetricFamily(
        "stale_config_used", "Lookups answered with an expired cache entry.", value=stats.stale_cache_used
    )
    yield CounterMetricFamily("config_not_found", "Lookups of datasets that are not registered.", value=stats.not_found)


def _backend_metrics(stats: StoreStats) -> Iterator[Metric]:
    family = CounterMetricFamily(
        "dynamodb_throttle_count", "Attempts that the backend throttled.", labels=["table", "operation"]
    )
    # Copied: another thread may add a key meanwhile.
    for (operation, about), count in list(stats.throttled.items()):
        tables = about.removeprefix("tables ").removeprefix("table ").replace(", ", "+")
        family.add_metric([tables, operation], count)
    yield family
    consumed = CounterMetricFamily(
        "dynamodb_consumed_capacity", "Units of capacity that were used.", labels=["table", "capacity_type"]
    )
    for (table, kind), units in list(stats.consumed.items()):
        consumed.add_metric([table, kind], units)
    yield consumed


def _guard_metrics(breakers: Iterable[CircuitBreaker], limiters: Iterable[RateLimiter]) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "circuit_breaker_state", "0: closed, 1: half-open, 2: open, calls are rejected.", labels=["breaker"]
    )
    # Several breakers may share a name: export the worst state.
    worst: dict[str, int] = {}
    for breaker in breakers:
        worst[breaker.name] = max(worst.get(breaker.name, 0), _BREAKER_STATES[breaker.state])
    for name, state in worst.items():
        states.add_metric([name], state)
    yield states
    rates = GaugeMetricFamily("store_limiter_rate", "Calls per second allowed to a throttled table.", labels=["table"])
    for limiter in limiters:
        if limiter.rate is not None:
            rates.add_metric([limiter.name], limiter.rate)
    yield rates


def _inbox_metrics(oldest_seconds: float) -> Iterator[Metric]:
    help_text = "Age in seconds of the oldest OpenLineage event when this process last drained the inbox."
    yield GaugeMetricFamily("openlineage_oldest_event_seconds", help_text, value=oldest_seconds)


def _evidence_metrics(stats: EvidenceStats) -> Iterator[Metric]:
    yield CounterMetricFamily("evidence_offered", "Evidence that was offered.", value=stats.offered)
    help_text = "Evidence that was stored, sampled out, a duplicate, rejected, or shed over the limits."
    outcomes = CounterMetricFamily("evidence_outcomes", help_text, labels=["outcome"])
    for name in ("stored", "sampled_out", "duplicates", "refused", "shed_pass", "shed_fail"):
        outcomes.add_metric([name], getattr(stats, name))
    yield outcomes
    yield CounterMetricFamily("evidence_archived", "Evidence that was archived.", value=stats.archived)
