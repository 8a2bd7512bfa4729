"""Server metrics: Prometheus collectors for API calls, thread pool, sweepers, store size and cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headgate.errors import HeadgateError
from headgate.latency_histograms import LatencyHistogram, LatencyHistograms
from headgate.metric_series import Series
from headgate.pipelines.watchdog.heartbeats import Heartbeats, HeartbeatSource
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.sweeper import Sweeper
from headgate.store.cache.stats import COUNTERS, CacheStats

if TYPE_CHECKING:
    from headgate.store.sqlite.size import StoreSize


CACHE_SERIES: Final = {
    name: Series(f"headgate_cache_{name}", "counter", ("kind",), f"Cache {name} since the start.") for name in COUNTERS
}


class ApiMeters(Collector):
    """`api_request_count` and `api_latency`, by API, method and status (HTTP or gRPC)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._timings = LatencyHistograms()
        registry.register(self)

    def record(self, api: str, method: str, status: str, seconds: float) -> None:
        """Record a call. `method` must have bounded cardinality."""
        self._timings.add((api, method, status), seconds * 1000)

    def collect(self) -> Iterator[Metric]:
        count = CounterMetricFamily(
            "api_request_count", "API calls answered.", labels=["api_type", "method", "status_code"]
        )
        latency = HistogramMetricFamily(
            "api_latency", "Milliseconds from a call to its answer.", labels=["api_type", "method"]
        )
        by_method: dict[tuple[str, str], LatencyHistogram] = {}
        for (api, method, status), timing in self._timings.snapshot():
            count.add_metric([api, method, status], timing.count)
            known = by_method.get((api, method))
            by_method[api, method] = timing if known is None else known + timing
        for labels, timing in by_method.items():
            latency.add_metric(labels, timing.buckets(), timing.sum_ms)
        yield count
        yield latency


class ServerCollector(Collector):
    """Queued work of the thread pool, and results of the sweepers."""

    def __init__(self, pool: WorkPool, sweepers: Sequence[Sweeper]) -> None:
        self._pool = pool
        self._sweepers = sweepers

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "headgate_work_accepted", "Blocking calls running or queued.", value=self._pool.accepted
        )
        deleted = CounterMetricFamily("headgate_swept", "Expired rows and blobs deleted.", labels=["what"])
        failures = CounterMetricFamily("headgate_sweep_failures", "Sweeps that failed.", labels=["what"])
        for sweeper in self._sweepers:
            deleted.add_metric([sweeper.what], sweeper.deleted)
            failures.add_metric([sweeper.what], sweeper.failures)
        yield deleted
        yield failures


class HeartbeatCollector(Collector):
    """Age of the heartbeats that server and watchdog exchange."""

    def __init__(self, heartbeats: Heartbeats) -> None:
        self._heartbeats = heartbeats

    def collect(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "headgate_heartbeat_age_seconds", "Seconds since the last heartbeat of a process.", labels=["process"]
        )
        for source in HeartbeatSource:
            try:
                seconds = self._heartbeats.silent_for(source)
            except HeadgateError:
                # The store is unavailable: its own series say so.
                continue
            if seconds is not None:
                age.add_metric([source.value], seconds)
        yield age


class CacheCollector(Collector):
    """Cache counters and hit rate by kind of entry."""

    def __init__(self, stats: CacheStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        rate = GaugeMetricFamily("headgate_cache_hit_rate", "Share of reads a layer answered fresh.", labels=["kind"])
        counts = {
            name: CounterMetricFamily(series.name, series.help, labels=series.labels)
            for name, series in CACHE_SERIES.items()
        }
        for kind, values in self._stats.snapshot().items():
            rate.add_metric([kind], self._stats.hit_rate(kind))
            for name, value in values.items():
                counts[name].add_metric([kind], value)
        yield rate
        yield from counts.values()


class SizeCollector(Collector):
    """Size of the database, as last measured. Measuring reads the store, so a thread calls `refresh`."""

    def __init__(self, measure: Callable[[], StoreSize | None]) -> None:
        self._measure = measure
        self._size: StoreSize | None = None

    def refresh(self) -> int:
        """Measure the store. Returns 0, because nothing is deleted."""
        self._size = self._measure()
        return 0

    def collect(self) -> Iterator[Metric]:
        size = self._size
        if size is None:
            return
        yield GaugeMetricFamily("headgate_store_bytes", "Bytes of the database file.", value=size.file_bytes)
        yield GaugeMetricFamily(
            "headgate_store_free_bytes", "Bytes of free pages in the database file.", value=size.free_bytes
        )
        yield GaugeMetricFamily("headgate_store_wal_bytes", "Bytes of the write-ahead log (WAL).", value=size.wal_bytes)
        rows = GaugeMetricFamily("headgate_store_rows", "Rows by table, counted up to 100,000.", labels=["table"])
        for table, count in size.rows.items():
            rows.add_metric([table], count)
        yield rows
