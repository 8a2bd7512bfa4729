"""Incident metrics: how many incidents are open. Reading takes store calls, so a thread calls `refresh`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from headgate.health.model.enums import IncidentStatus, Severity
from headgate.metric_series import Series

# Seldom: the incidents themselves are read, up to a thousand of each status.
INCIDENTS_EVERY_SECONDS: Final = 60.0
OPEN: Final = Series(
    "headgate_incidents_open", "gauge", ("status", "severity"),
    "Incidents that are OPEN or ACKNOWLEDGED, up to 1,000 of each status.",
)  # fmt: skip
SERIES: Final = (OPEN,)
_STATUSES: Final = (IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED)


class IncidentCollector(Collector):
    """Exports the open incidents of a store as last counted, by status and severity."""

    def __init__(self, count: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        self._count = count
        self._counts: Mapping[str, Mapping[str, int]] | None = None

    def refresh(self) -> int:
        """Count the incidents. Returns 0, because nothing is deleted."""
        self._counts = self._count()
        return 0

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge, with a zero where no incident is open."""
        if self._counts is None:
            return
        gauge = GaugeMetricFamily(OPEN.name, OPEN.help, labels=OPEN.labels)
        for status in _STATUSES:
            counted = self._counts.get(status.value, {})
            for severity in Severity:
                gauge.add_metric([status.value, severity.value], counted.get(severity.value, 0))
        yield gauge
