"""Named slots: the period that a person or a program means by a date and, where there are several, a schedule."""

from __future__ import annotations

from headgate.errors import InvalidPayloadError, UserError
from headgate.pipelines.calendars import Calendars
from headgate.pipelines.definition import Pipeline
from headgate.pipelines.due_slots import Timetable, timetables
from headgate.pipelines.run_rows import Slot


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
