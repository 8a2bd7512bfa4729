"""Registry change feed: checkpoints for consumers that keep a copy of the registry and poll for changes.

The feed has rows of its own, because the table's stream expires after a day and keeps one position per consumer, and
event ids are assigned before the commit, so that a reader could skip an event that commits late. Here a change takes
the position after the end of its shard, and moves the end, in the transaction that makes the change. Once a reader
sees an end, all positions before it are readable; a checkpoint is one position for each shard.

A dataset has one row, which moves to the end with each change. The feed is as long as the number of datasets; read
from the start, it is a full export that does not depend on an index that may lag.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import CursorError
from headgate.health.model.datasets import Dataset, DatasetStatus
from headgate.store.catalogue.tables import DATASET_CHANGE, DATASET_FEED_END, DATASET_REGISTRY
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

# Datasets change a few times a second at most; a burst of discoveries queues on 8 shards.
SHARDS: Final = 8
LIMIT_MAX: Final = 1000
_FORMAT: Final = "f1"


class Change(Struct, frozen=True, kw_only=True):
    """The latest change of a dataset. `changed_fields` are those of this change only."""

    dataset_urn: str
    config_version: int
    status: DatasetStatus
    changed_fields: tuple[str, ...]
    updated_by: str
    updated_at: str


class Changes(Struct, frozen=True):
    """Changed datasets, each with its latest change, and the next checkpoint."""

    changes: list[Change]
    checkpoint: str
    has_more: bool


class Feed:
    """Reads the feed, and returns the writes of a change."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def next_place(self, urn: str) -> int:
        """Return the position of the next change of a dataset, if no other change takes it first."""
        return self._ends([shard_of(urn)])[0] + 1

    def after(self, checkpoint: str | None, limit: int) -> Changes:
        """Return up to `limit` datasets that changed after a checkpoint; for None, all datasets.

        Raises `CursorError` for an invalid checkpoint.
        """
        places = _places(checkpoint)
        limit = max(1, min(limit, LIMIT_MAX))
        ends = self._ends(range(SHARDS))
        # Bounded by ends read before: a page is no snapshot, and could show a position but not the one before it.
        queries = {
            shard: _span(shard, place, end, limit)
            for shard, (place, end) in enumerate(zip(places, ends, strict=True))
            if place < end
        }
        pages = self._store.query_many(list(queries.values()))
        # Sorted by time across shards; within a shard the order is exact.
        numbered = [[(shard, item) for item in page.items] for shard, page in zip(queries, pages, strict=True)]
        merged = list(heapq.merge(*numbered, key=lambda each: str(each[1]["updated_at"])))
        for shard, item in merged[:limit]:
            places[shard] = int(item["SK"])
        has_more = len(merged) > limit or any(page.cursor is not None for page in pages)
        return Changes([_change_of(item) for _, item in merged[:limit]], _text(places), has_more)

    def _ends(self, shards: Sequence[int]) -> list[int]:
        """Return the last used position of each shard, 0 if there is none."""
        rows = self._store.get_many(DATASET_REGISTRY, [_end_key(shard) for shard in shards], consistent=True)
        return [0 if row is None else int(row["version"]) for row in rows]


def shard_of(urn: str) -> int:
    """Return the shard of a dataset's changes. It never changes."""
    return hashlib.blake2b(urn.encode(), digest_size=2).digest()[0] % SHARDS


def feed_writes(dataset: Dataset, changed: Sequence[str], *, place: int, before: int | None) -> list[Write]:
    """Return the writes that move a dataset from its position in the feed to a new one."""
    shard = shard_of(dataset.dataset_urn)
    item = {
        **DATASET_REGISTRY.key_attributes(DATASET_CHANGE.key(shard=shard, sequence=place)),
        "dataset_urn": dataset.dataset_urn,
        "config_version": dataset.config_version,
        "status": dataset.status.value,
        "changed_fields": list(changed),
        "updated_by": dataset.updated_by,
        "updated_at": dataset.updated_at,
    }
    end = {**DATASET_REGISTRY.key_attributes(_end_key(shard)), "version": place}
    # Conditional on the end of the shard, not on a free position: datasets leave free positions behind readers.
    moved = Put(DATASET_REGISTRY, end, version_is(place - 1) if place > 1 else absent())
    writes: list[Write] = [moved, Put(DATASET_REGISTRY, item)]
    if before is not None:
        writes.append(Delete(DATASET_REGISTRY, DATASET_CHANGE.key(shard=shard, sequence=before)))
    return writes


def _end_key(shard: int) -> Key:
    return DATASET_FEED_END.key(shard=shard)


def _span(shard: int, place: int, end: int, limit: int) -> Query:
    sort = Sort(Range.BETWEEN, f"{place + 1:012d}", f"{end:012d}")
    # Consistent: a position hidden by a lagging replica would be skipped for good.
    return Query(
        table=DATASET_REGISTRY,
        partition=str(DATASET_CHANGE.key(shard=shard, sequence=0).partition),
        sort=sort,
        limit=limit,
        consistent=True,
    )


def _change_of(item: Item) -> Change:
    return Change(
        dataset_urn=item["dataset_urn"],
        config_version=item["config_version"],
        status=DatasetStatus(item["status"]),
        changed_fields=tuple(item["changed_fields"]),
        updated_by=item["updated_by"],
        updated_at=item["updated_at"],
    )


def _text(places: Sequence[int]) -> str:
    # Not signed: it holds only positions, and a forged one affects only its sender.
    return ".".join([_FORMAT, *map(str, places)])


def _places(checkpoint: str | None) -> list[int]:
    if checkpoint is None:
        return [0] * SHARDS
    form, *places = checkpoint.split(".")
    is_right = form == _FORMAT and len(places) == SHARDS
    if not is_right or not all(place.isascii() and place.isdigit() and len(place) <= 12 for place in places):
        raise CursorError(f"checkpoint {checkpoint[:60]!r}: not a checkpoint of this feed; start again without one")
    return [int(place) for place in places]
