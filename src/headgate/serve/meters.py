"""What the parts of the server count for themselves, as Prometheus metrics read when someone asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headgate.serve.pool import WorkPool
from headgate.serve.sweeper import Sweeper
from headgate.store.cache.stats import COUNTERS, CacheStats


class ServerCollector(Collector):
    """Work that runs or waits, and what the sweepers did."""

    def __init__(self, pool: WorkPool, sweepers: Sequence[Sweeper]) -> None:
        self._pool = pool
        self._sweepers = sweepers

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("headgate_work_accepted", "Blocking calls that run or wait.", value=self._pool.accepted)
        deleted = CounterMetricFamily("headgate_swept", "Expired things deleted.", labels=["what"])
        failures = CounterMetricFamily("headgate_sweep_failures", "Sweeps that failed.", labels=["what"])
        for sweeper in self._sweepers:
            deleted.add_metric([sweeper.what], sweeper.deleted)
            failures.add_metric([sweeper.what], sweeper.failures)
        yield deleted
        yield failures


class CacheCollector(Collector):
    """What each kind of cache entry was asked for, and the share of reads it answered."""

    def __init__(self, stats: CacheStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        rate = GaugeMetricFamily("headgate_cache_hit_rate", "Share of reads a layer answered fresh.", labels=["kind"])
        counts = {
            name: CounterMetricFamily(f"headgate_cache_{name}", f"Cache {name} since the start.", labels=["kind"])
            for name in COUNTERS
        }
        for kind, values in self._stats.snapshot().items():
            rate.add_metric([kind], self._stats.hit_rate(kind))
            for name, value in values.items():
                counts[name].add_metric([kind], value)
        yield rate
        yield from counts.values()
