"""Samples: rows spread evenly over a fan-out, at a cost that does not depend on its size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, pairwise
from typing import Final

from msgspec import Struct

from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, Attempt, Chunk, Fanout, attempt_of, chunk_id_at, chunk_of
from headgate.fanout.model.states import Disposition
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.values import Item
from headgate.store.port import Store

SAMPLE_MAX: Final = 1000
# Neighbours are often alike: a few rows at many positions are a better sample than many rows at a few.
PLACES: Final = 50
# A map of more chunks than this is drawn from a sample.
MAPPED_MAX: Final = 10_000
MAP_PLACES: Final = 500
_MAPPED: Final = (Disposition.DEAD, Disposition.QUARANTINED, Disposition.RETRYING, Disposition.RUNNING)
# Rows hold their items, so that fewer of large ones are read.
BYTES_MAX: Final = 4 * 1024 * 1024
ROWS_MIN: Final = 100
_ROW_BYTES: Final = 1000


class MapRows(Struct, frozen=True):
    """The chunks of a map, to be iterated once, and its maximum number of cells."""

    chunks: Iterator[Chunk]
    cells_max: int
    note: str


class Sample(Struct, frozen=True):
    """Chunks of the main lane in item order; `is_whole` means that there are no others."""

    chunks: list[Chunk]
    is_whole: bool


def sampled(store: Store, fanout: Fanout, counts: Counts, *, limit: int = SAMPLE_MAX) -> Sample:
    """Return up to `limit` chunks of a fan-out.

    They are spread over all items or, while few chunks have ended, over the items that workers have reached.
    """
    rows = min(limit, _affordable(store, fanout))
    if counts.total <= rows:
        return Sample(_all_chunks(store, fanout), is_whole=True)
    found = _chunks(store, fanout, fanout.items_total, rows)
    ended = sum(1 for chunk in found if chunk.status.is_terminal)
    begun = counts.total - counts.waiting - counts.queued
    if 2 * ended < len(found) and counts.total - counts.open > ended:
        # Queues deliver in item order; if one does not, this is still a sample.
        reached = -(-fanout.items_total * begun // counts.total)
        found = _chunks(store, fanout, reached, rows)
    return Sample(found, is_whole=False)


def mapped(store: Store, queries: FanoutQueries, fanout: Fanout, counts: Counts) -> MapRows:
    """Return the chunks of a map: all, or for large fan-outs the failed, retrying and running ones and a sample."""
    if counts.total <= MAPPED_MAX:
        return MapRows(queries.every_chunk(fanout.run_id), MAPPED_MAX, "")
    in_disposition = chain(
        *(islice(queries.every_in_disposition(fanout.run_id, about), MAPPED_MAX) for about in _MAPPED)
    )
    shown = (chunk for chunk in in_disposition if chunk.lane == MAIN_LANE)
    sample = _chunks(store, fanout, fanout.items_total, MAP_PLACES, places=MAP_PLACES)
    note = "Read: failed, retrying and running ones, and a sample."
    return MapRows(chain(shown, sample), MAP_PLACES, note)


def sampled_attempts(store: Store, fanout: Fanout, *, limit: int = SAMPLE_MAX) -> list[Attempt]:
    """Return up to `limit` stored attempts, spread over the chunks of the main lane."""
    return [attempt_of(item) for item in _spread(store, fanout, "ATT#", fanout.items_total, limit, PLACES)]


def _chunks(store: Store, fanout: Fanout, items: int, limit: int, *, places: int = PLACES) -> list[Chunk]:
    return [chunk_of(item) for item in _spread(store, fanout, "CHUNK#", items, limit, places)]


def _spread(store: Store, fanout: Fanout, prefix: str, items: int, limit: int, places: int) -> list[Item]:
    """Return rows at evenly spread positions among the first `items` items."""
    places = max(1, min(places, limit, items))
    bounds = [items * place // places for place in range(places + 1)]
    queries = []
    for low, high in pairwise(bounds):
        first, last = chunk_id_at(low, fanout.width), chunk_id_at(max(low, high - 1), fanout.width)
        # "~" sorts after the "#" before the attempt number.
        sort = Sort(Range.BETWEEN, f"{prefix}{first}", f"{prefix}{last}~")
        queries.append(Query(table=FANOUT, partition=fanout.run_id, sort=sort, limit=max(1, limit // places)))
    return [item for page in store.query_many(queries) for item in page.items]


def _all_chunks(store: Store, fanout: Fanout) -> list[Chunk]:
    found: list[Chunk] = []
    cursor = None
    while True:
        page = store.query(_whole(fanout, limit=SAMPLE_MAX, cursor=cursor))
        found += [chunk_of(item) for item in page.items]
        cursor = page.cursor
        if cursor is None:
            return found


def _affordable(store: Store, fanout: Fanout) -> int:
    """Return the number of rows to read, given the size of the first ones."""
    first = store.query(_whole(fanout, limit=5)).items
    mean = sum(_size(item) for item in first) / len(first) if first else _ROW_BYTES
    return max(ROWS_MIN, round(BYTES_MAX / mean))


def _size(item: Item) -> int:
    return _ROW_BYTES + sum(len(value) for value in (item.get("input"), item.get("output")) if isinstance(value, str))


def _whole(fanout: Fanout, *, limit: int, cursor: str | None = None) -> Query:
    sort = Sort(Range.BEGINS_WITH, "CHUNK#")
    return Query(table=FANOUT, partition=fanout.run_id, sort=sort, limit=limit, cursor=cursor)
