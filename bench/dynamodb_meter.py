"""Meter: counts what DynamoDB would charge for each call of a store, by table or index and by partition key.

The rules are those of AWS's documentation: a write unit for each KB of the larger of the old and the new item, twice in
a transaction; a read unit for each 4 KB, half of it for a read that may lag; an index entry is written when a key or a
projected attribute changes, and moved (two writes) when its key changes.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headgate.errors import HeadgateError
from headgate.store.model.conditions import Condition
from headgate.store.model.requests import ChangeBatch, Delete, Page, Put, Query, StreamStart, Update, Write
from headgate.store.model.schema import Index, Key, Table
from headgate.store.model.validation import key_of
from headgate.store.model.values import Item, stored_bytes
from headgate.store.resilience.guarded_store import AnyStore, StoreWrapper
from headgate.store.transactions import token_row

WRITE_BYTES = 1024
READ_BYTES = 4096
TRANSACTION_FACTOR = 2


class Place(NamedTuple):
    """A table, or one of its indexes."""

    table: str
    index_name: str = ""

    def __str__(self) -> str:
        return f"{self.table}/{self.index_name}" if self.index_name else self.table


class Hit(NamedTuple):
    """Writes to one partition key of a place."""

    place: Place
    key: str


class Counts:
    """What was counted."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = defaultdict(int)
        self.written: dict[Hit, float] = defaultdict(float)
        self.read: dict[Hit, float] = defaultdict(float)
        # The sort keys in the order of their writes: whether DynamoDB can split a hot partition depends on it.
        self.sorts: dict[Hit, list[Any]] = defaultdict(list)

    def total_written(self, place: Place | None = None) -> float:
        return sum(units for hit, units in self.written.items() if place is None or hit.place == place)

    def total_read(self, place: Place | None = None) -> float:
        return sum(units for hit, units in self.read.items() if place is None or hit.place == place)


class MeteredStore(StoreWrapper):
    """Implements `headgate.store.port.Store` around another store and counts its calls, while `counts` is set.

    With `lone_transactions` a transaction of one write is counted as one, otherwise as the single write that it is.
    With `whole_projections` every index holds whole items. Tables that `left_out` names are not counted.
    """

    def __init__(
        self,
        store: AnyStore,
        *,
        lone_transactions: bool = False,
        whole_projections: bool = False,
        left_out: Collection[str] = (),
    ) -> None:
        super().__init__(store)
        self._left_out = frozenset(left_out)
        self.counts: Counts | None = None
        self.on_written: Callable[[Table, Item], None] | None = None
        self._lone_transactions = lone_transactions
        self._whole_projections = whole_projections
        self._lock = threading.RLock()

    # Reads.

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        item = self.store.get(table, key, consistent=consistent)
        self._count_read("GetItem", table, key.partition, [item], consistent=consistent)
        return item

    def get_raw(self, table: Table, key: Key) -> Item | None:
        """Return the item as stored."""
        return self.store.get_raw(table, key)

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        items = self.store.get_many(table, keys, consistent=consistent)
        for number, (key, item) in enumerate(zip(keys, items, strict=True)):
            self._count_read("" if number else "BatchGetItem", table, key.partition, [item], consistent=consistent)
        return items

    def query(self, query: Query) -> Page:
        page = self.store.query(query)
        index = None if query.index is None else query.table.index(query.index)
        # An empty answer is a poll: how many there are depends on the processes and not on the load.
        if page.items or index is None:
            self._count_read("Query", query.table, query.partition, page.items, index, consistent=query.consistent)
        elif self.counts is not None:
            self.counts.calls["Query, empty"] += 1
        return page

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        return [self.query(query) for query in queries]

    def count(self, query: Query, by: str | None = None, *, most: int) -> dict[str, int]:
        return self.store.count(query, by, most=most)

    # Writes.

    def put(self, table: Table, item: Mapping[str, Any], *, condition: Condition | None = None) -> None:
        self._write([Put(table, item, condition)], lambda: self.store.put(table, item, condition=condition), "PutItem")

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
        answer: list[Item] = []
        write = Update(table, key, set or {}, add or {}, tuple(remove), condition)
        self._write(
            [write],
            lambda: answer.append(self.store.update(table, key, set=set, add=add, remove=remove, condition=condition)),
            "UpdateItem",
        )
        return answer[0]

    def delete(self, table: Table, key: Key, *, condition: Condition | None = None) -> Item | None:
        answer: list[Item | None] = []
        self._write(
            [Delete(table, key, condition)],
            lambda: answer.append(self.store.delete(table, key, condition=condition)),
            "DeleteItem",
        )
        return answer[0]

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        rows = writes if token is None else [*writes, token_row(token, writes, 0.0)]
        self._write(rows, lambda: self.store.transact(writes, token=token))

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        outcomes: list[HeadgateError | None] = []
        for writes in transactions:
            self._write(writes, lambda writes=writes: outcomes.extend(self.store.transact_many([writes])))  # type: ignore[misc]
        return outcomes

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        error: BaseException | None = None
        try:
            self.transact(writes)
        except HeadgateError as exc:
            error = exc
        done(error)

    def batch_write(self, writes: Sequence[Put | Delete]) -> None:
        self._write(writes, lambda: self.store.batch_write(writes), "BatchWriteItem")

    def changes(
        self, table: Table, consumer: str, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST
    ) -> ChangeBatch:
        return self.store.changes(table, consumer, limit=limit, start=start)

    def checkpoint(self, table: Table, consumer: str, position: str) -> None:
        self.store.checkpoint(table, consumer, position)

    # Counting.

    def _count_read(
        self,
        call: str,
        table: Table,
        partition: object,
        items: Iterable[Item | None],
        index: Index | None = None,
        *,
        consistent: bool,
    ) -> None:
        counts = self.counts
        if counts is None or table.name in self._left_out:
            return
        if call:
            counts.calls[call] += 1
        size = sum(0 if item is None else self._bytes(table, index, item) for item in items)
        units = max(1, math.ceil(size / READ_BYTES)) * (1.0 if consistent else 0.5)
        counts.read[Hit(_place(table, index), str(partition))] += units

    def _write(self, writes: Sequence[Write], apply: Callable[[], object], call: str | None = None) -> None:
        """Apply writes and count them. A refused write costs as much as an applied one."""
        if self.counts is None and self.on_written is None:
            apply()
            return
        with self._lock:
            keys = [key_of(write) for write in writes]
            before = [self.store.get_raw(write.table, key) for write, key in zip(writes, keys, strict=True)]
            try:
                apply()
            finally:
                after = [self.store.get_raw(write.table, key) for write, key in zip(writes, keys, strict=True)]
                self._count_writes(writes, before, after, call)
        if self.on_written is not None:
            for write, old, item in zip(writes, before, after, strict=True):
                if item is not None and item != old:
                    self.on_written(write.table, item)

    def _count_writes(
        self,
        writes: Sequence[Write],
        before: Sequence[Item | None],
        after: Sequence[Item | None],
        call: str | None,
    ) -> None:
        counts = self.counts
        if counts is None:
            return
        if call is None:
            is_single = len(writes) == 1 and not self._lone_transactions and _is_single_call(writes[0])
            call = "PutItem" if is_single else "TransactWriteItems"
        counts.calls[call] += 1
        factor = TRANSACTION_FACTOR if call == "TransactWriteItems" else 1
        for write, old, new in zip(writes, before, after, strict=True):
            table, key = write.table, key_of(write)
            if table.name in self._left_out:
                continue
            hit = Hit(Place(table.name), str(key.partition))
            units = max(1, _write_units(max(_size(old), _size(new))))
            counts.written[hit] += factor * units
            counts.sorts[hit].append(key.sort)
            for index in table.indexes:
                self._count_entry(counts, table, index, old, new)

    def _count_entry(self, counts: Counts, table: Table, index: Index, old: Item | None, new: Item | None) -> None:
        was, is_now = self._entry(table, index, old), self._entry(table, index, new)
        if was == is_now:
            return
        place = Place(table.name, index.name)
        keys = index.attributes()
        is_moved = was is None or is_now is None or any(was[key.name] != is_now[key.name] for key in keys)
        if is_moved:
            for entry in (was, is_now):
                if entry is not None:
                    self._add_entry(counts, place, index, entry, _write_units(stored_bytes(entry)))
        elif is_now is not None:
            size = max(stored_bytes(entry) for entry in (was, is_now) if entry is not None)
            self._add_entry(counts, place, index, is_now, _write_units(size))

    def _add_entry(self, counts: Counts, place: Place, index: Index, entry: Item, units: int) -> None:
        hit = Hit(place, str(entry[index.partition.name]))
        counts.written[hit] += units
        counts.sorts[hit].append(None if index.sort is None else entry[index.sort.name])

    def _entry(self, table: Table, index: Index, item: Item | None) -> Item | None:
        """Return the entry of an item in an index, or None if it is not in it."""
        if item is None or any(item.get(key.name) is None for key in index.attributes()):
            return None
        return self._projected(table, index, item)

    def _projected(self, table: Table, index: Index, item: Item) -> Item:
        kept = None if self._whole_projections else table.projection(index.name)
        if kept is None:
            return item
        return {name: value for name, value in item.items() if name in kept}

    def _bytes(self, table: Table, index: Index | None, item: Item) -> int:
        return stored_bytes(item if index is None else self._projected(table, index, item))


def _is_single_call(write: Write) -> bool:
    """Whether the DynamoDB store writes it without a transaction."""
    return isinstance(write, Put | Update) or (isinstance(write, Delete) and write.condition is None)


def _place(table: Table, index: Index | None) -> Place:
    return Place(table.name, "" if index is None else index.name)


def _size(item: Item | None) -> int:
    return 0 if item is None else stored_bytes(item)


def _write_units(size: int) -> int:
    return math.ceil(size / WRITE_BYTES)
