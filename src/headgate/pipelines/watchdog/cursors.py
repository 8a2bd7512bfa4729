"""Cursors: how far each schedule has been judged, and the queue of when each is checked next.

A cursor is a row, so that after any downtime every expectation up to now gets its verdict. The queue is in memory and
follows the definitions: a tick costs by the number of due schedules, not of all pipelines.
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
from headgate.pipelines.lifecycle.scheduler import ScheduledPipeline
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.schedule.timetables import schedule_id_of, start_condition_of
from headgate.store.catalogue.tables import CURSOR, PIPELINES
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.port import Store

# Longest time between two checks of a schedule: a changed calendar causes no event.
HORIZON: Final = timedelta(days=1)
# Prefix of these cursors; the cron scheduler has its own.
_JUDGED: Final = "judged:"
_BATCH: Final = 100
# The queue time of a schedule that is being checked.
_TAKEN: Final = datetime.max.replace(tzinfo=UTC)


class Cursor(Struct, frozen=True, kw_only=True):
    """How far a schedule has been judged. Nothing before `since` is expected."""

    pipeline_id: str
    schedule_id: str
    judged_through: datetime
    since: datetime
    # Of the fields that determine due times: a change of other fields does not reset the cursor.
    fingerprint: str
    definition_version: int
    next_at: datetime | None = None
    version: int = 1


class ScheduleRef(NamedTuple):
    """Identifies a schedule of a pipeline."""

    pipeline_id: str
    schedule_id: str


class QueuedSchedule(Struct, frozen=True, kw_only=True):
    """A schedule in the queue, with its definition and cursor."""

    pipeline: Pipeline
    definition_version: int
    cursor: Cursor

    @property
    def ref(self) -> ScheduleRef:
        """The identity of the schedule."""
        return ScheduleRef(self.pipeline.id, self.cursor.schedule_id)


class Cursors:
    """Stores cursors."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find_all(self, refs: Sequence[ScheduleRef]) -> list[Cursor | None]:
        """Return the cursors of schedules, with None for each missing one."""
        cursors: list[Cursor | None] = []
        for start in range(0, len(refs), _BATCH):
            keys = [cursor_key(ref) for ref in refs[start : start + _BATCH]]
            items = self._store.get_many(PIPELINES, keys, consistent=True)
            cursors += [None if item is None else struct_of(item, Cursor) for item in items]
        return cursors

    def put_all(self, cursors: Sequence[Cursor]) -> list[bool]:
        """Store cursors under optimistic versions. False: another watchdog has moved the cursor."""
        outcomes = self._store.transact_many([[_put(cursor)] for cursor in cursors]) if cursors else []
        for error in outcomes:
            if error is not None and not isinstance(error, ConflictError):
                raise error
        return [error is None for error in outcomes]

    def forget(self, refs: Iterable[ScheduleRef]) -> None:
        """Delete cursors, so that a schedule redefined under the same name starts fresh."""
        for ref in refs:
            self._store.delete(PIPELINES, cursor_key(ref))


class ScheduleQueue:
    """Priority queue of schedules by check time. Thread-safe: a check may outlive its tick."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries: dict[ScheduleRef, tuple[QueuedSchedule, datetime]] = {}
        self._of_pipeline: dict[str, tuple[ScheduleRef, ...]] = {}
        self._heap: list[tuple[datetime, ScheduleRef]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def refs(self, pipeline_id: str) -> tuple[ScheduleRef, ...]:
        """Return the schedules of a pipeline in the queue."""
        return self._of_pipeline.get(pipeline_id, ())

    def pipelines(self) -> list[str]:
        """Return the ids of all pipelines in the queue."""
        with self._lock:
            return list(self._of_pipeline)

    def find(self, ref: ScheduleRef) -> QueuedSchedule | None:
        """Return a schedule in the queue, or None."""
        known = self._entries.get(ref)
        return None if known is None else known[0]

    def replace_pipeline(self, pipeline_id: str, entries: Sequence[tuple[QueuedSchedule, datetime]]) -> None:
        """Replace the schedules of a pipeline, each with its check time."""
        with self._lock:
            self.remove_pipeline(pipeline_id)
            if entries:
                self._of_pipeline[pipeline_id] = tuple(entry.ref for entry, _ in entries)
            for entry, at in entries:
                self._set(entry, at)

    def requeue(self, entry: QueuedSchedule, at: datetime) -> None:
        """Set the next check of a schedule, unless it was removed or redefined during the check."""
        with self._lock:
            known = self._entries.get(entry.ref)
            if known is not None and known[0].definition_version == entry.definition_version:
                self._set(entry, at)

    def _set(self, entry: QueuedSchedule, at: datetime) -> None:
        self._entries[entry.ref] = (entry, at)
        heapq.heappush(self._heap, (at, entry.ref))

    def remove_pipeline(self, pipeline_id: str) -> None:
        """Remove the schedules of a pipeline."""
        with self._lock:
            for ref in self._of_pipeline.pop(pipeline_id, ()):
                del self._entries[ref]

    def pop_due(self, now: datetime) -> QueuedSchedule | None:
        """Take the schedule that has been due for longest; None: nothing is due."""
        with self._lock:
            while self._heap and self._heap[0][0] <= now:
                at, ref = heapq.heappop(self._heap)
                entry = self._entries.get(ref)
                # A different time means that the schedule was queued anew.
                if entry is not None and entry[1] == at:
                    # The heap may hold it twice for one time; it is checked once.
                    self._entries[ref] = (entry[0], _TAKEN)
                    return entry[0]
            return None

    def next_at(self) -> datetime | None:
        """Return the time of the next check."""
        with self._lock:
            while self._heap:
                at, ref = self._heap[0]
                entry = self._entries.get(ref)
                if entry is not None and entry[1] == at:
                    return at
                heapq.heappop(self._heap)
            return None


def cursor_key(ref: ScheduleRef) -> Key:
    """Return the key of a cursor's row."""
    return CURSOR.key(pipeline_id=ref.pipeline_id, schedule_id=_JUDGED + ref.schedule_id)


def _put(cursor: Cursor) -> Put:
    before = cursor.version - 1
    item = row(cursor_key(ScheduleRef(cursor.pipeline_id, cursor.schedule_id)), cursor)
    # Quiet: no consumer follows changes of cursors.
    return Put(PIPELINES, item, version_is(before) if before else absent(), quiet=True)


def schedules_of(pipeline: Pipeline) -> dict[str, Schedule]:
    """Return the schedules of a pipeline by id. A pipeline without any has "daily", which only operators start."""
    return {schedule_id_of(each): each for each in pipeline.schedules or (Schedule(name="daily"),)}


def fingerprint_of(pipeline: Pipeline, schedule: Schedule) -> str:
    """Return a hash of the fields that determine when the periods of a schedule are due.

    Deadlines and calendars are not included: they change future expectations only.
    """
    fields = [
        start_condition_of(schedule).name, schedule.cron, schedule.timezone, schedule.after,
        pipeline.period, pipeline.every, pipeline.timezone,
    ]  # fmt: skip
    text = msgspec.json.encode(fields, enc_hook=float)
    return hashlib.blake2b(text, digest_size=12).hexdigest()


def entry_of(defined: ScheduledPipeline, schedule_id: str, cursor: Cursor | None, *, is_anew: bool) -> QueuedSchedule:
    """Return the queue entry of a schedule.

    A new schedule, one with other due times, or one that was deleted and defined again (`is_anew`) starts at the time
    of its definition: a deployment does not report periods of the past.
    """
    fingerprint = fingerprint_of(defined.pipeline, schedules_of(defined.pipeline)[schedule_id])
    if cursor is not None and cursor.fingerprint == fingerprint and not is_anew:
        return QueuedSchedule(pipeline=defined.pipeline, definition_version=defined.version, cursor=cursor)
    fresh = Cursor(
        pipeline_id=defined.pipeline.id,
        schedule_id=schedule_id,
        judged_through=defined.since,
        since=defined.since,
        fingerprint=fingerprint,
        definition_version=0,
        version=0 if cursor is None else cursor.version,
    )
    return QueuedSchedule(pipeline=defined.pipeline, definition_version=defined.version, cursor=fresh)
