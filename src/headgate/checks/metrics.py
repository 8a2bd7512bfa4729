"""Check metrics: runs by result, their duration, when one last ended, and how late the due ones are.

`SERIES` is the catalogue: docs/reference/metrics.md is generated from it. No label names a check, because there may be
very many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headgate.checks.model import Outcome
from headgate.metric_series import Series

RUNS: Final = Series("headgate_check_runs", "counter", ("kind", "state"), "Runs of checks with a stored result.")
SECONDS: Final = Series("headgate_check_seconds", "histogram", ("kind",), "Duration of a check.")
LAST_RUN: Final = Series(
    "headgate_check_last_run_timestamp_seconds", "gauge", (), "When this server last stored a result, in Unix time."
)
LAG: Final = Series(
    "headgate_check_lag_seconds", "gauge", (), "How long the check that waits longest has been due; 0: none is due."
)
SERIES: Final[Sequence[Series]] = (RUNS, SECONDS, LAST_RUN, LAG)
_BUCKETS: Final = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0)


class CheckMetrics:
    """Counts runs of checks. Thread-safe."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._runs = Counter(RUNS.name, RUNS.help, RUNS.labels, registry=registry)
        self._seconds = Histogram(SECONDS.name, SECONDS.help, SECONDS.labels, registry=registry, buckets=_BUCKETS)
        self._last_run = Gauge(LAST_RUN.name, LAST_RUN.help, registry=registry)
        self._lag = Gauge(LAG.name, LAG.help, registry=registry)

    def observe(self, kind: str, outcome: Outcome) -> None:
        """Count a stored result."""
        self._runs.labels(kind, outcome.state.value).inc()
        self._seconds.labels(kind).observe(outcome.duration_ms / 1000)
        self._last_run.set(outcome.at_ms / 1000)

    def observe_lag(self, seconds: float) -> None:
        """Record how late the earliest due check is."""
        self._lag.set(seconds)
