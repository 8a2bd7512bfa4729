"""Counts of what a store was asked and what it cost, for metrics and benchmarks."""

from __future__ import annotations

from typing import Final

COUNTERS: Final = (
    "reads", "queries", "writes", "transactions", "batches", "commits", "conflicts", "retries", "throttles",
)  # fmt: skip


class StoreStats:
    """Plain integers, added to without a lock: exact for one thread, close enough for many."""

    __slots__ = COUNTERS

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

    def snapshot(self) -> dict[str, int]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in COUNTERS}
