"""Cron: the slots of a cron expression or an interval, in a time zone, with daylight saving changes.

Slots are whole seconds, the same set for every caller and every start of a search.

At a clock change, an expression with fixed hours means times of day: each happens once. A time in the skipped hour
happens at the moment of the change; a time in the repeated hour happens at its first pass. An expression for every hour
("*/15 * * * *", "@hourly") means wall clock matches: none in the skipped hour, and both passes of the repeated hour, so
that every 15 minutes stays every 15 minutes.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from headgate.durable.model import duration
from headgate.errors import InvalidScheduleError, UserError

JITTER_SECONDS_MAX: Final = 86_400
_EXPRESSION_LENGTH_MAX: Final = 200
# Starts before 1970 in UTC, because western time zones are still in 1969 then; ends long before `datetime` does.
_YEARS: Final = range(1969, 9_000)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
# No clock is set back by more, so that a search this far ahead finds every repeated hour.
_SET_BACK_MAX: Final = timedelta(days=1)
_EVERY: Final = re.compile(r"every\s+(\S.*)", re.IGNORECASE)
# Excludes two names that stand for the setting of this machine.
_ZONE: Final = re.compile(r"(?!localtime$|posixrules$)[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")

_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31 as far as a month has them, L for the last day, LW for the last weekday",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last Friday, 5#2 for the second Friday",
}
_FORMS: Final = (
    "use 5 fields (minute, hour, day-of-month, month, day-of-week), 6 with seconds first, "
    f'{", ".join(_ALIASES)}, or an interval such as "every 15m"'
)


class Recurrence(msgspec.Struct, frozen=True, omit_defaults=True):
    """A recurring time.

    `expression` is cron ("0 6 * * MON-FRI", "@hourly") or an interval ("every 15m"). An interval counts from `start`,
    or from 1970-01-01 UTC, so that "every 15m" falls on the quarters of the hour; time zones do not affect it. Slots
    are from `start` on and before `end`. `jitter_seconds` delays each slot by up to that much, to spread the load.
    """

    expression: str
    zone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    jitter_seconds: int = 0


def check(recurrence: Recurrence) -> Recurrence:
    """Return the recurrence. Raises `InvalidScheduleError`, naming the field and what it may be.

    A recurrence that never happens, such as on 30 February, is refused as well.
    """
    for name in ("start", "end"):
        _check_bound(name, getattr(recurrence, name))
    if not 0 <= recurrence.jitter_seconds <= JITTER_SECONDS_MAX:
        raise InvalidScheduleError(f"jitter_seconds {recurrence.jitter_seconds}: from 0 to {JITTER_SECONDS_MAX}")
    first = next(_slots(recurrence, _EPOCH - _SECOND), None)
    if first is None:
        within = f" between start {recurrence.start} and end {recurrence.end}" if recurrence.end is not None else ""
        raise InvalidScheduleError(f"expression {recurrence.expression!r}: no such moment exists{within}")
    return recurrence


def next_times(recurrence: Recurrence, after: datetime, count: int) -> list[datetime]:
    """Return the first `count` slots later than `after`, in UTC; fewer if it ends. Raises `InvalidScheduleError`."""
    return list(islice(_slots(recurrence, after), count))


def times_between(recurrence: Recurrence, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """Return the first `limit` slots later than `after` and not later than `until`. Raises `InvalidScheduleError`."""
    return list(islice(takewhile(lambda slot: slot <= until, _slots(recurrence, after)), limit))


def jitter_ms(recurrence: Recurrence, schedule_id: str, slot: datetime) -> int:
    """Return the delay of a slot: the same in every process, and different for each slot."""
    if not recurrence.jitter_seconds:
        return 0
    drawn = hashlib.blake2b(f"{schedule_id}@{slot_text(slot)}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "big") % (1000 * recurrence.jitter_seconds + 1)


def slot_text(slot: datetime) -> str:
    """Return a slot as text: 2026-11-16T00:00:00Z."""
    return f"{slot.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _check_bound(name: str, moment: datetime | None) -> None:
    if moment is None:
        return
    if moment.tzinfo is None:
        raise InvalidScheduleError(f"{name} {moment.isoformat()}: give it an offset, such as {moment.isoformat()}Z")
    if moment.year not in _YEARS:
        raise InvalidScheduleError(f"{name} {moment.isoformat()}: the year is from {_YEARS[0]} to {_YEARS[-1]}")


def _slots(recurrence: Recurrence, after: datetime) -> Iterator[datetime]:
    """Return the slots later than `after`, without repetition and in order."""
    zone = _zone(recurrence.zone)
    interval_seconds = _interval_seconds(recurrence.expression)
    start = None if recurrence.start is None else recurrence.start.astimezone(UTC).replace(microsecond=0)
    begin = after if start is None else max(after, start - _SECOND)
    if interval_seconds is not None:
        slots = _interval_slots(start or _EPOCH, interval_seconds, begin)
    else:
        slots = _cron_slots(_cron(recurrence.expression), zone, begin)
    end = recurrence.end
    return slots if end is None else takewhile(lambda slot: slot < end, slots)


def _interval_slots(anchor: datetime, seconds: int, after: datetime) -> Iterator[datetime]:
    step = timedelta(seconds=seconds)
    slot = anchor + step * (math.floor((after - anchor) / _SECOND) // seconds + 1)
    while slot.year in _YEARS:
        yield slot
        slot += step


def _cron_slots(expression: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Iterate over local times, which have no clock changes, and convert each to its UTC times."""
    local = _wall(after, zone)
    # Shortly before a clock is set back, local times that have passed once come again.
    walls = CronSim(expression, min(local, _wall(after + _SET_BACK_MAX, zone) - _SET_BACK_MAX))
    is_every_hour = len(walls.hours) == 24
    second_pass: deque[datetime] = deque()
    for wall in takewhile(lambda wall: wall.year in _YEARS, walls):
        moments = _moments(wall, zone, is_every_hour=is_every_hour)
        while second_pass and moments and second_pass[0] <= moments[0]:
            after = second_pass.popleft()
            yield after
        for moment in moments[:1]:
            if moment > after:
                after = moment
                yield moment
        second_pass.extend(moment for moment in moments[1:] if moment > after)
    yield from second_pass


def _moments(wall: datetime, zone: ZoneInfo, *, is_every_hour: bool) -> list[datetime]:
    """Return the UTC times of a local time: one, both passes, or the clock change that skips it."""
    first = wall.replace(tzinfo=zone).astimezone(UTC)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if first == second:
        return [first]
    if second < first:
        return [] if is_every_hour else [_clock_change(second, first, zone)]
    return [first, second] if is_every_hour else [first]


def _clock_change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the first second after `before` with the offset of the zone at `after`."""
    offset = after.astimezone(zone).utcoffset()
    while after - before > _SECOND:
        middle = before + (after - before) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after


def _wall(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


def _zone(name: str) -> ZoneInfo:
    try:
        if _ZONE.fullmatch(name):
            return ZoneInfo(name)
    # A directory of zones, such as "Europe", is not a zone.
    except (KeyError, ValueError, OSError):
        pass
    raise InvalidScheduleError(
        f"zone {name[:80]!r} is not a time zone: use a name of the IANA database, such as Europe/Berlin or UTC"
    )


@lru_cache(maxsize=1024)
def _interval_seconds(expression: str) -> int | None:
    """Return the seconds of "every 15m"; None if it is not an interval."""
    match = _EVERY.fullmatch(expression.strip())
    if match is None:
        return None
    try:
        seconds = duration.seconds(match.group(1), name="expression: interval")
    except UserError as exc:
        raise InvalidScheduleError(str(exc)) from exc
    if seconds < 1 or seconds != int(seconds):
        raise InvalidScheduleError(f"expression {expression!r}: an interval has whole seconds, from 1")
    return int(seconds)


@lru_cache(maxsize=1024)
def _cron(expression: str) -> str:
    """Return the cron expression with aliases resolved. Raises `InvalidScheduleError`."""
    if len(expression) > _EXPRESSION_LENGTH_MAX:
        raise InvalidScheduleError(f"expression: {len(expression)} characters, at most {_EXPRESSION_LENGTH_MAX}")
    resolved = _ALIASES.get(expression.strip().lower(), expression)
    try:
        CronSim(resolved, _EPOCH)
    except CronSimError as exc:
        field = str(exc).removeprefix("Bad ")
        if field not in _FIELDS:
            count = len(resolved.split())
            raise InvalidScheduleError(f"expression {expression!r} has {count} fields: {_FORMS}") from exc
        raise InvalidScheduleError(
            f"expression {expression!r}: {field} is not understood; it takes {_FIELDS[field]}, and lists, ranges "
            "and steps of these"
        ) from exc
    return resolved
