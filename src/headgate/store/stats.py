"""Store statistics: counters of calls, throttles and consumed capacity, for metrics and benchmarks."""

from __future__ import annotations

from typing import Final, Protocol

from headgate.store.faults import StoreFaults

COUNTERS: Final = (
    "reads", "queries", "writes", "transactions", "batches", "commits", "conflicts", "retries", "throttles",
)  # fmt: skip


class AttemptObserver(Protocol):
    """Receives failed attempts of store calls."""

    def on_attempt_failed(self, error: BaseException) -> None:
        """An attempt failed, also one that is retried. Must neither block nor raise. From any thread."""


class StoreStats:
    """Plain integers, incremented without a lock: exact with one thread, approximate with many."""

    __slots__ = (*COUNTERS, "consumed", "faults", "throttled")

    def __init__(self, faults: StoreFaults | None = None) -> None:
        # The conditions that keep the store from being used now.
        self.faults = StoreFaults() if faults is None else faults
        self.reads = 0
        self.queries = 0
        self.writes = 0
        self.transactions = 0
        self.batches = 0
        self.commits = 0
        self.conflicts = 0
        self.retries = 0
        self.throttles = 0
        # Throttled attempts by operation and by subject, as error messages name it.
        self.throttled: dict[tuple[str, str], int] = {}
        # Consumed capacity units by physical table name and READ or WRITE.
        self.consumed: dict[tuple[str, str], float] = {}

    def count_throttle(self, operation: str, about: str) -> None:
        """Count an attempt that the backend throttled. `about` is its subject."""
        self.throttles += 1
        self.throttled[operation, about] = self.throttled.get((operation, about), 0) + 1

    def count_capacity(self, table: str, kind: str, units: float) -> None:
        """Add consumed capacity units of a table. `kind` is READ or WRITE."""
        self.consumed[table, kind] = self.consumed.get((table, kind), 0.0) + units

    def snapshot(self) -> dict[str, int]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in COUNTERS}
