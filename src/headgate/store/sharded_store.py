"""Sharded store: spreads the rows of constant partition values over several partitions, and merges them when read.

On DynamoDB a partition takes 1,000 writes a second, so that a value that all rows share (a day, an inbox, a queue, a
status) would be the ceiling of the whole product. The catalogue names those values and their number of shards; callers
read and write plain values (ADR-0045).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from headgate.errors import ConflictError, HeadgateError, InvalidItemError
from headgate.store.model.conditions import AllOf, AnyOf, Compare, Comparison, Condition, OneOf
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import (
    ChangeBatch,
    Check,
    Delete,
    Page,
    Put,
    Query,
    Range,
    Sort,
    StreamStart,
    Update,
    Write,
)
from headgate.store.model.schema import Key, KeyAttribute, KeyPart, Shards, Table
from headgate.store.model.shards import (
    in_shard,
    plain_change,
    plain_item,
    plain_value,
    shard_of,
    stored_item,
    stored_keys,
    stored_partitions,
    stored_values,
)
from headgate.store.model.validation import check_count, check_query
from headgate.store.model.values import Item
from headgate.store.polls import Polls, is_due_poll
from headgate.store.resilience.guarded_store import AnyStore, StoreWrapper

W = TypeVar("W", Put, Update, Delete, Check, Write, Put | Delete)

# A shard is read in pages of this many times its even share of the page, so that most queries need one round.
_SHARE: Final = 2
_PAGE_MIN: Final = 4


class ShardedStore(StoreWrapper):
    """Implements `headgate.store.port.Store` around another store, and raises what that raises.

    Within a partition value, rows come in the order of their sort keys over all shards; rows with equal sort keys come
    in the order of their shards. A cursor holds the last row of a page, so that it stays valid if the number of shards
    changes. `cursors` are those of the inner store.
    """

    def __init__(self, store: AnyStore, cursors: Cursors, *, now: Callable[[], float] = monotonic) -> None:
        """`now` times what is known of polled partitions: the machine's time, as an index lags by that."""
        super().__init__(store)
        self._cursors = cursors
        self._polls = Polls(store, now)

    # Reads.

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        for place in stored_keys(table, key):
            item = self.store.get(table, place, consistent=consistent)
            if item is not None:
                return plain_item(table, item)
        return None

    def get_raw(self, table: Table, key: Key) -> Item | None:
        """Return the item as stored, expired or not, without reading spilled attributes."""
        for place in stored_keys(table, key):
            item = self.store.get_raw(table, place)
            if item is not None:
                return plain_item(table, item)
        return None

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        if table.shards is None:
            items = self.store.get_many(table, keys, consistent=consistent)
            return [item and plain_item(table, item) for item in items]
        places = [stored_keys(table, key) for key in keys]
        distinct = list(dict.fromkeys(place for each in places for place in each))
        found = dict(zip(distinct, self.store.get_many(table, distinct, consistent=consistent), strict=True))
        rows = (next((item for place in each if (item := found[place]) is not None), None) for each in places)
        return [item and plain_item(table, item) for item in rows]

    def query(self, query: Query) -> Page:
        return self.query_many([query])[0]

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        pages: dict[int, Page] = {}
        due: list[int] = []
        for place, query in enumerate(queries):
            if self._polls.is_empty(query):
                pages[place] = Page([])
            elif is_due_poll(query):
                due.append(place)
        # The first row shows whether anything is due, and when something will be.
        heads = [replace(queries[place], sort=None, limit=1) for place in due]
        for place, _ in zip(due, self._read(heads), strict=True):
            if self._polls.is_empty(queries[place]):
                pages[place] = Page([])
        rest = [place for place in range(len(queries)) if place not in pages]
        pages |= zip(rest, self._read([queries[place] for place in rest]), strict=True)
        return [pages[place] for place in range(len(queries))]

    def _read(self, queries: Sequence[Query]) -> list[Page]:
        """Read pages, and remember of polls what they found."""
        if not queries:
            return []
        seen = [self._polls.seen(query) for query in queries]
        reads = [self._read_of(query) for query in queries]
        first = [each for read in reads for each in read.first]
        answers = iter([self.store.query(first[0])] if len(first) == 1 else self.store.query_many(first))
        pages = [read.page([next(answers) for _ in read.first]) for read in reads]
        for query, each, page in zip(queries, seen, pages, strict=True):
            if each is not None:
                self._polls.keep(query, each, page)
        return pages

    def count(self, query: Query, by: str | None = None, *, most: int) -> dict[str, int]:
        check_count(query, by, most)
        partitions = stored_partitions(_shards(query), query.partition)
        counts: Counter[str] = Counter()
        for partition in partitions:
            left = most - counts.total()
            if left > 0:
                found = self.store.count(replace(query, partition=partition), by, most=left)
                counts.update({str(plain_value(value)): count for value, count in found.items()})
        return dict(counts)

    # Writes.

    def put(self, table: Table, item: Mapping[str, Any], *, condition: Condition | None = None) -> None:
        put = self._stored(Put(table, item, condition))
        with self._writing([put]):
            self.store.put(table, put.item, condition=put.condition)

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
        update = self._stored(Update(table, key, set or {}, add or {}, tuple(remove), condition))
        with self._writing([update]):
            item = self.store.update(
                table,
                update.key,
                set=update.set,
                add=update.add,
                remove=update.remove,
                condition=update.condition,
            )
        return plain_item(table, item)

    def delete(self, table: Table, key: Key, *, condition: Condition | None = None) -> Item | None:
        deletion = self._stored(Delete(table, key, condition))
        with self._writing([deletion]):
            item = self.store.delete(table, deletion.key, condition=deletion.condition)
        return item and plain_item(table, item)

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        stored = [self._stored(write) for write in writes]
        with self._writing(stored):
            self.store.transact(stored, token=token)

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        stored = [[self._stored(write) for write in writes] for writes in transactions]
        every = [write for writes in stored for write in writes]
        self._polls.forget(every)
        try:
            outcomes = self.store.transact_many(stored)
        finally:
            self._polls.forget(every)
        for writes, outcome in zip(stored, outcomes, strict=True):
            if isinstance(outcome, ConflictError):
                _make_plain(outcome, writes)
        return outcomes

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        stored = [self._stored(write) for write in writes]

        def on_done(error: BaseException | None) -> None:
            self._polls.forget(stored)
            if isinstance(error, ConflictError):
                _make_plain(error, stored)
            done(error)

        self._polls.forget(stored)
        self.store.submit(stored, on_done)

    def batch_write(self, writes: Sequence[Put | Delete]) -> None:
        stored = [self._stored(write) for write in writes]
        with self._writing(stored):
            self.store.batch_write(stored)

    # Streams.

    def changes(
        self, table: Table, consumer: str, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST
    ) -> ChangeBatch:
        batch = self.store.changes(table, consumer, limit=limit, start=start)
        if not table.has_shards:
            return batch
        return ChangeBatch([plain_change(change) for change in batch.changes], batch.position)

    def checkpoint(self, table: Table, consumer: str, position: str) -> None:
        self.store.checkpoint(table, consumer, position)

    # Both ways.

    @contextmanager
    def _writing(self, stored: Sequence[Write]) -> Iterator[None]:
        """Within it, writes are applied: conflicts carry plain rows, and polls of what is written are not empty."""
        self._polls.forget(stored)
        try:
            yield
        except ConflictError as exc:
            _make_plain(exc, stored)
            raise
        finally:
            self._polls.forget(stored)

    def _read_of(self, query: Query) -> _Read:
        partitions = stored_partitions(_shards(query), query.partition)
        if len(partitions) == 1:
            return _Read(self.store, self._cursors, query, [query])
        check_query(query)
        return _Read(self.store, self._cursors, query, _shard_queries(query, partitions, self._cursors))

    def _stored(self, write: W) -> W:
        """Return a write with the values of shards. The inner store refuses one that is not valid."""
        if not isinstance(write, Put | Update | Delete | Check) or not write.table.has_shards:
            return write
        table = write.table
        stored: Write
        match write:
            case Put():
                if not isinstance(write.item, Mapping) or not write.item.keys() >= set(table.key_names):
                    return write
                item = write.item if isinstance(write.item, dict) else dict(write.item)
                condition = _stored_condition(table, write.condition)
                stored = Put(table, stored_item(table, item), condition, write.quiet)
            case Update():
                key = self._place(table, write.key)
                values = stored_values(table, write.key, dict(write.set))
                condition = _stored_condition(table, write.condition)
                stored = Update(table, key, values, write.add, write.remove, condition)
            case Delete():
                stored = Delete(table, self._place(table, write.key), _stored_condition(table, write.condition))
            case Check():
                checked = _stored_condition(table, write.condition)
                assert checked is not None, "a check has a condition"
                stored = Check(table, self._place(table, write.key), checked)
        return stored  # type: ignore[return-value]  # of the same kind

    def _place(self, table: Table, key: Key) -> Key:
        """Return where a row is, or would be written: it may have been written under another number of shards."""
        places = stored_keys(table, key)
        for place in places[1:]:
            if self.store.get(table, place, consistent=True) is not None:
                return place
        return places[0]


class _Read:
    """A query with its first page of each shard, from which a page in order is merged."""

    def __init__(self, store: AnyStore, cursors: Cursors, query: Query, first: list[Query]) -> None:
        self.first = first
        self._store = store
        self._cursors = cursors
        self._query = query

    def page(self, first: Sequence[Page]) -> Page:
        """Return the page of the query, given the first page of each shard."""
        query, table = self._query, self._query.table
        if len(self.first) == 1 and self.first[0] is query:
            page = first[0]
            return Page([plain_item(table, item) for item in page.items], page.cursor) if table.has_shards else page
        sort = _sort_name(query)
        shards = [self._items(each, page) for each, page in zip(self.first, first, strict=True)]
        merged = heapq.merge(*shards, key=lambda item: item[sort], reverse=query.descending)
        items: list[Item] = []
        for item in merged:
            if len(items) == query.limit:
                return Page([plain_item(table, each) for each in items], self._cursors.after(query, items[-1]))
            items.append(item)
        return Page([plain_item(table, each) for each in items])

    def _items(self, query: Query, page: Page) -> Iterator[Item]:
        """Yield the items of a shard, within the range of the whole query."""
        sort = _sort_name(self._query)
        while True:
            for item in page.items:
                if not _is_within(self._query.sort, item[sort]):
                    return
                yield item
            if page.cursor is None:
                return
            query = replace(query, cursor=page.cursor)
            page = self._store.query(query)


def _shards(query: Query) -> Shards | None:
    """Return the shards of what is queried."""
    return query.table.shards if query.index is None else query.table.index(query.index).shards


def _keys_of(query: Query) -> tuple[KeyAttribute, KeyAttribute]:
    table = query.table
    source = table if query.index is None else table.index(query.index)
    if source.sort is None:
        raise InvalidItemError(f"table {table.name}: {query.index or 'the table'} has shards and needs a sort key")
    return source.partition, source.sort


def _sort_name(query: Query) -> str:
    return _keys_of(query)[1].name


def _shard_queries(query: Query, partitions: Sequence[KeyPart], cursors: Cursors) -> list[Query]:
    """Return the query of each shard that may have rows for this page, after the position of the cursor."""
    limit = min(query.limit, max(_PAGE_MIN, _SHARE * math.ceil(query.limit / len(partitions))))
    position = cursors.position(query)
    first = [replace(query, partition=partition, limit=limit, cursor=None) for partition in partitions]
    if position is None:
        return first
    partition, sort = _keys_of(query)
    last, reached = shard_of(str(position[partition.name]))[1], position[sort.name]
    resumed: list[Query] = []
    for number, each in enumerate(first):
        if number == last:
            # Of equal sort keys in one shard, the inner store knows the order.
            resumed.append(replace(each, cursor=cursors.after(each, position)))
        elif query.sort is None or query.sort.range is not Range.EQUALS:
            resumed.append(replace(each, sort=_beyond(reached, descending=query.descending, also=number > last)))
        elif number > last:
            resumed.append(each)
    return resumed


def _beyond(reached: KeyPart, *, descending: bool, also: bool) -> Sort:
    """Return the range beyond a sort key, and `also` of that key itself: shards before the last were read up to it."""
    if descending:
        return Sort(Range.AT_MOST if also else Range.LESS_THAN, reached)
    return Sort(Range.AT_LEAST if also else Range.GREATER_THAN, reached)


def _is_within(sort: Sort | None, value: Any) -> bool:  # noqa: ANN401 - of the kind of the sort key
    """Whether a sort key is in a range."""
    if sort is None:
        return True
    low: Any = sort.low
    match sort.range:
        case Range.EQUALS:
            return bool(value == low)
        case Range.BEGINS_WITH:
            return str(value).startswith(str(low))
        case Range.BETWEEN:
            high: Any = sort.high
            return bool(low <= value <= high)
        case Range.LESS_THAN:
            return bool(value < low)
        case Range.AT_MOST:
            return bool(value <= low)
        case Range.GREATER_THAN:
            return bool(value > low)
        case Range.AT_LEAST:
            return bool(value >= low)


def _stored_condition(table: Table, condition: Condition | None) -> Condition | None:
    """Return a condition that holds of a stored row exactly if `condition` holds of the plain one."""
    match condition:
        case AllOf(clauses=clauses):
            return AllOf(tuple(_stored_clause(table, each) for each in clauses))
        case AnyOf(clauses=clauses):
            return AnyOf(tuple(_stored_clause(table, each) for each in clauses))
        case OneOf(attribute=attribute, values=values) if attribute in table.sharded_attributes:
            return OneOf(
                attribute, tuple(each for value in values for each in _stored_operands(table, attribute, value))
            )
        case Compare(attribute=attribute, comparison=comparison, value=value) if attribute in table.sharded_attributes:
            operands = _stored_operands(table, attribute, value)
            if len(operands) == 1:
                return condition
            if comparison is Comparison.EQUALS:
                return OneOf(attribute, operands)
            if comparison is Comparison.DIFFERS:
                return AllOf(tuple(Compare(attribute, comparison, each) for each in operands))
            raise InvalidItemError(
                f"table {table.name}: {attribute!r} has shards; it can be compared for equality only"
            )
    return condition


def _stored_clause(table: Table, clause: Condition) -> Condition:
    stored = _stored_condition(table, clause)
    assert stored is not None, "a clause has a condition"
    return stored


def _stored_operands(table: Table, attribute: str, value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - an operand
    if not isinstance(value, str):
        return (value,)
    shards = table.sharded_attributes[attribute]
    return tuple(in_shard(value, number) for number in range(shards.read if shards.covers(value) else 1))


def _make_plain(error: ConflictError, writes: Sequence[Write]) -> None:
    # A conflict of a token is about a row that is not among the writes.
    tables = [write.table for write in writes]
    error.failures = {
        place: plain_item(tables[place], item) if item is not None and place < len(tables) else item
        for place, item in error.failures.items()
    }
    error.current = error.failures.get(error.write_index)
