"""Due slots: at which moments which periods of a pipeline are due by the clock.

Which period a slot stands for follows from the length of periods. A day, week or month stands for itself: the slot at
06:00 on the 3rd is for the 3rd. Shorter periods are done when they are over: the slot at 08:05 is for the hour "T07".
A period is due once, at the first of its slots, however many a schedule names.

Exclusions and inclusions go by the days of the period itself. A week or a month is excluded only if all its days are;
which of its days it is due on is then decided by the day of the slot.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct

from headgate.durable.schedules.cron import Recurrence, next_times
from headgate.pipelines.definition.model import Inclusions, Pipeline, Schedule
from headgate.pipelines.enums import CatchUp
from headgate.pipelines.schedule.calendars import Calendars, exclusion_reason, is_excluded, is_included
from headgate.pipelines.schedule.local_time import moment_on, time_of, wall_of, zone_of
from headgate.pipelines.schedule.periods import Periods, Span, periods_of

SLOTS_MAX: Final = 10_000
# A slot that is not older is on time, and no matter of catching up.
ON_TIME_SECONDS: Final = 60.0

_TICK: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)


class Beginning(enum.Enum):
    """What makes the periods of a schedule due."""

    CRON = enum.auto()
    # Neither a cron expression nor data: each period, from `after` on.
    WINDOW = enum.auto()
    # A sensor, a run upstream or an event; by the clock it is never due.
    DATA = enum.auto()


class DueSlot(Struct, frozen=True):
    """A period that is due, and since when. `excluded` says why it is dormant nevertheless."""

    schedule_id: str
    date: str
    at: datetime
    excluded: str | None = None


class CaughtUp(NamedTuple):
    """What becomes of slots: those to begin, and those that the policy passes over."""

    begin: list[DueSlot]
    passed_over: list[DueSlot]


class Timetable:
    """When the periods of one schedule of a pipeline are due. Raises `InvalidScheduleError` or `DefinitionError`."""

    def __init__(self, pipeline: Pipeline, schedule: Schedule, calendars: Calendars) -> None:
        self.pipeline = pipeline
        self.schedule = schedule
        self.calendars = calendars
        self.schedule_id = schedule_id_of(schedule)
        self.periods: Periods = periods_of(pipeline, schedule)
        self.zone = zone_of(self.periods.zone)
        self.beginning = beginning_of(schedule)
        # It is done after it is over, so that the slots of the one after it are its own.
        self._is_done_after = self.periods.length < _DAY
        # The last answer of `ready_at`, for whoever asks several things about one period.
        self._last_ready: tuple[str, datetime] | None = None

    @cached_property
    def _recurrence(self) -> Recurrence:
        return Recurrence(self.schedule.cron or "", self.periods.zone)

    def date_of(self, moment: datetime) -> str:
        """Return the period that a slot at this moment stands for."""
        found = self.periods.at(moment)
        return self.periods.previous(found) if self._is_done_after else found

    def window(self, date: str) -> Span:
        """Return between which moments a slot stands for this period."""
        return self.periods.span(self.periods.next(date) if self._is_done_after else date)

    def slot(self, date: str) -> datetime | None:
        """Return when a period is due by the clock, excluded or not; None: never."""
        window = self.window(date)
        found = self._first_slot(window.start - _TICK, window.end)
        return None if found is None else self._not_before(found)

    def ready_at(self, date: str) -> datetime:
        """Return from when on a period can be done: from its slot, or from its end if data makes it due."""
        last = self._last_ready
        if last is None or last[0] != date:
            last = self._last_ready = (date, self._found_ready_at(date))
        return last[1]

    def exclusion_reason(self, date: str) -> str | None:
        """Return why nothing is done for a period, in a few words; None: it is not excluded."""
        days = self.periods.days(date)
        reason = exclusion_reason(self.schedule.exclude, days, self.calendars)
        if reason is None and not self._is_let_through(days):
            return f"{date}: not one of the days that are included"
        return reason

    def slots(self, after: datetime, until: datetime) -> Iterator[DueSlot]:
        """Return what is due later than `after` and not later than `until`, in order.

        Excluded periods are among them and say so. Periods that are not included are not.
        """
        if self.beginning is Beginning.DATA:
            return
        # What is put off until `after` may have its slot a day earlier.
        begin = after - _DAY if self.schedule.after is not None else after
        cursor = self.window(self.date_of(begin)).start - _TICK
        while (slot := self._first_slot(cursor, until + _TICK)) is not None:
            date = self.date_of(slot)
            cursor = self.window(date).end - _TICK
            at = self._not_before(slot)
            if after < at <= until and (found := self._due(date, at)) is not None:
                yield found

    def ready(self, after: datetime, until: datetime) -> Iterator[DueSlot]:
        """Return what can be done from a moment in this time on, as `slots` does; for data, its periods as they end."""
        if self.beginning is not Beginning.DATA:
            yield from self.slots(after, until)
            return
        date = self.periods.at(after)
        while (end := self.periods.end(date)) <= until:
            if end > after and (found := self._due(date, end)) is not None:
                yield found
            date = self.periods.at(end)

    def _found_ready_at(self, date: str) -> datetime:
        if self.beginning is Beginning.DATA:
            return self.periods.end(date)
        return self.slot(date) or self.window(date).start

    def _due(self, date: str, at: datetime) -> DueSlot | None:
        days = self.periods.days(date)
        if not self._is_let_through(days):
            return None
        self._last_ready = (date, at)
        return DueSlot(self.schedule_id, date, at, exclusion_reason(self.schedule.exclude, days, self.calendars))

    def _is_let_through(self, days: list[date]) -> bool:
        include, exclude = self.schedule.include, self.schedule.exclude
        if include == Inclusions():
            return True
        return any(is_included(include, exclude, day, self.calendars) for day in days)

    def _first_slot(self, after: datetime, before: datetime) -> datetime | None:
        """Return the first slot later than `after` and before `before`; of longer periods, on a day that is open."""
        while (slot := self._next_slot(after)) is not None and slot < before:
            day = wall_of(slot, self.zone).date()
            if not self.periods.is_longer_than_a_day or not is_excluded(
                self.schedule.exclude, self.schedule.include, day, self.calendars
            ):
                return slot
            after = self._midnight(day + _DAY) - _TICK
        return None

    def _next_slot(self, after: datetime) -> datetime | None:
        if self.beginning is Beginning.CRON:
            return next(iter(next_times(self._recurrence, after, 1)), None)
        following = after + _TICK
        start = self.window(self.date_of(following)).start
        if start == following:
            return start
        if self.periods.is_longer_than_a_day:
            # Each of its days will do, if those before are excluded.
            return self._midnight(wall_of(after, self.zone).date() + _DAY)
        return self.window(self.date_of(following)).end

    def _midnight(self, day: date) -> datetime:
        return moment_on(day, time_of("00:00", field="after"), self.zone)

    def _not_before(self, slot: datetime) -> datetime:
        if self.schedule.after is None:
            return slot
        day = wall_of(slot, self.zone).date()
        return max(slot, moment_on(day, time_of(self.schedule.after, field="after"), self.zone))


def schedule_id_of(schedule: Schedule) -> str:
    """Return what a schedule is called in ids: its name, or what it goes by without one."""
    if schedule.name:
        return schedule.name
    match beginning_of(schedule):
        case Beginning.CRON:
            return "cron"
        case Beginning.DATA:
            return "stream"
        case Beginning.WINDOW:
            return "daily"


def beginning_of(schedule: Schedule) -> Beginning:
    """Return what makes the periods of a schedule due. One with a cron expression and a sensor goes by the clock."""
    if schedule.cron is not None:
        return Beginning.CRON
    is_data = schedule.sensor is not None or schedule.upstream or schedule.event is not None
    return Beginning.DATA if is_data else Beginning.WINDOW


def timetables(pipeline: Pipeline, calendars: Calendars) -> list[Timetable]:
    """Return the timetable of each schedule. A pipeline without any has one, "daily", that is never due by itself."""
    schedules = pipeline.schedules or (Schedule(name="daily"),)
    return [Timetable(pipeline, schedule, calendars) for schedule in schedules]


def due_slots(
    pipeline: Pipeline, calendars: Calendars, after: datetime, until: datetime, *, limit: int = SLOTS_MAX
) -> list[DueSlot]:
    """Return what is due later than `after` and not later than `until`, by time, without what is excluded.

    At most `limit` of each schedule: if there are so many, ask again from the last. A pipeline that has no schedules
    is begun by markers and people alone.
    """
    found: list[DueSlot] = []
    for schedule in pipeline.schedules:
        slots = Timetable(pipeline, schedule, calendars).slots(after, until)
        found += islice((slot for slot in slots if slot.excluded is None), limit)
    return sorted(found, key=lambda slot: (slot.at, slot.schedule_id))


def catch_up(
    slots: list[DueSlot], policy: CatchUp, now: datetime, *, on_time_seconds: float = ON_TIME_SECONDS
) -> CaughtUp:
    """Return which of one schedule's slots to begin now, after however long nobody looked.

    Those on time always begin. Of the others, all do, only the last if it is the last of all, or none.
    """
    oldest = now - timedelta(seconds=on_time_seconds)
    if policy is CatchUp.ALL:
        return CaughtUp(list(slots), [])
    on_time = [slot for slot in slots if slot.at >= oldest]
    late = [slot for slot in slots if slot.at < oldest]
    if policy is CatchUp.LATEST and late and not on_time:
        last = max(late, key=lambda slot: slot.at)
        return CaughtUp([last], [slot for slot in late if slot is not last])
    return CaughtUp(on_time, late)
