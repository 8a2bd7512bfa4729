"""Merged paging: one ordered page over several index partitions, with signed cursors."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from headgate import typed_decode
from headgate.errors import CursorError, InvalidItemError, SignatureError
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.requests import Page, Query, Range, Sort
from headgate.store.model.schema import Table
from headgate.store.model.validation import QUERY_LIMIT_MAX
from headgate.store.model.values import Item
from headgate.store.port import Store

# A page may end short, with a cursor, instead of scanning more rows than this for each row of the limit.
SCANNED_PER_ROW_MAX: Final = 50
# Most rows of a page over many partitions are not shown. The first query of a partition asks for a few times its equal
# share, and at least for this many; a partition that has more of the page is asked again.
_FIRST_SHARES: Final = 4
_FIRST_MIN: Final = 16
_HIGHEST: Final = "\uffff"


class Place(NamedTuple):
    """The position of a row: its sort value, and a tie-breaker."""

    value: str
    tie: str


class Partition(msgspec.Struct, frozen=True):
    """An index partition whose sort keys are `prefix` followed by the sort value."""

    table: Table
    index: str
    partition: str
    prefix: str = ""


class _Cursor(msgspec.Struct, frozen=True, array_like=True):
    shape: str
    value: str
    tie: str


class Span(NamedTuple):
    """A range of sort values, both ends included."""

    low: str = ""
    high: str = _HIGHEST


EVERYTHING: Final = Span()


class MergedPages:
    """Merges partitions that are sorted each."""

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store = store
        self._keyring = keyring

    def page(
        self,
        partitions: Sequence[Partition],
        place: Callable[[Item], Place],
        *,
        limit: int,
        cursor: str | None = None,
        span: Span = EVERYTHING,
        descending: bool = True,
        keep: Callable[[Item], bool] = lambda _: True,
        question: object = None,
    ) -> Page:
        """Return up to `limit` rows that `keep` accepts, in order, and a cursor if there may be more.

        `question` identifies the filter: a cursor is valid for the same filter only. Raises `CursorError` for a cursor
        that was altered or belongs to another query, and `InvalidItemError` for a limit below 1.
        """
        if limit < 1:
            raise InvalidItemError(f"limit {limit}: ask for at least 1")
        shape = _shape(partitions, span, question, descending=descending)
        after = self._after(cursor, shape)
        rows = self._rows(partitions, place, span, after, limit, descending=descending)
        found: list[Item] = []
        last: Place | None = None
        for scanned, (where, row) in enumerate(rows, 1):
            if len(found) == limit or scanned > limit * SCANNED_PER_ROW_MAX:
                assert last is not None
                return Page(found, self._keyring.sign(Purpose.CURSOR, msgspec.json.encode(_Cursor(shape, *last))))
            last = where
            if keep(row):
                found.append(row)
        return Page(found)

    def _rows(
        self,
        partitions: Sequence[Partition],
        place: Callable[[Item], Place],
        span: Span,
        after: Place | None,
        limit: int,
        *,
        descending: bool,
    ) -> Iterator[tuple[Place, Item]]:
        low, high = span
        if after is not None:
            low, high = (low, min(high, after.value)) if descending else (max(low, after.value), high)
        page_max = min(limit + 1, QUERY_LIMIT_MAX)
        queries = [
            Query(
                table=each.table,
                index=each.index,
                partition=each.partition,
                sort=Sort(Range.BETWEEN, each.prefix + low or "\x00", each.prefix + high),
                limit=min(page_max, max(_FIRST_MIN, _FIRST_SHARES * page_max // len(partitions))),
                descending=descending,
            )
            for each in partitions
        ]
        firsts = self._store.query_many(queries)
        streams = [
            self._stream(msgspec.structs.replace(query, limit=page_max), first, place)
            for query, first in zip(queries, firsts, strict=True)
        ]
        for where, row in heapq.merge(*streams, key=lambda pair: pair[0], reverse=descending):
            if after is None or (where < after if descending else where > after):
                yield where, row

    def _stream(self, query: Query, page: Page, place: Callable[[Item], Place]) -> Iterator[tuple[Place, Item]]:
        # Rows with equal sort keys have no defined order in the index, and may span several pages.
        alike: list[tuple[Place, Item]] = []
        while True:
            for row in page.items:
                where = place(row)
                if alike and alike[0][0].value != where.value:
                    yield from sorted(alike, key=lambda pair: pair[0], reverse=query.descending)
                    alike = []
                alike.append((where, row))
            if page.cursor is None:
                yield from sorted(alike, key=lambda pair: pair[0], reverse=query.descending)
                return
            page = self._store.query(msgspec.structs.replace(query, cursor=page.cursor))

    def _after(self, cursor: str | None, shape: str) -> Place | None:
        if cursor is None:
            return None
        try:
            read = typed_decode.from_json(self._keyring.verify(Purpose.CURSOR, cursor), _Cursor)
        except (SignatureError, msgspec.DecodeError) as exc:
            raise CursorError(f"{exc}; start again without a cursor") from exc
        if read.shape != shape:
            raise CursorError("cursor belongs to another query; use it with the same filters")
        return Place(read.value, read.tie)


def _shape(partitions: Sequence[Partition], span: Span, question: object, *, descending: bool) -> str:
    sources = [[each.table.name, each.index, each.partition, each.prefix] for each in partitions]
    shape = msgspec.json.encode([sources, list(span), question, descending])
    return hashlib.blake2b(shape, digest_size=9).hexdigest()
