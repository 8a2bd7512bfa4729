"""Timings: how long things took, counted where thousands a second are, and made into histograms when someone asks.

One lock for each, where a counter and a histogram of Prometheus take three.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

# In milliseconds.
BOUNDS_MS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)

Labels = tuple[str, ...]


class Timing(Struct, frozen=True):
    """What was counted under some labels: how many took at most so long, by bound, and how long all took together."""

    counts: tuple[int, ...]
    sum_ms: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def buckets(self) -> Sequence[tuple[str, float]]:
        """Return the buckets as a histogram has them: each counts what is in those before it as well."""
        bounds = [*(str(float(bound)) for bound in BOUNDS_MS), "+Inf"]
        return [(bound, float(sum(self.counts[: place + 1]))) for place, bound in enumerate(bounds)]

    def __add__(self, other: Timing) -> Timing:
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Timing(counts, self.sum_ms + other.sum_ms)


class Timings:
    """Timings by their labels, of which there must be few. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def add(self, labels: Labels, milliseconds: float) -> None:
        """Count one."""
        place = bisect_left(BOUNDS_MS, milliseconds)
        with self._lock:
            counts = self._counts.get(labels)
            if counts is None:
                counts = self._counts[labels] = [0] * (len(BOUNDS_MS) + 1)
                self._sums[labels] = 0.0
            counts[place] += 1
            self._sums[labels] += milliseconds

    def snapshot(self) -> Iterator[tuple[Labels, Timing]]:
        """Return what was counted until now."""
        with self._lock:
            found = [(labels, Timing(tuple(counts), self._sums[labels])) for labels, counts in self._counts.items()]
        return iter(found)
