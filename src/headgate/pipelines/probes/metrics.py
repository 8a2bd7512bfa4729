"""Probe metrics: looks by verdict, their duration, and when each probe last could look."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headgate.pipelines.enums import Verdict
from headgate.pipelines.probes.model import Probe, ProbeResult

_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


class ProbeMetrics:
    """Counts looks. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._looks = Counter(
            "headgate_probe_looks_total", "Looks of probes, by probe and verdict.", ("probe", "verdict"),
            registry=registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "headgate_probe_seconds", "Duration of a look, by kind of probe.", ("kind",), registry=registry,
            buckets=_BUCKETS,
        )  # fmt: skip
        self._last = Gauge(
            "headgate_probe_last_seen_seconds", "When a probe last could look, in Unix time.", ("probe",),
            registry=registry,
        )  # fmt: skip

    def observe(self, probe: Probe, result: ProbeResult) -> None:
        """Count a result."""
        self._looks.labels(probe.id, result.verdict.value).inc()
        self._seconds.labels(probe.kind).observe(result.duration_ms / 1000)
        if result.verdict is not Verdict.UNKNOWN:
            self._last.labels(probe.id).set(result.at_ms / 1000)
