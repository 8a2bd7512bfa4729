"""Merged metrics: a Prometheus registry that adds the metrics of child processes to its own on collection.

Counters and histograms are summed. Of gauges only circuit breaker states are merged, to the worse of both; all other
gauges describe one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric

from headgate import typed_decode

_SUMMED: Final = frozenset({"counter", "histogram"})
_MAXIMUM: Final = "circuit_breaker_state"
# Creation timestamps, which cannot be summed.
_CREATED: Final = "_created"


class ProcessMetric(Struct, frozen=True, array_like=True):
    """One metric: samples of name, labels and value."""

    name: str
    documentation: str
    kind: str
    samples: list[tuple[str, tuple[tuple[str, str], ...], float]]


def encode_metrics(registry: CollectorRegistry) -> bytes:
    """Encode the metrics of a registry for another process."""
    return msgspec.msgpack.encode(list(_process_metrics(registry.collect())))


def decode_metrics(content: bytes) -> list[ProcessMetric]:
    """Decode the metrics of another process. Raises `msgspec.DecodeError`."""
    return typed_decode.from_msgpack(content, list[ProcessMetric])


class MergedRegistry(CollectorRegistry):
    """A registry that merges in the metrics of other processes."""

    def __init__(self) -> None:
        super().__init__()
        # By process id.
        self._by_process: dict[int, Sequence[ProcessMetric]] = {}
        # The sums of processes that have ended: a counter must not decrease.
        self._ended: dict[str, ProcessMetric] = {}

    def update_process(self, process: int, metrics: Sequence[ProcessMetric]) -> None:
        """Replace the metrics of a process."""
        self._by_process[process] = metrics

    def end_process(self, process: int) -> None:
        """Keep the counters and histograms of a process that has ended, as of their last update, in one sum."""
        for each in self._by_process.pop(process, ()):
            if each.kind in _SUMMED:
                known = self._ended.get(each.name)
                self._ended[each.name] = each if known is None else _joined(known, each)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        by_name: dict[str, list[ProcessMetric]] = {name: [metric] for name, metric in self._ended.items()}
        for each in self._by_process.values():
            for each_metric in each:
                by_name.setdefault(each_metric.name, []).append(each_metric)
        for metric in super().collect():
            yield _sum(metric, by_name.pop(metric.name, ()))
        for others in by_name.values():
            first = others[0]
            yield _sum(Metric(first.name, first.documentation, first.kind), others)


def _process_metrics(metrics: Iterable[Metric]) -> Iterator[ProcessMetric]:
    for metric in metrics:
        if metric.type in _SUMMED or metric.name == _MAXIMUM:
            samples = [
                (each.name, tuple(sorted(each.labels.items())), float(each.value))
                for each in metric.samples
                if not each.name.endswith(_CREATED)
            ]
            yield ProcessMetric(metric.name, metric.documentation, metric.type, samples)


def _joined(first: ProcessMetric, second: ProcessMetric) -> ProcessMetric:
    """Return the sum of a counter or histogram in two processes."""
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for name, labels, value in (*first.samples, *second.samples):
        values[name, labels] = values.get((name, labels), 0.0) + value
    samples = [(name, labels, value) for (name, labels), value in values.items()]
    return ProcessMetric(first.name, first.documentation, first.kind, samples)


def _sum(metric: Metric, others: Sequence[ProcessMetric]) -> Metric:
    if not others:
        return metric
    total = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
        (each.name, tuple(sorted(each.labels.items()))): each.value for each in metric.samples
    }
    for each_metric in others:
        for name, labels, value in each_metric.samples:
            own = values.get((name, labels))
            values[name, labels] = _merged(metric.type, own, value)
    for (name, labels), value in values.items():
        total.add_sample(name, dict(labels), value)
    return total


def _merged(kind: str, own: float | None, value: float) -> float:
    if own is None:
        return value
    return own + value if kind in _SUMMED else max(own, value)
