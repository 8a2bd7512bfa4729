"""Named slots: the period that a person or a program means by a date and, where there are several, a schedule.

Whether one period is due, in words: what calendars and schedules say of it, for whoever asks why.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from headgate.errors import InvalidPayloadError, UserError
from headgate.pipelines.definition.model import Pipeline, Schedule
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.timetables import Beginning, Timetable, timetables


def slot_named(pipeline: Pipeline, date: str, schedule: str | None) -> Slot:
    """Return the period of a pipeline that is meant, its date in the form in which it is kept.

    Without a schedule it is that of the only one. Raises `InvalidPayloadError`, naming the field, for a date that is
    no period of the pipeline, and for a schedule that it does not have or that must be named.
    """
    timetable = timetable_named(pipeline, schedule, {})
    try:
        return Slot(pipeline.id, timetable.schedule_id, timetable.periods.check(date))
    except UserError as exc:
        raise InvalidPayloadError(f"pipeline {pipeline.id}: {exc}") from exc


def timetable_named(pipeline: Pipeline, schedule: str | None, calendars: Calendars) -> Timetable:
    """Return when the schedule that is meant is due. Raises `InvalidPayloadError` as `slot_named` does."""
    found = {each.schedule_id: each for each in timetables(pipeline, calendars)}
    names = ", ".join(found)
    if schedule is None:
        if len(found) > 1:
            raise InvalidPayloadError(f"schedule: pipeline {pipeline.id} has several; name one of {names}")
        return next(iter(found.values()))
    if schedule not in found:
        raise InvalidPayloadError(
            f"schedule {schedule[:40]!r}: pipeline {pipeline.id} has no such schedule; use {names}"
        )
    return found[schedule]


def date_named(pipeline: Pipeline, date: str, schedule: str | None) -> str:
    """Return a date in the form in which it is kept, for one schedule or for all. Raises as `slot_named` does."""
    first = schedule if schedule is not None else timetables(pipeline, {})[0].schedule_id
    return slot_named(pipeline, date, first).date


class Due(Struct, frozen=True, kw_only=True):
    """What calendars and schedules say of a period."""

    # Why the calendar leaves it out ("a Sunday"); empty: it does not.
    excluded: str = ""
    # When it is due by the clock; None: it is begun by something that has to happen, or by nothing.
    due_at_ms: int | None = None
    # Which schedule says so ('cron "0 6 * * *"', "after 06:00").
    schedule: str = ""
    # What has to happen ("sensor orders-landed").
    awaited: str = ""
    # Why no schedule names it at all; empty: one does.
    unscheduled: str = ""


def due_of(pipeline: Pipeline, slot: Slot, calendars: Calendars) -> Due:
    """Return what calendars and schedules say of a period.

    Raises `UserError` for a date that is no period of the pipeline, and `InvalidScheduleError` for a schedule that
    cannot be read.
    """
    tables = {table.schedule_id: table for table in timetables(pipeline, calendars)}
    table = tables.get(slot.schedule_id)
    if table is None:
        return Due(unscheduled=f"it has no schedule {slot.schedule_id}; it has {', '.join(tables)}")
    excluded = table.exclusion_reason(slot.date)
    if excluded is not None:
        return Due(excluded=excluded)
    if table.beginning is Beginning.DATA:
        return Due(awaited=_awaited(table.schedule))
    if not pipeline.schedules:
        return Due(awaited="a marker or a person to begin it: it has no schedules")
    at = table.slot(slot.date)
    if at is None:
        return Due(unscheduled=f"no moment of {_schedule(table.schedule)} is for {slot.date}")
    return Due(due_at_ms=_ms(at), schedule=_schedule(table.schedule))


def _awaited(schedule: Schedule) -> str:
    found = [f"upstream {each.pipeline}" for each in schedule.upstream]
    if schedule.sensor is not None:
        found.append(f"sensor {schedule.sensor.key}")
    if schedule.event is not None:
        found.append(f"event {schedule.event}")
    return " or ".join(found)


def _schedule(schedule: Schedule) -> str:
    words = [f'cron "{schedule.cron}"'] if schedule.cron is not None else []
    if schedule.after is not None:
        words.append(f"after {schedule.after}")
    return ", ".join(words)


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
