"""Timetables: when the periods of a schedule are due by the clock.

The length of periods determines the period of a slot. A day, week or month stands for itself: the slot at 06:00 on the
3rd is for the 3rd. Shorter periods run after their end: the slot at 08:05 is for the hour "T07". A period is due once,
at the first of its slots.

Exclusions and inclusions apply to the days of the period. A week or a month is excluded only if all its days are; the
day of the slot then decides on which of its days it is due.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import Struct

from headgate.durable.schedules.cron import Recurrence, next_times
from headgate.pipelines.definition.model import Inclusions, Pipeline, Schedule
from headgate.pipelines.enums import CatchUp
from headgate.pipelines.schedule.calendars import Calendars, exclusion_reason, is_excluded, is_included
from headgate.pipelines.schedule.local_time import moment_on, time_of, wall_of, zone_of
from headgate.pipelines.schedule.periods import Periods, Span, periods_of

# A slot of at most this age is on time and not subject to the catch-up policy.
ON_TIME_SECONDS: Final = 60.0

_TICK: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)


class StartCondition(enum.Enum):
    """What makes the periods of a schedule due."""

    CRON = enum.auto()
    # Neither a cron expression nor data: each period, from `after` on.
    WINDOW = enum.auto()
    # A sensor, an upstream run or an event; never the clock.
    DATA = enum.auto()


class DueSlot(Struct, frozen=True):
    """A due period and its time. `excluded` is the reason why it does not run nevertheless."""

    schedule_id: str
    date: str
    at: datetime
    excluded: str | None = None


class CaughtUp(NamedTuple):
    """The slots to start, and those that the catch-up policy skips."""

    begin: list[DueSlot]
    passed_over: list[DueSlot]


class Timetable:
    """Due times of one schedule of a pipeline. Raises `InvalidScheduleError` or `DefinitionError`."""

    def __init__(self, pipeline: Pipeline, schedule: Schedule, calendars: Calendars) -> None:
        self.pipeline = pipeline
        self.schedule = schedule
        self.calendars = calendars
        self.schedule_id = schedule_id_of(schedule)
        self.periods: Periods = periods_of(pipeline, schedule)
        self.zone = zone_of(self.periods.zone)
        self.start_condition = start_condition_of(schedule)
        # Such a period runs after its end: its slots lie in the period after it.
        self._is_done_after = self.periods.length < _DAY
        # The last result of `ready_at`, for several questions about one period.
        self._last_ready: tuple[str, datetime] | None = None

    @cached_property
    def _recurrence(self) -> Recurrence:
        return Recurrence(self.schedule.cron or "", self.periods.zone)

    def date_of(self, moment: datetime) -> str:
        """Return the period of a slot at this time."""
        date = self.periods.at(moment)
        return self.periods.previous(date) if self._is_done_after else date

    def window(self, date: str) -> Span:
        """Return the interval whose slots belong to this period."""
        return self.periods.span(self.periods.next(date) if self._is_done_after else date)

    def slot(self, date: str) -> datetime | None:
        """Return when a period is due by the clock, excluded or not; None: never."""
        window = self.window(date)
        slot = self._first_slot(window.start - _TICK, window.end)
        return None if slot is None else self._not_before(slot)

    def ready_at(self, date: str) -> datetime:
        """Return from when a period can run: its slot, or its end if data makes it due."""
        last = self._last_ready
        if last is None or last[0] != date:
            last = self._last_ready = (date, self._compute_ready_at(date))
        return last[1]

    def exclusion_reason(self, date: str) -> str | None:
        """Return why a period is excluded; None: it is not."""
        days = self.periods.days(date)
        reason = exclusion_reason(self.schedule.exclude, days, self.calendars)
        if reason is None and not self._is_admitted(days):
            return f"{date}: not one of the days that are included"
        return reason

    def slots(self, after: datetime, until: datetime) -> Iterator[DueSlot]:
        """Yield the slots after `after` and up to `until`, in order.

        Excluded periods are included with their reason. Periods outside the inclusions are not.
        """
        if self.start_condition is StartCondition.DATA:
            return
        # A slot that `after` delays may lie on the day before.
        begin = after - _DAY if self.schedule.after is not None else after
        cursor = self.window(self.date_of(begin)).start - _TICK
        while (slot := self._first_slot(cursor, until + _TICK)) is not None:
            date = self.date_of(slot)
            cursor = self.window(date).end - _TICK
            at = self._not_before(slot)
            if after < at <= until and (due := self._due(date, at)) is not None:
                yield due

    def ready(self, after: datetime, until: datetime) -> Iterator[DueSlot]:
        """Yield the periods that become ready in this time, as `slots` does; for data, periods at their end."""
        if self.start_condition is not StartCondition.DATA:
            yield from self.slots(after, until)
            return
        date = self.periods.at(after)
        while (end := self.periods.end(date)) <= until:
            if end > after and (due := self._due(date, end)) is not None:
                yield due
            date = self.periods.at(end)

    def _compute_ready_at(self, date: str) -> datetime:
        if self.start_condition is StartCondition.DATA:
            return self.periods.end(date)
        return self.slot(date) or self.window(date).start

    def _due(self, date: str, at: datetime) -> DueSlot | None:
        days = self.periods.days(date)
        if not self._is_admitted(days):
            return None
        self._last_ready = (date, at)
        return DueSlot(self.schedule_id, date, at, exclusion_reason(self.schedule.exclude, days, self.calendars))

    def _is_admitted(self, days: list[date]) -> bool:
        include, exclude = self.schedule.include, self.schedule.exclude
        if include == Inclusions():
            return True
        return any(is_included(include, exclude, day, self.calendars) for day in days)

    def _first_slot(self, after: datetime, before: datetime) -> datetime | None:
        """Return the first slot between two times; of longer periods, on a day that is not excluded."""
        while (slot := self._next_slot(after)) is not None and slot < before:
            day = wall_of(slot, self.zone).date()
            if not self.periods.is_longer_than_a_day or not is_excluded(
                self.schedule.exclude, self.schedule.include, day, self.calendars
            ):
                return slot
            after = self._midnight(day + _DAY) - _TICK
        return None

    def _next_slot(self, after: datetime) -> datetime | None:
        if self.start_condition is StartCondition.CRON:
            return next(iter(next_times(self._recurrence, after, 1)), None)
        following = after + _TICK
        start = self.window(self.date_of(following)).start
        if start == following:
            return start
        if self.periods.is_longer_than_a_day:
            # Any of its days will do, if the earlier ones are excluded.
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
    """Return the id of a schedule: its name, or a default by its kind."""
    if schedule.name:
        return schedule.name
    match start_condition_of(schedule):
        case StartCondition.CRON:
            return "cron"
        case StartCondition.DATA:
            return "stream"
        case StartCondition.WINDOW:
            return "daily"


def start_condition_of(schedule: Schedule) -> StartCondition:
    """Return what makes the periods of a schedule due. With a cron expression and a sensor it is the clock."""
    if schedule.cron is not None:
        return StartCondition.CRON
    is_data = schedule.sensor is not None or schedule.upstream or schedule.event is not None
    return StartCondition.DATA if is_data else StartCondition.WINDOW


def timetables(pipeline: Pipeline, calendars: Calendars) -> list[Timetable]:
    """Return the timetable of each schedule. A pipeline without any has "daily", which is never due by itself."""
    schedules = pipeline.schedules or (Schedule(name="daily"),)
    return [Timetable(pipeline, schedule, calendars) for schedule in schedules]


def catch_up(
    slots: list[DueSlot], policy: CatchUp, now: datetime, *, on_time_seconds: float = ON_TIME_SECONDS
) -> CaughtUp:
    """Return which slots of a schedule to start now, after any downtime.

    Slots on time always start. Of the others all start, only the latest of all, or none.
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
