"""Due checks: resolves the slot that a date and schedule name, and explains whether it is due."""

from __future__ import annotations

from msgspec import Struct

from headgate.errors import InvalidPayloadError, UserError
from headgate.pipelines.definition.model import Pipeline, Schedule
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.timetables import StartCondition, Timetable, timetables


def slot_named(pipeline: Pipeline, date: str, schedule: str | None) -> Slot:
    """Return the slot that a date names, with the date in its stored form.

    The schedule may be omitted if there is only one. Raises `InvalidPayloadError`, naming the field, for a date that
    is no period of the pipeline, and for a missing or unknown schedule.
    """
    timetable = timetable_named(pipeline, schedule, {})
    try:
        return Slot(pipeline.id, timetable.schedule_id, timetable.periods.check(date))
    except UserError as exc:
        raise InvalidPayloadError(f"pipeline {pipeline.id}: {exc}") from exc


def timetable_named(pipeline: Pipeline, schedule: str | None, calendars: Calendars) -> Timetable:
    """Return the timetable of a schedule. Raises `InvalidPayloadError` as `slot_named` does."""
    tables = {each.schedule_id: each for each in timetables(pipeline, calendars)}
    names = ", ".join(tables)
    if schedule is None:
        if len(tables) > 1:
            raise InvalidPayloadError(f"schedule: pipeline {pipeline.id} has several; name one of {names}")
        return next(iter(tables.values()))
    if schedule not in tables:
        raise InvalidPayloadError(
            f"schedule {schedule[:40]!r}: pipeline {pipeline.id} has no such schedule; use {names}"
        )
    return tables[schedule]


def date_named(pipeline: Pipeline, date: str, schedule: str | None) -> str:
    """Return a date in its stored form, for one schedule or for all. Raises as `slot_named` does."""
    first = schedule if schedule is not None else timetables(pipeline, {})[0].schedule_id
    return slot_named(pipeline, date, first).date


class Due(Struct, frozen=True, kw_only=True):
    """What calendars and schedules say about a period."""

    # Why the calendar excludes it ("a Sunday"); empty: it does not.
    excluded: str = ""
    # When it is due by the clock; None: data or an operator starts it.
    due_at_ms: int | None = None
    # The schedule that makes it due ('cron "0 6 * * *"', "after 06:00").
    schedule: str = ""
    # The event that starts it ("sensor orders-landed").
    awaited: str = ""
    # Why no schedule includes it; empty: one does.
    unscheduled: str = ""


def due_of(pipeline: Pipeline, slot: Slot, calendars: Calendars) -> Due:
    """Return what calendars and schedules say about a period.

    Raises `UserError` for a date that is no period of the pipeline, and `InvalidScheduleError` for an invalid schedule.
    """
    tables = {table.schedule_id: table for table in timetables(pipeline, calendars)}
    table = tables.get(slot.schedule_id)
    if table is None:
        return Due(unscheduled=f"it has no schedule {slot.schedule_id}; it has {', '.join(tables)}")
    excluded = table.exclusion_reason(slot.date)
    if excluded is not None:
        return Due(excluded=excluded)
    if table.start_condition is StartCondition.DATA:
        return Due(awaited=_awaited(table.schedule))
    if not pipeline.schedules:
        return Due(awaited="a marker or an operator to start it: it has no schedules")
    at = table.slot(slot.date)
    if at is None:
        return Due(unscheduled=f"no time of {_schedule(table.schedule)} is for {slot.date}")
    return Due(due_at_ms=int(at.timestamp() * 1000), schedule=_schedule(table.schedule))


def _awaited(schedule: Schedule) -> str:
    events = [f"upstream {each.pipeline}" for each in schedule.upstream]
    if schedule.sensor is not None:
        events.append(f"sensor {schedule.sensor.key}")
    if schedule.event is not None:
        events.append(f"event {schedule.event}")
    return " or ".join(events)


def _schedule(schedule: Schedule) -> str:
    words = [f'cron "{schedule.cron}"'] if schedule.cron is not None else []
    if schedule.after is not None:
        words.append(f"after {schedule.after}")
    return ", ".join(words)
