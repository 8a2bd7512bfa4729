"""Local time: converts between wall-clock times of a time zone and UTC.

A wall time that a clock change skips maps to the time of the change. One that occurs twice has two UTC times.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from headgate.errors import InvalidScheduleError

_SECOND: Final = timedelta(seconds=1)
# The two names that stand for the machine's own zone.
_ZONE: Final = re.compile(r"(?!localtime$|posixrules$)[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_TIME: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")


@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """Return the time zone of this name. Raises `InvalidScheduleError`; there is no fallback to UTC."""
    try:
        if _ZONE.fullmatch(name):
            return ZoneInfo(name)
    # A folder of the database, such as "Europe", is no zone.
    except (KeyError, ValueError, OSError):
        pass
    raise InvalidScheduleError(
        f"timezone {name[:80]!r} is not a time zone: use a name of the IANA database, such as Europe/Berlin or UTC"
    )


def time_of(text: str, *, field: str) -> time:
    """Parse "HH:MM". Raises `InvalidScheduleError`, naming the field."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise InvalidScheduleError(f'{field} {text[:40]!r} is not a time of the day: use "HH:MM", from 00:00 to 23:59')
    return time(int(match.group(1)), int(match.group(2)))


def wall_of(moment: datetime, zone: ZoneInfo) -> datetime:
    """Return the wall time at a UTC time, without a zone."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def moments_of(wall: datetime, zone: ZoneInfo) -> tuple[datetime, ...]:
    """Return the UTC times of a wall time: one, two, or the clock change that skips it."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if first == second:
        return (first,)
    if second < first:
        return (clock_change(second, first, zone),)
    return (first, second)


def moment_on(day: date, at: time, zone: ZoneInfo) -> datetime:
    """Return the first UTC time of a time of day."""
    return moments_of(datetime.combine(day, at), zone)[0]


def offset_at(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Return the UTC offset of a zone at a time."""
    return moment.astimezone(zone).utcoffset() or timedelta(0)


def clock_change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the first second after `before` with the offset that the zone has at `after`."""
    before, after = before.replace(microsecond=0), after.replace(microsecond=0)
    offset = offset_at(after, zone)
    while after - before > _SECOND:
        middle = (before + (after - before) / 2).replace(microsecond=0)
        if offset_at(middle, zone) == offset:
            after = middle
        else:
            before = middle
    return after
