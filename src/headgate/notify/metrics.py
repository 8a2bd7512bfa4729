"""Alert metrics: deliveries of this process by channel, for Prometheus."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from headgate.notify.enums import AlertAction


class DeliveryObserver(Protocol):
    """Receives the result of every attempt to deliver an alert."""

    def on_sent(self, channel: str, action: AlertAction) -> None:
        """A channel accepted a message."""

    def on_failed(self, channel: str, action: AlertAction) -> None:
        """An attempt failed; it may be retried."""


class AlertMeters(Collector):
    """`headgate_alerts_sent_total` and `headgate_alerts_failed_total`. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()

    def on_sent(self, channel: str, action: AlertAction) -> None:
        with self._lock:
            self._sent[channel, action.value] += 1

    def on_failed(self, channel: str, action: AlertAction) -> None:
        with self._lock:
            self._failed[channel, action.value] += 1

    def collect(self) -> Iterator[Metric]:
        sent = CounterMetricFamily(
            "headgate_alerts_sent", "Alert messages that a channel accepted.", labels=["channel", "action"]
        )
        failed = CounterMetricFamily(
            "headgate_alerts_failed", "Attempts to send an alert that failed.", labels=["channel", "action"]
        )
        with self._lock:
            counts = [(sent, dict(self._sent)), (failed, dict(self._failed))]
        for family, by_labels in counts:
            for labels, count in sorted(by_labels.items()):
                family.add_metric(list(labels), count)
            yield family
