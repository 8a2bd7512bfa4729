"""Counts of what a store was asked and what it cost, for metrics and benchmarks."""

from __future__ import annotations

from typing import Final

COUNTERS: Final = (
    "reads", "queries", "writes", "transactions", "batches", "commits", "conflicts", "retries", "throttles",
)  # fmt: skip


class StoreStats:
    """Plain integers, added to without a lock: exact for one thread, close enough for many."""

    __slots__ = (*COUNTERS, "throttled")

    def __init__(self) -> None:
        self.reads = 0
        self.queries = 0
        self.writes = 0
        self.transactions = 0
        self.batches = 0
        self.commits = 0
        self.conflicts = 0
        self.retries = 0
        self.throttles = 0
        # The throttled attempts by what was asked (an operation) and of what (the words that messages use).
        self.throttled: dict[tuple[str, str], int] = {}

    def count_throttle(self, operation: str, about: str) -> None:
        """Count an attempt that the backend throttled."""
        self.throttles += 1
        self.throttled[operation, about] = self.throttled.get((operation, about), 0) + 1

    def snapshot(self) -> dict[str, int]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in COUNTERS}
