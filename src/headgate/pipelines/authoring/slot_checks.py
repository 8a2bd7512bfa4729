"""Slot checks: whether a schedule has several slots in one period, of which only the first would run."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Final

from msgspec import Struct

from headgate.durable.schedules.cron import Recurrence, next_times
from headgate.pipelines.definition.model import Exclusions, Inclusions, Period, Pipeline, Schedule
from headgate.pipelines.definition.typed_decoder import DecodeReport, Path
from headgate.pipelines.schedule.calendars import business_days, is_excluded, why_excluded
from headgate.pipelines.schedule.periods import Periods
from headgate.pipelines.schedule.timetables import StartCondition, start_condition_of

_TICK: Final = timedelta(microseconds=1)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_WEEK: Final = timedelta(days=7)
# An expression repeats: if two of its slots share a period, two of the first ones do.
_SLOTS_MAX: Final = 60
_EXAMPLE_YEAR: Final = 2026
_EVERY_SECONDS_MIN: Final = 60
_IN_ONE: Final = {
    Period.HOURLY: "an hour",
    Period.DAILY: "a day",
    Period.WEEKLY: "a week",
    Period.MONTHLY: "a month",
    Period.CUSTOM: "a period",
}


class ExtraSlot(Struct, frozen=True):
    """Two slots of one period. The second would never run."""

    date: str
    first: datetime
    second: datetime


def check_slots(pipeline: Pipeline, schedule: Schedule, path: Path, reading: DecodeReport, *, is_stored: bool) -> None:
    """Report several slots in one period. For a definition that is stored already it is a warning."""
    every_seconds = None if pipeline.every is None else int(pipeline.every)
    if pipeline.period is Period.CUSTOM and (every_seconds or 0) < _EVERY_SECONDS_MIN:
        return
    if start_condition_of(schedule) is StartCondition.DATA:
        return
    # A named calendar may change, and clock changes move slots: neither makes an expression finer.
    exclude = schedule.exclude
    own = Exclusions(weekends=exclude.weekends, holidays=exclude.holidays, days=exclude.days, dates=exclude.dates)
    extra = extra_slot(schedule.cron, Periods(pipeline.period, "UTC", every_seconds), own, schedule.include)
    if extra is None:
        return
    # "The first of these days that is not excluded" is a common schedule of weeks and months.
    is_alternative = exclude != Exclusions() and schedule.include == Inclusions() and _is_on_two_days(extra)
    field = "cron" if schedule.cron is not None else "include"
    reading.report(
        (*path, field),
        f"several slots are in {_IN_ONE[pipeline.period]}, {_text(extra.first)} and {_text(extra.second)} in "
        f"{extra.date}; a period runs once, at the first",
        allowed=_remedy(extra, pipeline.period),
        warning=is_stored or is_alternative,
        involved=(("period",), ("every",), (*path, "exclude"), (*path, "include")),
    )


@lru_cache(maxsize=1024)
def extra_slot(cron: str | None, periods: Periods, exclude: Exclusions, include: Inclusions) -> ExtraSlot | None:
    """Return the first two slots that share a period; None: each period has one at most."""
    for first, second in pairwise(_slots(cron, periods, exclude, include)):
        day = periods.at(first)
        if day == periods.at(second):
            return ExtraSlot(day, first, second)
    return None


def _slots(cron: str | None, periods: Periods, exclude: Exclusions, include: Inclusions) -> Iterator[datetime]:
    recurrence = None if cron is None else Recurrence(cron)
    if periods.is_longer_than_a_day and include != Inclusions():
        for day in _included_days(exclude, include):
            midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
            if recurrence is None:
                yield midnight
            else:
                yield from (at for at in next_times(recurrence, midnight - _TICK, 2) if at < midnight + _DAY)
        return
    if recurrence is None:
        return
    for slot in next_times(recurrence, datetime(_EXAMPLE_YEAR, 1, 1, tzinfo=UTC) - _TICK, _SLOTS_MAX):
        if not periods.is_longer_than_a_day or not is_excluded(exclude, include, slot.date(), {}):
            yield slot


def _included_days(exclude: Exclusions, include: Inclusions) -> list[date]:
    days = {date.fromisoformat(text) for text in include.dates}
    for month in range(1, 13) if include.business_days else ():
        found = business_days(exclude, _EXAMPLE_YEAR, month, {})
        places = (number - 1 if number > 0 else number for number in include.business_days)
        days |= {found[place] for place in places if -len(found) <= place < len(found)}
    return sorted(day for day in days if why_excluded(exclude, day, {}) is None)


def _is_on_two_days(extra: ExtraSlot) -> bool:
    return extra.first.date() != extra.second.date()


def _text(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _remedy(extra: ExtraSlot, period: Period) -> str:
    gap = extra.second - extra.first
    finer = next((name for name, length in _FINER if gap >= length and name is not period), None)
    minutes = max(1, int(gap.total_seconds()) // 60)
    set_period = f'set period: custom and every: "{minutes}m"' if finer is None else f"set period: {finer.value}"
    return f"{set_period} for a run at each slot, or leave one slot in {_IN_ONE[period]}"


_FINER: Final = ((Period.WEEKLY, _WEEK), (Period.DAILY, _DAY), (Period.HOURLY, _HOUR))
