"""Latency histograms: cheap counters for hot paths, turned into Prometheus histograms when metrics are scraped.

An observation takes one lock; a Prometheus counter plus histogram takes three.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

BOUNDS_MS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)

Labels = tuple[str, ...]


class LatencyHistogram(Struct, frozen=True):
    """The observations of one label set: counts per bucket (not cumulative) and their sum."""

    counts: tuple[int, ...]
    sum_ms: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Return cumulative buckets, as Prometheus expects them."""
        bounds = [*(str(float(bound)) for bound in BOUNDS_MS), "+Inf"]
        return [(bound, float(sum(self.counts[: place + 1]))) for place, bound in enumerate(bounds)]

    def __add__(self, other: LatencyHistogram) -> LatencyHistogram:
        counts = tuple(left + right for left, right in zip(self.counts, other.counts, strict=True))
        return LatencyHistogram(counts, self.sum_ms + other.sum_ms)


class LatencyHistograms:
    """Histograms by label set, which must be few. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def add(self, labels: Labels, milliseconds: float) -> None:
        """Add one observation."""
        bucket = bisect_left(BOUNDS_MS, milliseconds)
        with self._lock:
            counts = self._counts.get(labels)
            if counts is None:
                counts = self._counts[labels] = [0] * (len(BOUNDS_MS) + 1)
                self._sums[labels] = 0.0
            counts[bucket] += 1
            self._sums[labels] += milliseconds

    def snapshot(self) -> Iterator[tuple[Labels, LatencyHistogram]]:
        """Return a copy of all histograms."""
        with self._lock:
            histograms = [
                (labels, LatencyHistogram(tuple(counts), self._sums[labels])) for labels, counts in self._counts.items()
            ]
        return iter(histograms)
