"""Periods: the intervals that runs are for, their text form and their bounds.

The texts: "2026-03-03" a day, "2026-03-03T07" an hour, "2026-W10" a week from Monday, "2026-03" a month, and
"2026-03-03T07:15" a custom period by its start. Periods follow local time in a zone. Custom ones are counted from local
midnight of 1970-01-01, so that 15 minutes fall on quarters and 6 hours on 00:00, 06:00, 12:00 and 18:00.

Periods cover all time without gap or overlap, through clock changes too. An hour that the clock skips does not exist:
it is empty and no neighbour of another. If the clock is set back by at least the length of a period, the repeated
periods exist twice, the second with its UTC offset: "2026-10-25T02" and then "2026-10-25T02+0100". If it is set back
by less, the period of the change is longer by that much.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import UserError
from headgate.pipelines.definition.model import Period, Pipeline, Schedule
from headgate.pipelines.schedule.local_time import clock_change, moments_of, offset_at, wall_of, zone_of

_DAY: Final = timedelta(days=1)
_SECOND: Final = timedelta(seconds=1)
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 (on the wall)
_MONDAY: Final = datetime(1969, 12, 29)  # noqa: DTZ001 (on the wall)
_YEARS: Final = range(1970, 9_000)
_LENGTHS: Final = {
    Period.HOURLY: timedelta(hours=1),
    Period.DAILY: _DAY,
    Period.WEEKLY: timedelta(days=7),
    # The longest month; used only in comparisons.
    Period.MONTHLY: timedelta(days=31),
}
_WEEK: Final = re.compile(r"(?P<year>[0-9]{4})-W(?P<week>[0-9]{2})")
_MONTH: Final = re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})")
_MOMENT: Final = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{8})"
    r"(?:T(?P<hour>[0-9]{2})(?P<minute>:[0-9]{2}(?P<second>:[0-9]{2})?)?(?P<offset>[+-][0-9]{4}(?:[0-9]{2})?)?)?"
)
_FORMS: Final = {
    Period.HOURLY: "2026-03-03T07",
    Period.DAILY: "2026-03-03",
    Period.WEEKLY: "2026-W10",
    Period.MONTHLY: "2026-03",
    Period.CUSTOM: "2026-03-03T07:15",
}


class Span(NamedTuple):
    """A time interval, `end` excluded."""

    start: datetime
    end: datetime


class PeriodKey(Struct, frozen=True):
    """The parsed name of a period. `offset` is set only for the second of a repeated period."""

    period: Period
    # Its start in local time.
    wall: datetime
    offset: timedelta | None = None

    def __str__(self) -> str:
        """Return the text form."""
        match self.period:
            case Period.WEEKLY:
                year, week, _ = self.wall.isocalendar()
                return f"{year:04d}-W{week:02d}"
            case Period.MONTHLY:
                return f"{self.wall:%Y-%m}"
            case Period.DAILY:
                return f"{self.wall:%Y-%m-%d}"
            case Period.HOURLY:
                return f"{self.wall:%Y-%m-%dT%H}{_offset_text(self.offset)}"
            case Period.CUSTOM:
                form = "%Y-%m-%dT%H:%M:%S" if self.wall.second else "%Y-%m-%dT%H:%M"
                return f"{self.wall:{form}}{_offset_text(self.offset)}"


@lru_cache(maxsize=4096)
def parse(text: str) -> PeriodKey:
    """Parse the text of a period, also "20260303" and "20260303T07". Raises `UserError` with the valid forms."""
    try:
        key = _parsed(text)
    except ValueError:
        key = None
    if key is None or key.wall.year not in _YEARS:
        forms = ", ".join(f'"{form}" ({period})' for period, form in _FORMS.items())
        raise UserError(f"date {text[:40]!r} does not name a period: use {forms}, from 1970 on")
    return key


class Periods(Struct, frozen=True):
    """The periods of one granularity in one zone. `every_seconds` is the length of custom ones.

    Every method with a `date` raises `UserError` if that is not the text of such a period.
    """

    period: Period
    zone: str = "UTC"
    every_seconds: int | None = None

    @property
    def length(self) -> timedelta:
        """Length of a period without clock changes; of months, the longest. Raises `UserError`."""
        if self.period is not Period.CUSTOM:
            return _LENGTHS[self.period]
        if self.every_seconds is None or self.every_seconds < 1:
            raise UserError(
                f'every {self.every_seconds}: a custom period needs a length in whole seconds, such as "15m"'
            )
        return timedelta(seconds=self.every_seconds)

    @property
    def is_longer_than_a_day(self) -> bool:
        """Whether a period has several days."""
        return self.length > _DAY

    def at(self, moment: datetime) -> str:
        """Return the period that contains a moment."""
        # In UTC: a repeated local time would be one cache key.
        return _at(self, moment.astimezone(UTC))

    def check(self, date: str) -> str:
        """Return the text in its stored form. Raises `UserError` if it is no period of this kind."""
        return str(self._key(date))

    def exists(self, date: str) -> bool:
        """Whether the period has any time. One that a clock change skips has none."""
        span = self.span(date)
        return span.start < span.end

    def span(self, date: str) -> Span:
        """Return the bounds of a period, in UTC."""
        return _span(self, date)

    def start(self, date: str) -> datetime:
        """Return the start of a period, in UTC."""
        return self.span(date).start

    def end(self, date: str) -> datetime:
        """Return the end of a period, in UTC."""
        return self.span(date).end

    def next(self, date: str) -> str:
        """Return the period after this one."""
        return self.at(self.end(date))

    def previous(self, date: str) -> str:
        """Return the period before this one."""
        return self.at(self.start(date) - timedelta(microseconds=1))

    def between(self, start: datetime, end: datetime) -> Iterator[str]:
        """Yield the periods that start from `start` on and before `end`, in order."""
        date = self.at(start)
        if self.start(date) < start:
            date = self.next(date)
        while (span := self.span(date)).start < end:
            yield date
            date = self.at(span.end)

    def days(self, date: str) -> list[date]:
        """Return the calendar days of a period: the day of its start, or all days of a longer one."""
        key = self._key(date)
        first = key.wall.date()
        if not self.is_longer_than_a_day:
            return [first]
        last = (self._after(key.wall) - _SECOND).date()
        return [first + timedelta(days=number) for number in range((last - first).days + 1)]

    # In local time.

    def _key(self, date: str) -> PeriodKey:
        key = parse(date)
        if key.period is not self.period:
            raise UserError(
                f'date {date!r} is {key.period}: a {self.period} period is named like "{_FORMS[self.period]}"'
            )
        if self._floor(key.wall) != key.wall:
            raise UserError(
                f"date {date!r} is not the start of a period of {self.length}: the one it lies in begins at "
                f"{self._floor(key.wall):%Y-%m-%dT%H:%M:%S}"
            )
        return key

    def _floor(self, wall: datetime) -> datetime:
        if self.period is Period.MONTHLY:
            return wall.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        anchor = _MONDAY if self.period is Period.WEEKLY else _EPOCH
        return anchor + (wall - anchor) // self.length * self.length

    def _after(self, wall: datetime) -> datetime:
        if self.period is Period.MONTHLY:
            return (wall.replace(day=28) + timedelta(days=4)).replace(day=1)
        return wall + self.length

    # In UTC.

    def _zone(self) -> ZoneInfo:
        return zone_of(self.zone)

    def _starts(self, wall: datetime) -> tuple[datetime, ...]:
        """Return the starts of a period: two only if all of it can occur twice."""
        moments = moments_of(wall, self._zone())
        return moments if moments[-1] - moments[0] >= self.length else moments[:1]

    def _start(self, key: PeriodKey) -> datetime:
        starts = self._starts(key.wall)
        if key.offset is None:
            return starts[0]
        if len(starts) < 2 or offset_at(starts[1], self._zone()) != key.offset:
            raise UserError(f"date {key}: in {self.zone} this period comes only once: leave the offset away")
        return starts[1]

    def compute_at(self, moment: datetime) -> str:
        """Compute `at` without the cache."""
        return str(self._key_at(moment))

    def _key_at(self, moment: datetime) -> PeriodKey:
        zone = self._zone()
        wall = self._floor(wall_of(moment, zone))
        start = max(start for start in self._starts(wall) if start <= moment)
        change = _set_back(start, moment, zone)
        if change is not None:
            # A period from before the clock was set back lasts until the local time reaches the next start.
            open_wall = self._floor(wall_of(change - _SECOND, zone))
            open_start = self._starts(open_wall)[0]
            if open_start > start:
                wall, start = open_wall, open_start
        is_second = start != self._starts(wall)[0]
        return PeriodKey(self.period, wall, offset_at(start, zone) if is_second else None)

    def compute_span(self, date: str) -> Span:
        """Compute `span` without the cache."""
        key = self._key(date)
        start = self._start(key)
        return Span(start, self._end(key, start))

    def _end(self, key: PeriodKey, start: datetime) -> datetime:
        zone = self._zone()
        end = min(moment for moment in self._starts(self._after(key.wall)) if moment >= start)
        change = _set_back(start, end, zone)
        if change is None:
            return end
        shown = wall_of(change, zone)
        floor = self._floor(shown)
        again = self._starts(floor if floor == shown else self._after(floor))[-1]
        return again if start < again < end else end


def periods_of(pipeline: Pipeline, schedule: Schedule | None = None) -> Periods:
    """Return the periods of a pipeline, in the zone of the schedule or else of the pipeline."""
    zone = (schedule.timezone if schedule is not None else None) or pipeline.timezone
    return Periods(pipeline.period, zone, None if pipeline.every is None else int(pipeline.every))


def own_period(periods: Periods, text: str) -> str:
    """Return a period if it is one of these, or else the one of these that contains its start, in the same zone.

    Raises `UserError` for an invalid period.
    """
    try:
        return periods.check(text)
    except UserError:
        theirs = replace(periods, period=parse(text).period)
        return periods.at(theirs.start(text))


def periods_inside(outer: Periods, date: str, inner: Periods) -> list[str]:
    """Return the periods of another kind that make up this one: the 23, 24 or 25 hours of a day.

    Those that start in it; if there are none because they are longer, the one that contains its start.
    """
    span = outer.span(date)
    return list(inner.between(span.start, span.end)) or [inner.at(span.start)]


@lru_cache(maxsize=16_384)
def _span(periods: Periods, date: str) -> Span:
    return periods.compute_span(date)


# Iterating over periods asks for the same bounds repeatedly.
@lru_cache(maxsize=16_384)
def _at(periods: Periods, moment: datetime) -> str:
    return periods.compute_at(moment)


def _set_back(before: datetime, after: datetime, zone: ZoneInfo) -> datetime | None:
    """Return the last time the clock was set back between two times, if its repeated time may reach `after`."""
    # No clock is set back by more than a day.
    before = max(before, after - _DAY)
    if offset_at(before, zone) <= offset_at(after, zone):
        return None
    return clock_change(before, after, zone)


def _parsed(text: str) -> PeriodKey | None:
    if (match := _WEEK.fullmatch(text)) is not None:
        monday = date.fromisocalendar(int(match["year"]), int(match["week"]), 1)
        return PeriodKey(Period.WEEKLY, datetime(monday.year, monday.month, monday.day))  # noqa: DTZ001
    if (match := _MONTH.fullmatch(text)) is not None:
        return PeriodKey(Period.MONTHLY, datetime(int(match["year"]), int(match["month"]), 1))  # noqa: DTZ001
    if (match := _MOMENT.fullmatch(text)) is None:
        return None
    clock = f"{match['hour'] or '00'}{match['minute'] or ':00'}"
    wall = datetime.fromisoformat(f"{match['day'].replace('-', '')}T{clock.replace(':', '')}")
    if match["hour"] is None:
        return PeriodKey(Period.DAILY, wall)
    period = Period.HOURLY if match["minute"] is None else Period.CUSTOM
    return PeriodKey(period, wall, _offset(match["offset"]))


def _offset(text: str | None) -> timedelta | None:
    if text is None:
        return None
    digits = text[1:].ljust(6, "0")
    size = timedelta(hours=int(digits[:2]), minutes=int(digits[2:4]), seconds=int(digits[4:]))
    return size if text[0] == "+" else -size


def _offset_text(offset: timedelta | None) -> str:
    if offset is None:
        return ""
    minutes, seconds = divmod(int(abs(offset).total_seconds()), 60)
    text = f"{'-' if offset < timedelta(0) else '+'}{minutes // 60:02d}{minutes % 60:02d}"
    return f"{text}{seconds:02d}" if seconds else text
