"""SLAs: the deadlines of a period for evaluation and completion, their warnings, and the verdict.

All times follow from the definition and the period alone, never from the time of the call, so that scheduling,
cancelling and judging agree.

A deadline is "HH:MM", ":MM" or a duration.

- "HH:MM" is on the day of the period, `day_offset` days later, in the zone of the SLA or else of the pipeline. Of a
  week or month it is the day on which it is due, or its last day if data makes it due. Without an offset, data that
  makes a day, week or month due is complete only the day after, so that day counts; and a deadline before the start
  of the period moves to the next day: due at 22:00, done by 02:00.
- ":MM" is in the hour after the one in which the period ends: ":30" of "T07" is 08:30, of "T23" 00:30 the next day,
  and of the quarter "T07:15" 08:30. Of a day or longer that the clock makes due, it is the first after that.
- A duration, "2h", counts from the due time of the period.

A run that is done before the breach has met the SLA, with or without a warning. A failed or missing run has not,
whatever the reason.
"""

from __future__ import annotations

import re
from datetime import date as Day
from datetime import datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from msgspec import UNSET, Struct

from headgate.durable.model import duration
from headgate.errors import InvalidScheduleError, UserError
from headgate.pipelines.definition.model import Sla
from headgate.pipelines.enums import ExpectationVerdict
from headgate.pipelines.schedule.local_time import moment_on, time_of, wall_of, zone_of
from headgate.pipelines.schedule.timetables import StartCondition, Timetable

_DAY: Final = timedelta(days=1)
_HOUR: Final = timedelta(hours=1)
_TICK: Final = timedelta(microseconds=1)
_MINUTE: Final = re.compile(r":([0-5][0-9])")


class SlaMoments(Struct, frozen=True):
    """The breach time, and the warning time; None: there is no warning."""

    breach_at: datetime
    warning_at: datetime | None = None

    def is_warning_due(self, done_at: datetime | None, now: datetime) -> bool:
        """Whether to warn now. There is no warning after the breach."""
        if self.warning_at is None or not self.warning_at <= now < self.breach_at:
            return False
        return done_at is None or done_at > now


class SlaVerdict(Struct, frozen=True):
    """The verdict. OPEN: not done, and not yet breached."""

    verdict: ExpectationVerdict
    # Seconds before the breach at which it was done, negative if after; None: it is not done.
    margin_seconds: float | None = None
    # Whether the warning time passed before it was done.
    warned: bool = False


class _Deadline(Struct, frozen=True):
    """A parsed deadline in one of three forms."""

    at: time | None = None
    minute: int | None = None
    seconds: float | None = None


def completion_moments(timetable: Timetable, date: str) -> SlaMoments | None:
    """Return the completion deadline of a period; None: there is none. Raises `InvalidScheduleError`."""
    sla = timetable.pipeline.sla
    if sla is None or sla.deadline is None:
        return None
    lead = sla.expected_duration if sla.expected_duration is not None else sla.at_risk
    return _moments(timetable, date, sla.deadline, "sla.deadline", lead)


def evaluation_moments(timetable: Timetable, date: str) -> SlaMoments | None:
    """Return the readiness deadline of a period; None: there is none. Raises `InvalidScheduleError`."""
    sla = timetable.pipeline.sla
    if sla is None or sla.evaluation_deadline is None:
        return None
    return _moments(timetable, date, sla.evaluation_deadline, "sla.evaluation_deadline", sla.at_risk)


def relative_moments(sla: Sla | None, since: datetime) -> SlaMoments | None:
    """Return the deadline of a period whose first sensor arrived at `since`; None: there is none."""
    if sla is None or sla.max_duration is None:
        return None
    breach_at = since + timedelta(seconds=sla.max_duration)
    leads = (sla.expected_duration, sla.at_risk, sla.max_duration / 4)
    lead_seconds = next(lead for lead in leads if lead is not None)
    return SlaMoments(breach_at, max(since, breach_at - timedelta(seconds=lead_seconds)))


def trigger_deadline(timetable: Timetable, date: str) -> datetime | None:
    """Return when a sensor is too late to start a period, in the zone of the schedule; None: never.

    Raises `InvalidScheduleError`.
    """
    sensor = timetable.schedule.sensor
    if sensor is None or sensor.deadline is None:
        return None
    return _breach(timetable, date, _read(sensor.deadline, "sensor.deadline"), timetable.zone, None)


def schedule_deadline(timetable: Timetable, date: str) -> datetime | None:
    """Return the deadline of the schedule for the start of a period, in its own zone; None: there is none.

    Raises `InvalidScheduleError`.
    """
    text = timetable.schedule.deadline
    if text is None:
        return None
    return _breach(timetable, date, _read(text, "deadline"), timetable.zone, None)


def reach(text: str) -> timedelta:
    """Return the longest time from the readiness of a period to its deadline, without a `day_offset`."""
    deadline = _read(text, "deadline")
    if deadline.seconds is not None:
        return timedelta(seconds=deadline.seconds)
    # The rest of the due day, the next day, one more for distant zones, and a clock change.
    return 2 * _HOUR if deadline.minute is not None else 3 * _DAY + _HOUR


def check_sla(sla: Sla) -> None:
    """Raise `InvalidScheduleError` for an invalid deadline or zone."""
    for name in ("deadline", "evaluation_deadline"):
        if (text := getattr(sla, name)) is not None:
            _read(text, f"sla.{name}")
    if sla.timezone is not None:
        zone_of(sla.timezone)


def judge(moments: SlaMoments, done_at: datetime | None, now: datetime) -> SlaVerdict:
    """Return the verdict. MET and MISSED are final."""
    done_at = None if done_at is None or done_at > now else done_at
    margin_seconds = None if done_at is None else (moments.breach_at - done_at).total_seconds()
    is_met = done_at is not None and done_at < moments.breach_at
    if not is_met and now < moments.breach_at:
        verdict = ExpectationVerdict.OPEN
    else:
        verdict = ExpectationVerdict.MET if is_met else ExpectationVerdict.MISSED
    seen_at = done_at if done_at is not None else now
    warned = moments.warning_at is not None and seen_at >= moments.warning_at
    return SlaVerdict(verdict, margin_seconds, warned)


def _moments(timetable: Timetable, date: str, text: str, field: str, lead_seconds: float | None) -> SlaMoments:
    sla = timetable.pipeline.sla or Sla()
    zone = zone_of(sla.timezone or timetable.pipeline.timezone)
    offset = None if sla.day_offset is UNSET else sla.day_offset
    breach_at = _breach(timetable, date, _read(text, field), zone, offset)
    ready_at = timetable.ready_at(date)
    if lead_seconds is None or breach_at <= ready_at:
        return SlaMoments(breach_at)
    return SlaMoments(breach_at, max(ready_at, breach_at - timedelta(seconds=lead_seconds)))


def _breach(timetable: Timetable, date: str, deadline: _Deadline, zone: ZoneInfo, offset: int | None) -> datetime:
    ready_at = timetable.ready_at(date)
    if deadline.seconds is not None:
        return ready_at + timedelta(seconds=deadline.seconds)
    # A period that data makes due can be done at its end; one that the clock makes due has only started.
    earliest = ready_at if timetable.start_condition is StartCondition.DATA else ready_at + _TICK
    if deadline.minute is not None:
        return _minute_breach(timetable, date, deadline.minute, earliest)
    at = deadline.at or time()
    day = _base_day(timetable, date)
    if offset is not None:
        return moment_on(day + offset * _DAY, at, zone)
    is_whole_days = timetable.periods.length >= _DAY
    day += _DAY if timetable.start_condition is StartCondition.DATA and is_whole_days else timedelta(0)
    while (breach_at := moment_on(day, at, zone)) < earliest:
        day += _DAY
    return breach_at


def _minute_breach(timetable: Timetable, date: str, minute: int, earliest: datetime) -> datetime:
    is_by_clock = timetable.start_condition is not StartCondition.DATA and timetable.periods.length >= _DAY
    if is_by_clock:
        hour = _hour_of(earliest, timetable.zone)
    else:
        hour = _hour_of(timetable.periods.end(date) - _TICK, timetable.zone) + _HOUR
    breach_at = hour + timedelta(minutes=minute)
    while breach_at < earliest:
        breach_at += _HOUR
    return breach_at


def _hour_of(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the start of the local hour that contains a time."""
    wall = wall_of(moment, zone)
    return moment - timedelta(minutes=wall.minute, seconds=wall.second, microseconds=wall.microsecond)


def _base_day(timetable: Timetable, date: str) -> Day:
    days = timetable.periods.days(date)
    if len(days) == 1:
        return days[0]
    if timetable.start_condition is StartCondition.DATA:
        return days[-1]
    return wall_of(timetable.ready_at(date), timetable.zone).date()


def _read(text: str, field: str) -> _Deadline:
    if (match := _MINUTE.fullmatch(text)) is not None:
        return _Deadline(minute=int(match.group(1)))
    if ":" in text:
        return _Deadline(at=time_of(text, field=field))
    refusal = InvalidScheduleError(
        f'{field} {text[:40]!r} is not a deadline: use "HH:MM", ":MM" of the hour after the period, or a duration '
        'such as "2h"'
    )
    # A number without a unit may mean seconds or an hour of the day.
    if text.strip().replace(".", "", 1).isdigit():
        raise refusal
    try:
        return _Deadline(seconds=duration.seconds(text))
    except UserError as exc:
        raise refusal from exc
