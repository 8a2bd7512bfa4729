"""Cache statistics: hits, misses, loads and errors by kind of entry, for metrics and alarms."""

from __future__ import annotations

from typing import Final

from headgate.store.cache.keys import CacheKind

COUNTERS: Final = (
    "hits_l1", "hits_l2", "misses_l1", "misses_l2", "stale_served", "loads", "load_errors", "l2_errors",
    "invalidations", "evictions",
)  # fmt: skip


class KindStats:
    """The counters of one kind, incremented without a lock: exact with one thread, approximate with many."""

    __slots__ = COUNTERS

    def __init__(self) -> None:
        self.hits_l1 = 0
        self.hits_l2 = 0
        self.misses_l1 = 0
        self.misses_l2 = 0
        self.stale_served = 0
        self.loads = 0
        self.load_errors = 0
        self.l2_errors = 0
        self.invalidations = 0
        self.evictions = 0


class CacheStats:
    """The counters of every kind. A consistent read, which bypasses the cache, counts as a load only."""

    def __init__(self) -> None:
        self._kinds = {kind: KindStats() for kind in CacheKind}

    def of(self, kind: CacheKind) -> KindStats:
        """Return the live counters of `kind`."""
        return self._kinds[kind]

    def hit_rate(self, kind: CacheKind) -> float:
        """Return the share of reads served fresh by L1 or L2, from 0 to 1; 0 before the first read."""
        counts = self._kinds[kind]
        reads = counts.hits_l1 + counts.misses_l1
        return (counts.hits_l1 + counts.hits_l2) / reads if reads else 0.0

    def snapshot(self) -> dict[CacheKind, dict[str, int]]:
        """Return the counters by kind and name."""
        return {kind: {name: getattr(counts, name) for name in COUNTERS} for kind, counts in self._kinds.items()}
