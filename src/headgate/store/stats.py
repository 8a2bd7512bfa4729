"""Counts of what a store was asked and what it cost, for metrics and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

COUNTERS: Final = (
    "reads", "queries", "writes", "transactions", "batches", "commits", "conflicts", "retries", "throttles",
)  # fmt: skip


class StoreStats:
    """Plain integers, added to without a lock: exact for one thread, close enough for many."""

    __slots__ = (*COUNTERS, "attempt_failed", "consumed", "throttled")

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
        # The capacity that was paid for, in units, by the backend's name of the table and READ or WRITE.
        self.consumed: dict[tuple[str, str], float] = {}
        # Told of every attempt that failed, also of one that is made again; must neither block nor raise.
        self.attempt_failed: Callable[[BaseException], None] = lambda _error: None

    def count_throttle(self, operation: str, about: str) -> None:
        """Count an attempt that the backend throttled."""
        self.throttles += 1
        self.throttled[operation, about] = self.throttled.get((operation, about), 0) + 1

    def count_capacity(self, table: str, kind: str, units: float) -> None:
        """Add to the capacity that a table was asked for. `kind` is READ or WRITE."""
        self.consumed[table, kind] = self.consumed.get((table, kind), 0.0) + units

    def snapshot(self) -> dict[str, int]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in COUNTERS}
