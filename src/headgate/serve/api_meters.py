"""What is counted of every call of an API, whichever it is: how many there were, how they ended, how long they took."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

_MS_BUCKETS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class ApiMeters:
    """`api_request_count` and `api_latency`, by API, method and status: an HTTP status, or a code of gRPC."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._count = Counter(
            "api_request_count", "Calls answered.", ["api_type", "method", "status_code"], registry=registry
        )
        self._latency = Histogram(
            "api_latency",
            "Milliseconds from a call to its answer.",
            ["api_type", "method"],
            buckets=_MS_BUCKETS,
            registry=registry,
        )
        # Looking up a labelled child costs more than counting with it.
        self._counts: dict[tuple[str, str, str], Counter] = {}
        self._latencies: dict[tuple[str, str], Histogram] = {}

    def record(self, api: str, method: str, status: str, seconds: float) -> None:
        """Count a call. `method` is one of a bounded number of names."""
        count = self._counts.get((api, method, status))
        if count is None:
            count = self._counts[api, method, status] = self._count.labels(api, method, status)
        latency = self._latencies.get((api, method))
        if latency is None:
            latency = self._latencies[api, method] = self._latency.labels(api, method)
        count.inc()
        latency.observe(seconds * 1000)
