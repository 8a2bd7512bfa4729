"""Schedule checks: whether each schedule is valid, can ever be due, and has a unique id."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable
from datetime import date, timedelta
from typing import Final

from headgate.durable.bus.events import check_type
from headgate.durable.schedules import cron
from headgate.errors import UserError
from headgate.notify.notices import TYPE_PREFIX
from headgate.pipelines.authoring.rule_checks import RuleChecks
from headgate.pipelines.authoring.slot_checks import check_slots
from headgate.pipelines.definition.bounds import SCHEDULES_MAX
from headgate.pipelines.definition.model import Exclusions, Inclusions, Pipeline, Schedule, Sla
from headgate.pipelines.definition.problems import nearest, shown
from headgate.pipelines.definition.typed_decoder import DecodeReport, Path
from headgate.pipelines.schedule.calendars import Calendars, check_calendar, why_excluded
from headgate.pipelines.schedule.local_time import time_of, zone_of
from headgate.pipelines.schedule.sla import check_sla
from headgate.pipelines.schedule.timetables import schedule_id_of

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NAME_FORM: Final = "use up to 63 letters, digits, '.', '_' and '-', beginning with a letter or digit"
_WEEK: Final = 7


def check_schedules(
    pipeline: Pipeline,
    rules: RuleChecks,
    calendars: Calendars | None,
    reading: DecodeReport,
    *,
    is_stored: bool = False,
) -> None:
    """Report the problems of the schedules of a pipeline."""
    if len(pipeline.schedules) > SCHEDULES_MAX:
        reading.report(("schedules",), f"there are {len(pipeline.schedules)}", allowed=f"at most {SCHEDULES_MAX}")
    ids: dict[str, int] = {}
    for index, schedule in enumerate(pipeline.schedules):
        path: Path = ("schedules", index)
        schedule_id = schedule_id_of(schedule)
        if schedule_id in ids:
            called = f"is called {schedule_id!r}" + ("" if schedule.name else " for want of a name")
            fact = f"it {called}, as schedules[{ids[schedule_id]}] is"
            reading.report((*path, "name") if schedule.name else path, fact, allowed="give each a name of its own")
        ids.setdefault(schedule_id, index)
        _check_schedule(pipeline, schedule, path, rules, reading)
        _check_days(schedule, path, calendars, reading)
        if not reading.is_bad((*path, "cron")) and not _has_problem_days(reading, path):
            check_slots(pipeline, schedule, path, reading, is_stored=is_stored)


def check_zone(name: str, path: Path, reading: DecodeReport) -> None:
    """Report an unknown time zone."""
    if not _is_zone(name):
        hint = nearest(name, zoneinfo.available_timezones())
        allowed = "use a name of the IANA database, such as Europe/Berlin or UTC"
        reading.report(path, f"{shown(name)} is not a time zone", suggestion=hint, allowed=allowed)


def check_deadline(text: str, path: Path, reading: DecodeReport) -> None:
    """Report an invalid deadline."""
    allowed = 'use "HH:MM", ":MM" of the hour after the period, or a duration such as "2h"'
    _refused(lambda: check_sla(Sla(deadline=text)), path, f"{shown(text)} is not a deadline", allowed, reading)


def _is_zone(name: str) -> bool:
    try:
        zone_of(name)
    except UserError:
        return False
    return True


def _check_schedule(
    pipeline: Pipeline, schedule: Schedule, path: Path, rules: RuleChecks, reading: DecodeReport
) -> None:
    if schedule.name and not _NAME.fullmatch(schedule.name):
        reading.report((*path, "name"), f"{shown(schedule.name)} cannot be a name", allowed=_NAME_FORM)
    if schedule.timezone is not None:
        check_zone(schedule.timezone, (*path, "timezone"), reading)
    if schedule.cron is not None:
        zone = schedule.timezone or pipeline.timezone
        # An unknown zone is reported at its own field.
        _check_cron(schedule.cron, zone if _is_zone(zone) else "UTC", (*path, "cron"), reading)
    if schedule.after is not None:
        after = schedule.after
        fact, allowed = f"{shown(after)} is not a time of the day", 'use "HH:MM", from 00:00 to 23:59'
        _refused(lambda: time_of(after, field="after"), (*path, "after"), fact, allowed, reading)
    if schedule.deadline is not None:
        check_deadline(schedule.deadline, (*path, "deadline"), reading)
    if schedule.sensor is not None:
        rules.check_sensor(schedule.sensor, (*path, "sensor"))
        if schedule.sensor.deadline is not None:
            check_deadline(schedule.sensor.deadline, (*path, "sensor", "deadline"), reading)
    for index, upstream in enumerate(schedule.upstream):
        rules.check_upstream(upstream, (*path, "upstream", index))
    if schedule.event is not None:
        _check_event(schedule.event, (*path, "event"), reading)


def _check_event(event_type: str, path: Path, reading: DecodeReport) -> None:
    if not event_type.strip():
        reading.report(path, "it is empty", allowed="give the type of an event")
        return
    if event_type.startswith(TYPE_PREFIX):
        # The pipeline's own events would start it again.
        fact = f"{shown(event_type)} is an event of pipelines"
        reading.report(path, fact, allowed="to follow another pipeline, give it as upstream")
        return
    allowed = "give one whole type, such as order.created"
    _refused(lambda: check_type(event_type), path, f"{shown(event_type)} is no type of events", allowed, reading)


def _check_cron(expression: str, zone: str, path: Path, reading: DecodeReport) -> None:
    try:
        cron.check(cron.Recurrence(expression, zone))
    except UserError as exc:
        reading.refuse_read(path, str(exc).removeprefix("expression "))


def _check_days(schedule: Schedule, path: Path, calendars: Calendars | None, reading: DecodeReport) -> None:
    exclude, include = schedule.exclude, schedule.include
    nothing = Inclusions()
    for name, parts in (("days", exclude.days), ("dates", exclude.dates)):
        for index, part in enumerate(parts):
            one = Exclusions(days=(part,)) if name == "days" else Exclusions(dates=(part,))
            _calendar(one, nothing, (*path, "exclude", name, index), calendars, reading)
    for name in ("holidays", "calendar"):
        given = getattr(exclude, name)
        if given is not None:
            one = Exclusions(holidays=given) if name == "holidays" else Exclusions(calendar=given)
            _calendar(one, nothing, (*path, "exclude", name), calendars, reading)
    for index, day in enumerate(include.dates):
        _calendar(Exclusions(), Inclusions(dates=(day,)), (*path, "include", "dates", index), calendars, reading)
    for index, number in enumerate(include.business_days):
        one_day = Inclusions(business_days=(number,))
        _calendar(Exclusions(), one_day, (*path, "include", "business_days", index), calendars, reading)
    if not _has_problem_days(reading, path):
        _check_ever_due(schedule, path, reading)


def _calendar(
    exclude: Exclusions, include: Inclusions, path: Path, calendars: Calendars | None, reading: DecodeReport
) -> None:
    try:
        check_calendar(exclude, include, calendars)
    except UserError as exc:
        prefix = f"{path[-2]} " if isinstance(path[-1], int) else f"{path[-1]} "
        reading.refuse_read(path, str(exc).removeprefix("exclude.").removeprefix("include.").removeprefix(prefix))


def _has_problem_days(reading: DecodeReport, path: Path) -> bool:
    return reading.is_bad((*path, "exclude")) or reading.is_bad((*path, "include"))


def _check_ever_due(schedule: Schedule, path: Path, reading: DecodeReport) -> None:
    """Report a schedule whose exclusions leave no day."""
    exclude, include = schedule.exclude, schedule.include
    # A named calendar may change; the schedule itself does not.
    own = Exclusions(weekends=exclude.weekends, days=exclude.days, dates=exclude.dates)
    monday = date(2001, 1, 1)
    if all(why_excluded(own, monday + timedelta(days=day), {}) for day in range(_WEEK)):
        reading.report((*path, "exclude"), "every day of the week is excluded: it can never be due")
    elif include.dates and not include.business_days:
        days = [date.fromisoformat(day) for day in include.dates]
        if all(why_excluded(own, day, {}) for day in days):
            reading.report((*path, "include", "dates"), "each of them is excluded: it can never be due")


def _refused(check: Callable[[], object], path: Path, fact: str, allowed: str, reading: DecodeReport) -> None:
    try:
        check()
    except UserError:
        reading.report(path, fact, allowed=allowed)
