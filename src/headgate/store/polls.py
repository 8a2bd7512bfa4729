"""Polls: what the last read of a polled partition has shown, so that an idle process does not read it again.

Processes poll inboxes, queues and timers all the time, and mostly find nothing. What was found stays true until this
process writes to the partition or another one may have committed, which the store's generation shows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

from headgate.store.model.requests import Page, Poll, Put, Query, Range, Sort, Update, Write
from headgate.store.model.schema import KeyPart
from headgate.store.model.shards import plain_value
from headgate.store.port import Store
from headgate.store.topics import ANYTHING

_Partition = tuple[str, str | None, KeyPart]


class Seen(NamedTuple):
    """The state of a partition before it was read: the store's generation, and the writes of this process."""

    generation: int
    writes: int


class _Known(NamedTuple):
    """The first sort key of a partition as of a generation and a time; None if there was no row."""

    generation: int
    at: float
    head: Any


# How long an index may lag behind a write of this process before its empty answer is believed.
SETTLE_SECONDS: Final = 2.0
# How long a poll relies on what it has read, if the store's generation does not change before.
PROMPT_SECONDS: Final = 30.0
RELAXED_SECONDS: Final = 30.0
# Of a whole partition.
_ALL: Final = None


class Polls:
    """Knowledge of polled partitions. Thread-safe."""

    def __init__(self, store: Store, now: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._now = now
        self._lock = threading.Lock()
        self._known: dict[_Partition, dict[Sort | None, _Known]] = {}
        # How often this process has begun or ended a write to each polled partition.
        self._writes: dict[_Partition, int] = {}
        self._written_at: dict[_Partition, float] = {}

    def is_empty(self, query: Query) -> bool:
        """Whether the answer to a poll is known to be empty."""
        if not _is_first_poll(query):
            return False
        generation = self._store.generation(ANYTHING, others=True)
        with self._lock:
            known = self._known.get(_partition(query), {})
            whole = known.get(_ALL)
            if whole is not None and self._is_valid(whole, query, generation):
                if whole.head is None:
                    return True
                if is_due_poll(query) and query.sort is not None:
                    return bool(query.sort.low < whole.head)
            ranged = None if query.sort is None else known.get(query.sort)
            return ranged is not None and self._is_valid(ranged, query, generation)

    def _is_valid(self, known: _Known, query: Query, generation: int) -> bool:
        age_seconds = self._now() - known.at
        if query.poll is Poll.RELAXED:
            return age_seconds < RELAXED_SECONDS
        # By age too: the index may have lagged behind the commit that this generation stands for.
        return known.generation == generation and age_seconds < PROMPT_SECONDS

    def seen(self, query: Query) -> Seen | None:
        """Return what to give to `keep` after a poll was read; None for other queries."""
        if not _is_first_poll(query):
            return None
        generation = self._store.generation(ANYTHING, others=True)
        key = _partition(query)
        with self._lock:
            if key not in self._writes:
                # Writes to a partition are not recorded before its first poll, and one may just have been made.
                self._writes[key] = 0
                self._written_at[key] = self._now()
            return Seen(generation, self._writes[key])

    def keep(self, query: Query, seen: Seen, page: Page) -> None:
        """Remember what a poll has found, unless this process has written to the partition since `seen` or just before.

        An index that lags may not show such a write yet.
        """
        sort = _sort_name(query)
        if sort is None or is_due_poll(query) or (query.sort is not None and page.items):
            return
        key = _partition(query)
        head = page.items[0][sort] if page.items else None
        with self._lock:
            is_settled = self._now() - self._written_at[key] >= SETTLE_SECONDS
            if self._writes[key] == seen.writes and is_settled:
                self._known.setdefault(key, {})[query.sort] = _Known(seen.generation, self._now(), head)

    def forget(self, writes: Sequence[Write]) -> None:
        """Forget the partitions in which these writes are about to place rows, or have placed them."""
        with self._lock:
            for key in _written(writes):
                if key in self._writes:
                    self._writes[key] += 1
                    self._written_at[key] = self._now()
                    self._known.pop(key, None)


def is_due_poll(query: Query) -> bool:
    """Whether a query polls for the rows up to a sort key, such as the present time."""
    return _is_first_poll(query) and query.sort is not None and query.sort.range is Range.AT_MOST


def _is_first_poll(query: Query) -> bool:
    return query.poll is not None and query.cursor is None and not query.descending


def _partition(query: Query) -> _Partition:
    return query.table.name, query.index, query.partition


def _sort_name(query: Query) -> str | None:
    source = query.table if query.index is None else query.table.index(query.index)
    return None if source.sort is None else source.sort.name


def _written(writes: Sequence[Write]) -> Iterator[_Partition]:
    """Yield the plain partitions in which puts and updates may place rows."""
    for write in writes:
        match write:
            case Put(table=table, item=Mapping() as item):
                values: Mapping[str, Any] = item
            case Update(table=table):
                values = {**table.key_attributes(write.key), **write.set}
            case _:
                continue
        for index in (None, *table.indexes):
            value = values.get((table if index is None else index).partition.name)
            if isinstance(value, str):
                yield table.name, None if index is None else index.name, plain_value(value)
