"""A store with a breaker for each table and operation and a limiter for each table before it.

When all is well it adds about a microsecond to a call. When a table is ill, calls to it fail at once instead of each
costing a deadline; when it is overloaded, what matters least is shed first. Nothing is retried here: the store behind
it does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from headgate.clock import Clock
from headgate.errors import ConflictError, FatalError, HeadgateError, ThrottledError
from headgate.store.blobs.spill import RawItems
from headgate.store.model.conditions import Condition
from headgate.store.model.requests import ChangeBatch, Delete, Page, Put, Query, StreamStart, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.resilience.circuit_breaker import (
    DEFAULT_LIMITS,
    Breaker,
    BreakerChange,
    BreakerLimits,
    BreakerState,
)
from headgate.store.resilience.error_policy import policy_of
from headgate.store.resilience.rate_limiter import DEFAULT_LIMITS as LIMITER_LIMITS
from headgate.store.resilience.rate_limiter import Limiter, LimiterLimits
from headgate.store.stats import StoreStats
from headgate.store.topics import ANYTHING, Topics

R = TypeVar("R")


class AnyStore(Store, RawItems, Protocol):
    """What every backend is: the port, raw reads, and counters."""

    @property
    def stats(self) -> StoreStats:
        """What was asked of the store since it was opened."""


class Watcher(Protocol):
    """Whoever wants to know how the calls went. Called in the caller's thread; must neither block nor raise."""

    def answered(self, tables: str, operation: str, seconds: float) -> None:
        """A call was answered as it was meant."""

    def failed(self, tables: str, operation: str, error: BaseException) -> None:
        """A call failed, or was not made because a guard refused it."""

    def conflicted(self, error: BaseException) -> None:
        """A call was answered with a conflict."""

    def changed(self, change: BreakerChange) -> None:
        """A breaker opened, closed, or tries again."""


class _Guard:
    """The way to one operation on some tables: a breaker, the tables' limiters, and who watches."""

    __slots__ = ("_clock", "_watcher", "breaker", "limiters", "operation", "tables")

    def __init__(
        self, tables: str, operation: str, breaker: Breaker, limiters: Sequence[Limiter], watcher: Watcher | None,
        clock: Clock,
    ) -> None:  # fmt: skip
        self.tables = tables
        self.operation = operation
        self.breaker = breaker
        self.limiters = limiters
        self._watcher = watcher
        self._clock = clock

    def enter(self, units: int, *, wait: bool = True) -> int:
        """Return a ticket. Raises `BreakerOpenError`, `ThrottledError` or `DeadlineExceededError`."""
        breaker = self.breaker
        try:
            if breaker.state is not BreakerState.CLOSED:
                breaker.refuse_if_open()
            for limiter in self.limiters:
                limiter.acquire(units, wait=wait)
            return breaker.admit()
        except HeadgateError as exc:
            if self._watcher is not None:
                self._watcher.failed(self.tables, self.operation, exc)
            raise

    def lost(self, ticket: int, error: BaseException) -> None:
        """Judge an error that the store raised."""
        if isinstance(error, ThrottledError):
            for limiter in self.limiters:
                limiter.throttled()
        if _is_illness(error):
            self.breaker.failed(ticket)
        elif isinstance(error, ConflictError):
            self.breaker.succeeded(ticket)
        else:
            # Bad input was never sent, and an interrupted call has learnt nothing.
            self.breaker.abandoned(ticket)
        if self._watcher is None:
            return
        if isinstance(error, ConflictError):
            self._watcher.conflicted(error)
        else:
            self._watcher.failed(self.tables, self.operation, error)

    def call(self, units: int, call: Callable[[], R]) -> R:
        """Make a call through the guard."""
        ticket = self.enter(units)
        began_at = self._clock.monotonic()
        try:
            answer = call()
        except BaseException as exc:
            self.lost(ticket, exc)
            raise
        self.breaker.succeeded(ticket)
        if self._watcher is not None:
            self._watcher.answered(self.tables, self.operation, self._clock.monotonic() - began_at)
        return answer


def _is_illness(error: BaseException) -> bool:
    """Whether the backend may get well if it is left alone. What is fatal will not, and must be seen for what it is."""
    return (
        isinstance(error, HeadgateError) and not isinstance(error, FatalError) and policy_of(error).blames_the_backend
    )


class GuardedStore:
    """Implements `headgate.store.port.Store` around another store, and raises what that raises.

    Beyond that it raises `BreakerOpenError` and `ThrottledError`, both with the time after which to try again, and
    `DeadlineExceededError` for a caller whose deadline passed while it waited. Nothing was sent then. Waiting for
    changes, sweeping, the health check and `close` go through unguarded. What `submit` is refused is told to `done`.
    """

    def __init__(
        self,
        store: AnyStore,
        clock: Clock,
        *,
        breaker_limits: BreakerLimits = DEFAULT_LIMITS,
        limiter_limits: LimiterLimits = LIMITER_LIMITS,
        watcher: Watcher | None = None,
    ) -> None:
        self.store = store
        self._clock = clock
        self._breaker_limits = breaker_limits
        self._limiter_limits = limiter_limits
        self._watcher = watcher
        self._limiters: dict[str, Limiter] = {}
        self._gets: dict[str, _Guard] = {}
        self._guards: dict[tuple[str, tuple[str, ...]], _Guard] = {}

    @property
    def stats(self) -> StoreStats:
        """What was asked of the store behind this one."""
        return self.store.stats

    def breakers(self) -> list[Breaker]:
        """Return the breakers that have been used, in no order."""
        return [guard.breaker for guard in [*self._gets.values(), *self._guards.values()]]

    def limiters(self) -> list[Limiter]:
        """Return the limiters that have been used, in no order."""
        return list(self._limiters.values())

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        guard = self._gets.get(table.name) or self._get_guard(table)
        ticket = guard.enter(1)
        if self._watcher is not None:
            began_at = self._clock.monotonic()
        try:
            answer = self.store.get(table, key, consistent=consistent)
        except BaseException as exc:
            guard.lost(ticket, exc)
            raise
        guard.breaker.succeeded(ticket)
        if self._watcher is not None:
            self._watcher.answered(table.name, "get", self._clock.monotonic() - began_at)
        return answer

    def get_raw(self, table: Table, key: Key) -> Item | None:
        """Return the item as stored, expired or not, references to spilled attributes not followed."""
        return self._guard("get_raw", [table]).call(1, lambda: self.store.get_raw(table, key))

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        guard = self._guard("get_many", [table])
        return guard.call(len(keys), lambda: self.store.get_many(table, keys, consistent=consistent))

    def query(self, query: Query) -> Page:
        return self._guard("query", [query.table]).call(1, lambda: self.store.query(query))

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        guard = self._guard("query_many", (query.table for query in queries))
        return guard.call(len(queries), lambda: self.store.query_many(queries))

    def put(self, table: Table, item: Mapping[str, Any], *, condition: Condition | None = None) -> None:
        self._guard("put", [table]).call(1, lambda: self.store.put(table, item, condition=condition))

    def update(
        self,
        table: Table,
        key: Key,
        *,
        set: Mapping[str, Any] | None = None,
        add: Mapping[str, int | float] | None = None,
        remove: Sequence[str] = (),
        condition: Condition | None = None,
    ) -> Item:
        return self._guard("update", [table]).call(
            1, lambda: self.store.update(table, key, set=set, add=add, remove=remove, condition=condition)
        )

    def delete(self, table: Table, key: Key, *, condition: Condition | None = None) -> Item | None:
        return self._guard("delete", [table]).call(1, lambda: self.store.delete(table, key, condition=condition))

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        guard = self._guard("transact", (write.table for write in writes))
        guard.call(len(writes), lambda: self.store.transact(writes, token=token))

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        tables = (write.table for writes in transactions for write in writes)
        units = sum(len(writes) for writes in transactions)
        return self._guard("transact_many", tables).call(units, lambda: self.store.transact_many(transactions))

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        guard = self._guard("submit", (write.table for write in writes))
        try:
            ticket = guard.enter(len(writes), wait=False)
        except HeadgateError as exc:
            done(exc)
            return

        def settle(error: BaseException | None) -> None:
            if error is None:
                guard.breaker.succeeded(ticket)
            else:
                guard.lost(ticket, error)
            done(error)

        try:
            self.store.submit(writes, settle)
        except BaseException as exc:
            guard.lost(ticket, exc)
            raise

    def batch_write(self, writes: Sequence[Put | Delete]) -> None:
        guard = self._guard("batch_write", (write.table for write in writes))
        guard.call(len(writes), lambda: self.store.batch_write(writes))

    def changes(
        self, table: Table, consumer: str, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST
    ) -> ChangeBatch:
        guard = self._guard("changes", [table])
        return guard.call(1, lambda: self.store.changes(table, consumer, limit=limit, start=start))

    def checkpoint(self, table: Table, consumer: str, position: str) -> None:
        self._guard("checkpoint", [table]).call(1, lambda: self.store.checkpoint(table, consumer, position))

    def generation(self, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        return self.store.generation(topics, others=others)

    def wait(self, generation: int, timeout_seconds: float, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        return self.store.wait(generation, timeout_seconds, topics, others=others)

    def wake(self) -> None:
        self.store.wake()

    def sweep(self, *, limit: int = 1000) -> int:
        return self.store.sweep(limit=limit)

    def check_health(self) -> None:
        self.store.check_health()

    def close(self) -> None:
        self.store.close()

    def _get_guard(self, table: Table) -> _Guard:
        return self._gets.setdefault(table.name, self._make("get", (table.name,)))

    def _guard(self, operation: str, tables: Iterable[Table]) -> _Guard:
        try:
            names = {table.name for table in tables}
        except AttributeError:
            # Something is not a write or a query: the store itself has the words for that.
            names = set()
        key = (operation, tuple(names) if len(names) <= 1 else tuple(sorted(names)))
        return self._guards.get(key) or self._guards.setdefault(key, self._make(*key))

    def _make(self, operation: str, names: tuple[str, ...]) -> _Guard:
        # A transaction over several tables has a breaker of its own: whose fault it was, nobody can tell.
        tables = "+".join(names)
        changed = self._watcher.changed if self._watcher is not None else lambda _change: None
        breaker = Breaker(f"{operation} on {tables}", self._clock, self._breaker_limits, changed)
        limiters = [self._limiter(name) for name in names]
        return _Guard(tables, operation, breaker, limiters, self._watcher, self._clock)

    def _limiter(self, name: str) -> Limiter:
        # setdefault is atomic: of two threads that make one, both use the first.
        return self._limiters.setdefault(name, Limiter(name, self._clock, self._limiter_limits))
