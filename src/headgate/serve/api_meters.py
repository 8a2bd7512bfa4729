"""What is counted of every call of an API, whichever it is: how many there were, how they ended, how long they took."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from headgate.timings import Timing, Timings


class ApiMeters(Collector):
    """`api_request_count` and `api_latency`, by API, method and status: an HTTP status, or a code of gRPC."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._timings = Timings()
        registry.register(self)

    def record(self, api: str, method: str, status: str, seconds: float) -> None:
        """Count a call. `method` is one of a bounded number of names."""
        self._timings.add((api, method, status), seconds * 1000)

    def collect(self) -> Iterator[Metric]:
        """Yield both metrics."""
        count = CounterMetricFamily(
            "api_request_count", "Calls answered.", labels=["api_type", "method", "status_code"]
        )
        latency = HistogramMetricFamily(
            "api_latency", "Milliseconds from a call to its answer.", labels=["api_type", "method"]
        )
        of_methods: dict[tuple[str, str], Timing] = {}
        for (api, method, status), timing in self._timings.snapshot():
            count.add_metric([api, method, status], timing.count)
            known = of_methods.get((api, method))
            of_methods[api, method] = timing if known is None else known + timing
        for labels, timing in of_methods.items():
            latency.add_metric(labels, timing.buckets(), timing.sum_ms)
        yield count
        yield latency
