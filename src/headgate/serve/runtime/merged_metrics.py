"""What another process of this server has counted, added to what is counted here when someone asks.

Counters and histograms add up. Of gauges only the state of breakers is taken over, the worse of both: other gauges
speak of the process they are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric

from headgate import typed_decode

_ADDED: Final = frozenset({"counter", "histogram"})
_WORSE: Final = "circuit_breaker_state"
# When a child of a metric was made. It is a time, and two of them do not add up.
_TIMES: Final = "_created"


class Counted(Struct, frozen=True, array_like=True):
    """One metric: each sample with its name, its labels and its value."""

    name: str
    said: str
    kind: str
    samples: list[tuple[str, tuple[tuple[str, str], ...], float]]


def packed(registry: CollectorRegistry) -> bytes:
    """Return what was counted here, for another process."""
    return msgspec.msgpack.encode(list(_counted(registry.collect())))


def unpacked(content: bytes) -> list[Counted]:
    """Return what another process has counted. Raises `msgspec.DecodeError`."""
    return typed_decode.from_msgpack(content, list[Counted])


class Summed(CollectorRegistry):
    """A registry whose metrics have those of other processes added to them."""

    def __init__(self) -> None:
        super().__init__()
        # By process, also of those that have ended: a counter does not fall.
        self._elsewhere: dict[int, Sequence[Counted]] = {}

    def heard(self, process: int, counted: Sequence[Counted]) -> None:
        """Take what a process has counted since its start."""
        self._elsewhere[process] = counted

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        found: dict[str, list[Counted]] = {}
        for each in self._elsewhere.values():
            for counted in each:
                found.setdefault(counted.name, []).append(counted)
        for metric in super().collect():
            yield _sum(metric, found.pop(metric.name, ()))
        for others in found.values():
            first = others[0]
            yield _sum(Metric(first.name, first.said, first.kind), others)


def _counted(metrics: Iterable[Metric]) -> Iterator[Counted]:
    for metric in metrics:
        if metric.type in _ADDED or metric.name == _WORSE:
            samples = [
                (each.name, tuple(sorted(each.labels.items())), float(each.value))
                for each in metric.samples
                if not each.name.endswith(_TIMES)
            ]
            yield Counted(metric.name, metric.documentation, metric.type, samples)


def _sum(metric: Metric, others: Sequence[Counted]) -> Metric:
    if not others:
        return metric
    total = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
        (each.name, tuple(sorted(each.labels.items()))): each.value for each in metric.samples
    }
    for counted in others:
        for name, labels, value in counted.samples:
            here = values.get((name, labels))
            values[name, labels] = _both(metric.type, here, value)
    for (name, labels), value in values.items():
        total.add_sample(name, dict(labels), value)
    return total


def _both(kind: str, here: float | None, value: float) -> float:
    if here is None:
        return value
    return here + value if kind in _ADDED else max(here, value)
