"""Watches: what has happened of which something must follow, kept with the moment from which on to look after it.

A row says that a period is worth a look, and no more: what is to be done is decided from how the period stands then.
So it does no harm if there is one too many, or an old one. The watchdog follows the changes of the table and keeps
them, whatever it was that changed a row, and finds those that are due by an index: looking costs by what is due.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.durable.model.records import instant
from headgate.errors import ConflictError
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import EXPECTATION, PIPELINES
from headgate.store.model.conditions import Condition, absent, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

_PAGE: Final = 100
_RACES_MAX: Final = 5


class WatchKind(enum.StrEnum):
    """What is looked after."""

    # A period whose lock is held, or whose run is under way or watched after its end.
    PURSUIT = "pursuit"
    # A run that failed and may be tried again.
    FAILURE = "failure"
    # A sensor came that begins a period.
    ARRIVAL = "arrival"
    # Data came or a run began, and the job has to be done within a time of that.
    RELATIVE_SLA = "relative-sla"
    # A run succeeded, and a sensor has to say something about it.
    POST_RUN = "post-run"


class Watch(Struct, frozen=True, kw_only=True):
    """Something to look after from `due_at_ms` on. `since_ms` is when it happened."""

    pipeline_id: str
    schedule_id: str
    date: str
    kind: WatchKind
    due_at_ms: int
    since_ms: int
    version: int = 1
    # The sensor that came, for an arrival.
    sensor_key: str = ""
    # The first sensor after the success, for a post-run.
    seen_at_ms: int | None = None
    # What was told, or begun, because of it: the same is not told twice.
    done: str = ""

    @property
    def slot(self) -> Slot:
        """The period that it is about."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class Watches:
    """The watches of one store. Safe to use from many threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def note_all(self, watches: Iterable[Watch]) -> None:
        """Keep watches. One that is there stays as it is, unless the new one is of something earlier."""
        wanted = list({watch_key(each.slot, each.kind): each for each in watches}.values())
        if not wanted:
            return
        outcomes = self._store.transact_many([[_put(each, absent())] for each in wanted])
        for watch, error in zip(wanted, outcomes, strict=True):
            if isinstance(error, ConflictError):
                self._merge(watch)
            elif error is not None:
                raise error

    def find(self, slot: Slot, kind: WatchKind) -> Watch | None:
        """Return the watch of a period."""
        item = self._store.get(PIPELINES, watch_key(slot, kind), consistent=True)
        return None if item is None else watch_of(item)

    def due(self, kind: WatchKind, now_ms: int) -> Iterator[Watch]:
        """Give the watches of a kind that are due, the oldest first."""
        cursor = None
        while True:
            page = self._store.query(_due_query(kind, instant(now_ms), _PAGE, cursor))
            yield from map(watch_of, page.items)
            cursor = page.cursor
            if cursor is None:
                return

    def next_due_ms(self) -> int | None:
        """Return when the next watch of all is due."""
        pages = self._store.query_many([_due_query(kind, None, 1, None) for kind in WatchKind])
        return min((int(item["due_at_ms"]) for page in pages for item in page.items), default=None)

    def postpone(self, watch: Watch, due_at_ms: int, *, done: str = "", also: Sequence[Write] = ()) -> bool:
        """Look again later, and write `also`. False: someone else has looked meanwhile, and nothing was written."""
        later = replace(watch, due_at_ms=due_at_ms, version=watch.version + 1, done=done or watch.done)
        return self._write([_put(later, version_is(watch.version)), *also])

    def drop(self, watch: Watch, *, also: Sequence[Write] = ()) -> bool:
        """Look no more, and write `also`. False: someone else has looked meanwhile, and nothing was written."""
        return self._write([Delete(PIPELINES, watch_key(watch.slot, watch.kind), version_is(watch.version)), *also])

    def saw_sensor(self, slot: Slot, at_ms: int) -> None:
        """Note when the first sensor came after the success of a period, if that is waited for."""
        for _ in range(_RACES_MAX):
            watch = self.find(slot, WatchKind.POST_RUN)
            is_news = watch is not None and watch.seen_at_ms is None and at_ms > watch.since_ms
            if watch is None or not is_news:
                return
            seen = replace(watch, seen_at_ms=at_ms, version=watch.version + 1)
            if self._write([_put(seen, version_is(watch.version))]):
                return

    def _merge(self, watch: Watch) -> None:
        for _ in range(_RACES_MAX):
            known = self.find(watch.slot, watch.kind)
            if known is None or known.since_ms <= watch.since_ms:
                return
            earlier = replace(watch, version=known.version + 1, seen_at_ms=known.seen_at_ms, done=known.done)
            if self._write([_put(earlier, version_is(known.version))]):
                return

    def _write(self, writes: Sequence[Write]) -> bool:
        try:
            self._store.transact(writes)
        except ConflictError as exc:
            if 0 in exc.failures:
                return False
            raise
        return True


def watch_key(slot: Slot, kind: WatchKind) -> Key:
    """Return where a watch is kept."""
    return EXPECTATION.key(**slot._asdict(), kind=f"watch#{kind.value}")


def watch_of(item: Mapping[str, Any]) -> Watch:
    """Return the watch that a row stands for."""
    return struct_of(item, Watch)


def _put(watch: Watch, condition: Condition) -> Put:
    # It comes from the changes of the table, and is none that anybody follows.
    return Put(PIPELINES, _item(watch), condition, quiet=True)


def _item(watch: Watch) -> Item:
    index = EXPECTATION.index_attributes(
        verdict=_lane(watch.kind), due_at=instant(watch.due_at_ms), pipeline_id=watch.pipeline_id
    )
    return row(watch_key(watch.slot, watch.kind), watch, **index)


def _lane(kind: WatchKind) -> str:
    return f"WATCH-{kind.value}"


def _due_query(kind: WatchKind, until: str | None, limit: int, cursor: str | None) -> Query:
    return Query(
        table=PIPELINES,
        index="GSI1",
        partition=f"EXPECT#{_lane(kind)}",
        # What follows the moment in the key sorts before a tilde.
        sort=None if until is None else Sort(Range.AT_MOST, f"{until}#~"),
        limit=limit,
        cursor=cursor,
    )
