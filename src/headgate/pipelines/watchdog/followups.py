"""Follow-ups: events of a period that need a check later, each stored with its due time.

A row only says that a period needs a check; the check decides from the state at that time, so a surplus or outdated
row is harmless. The change feed writes the rows, and an index finds those that are due.
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


class FollowupKind(enum.StrEnum):
    """The kind of event that is followed up."""

    # A held lock, or a run that is active or monitored.
    LIVENESS = "pursuit"
    # A failed run that may be retried.
    FAILURE = "failure"
    # A sensor that starts a period.
    ARRIVAL = "arrival"
    # Data arrived or a run started, which must complete within a time.
    RELATIVE_SLA = "relative-sla"
    # A run succeeded, and a post-run sensor is expected.
    POST_RUN = "post-run"


class Followup(Struct, frozen=True, kw_only=True):
    """A check that is due at `due_at_ms`. `since_ms` is the time of the event."""

    pipeline_id: str
    schedule_id: str
    date: str
    kind: FollowupKind
    due_at_ms: int
    since_ms: int
    version: int = 1
    # Of an arrival: the sensor.
    sensor_key: str = ""
    # Of a post-run follow-up: the first sensor after the success.
    seen_at_ms: int | None = None
    # The last action or event for this follow-up: it is not repeated.
    done: str = ""

    @property
    def slot(self) -> Slot:
        """The period."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class Followups:
    """Stores follow-ups. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def record_all(self, followups: Iterable[Followup]) -> None:
        """Store follow-ups. An existing one stays, unless the new event is earlier."""
        wanted = list({followup_key(each.slot, each.kind): each for each in followups}.values())
        if not wanted:
            return
        outcomes = self._store.transact_many([[_put(each, absent())] for each in wanted])
        for followup, error in zip(wanted, outcomes, strict=True):
            if isinstance(error, ConflictError):
                self._merge(followup)
            elif error is not None:
                raise error

    def find(self, slot: Slot, kind: FollowupKind) -> Followup | None:
        """Return the follow-up of a period, or None."""
        item = self._store.get(PIPELINES, followup_key(slot, kind), consistent=True)
        return None if item is None else followup_of(item)

    def due(self, kind: FollowupKind, now_ms: int) -> Iterator[Followup]:
        """Yield the due follow-ups of a kind, the oldest first."""
        cursor = None
        while True:
            page = self._store.query(_due_query(kind, instant(now_ms), _PAGE, cursor))
            yield from map(followup_of, page.items)
            cursor = page.cursor
            if cursor is None:
                return

    def next_due_ms(self) -> int | None:
        """Return when the next follow-up is due."""
        pages = self._store.query_many([_due_query(kind, None, 1, None) for kind in FollowupKind])
        return min((int(item["due_at_ms"]) for page in pages for item in page.items), default=None)

    def postpone(self, followup: Followup, due_at_ms: int, *, done: str = "", also: Sequence[Write] = ()) -> bool:
        """Set the next check, together with `also`. False: another watchdog has changed the row; nothing is written."""
        later = replace(followup, due_at_ms=due_at_ms, version=followup.version + 1, done=done or followup.done)
        return self._write([_put(later, version_is(followup.version)), *also])

    def drop(self, followup: Followup, *, also: Sequence[Write] = ()) -> bool:
        """Delete a follow-up, together with `also`. False: another watchdog has changed the row; nothing is written."""
        return self._write(
            [Delete(PIPELINES, followup_key(followup.slot, followup.kind), version_is(followup.version)), *also]
        )

    def record_sensor(self, slot: Slot, at_ms: int) -> None:
        """Record the first sensor after the success of a period, if one is expected."""
        for _ in range(_RACES_MAX):
            followup = self.find(slot, FollowupKind.POST_RUN)
            is_first = followup is not None and followup.seen_at_ms is None and at_ms > followup.since_ms
            if followup is None or not is_first:
                return
            seen = replace(followup, seen_at_ms=at_ms, version=followup.version + 1)
            if self._write([_put(seen, version_is(followup.version))]):
                return

    def _merge(self, followup: Followup) -> None:
        for _ in range(_RACES_MAX):
            known = self.find(followup.slot, followup.kind)
            if known is None or known.since_ms <= followup.since_ms:
                return
            earlier = replace(followup, version=known.version + 1, seen_at_ms=known.seen_at_ms, done=known.done)
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


def followup_key(slot: Slot, kind: FollowupKind) -> Key:
    """Return the key of a follow-up's row."""
    return EXPECTATION.key(**slot._asdict(), kind=f"watch#{kind.value}")


def followup_of(item: Mapping[str, Any]) -> Followup:
    """Decode a follow-up from its row."""
    return struct_of(item, Followup)


def _put(followup: Followup, condition: Condition) -> Put:
    # Quiet: it is derived from changes, and no consumer follows it.
    return Put(PIPELINES, _item(followup), condition, quiet=True)


def _item(followup: Followup) -> Item:
    index = EXPECTATION.index_attributes(
        verdict=_index_partition(followup.kind), due_at=instant(followup.due_at_ms), pipeline_id=followup.pipeline_id
    )
    return row(followup_key(followup.slot, followup.kind), followup, **index)


def _index_partition(kind: FollowupKind) -> str:
    return f"WATCH-{kind.value}"


def _due_query(kind: FollowupKind, until: str | None, limit: int, cursor: str | None) -> Query:
    return Query(
        table=PIPELINES,
        index="GSI1",
        partition=f"EXPECT#{_index_partition(kind)}",
        # The suffix after the time sorts before a tilde.
        sort=None if until is None else Sort(Range.AT_MOST, f"{until}#~"),
        limit=limit,
        cursor=cursor,
    )
