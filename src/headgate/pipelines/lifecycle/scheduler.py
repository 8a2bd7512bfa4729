"""Cron scheduler: starts each scheduled period once, including those that fell due while no server ran."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

import structlog
from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import ConflictError, TransientError, UserError
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import Cause
from headgate.pipelines.lifecycle.starter import LifecycleStarter
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.timetables import Timetable, catch_up
from headgate.store.catalogue.tables import CURSOR, PIPELINES
from headgate.store.port import Store

# How far ahead the next slot is computed; a schedule without one in this time is checked again after it.
HORIZON: Final = timedelta(days=2)
RETRY_AFTER: Final = timedelta(seconds=5)
_STARTED: Final = "begun:"
_log = structlog.get_logger(__name__)


class ScheduledPipeline(Struct, frozen=True):
    """The current definition of a pipeline. Slots before `since` are not started."""

    pipeline: Pipeline
    version: int
    since: datetime


class ScheduleCursor(Struct):
    """A schedule, and when it is checked next."""

    timetable: Timetable
    version: int
    since: datetime
    check_at: datetime


class CronScheduler:
    """Starts due slots. A tick costs by the number of due schedules, not of all pipelines."""

    def __init__(self, store: Store, clock: Clock, starter: LifecycleStarter) -> None:
        self._store = store
        self._clock = clock
        self._starter = starter
        self._cursors: dict[tuple[str, str], ScheduleCursor] = {}
        self._heap: list[tuple[datetime, str, str]] = []

    def load(self, defined: Iterable[ScheduledPipeline], timetables: Callable[[Pipeline], list[Timetable]]) -> None:
        """Replace the set of pipelines; those not in it are dropped."""
        loaded: set[tuple[str, str]] = set()
        for each in defined:
            try:
                tables = timetables(each.pipeline)
            except UserError as exc:
                # A bad definition does not stop the others.
                _log.warning("pipeline has no timetable", pipeline_id=each.pipeline.id, error=str(exc))
                continue
            for timetable in tables:
                key = (each.pipeline.id, timetable.schedule_id)
                loaded.add(key)
                known = self._cursors.get(key)
                if known is None or known.version != each.version:
                    now = self._clock.now()
                    self._cursors[key] = ScheduleCursor(timetable, each.version, each.since, now)
                    heapq.heappush(self._heap, (now, *key))
        for key in self._cursors.keys() - loaded:
            del self._cursors[key]

    @property
    def has_pipelines(self) -> bool:
        """Whether any pipeline has a schedule."""
        return bool(self._cursors)

    def seconds_left(self) -> float:
        """Return the seconds until the next check of a schedule."""
        if not self._heap:
            return HORIZON.total_seconds()
        return max(0.0, (self._heap[0][0] - self._clock.now()).total_seconds())

    def tick(self) -> int:
        """Start the due periods, and return their number."""
        started = 0
        now = self._clock.now()
        while self._heap and self._heap[0][0] <= now:
            _, pipeline_id, schedule_id = heapq.heappop(self._heap)
            cursor = self._cursors.get((pipeline_id, schedule_id))
            if cursor is None or cursor.check_at > now:
                # The schedule is gone, or this check was planned under an earlier definition.
                continue
            try:
                started += self._start_due(cursor, now)
                cursor.check_at = self._next_check(cursor, now)
            except (UserError, TransientError, ConflictError) as exc:
                # A schedule that cannot start now does not stop the others.
                _log.warning("schedule not started", pipeline_id=pipeline_id, schedule_id=schedule_id, error=str(exc))
                cursor.check_at = now + RETRY_AFTER
            heapq.heappush(self._heap, (cursor.check_at, pipeline_id, schedule_id))
        return started

    def _start_due(self, cursor: ScheduleCursor, now: datetime) -> int:
        timetable = cursor.timetable
        after = self._started_through(cursor)
        due = [slot for slot in timetable.slots(after, now) if slot.excluded is None]
        if not due:
            return 0
        chosen = catch_up(due, timetable.schedule.catch_up, now)
        for slot in chosen.begin:
            self._starter.start_run(Slot(timetable.pipeline.id, slot.schedule_id, slot.date), Cause.CRON)
        # Saved last: a crash before it starts the same executions under the same names, which is idempotent.
        self._save_started_through(timetable, due[-1].at)
        return len(chosen.begin)

    def _next_check(self, cursor: ScheduleCursor, now: datetime) -> datetime:
        following = next(cursor.timetable.slots(now, now + HORIZON), None)
        return now + HORIZON if following is None else following.at

    def _started_through(self, cursor: ScheduleCursor) -> datetime:
        key = CURSOR.key(pipeline_id=cursor.timetable.pipeline.id, schedule_id=_STARTED + cursor.timetable.schedule_id)
        item = self._store.get(PIPELINES, key, consistent=True)
        if item is None:
            return cursor.since
        return max(cursor.since, datetime.fromisoformat(item["through"]))

    def _save_started_through(self, timetable: Timetable, through: datetime) -> None:
        key = CURSOR.key(pipeline_id=timetable.pipeline.id, schedule_id=_STARTED + timetable.schedule_id)
        item = {**PIPELINES.key_attributes(key), "through": through.isoformat()}
        self._store.put(PIPELINES, item)
