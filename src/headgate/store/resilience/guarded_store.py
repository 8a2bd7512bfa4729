"""Guarded store: a circuit breaker per table and operation, and a rate limiter per table, in front of a store.

It normally adds about a microsecond to a call. When a table fails, calls to it fail at once instead of each waiting for
a deadline; when it is overloaded, calls of the lowest priority are shed first. Retries are left to the inner store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from headgate.clock import Clock
from headgate.errors import ConflictError, FatalError, HeadgateError, StoreUnavailableError, ThrottledError
from headgate.store.blobs.spill import RawItems
from headgate.store.model.conditions import Condition
from headgate.store.model.requests import ChangeBatch, Delete, Page, Put, Query, StreamStart, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.resilience.circuit_breaker import (
    DEFAULT_LIMITS,
    BreakerChange,
    BreakerLimits,
    BreakerState,
    CircuitBreaker,
)
from headgate.store.resilience.error_policy import policy_of
from headgate.store.resilience.rate_limiter import DEFAULT_LIMITS as LIMITER_LIMITS
from headgate.store.resilience.rate_limiter import LimiterLimits, RateLimiter
from headgate.store.stats import StoreStats
from headgate.store.topics import ANYTHING, Topics

R = TypeVar("R")


class AnyStore(Store, RawItems, Protocol):
    """The interface of every backend: the port, raw reads and counters."""

    @property
    def stats(self) -> StoreStats:
        """Return the counters of the store."""


class StoreWrapper:
    """The part of a store around another store that passes calls on: no reads and no writes."""

    def __init__(self, store: AnyStore) -> None:
        self.store = store

    @property
    def stats(self) -> StoreStats:
        """Return the counters of the inner store."""
        return self.store.stats

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


class StoreObserver(Protocol):
    """Observes the calls of a guarded store, in the caller's thread. Its methods must neither block nor raise."""

    def on_answered(self, tables: str, operation: str, seconds: float) -> None:
        """A call succeeded."""

    def on_failed(self, tables: str, operation: str, error: BaseException) -> None:
        """A call failed, or was refused by a circuit breaker or rate limiter."""

    def on_conflicted(self, error: BaseException) -> None:
        """A call was answered with a conflict."""

    def on_breaker_changed(self, change: BreakerChange) -> None:
        """A circuit breaker changed its state."""


class _Guard:
    """The guard of one operation on some tables: a circuit breaker and the tables' rate limiters."""

    __slots__ = ("_clock", "_observer", "breaker", "limiters", "operation", "tables")

    def __init__(
        self,
        tables: str,
        operation: str,
        breaker: CircuitBreaker,
        limiters: Sequence[RateLimiter],
        observer: StoreObserver | None,
        clock: Clock,
    ) -> None:
        self.tables = tables
        self.operation = operation
        self.breaker = breaker
        self.limiters = limiters
        self._observer = observer
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
            if self._observer is not None:
                self._observer.on_failed(self.tables, self.operation, exc)
            raise

    def on_error(self, ticket: int, error: BaseException) -> None:
        """Update the circuit breaker and limiters after an error of the store."""
        if isinstance(error, ThrottledError):
            for limiter in self.limiters:
                limiter.throttled()
        if _is_backend_failure(error):
            self.breaker.failed(ticket)
        elif isinstance(error, ConflictError):
            self.breaker.succeeded(ticket)
        else:
            # Invalid input was never sent, and an interrupted call shows nothing about the backend.
            self.breaker.abandoned(ticket)
        if self._observer is None:
            return
        if isinstance(error, ConflictError):
            self._observer.on_conflicted(error)
        else:
            self._observer.on_failed(self.tables, self.operation, error)

    def call(self, units: int, call: Callable[[], R]) -> R:
        """Make a call through the guard."""
        ticket = self.enter(units)
        began_at = self._clock.monotonic()
        try:
            answer = call()
        except BaseException as exc:
            self.on_error(ticket, exc)
            raise
        self.breaker.succeeded(ticket)
        if self._observer is not None:
            self._observer.on_answered(self.tables, self.operation, self._clock.monotonic() - began_at)
        return answer


def _is_backend_failure(error: BaseException) -> bool:
    """Whether a pause may help the backend.

    Fatal errors and conditions of the store's disk are excluded: they must surface unchanged.
    """
    if not isinstance(error, HeadgateError) or isinstance(error, (FatalError, StoreUnavailableError)):
        return False
    return policy_of(error).is_backend_failure


class GuardedStore(StoreWrapper):
    """Implements `headgate.store.port.Store` around another store.

    In addition to the inner store's errors it raises `BreakerOpenError` and `ThrottledError`, both with a retry time,
    and `DeadlineExceededError`; nothing was sent then. `submit` passes these errors to `done`. `wait`, `sweep`,
    `check_health` and `close` are not guarded.
    """

    def __init__(
        self,
        store: AnyStore,
        clock: Clock,
        *,
        breaker_limits: BreakerLimits = DEFAULT_LIMITS,
        limiter_limits: LimiterLimits = LIMITER_LIMITS,
        observer: StoreObserver | None = None,
    ) -> None:
        super().__init__(store)
        self._clock = clock
        self._breaker_limits = breaker_limits
        self._limiter_limits = limiter_limits
        self._observer = observer
        self._limiters: dict[str, RateLimiter] = {}
        self._gets: dict[str, _Guard] = {}
        self._guards: dict[tuple[str, tuple[str, ...]], _Guard] = {}

    def breakers(self) -> list[CircuitBreaker]:
        """Return the circuit breakers in use, unordered."""
        return [guard.breaker for guard in [*self._gets.values(), *self._guards.values()]]

    def limiters(self) -> list[RateLimiter]:
        """Return the rate limiters in use, unordered."""
        return list(self._limiters.values())

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        guard = self._gets.get(table.name) or self._get_guard(table)
        ticket = guard.enter(1)
        if self._observer is not None:
            began_at = self._clock.monotonic()
        try:
            answer = self.store.get(table, key, consistent=consistent)
        except BaseException as exc:
            guard.on_error(ticket, exc)
            raise
        guard.breaker.succeeded(ticket)
        if self._observer is not None:
            self._observer.on_answered(table.name, "get", self._clock.monotonic() - began_at)
        return answer

    def get_raw(self, table: Table, key: Key) -> Item | None:
        """Return the item as stored: also if expired, and with blob references instead of spilled attributes."""
        return self._guard("get_raw", [table]).call(1, lambda: self.store.get_raw(table, key))

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        guard = self._guard("get_many", [table])
        return guard.call(len(keys), lambda: self.store.get_many(table, keys, consistent=consistent))

    def query(self, query: Query) -> Page:
        return self._guard("query", [query.table]).call(1, lambda: self.store.query(query))

    def count(self, query: Query, by: str | None = None, *, most: int) -> dict[str, int]:
        return self._guard("count", [query.table]).call(1, lambda: self.store.count(query, by, most=most))

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
        units = sum(map(len, transactions))
        return self._guard("transact_many", tables).call(units, lambda: self.store.transact_many(transactions))

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        guard = self._guard("submit", (write.table for write in writes))
        try:
            ticket = guard.enter(len(writes), wait=False)
        except HeadgateError as exc:
            done(exc)
            return

        def on_done(error: BaseException | None) -> None:
            if error is None:
                guard.breaker.succeeded(ticket)
            else:
                guard.on_error(ticket, error)
            done(error)

        try:
            self.store.submit(writes, on_done)
        except BaseException as exc:
            guard.on_error(ticket, exc)
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

    def _get_guard(self, table: Table) -> _Guard:
        return self._gets.setdefault(table.name, self._make("get", (table.name,)))

    def _guard(self, operation: str, tables: Iterable[Table]) -> _Guard:
        try:
            names = {table.name for table in tables}
        except AttributeError:
            # Not a write or query: the inner store raises the proper error.
            names = set()
        key = (operation, tuple(names) if len(names) <= 1 else tuple(sorted(names)))
        return self._guards.get(key) or self._guards.setdefault(key, self._make(*key))

    def _make(self, operation: str, names: tuple[str, ...]) -> _Guard:
        # A transaction over several tables has its own circuit breaker: its failures cannot be attributed to one table.
        tables = "+".join(names)
        changed = self._observer.on_breaker_changed if self._observer is not None else lambda _change: None
        breaker = CircuitBreaker(f"{operation} on {tables}", self._clock, self._breaker_limits, changed)
        limiters = [self._limiter(name) for name in names]
        return _Guard(tables, operation, breaker, limiters, self._observer, self._clock)

    def _limiter(self, name: str) -> RateLimiter:
        # setdefault is atomic: two threads end up with the same limiter.
        return self._limiters.setdefault(name, RateLimiter(name, self._clock, self._limiter_limits))
