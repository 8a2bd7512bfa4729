"""Fenced store: rejects writes unless its region is the writer. Reads pass in every region."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.errors import ConflictError, HeadgateError
from headgate.health.regions.regions import Fence
from headgate.store.model.conditions import Condition
from headgate.store.model.requests import ChangeBatch, Delete, Page, Put, Query, StreamStart, Update, Write
from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item
from headgate.store.resilience.guarded_store import AnyStore, StoreWrapper


class FencedStore(StoreWrapper):
    """Implements `headgate.store.port.Store` around another store, and raises what that raises.

    In addition, every write raises `StoreBusyError` while another region is the writer. A write is one transaction with
    a check of the epoch, which takes one of its hundred places. Batches have no conditions: the epoch is read before
    each of them. Checkpoints and expiry belong to each region.
    """

    def __init__(self, store: AnyStore, fence: Fence) -> None:
        super().__init__(store)
        self._fence = fence

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        return self.store.get(table, key, consistent=consistent)

    def get_raw(self, table: Table, key: Key) -> Item | None:
        """Return the item as stored, expired or not, without reading spilled attributes."""
        return self.store.get_raw(table, key)

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        return self.store.get_many(table, keys, consistent=consistent)

    def query(self, query: Query) -> Page:
        return self.store.query(query)

    def count(self, query: Query, by: str | None = None, *, most: int) -> dict[str, int]:
        return self.store.count(query, by, most=most)

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        return self.store.query_many(queries)

    def put(self, table: Table, item: Mapping[str, Any], *, condition: Condition | None = None) -> None:
        self._fence.transact([Put(table, dict(item), condition)])

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
        self._fence.transact([Update(table, key, set or {}, add or {}, tuple(remove), condition)])
        # A transaction returns nothing. The item may have been changed or deleted since.
        return self.store.get(table, key, consistent=True) or {}

    def delete(self, table: Table, key: Key, *, condition: Condition | None = None) -> Item | None:
        found = self.store.get(table, key, consistent=True)
        self._fence.transact([Delete(table, key, condition)])
        return found

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        self._fence.transact(writes, token=token)

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        outcomes = self.store.transact_many([self._fence.fence_writes(writes) for writes in transactions])
        return [self._without_fence(error, len(writes)) for writes, error in zip(transactions, outcomes, strict=True)]

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        try:
            fenced = self._fence.fence_writes(writes)
        except HeadgateError as exc:
            done(exc)
            return
        self.store.submit(fenced, lambda error: done(self._without_fence(error, len(writes))))

    def batch_write(self, writes: Sequence[Put | Delete]) -> None:
        self._fence.check()
        marked = self._fence.marked(writes)
        self.store.batch_write([each for each in marked if isinstance(each, Put | Delete)])

    def changes(
        self, table: Table, consumer: str, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST
    ) -> ChangeBatch:
        return self.store.changes(table, consumer, limit=limit, start=start)

    def checkpoint(self, table: Table, consumer: str, position: str) -> None:
        self.store.checkpoint(table, consumer, position)

    def _without_fence(self, error: Any, place: int) -> Any:  # noqa: ANN401 - an error of the same kind, or None
        if isinstance(error, ConflictError) and place in error.failures:
            return self._fence.passed()
        return error
