"""Cursors: how far each schedule has been judged, and an agenda of when each is to be looked at next.

A cursor is a row, so that after any absence every expectation up to now gets its verdict. The agenda is in memory and
follows the definitions: a look at it costs by what is due, not by how many pipelines there are.
"""

from __future__ import annotations

import hashlib
import heapq
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from headgate.errors import ConflictError
from headgate.pipelines.definition.model import Pipeline, Schedule
from headgate.pipelines.lifecycle.scheduler import Defined
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.schedule.timetables import beginning_of, schedule_id_of
from headgate.store.catalogue.tables import CURSOR, PIPELINES
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.port import Store

# A schedule is looked at this often at least: its calendars may have changed, of which nobody tells.
HORIZON: Final = timedelta(days=1)
# Beside the cursor of what was begun, which is someone else's.
_JUDGED: Final = "judged:"
_BATCH: Final = 100
# The moment of a schedule that is being looked at.
_TAKEN: Final = datetime.max.replace(tzinfo=UTC)


class Cursor(Struct, frozen=True, kw_only=True):
    """How far a schedule has been judged. Nothing is owed for the time before `since`."""

    pipeline_id: str
    schedule_id: str
    judged_through: datetime
    since: datetime
    # Of what makes its periods due: a change of anything else leaves the past as it was.
    fingerprint: str
    definition_version: int
    next_at: datetime | None = None
    version: int = 1


class ScheduleRef(NamedTuple):
    """Names a schedule of a pipeline."""

    pipeline_id: str
    schedule_id: str


class Entry(Struct, frozen=True, kw_only=True):
    """A schedule as it is on the agenda."""

    pipeline: Pipeline
    definition_version: int
    cursor: Cursor

    @property
    def ref(self) -> ScheduleRef:
        """Which schedule it is."""
        return ScheduleRef(self.pipeline.id, self.cursor.schedule_id)


class Cursors:
    """The cursors of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find_all(self, refs: Sequence[ScheduleRef]) -> list[Cursor | None]:
        """Return the cursors of schedules, None for each that has none."""
        found: list[Cursor | None] = []
        for start in range(0, len(refs), _BATCH):
            keys = [cursor_key(ref) for ref in refs[start : start + _BATCH]]
            items = self._store.get_many(PIPELINES, keys, consistent=True)
            found += [None if item is None else struct_of(item, Cursor) for item in items]
        return found

    def put_all(self, cursors: Sequence[Cursor]) -> list[bool]:
        """Keep cursors, each at the version after the one that was read. False: someone else has moved it."""
        outcomes = self._store.transact_many([[_put(cursor)] for cursor in cursors]) if cursors else []
        for error in outcomes:
            if error is not None and not isinstance(error, ConflictError):
                raise error
        return [error is None for error in outcomes]

    def forget(self, refs: Iterable[ScheduleRef]) -> None:
        """Take cursors away: what is defined anew under the same name begins anew."""
        for ref in refs:
            self._store.delete(PIPELINES, cursor_key(ref))


class Agenda:
    """When to look at which schedule. Safe to use from many threads: a check may outlive its tick."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[ScheduleRef, tuple[Entry, datetime]] = {}
        self._of_pipeline: dict[str, tuple[ScheduleRef, ...]] = {}
        self._heap: list[tuple[datetime, ScheduleRef]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def refs(self, pipeline_id: str) -> tuple[ScheduleRef, ...]:
        """Return the schedules of a pipeline that are on the agenda."""
        return self._of_pipeline.get(pipeline_id, ())

    def pipelines(self) -> list[str]:
        """Return the ids of all pipelines on the agenda."""
        with self._lock:
            return list(self._of_pipeline)

    def find(self, ref: ScheduleRef) -> Entry | None:
        """Return a schedule as it is on the agenda."""
        found = self._entries.get(ref)
        return None if found is None else found[0]

    def enter(self, pipeline_id: str, entries: Sequence[tuple[Entry, datetime]]) -> None:
        """Take the schedules of a pipeline, each with when to look at it, in place of those it had."""
        with self._lock:
            self.leave(pipeline_id)
            if entries:
                self._of_pipeline[pipeline_id] = tuple(entry.ref for entry, _ in entries)
            for entry, at in entries:
                self._set(entry, at)

    def again(self, entry: Entry, at: datetime) -> None:
        """Look at a schedule again, unless it was taken off or defined anew while it was looked at."""
        with self._lock:
            known = self._entries.get(entry.ref)
            if known is not None and known[0].definition_version == entry.definition_version:
                self._set(entry, at)

    def _set(self, entry: Entry, at: datetime) -> None:
        self._entries[entry.ref] = (entry, at)
        heapq.heappush(self._heap, (at, entry.ref))

    def leave(self, pipeline_id: str) -> None:
        """Take the schedules of a pipeline off."""
        with self._lock:
            for ref in self._of_pipeline.pop(pipeline_id, ()):
                del self._entries[ref]

    def pop_due(self, now: datetime) -> Entry | None:
        """Return the schedule that has been due for longest, and take its moment off; None: nothing is due."""
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                at, ref = heapq.heappop(self._heap)
                found = self._entries.get(ref)
                # Moments that were set before the last are passed over as they come.
                if found is not None and found[1] == at:
                    # It may be there twice for one moment, and is to be looked at once.
                    self._entries[ref] = (found[0], _TAKEN)
                    return found[0]
            return None

    def next_at(self) -> datetime | None:
        """Return when the next schedule is due."""
        with self._lock:
            while self._heap:
                at, ref = self._heap[0]
                found = self._entries.get(ref)
                if found is not None and found[1] == at:
                    return at
                heapq.heappop(self._heap)
            return None


def cursor_key(ref: ScheduleRef) -> Key:
    """Return where the cursor of a schedule is kept."""
    return CURSOR.key(pipeline_id=ref.pipeline_id, schedule_id=_JUDGED + ref.schedule_id)


def _put(cursor: Cursor) -> Put:
    before = cursor.version - 1
    item = row(cursor_key(ScheduleRef(cursor.pipeline_id, cursor.schedule_id)), cursor)
    # Nobody follows how far the watchdog has come.
    return Put(PIPELINES, item, version_is(before) if before else absent(), quiet=True)


def schedules_of(pipeline: Pipeline) -> dict[str, Schedule]:
    """Return the schedules of a pipeline by their ids. One without any has "daily", begun by people alone."""
    return {schedule_id_of(each): each for each in pipeline.schedules or (Schedule(name="daily"),)}


def fingerprint_of(pipeline: Pipeline, schedule: Schedule) -> str:
    """Return what changes when the moments do at which the periods of a schedule can be done.

    Deadlines and calendars are not in it: they change what is expected from now on, and nothing that was due.
    """
    facts = [
        beginning_of(schedule).name, schedule.cron, schedule.timezone, schedule.after,
        pipeline.period, pipeline.every, pipeline.timezone,
    ]  # fmt: skip
    text = msgspec.json.encode(facts, enc_hook=float)
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def entry_of(defined: Defined, schedule_id: str, cursor: Cursor | None, *, is_anew: bool) -> Entry:
    """Return a schedule as it goes on the agenda.

    One that was not there, is due at other moments now, or comes back after it was deleted (`is_anew`) begins with the
    definition that says so: who deploys does not hear of all that was not done before.
    """
    fingerprint = fingerprint_of(defined.pipeline, schedules_of(defined.pipeline)[schedule_id])
    if cursor is not None and cursor.fingerprint == fingerprint and not is_anew:
        return Entry(pipeline=defined.pipeline, definition_version=defined.version, cursor=cursor)
    fresh = Cursor(
        pipeline_id=defined.pipeline.id,
        schedule_id=schedule_id,
        judged_through=defined.since,
        since=defined.since,
        fingerprint=fingerprint,
        definition_version=0,
        version=0 if cursor is None else cursor.version,
    )
    return Entry(pipeline=defined.pipeline, definition_version=defined.version, cursor=fresh)
