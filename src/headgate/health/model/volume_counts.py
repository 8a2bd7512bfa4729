"""Volume counts: event counts of windows, grouped by hour. Pure functions.

A window belongs to the hour that contains its end, where an end on the full hour belongs to the hour before: a window
that ended at 11:00 counts for 10:00 to 11:00. An hour keeps the count of each window, so that a repeated, corrected or
late window is never counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.health.model.timestamps import instant, milliseconds

HOUR_MS: Final = 3_600_000
DAY_HOURS: Final = 24
DAYS: Final = 7
# Two weeks, so that one can be compared with the other.
DAYS_MAX: Final = 14
# Hours are kept longer: an expected band is fitted to the same hour of the last eight weeks and to the growth since.
KEPT_DAYS: Final = 64
# Windows of a minute are kept apart; with shorter ones the earliest are folded into one.
WINDOWS_MAX: Final = 60
_COUNT_MAX: Final = 2**53 - 1
_HOUR_LENGTH: Final = len("2026-01-15T10")


class VolumeHour(Struct, frozen=True, gc=False):
    """The windows of one hour (`2026-01-15T10`): the end of each in milliseconds of the hour, and its count."""

    hour: str
    counts: tuple[tuple[int, int], ...]

    @property
    def start_ms(self) -> int:
        return milliseconds(f"{self.hour}:00:00.000Z")

    def has_folded(self, ended_ms: int) -> bool:
        """Whether a window was folded into the first one."""
        return len(self.counts) >= WINDOWS_MAX and ended_ms < self.counts[0][0]


class VolumePoint(Struct, frozen=True, kw_only=True):
    """The count of an hour. `event_count` None: not measured, which differs from zero.

    `window_count` is the number of windows in the sum; `is_over` is false for the current hour.
    """

    hour: str
    event_count: int | None
    window_count: int
    is_over: bool


def window_of(window_end: str, count: int) -> VolumeHour:
    """Return an hour with one window."""
    end_ms = milliseconds(window_end)
    start_ms = (end_ms - 1) // HOUR_MS * HOUR_MS
    return VolumeHour(instant(start_ms)[:_HOUR_LENGTH], ((end_ms - start_ms, count),))


def counted(held: VolumeHour | None, window: VolumeHour) -> VolumeHour:
    """Return the current hour after a window that is not earlier than the ones it has.

    A repeated window replaces its count. A window of a later hour starts that hour.
    """
    if held is None or held.hour != window.hour:
        return window
    kept = held.counts if held.counts[-1][0] != window.counts[0][0] else held.counts[:-1]
    made = kept + window.counts
    if len(made) > WINDOWS_MAX:
        (_, first), (ended_ms, second), *rest = made
        made = ((ended_ms, min(first + second, _COUNT_MAX)), *rest)
    return VolumeHour(held.hour, made)


def is_kept(hour: VolumeHour, now_ms: int) -> bool:
    """Whether an hour is within the period that is kept."""
    return hour.start_ms > now_ms - KEPT_DAYS * DAY_HOURS * HOUR_MS - HOUR_MS


def together(in_time: Iterable[VolumeHour], late: Iterable[VolumeHour]) -> dict[str, VolumeHour]:
    """Return hours by name, with late windows merged in: the last count of a window wins.

    Of two versions of an hour, the later one wins.
    """
    timely: dict[str, VolumeHour] = {}
    for each in in_time:
        timely[each.hour] = _joined(timely.get(each.hour), each)
    found = dict(timely)
    for window in late:
        hour = timely.get(window.hour)
        if hour is None or not hour.has_folded(window.counts[0][0]):
            found[window.hour] = _joined(found.get(window.hour), window)
    return found


def points(known: Mapping[str, VolumeHour], days: int, now_ms: int) -> list[VolumePoint]:
    """Return the hours of some days up to the current one, oldest first; unmeasured hours have no count."""
    present_ms = now_ms // HOUR_MS * HOUR_MS
    starts = range(present_ms - (days * DAY_HOURS - 1) * HOUR_MS, present_ms + HOUR_MS, HOUR_MS)
    return [_point(known.get(instant(start)[:_HOUR_LENGTH]), start, is_over=start < present_ms) for start in starts]


def hourly_counts(known: Mapping[str, VolumeHour]) -> dict[int, float]:
    """Return the counts of measured hours by whole hours since the epoch."""
    return {
        each.start_ms // HOUR_MS: float(sum(count for _, count in each.counts))
        for each in known.values()
        if each.counts
    }


def hour_of(stored: Mapping[str, Any]) -> VolumeHour:
    """Return the hour of a stored map."""
    return VolumeHour(stored["hour"], tuple((ended_ms, count) for ended_ms, count in stored["counts"]))


def stored_hour(hour: VolumeHour) -> dict[str, Any]:
    """Return an hour as a map for a row."""
    return {"hour": hour.hour, "counts": [*map(list, hour.counts)]}


def _joined(before: VolumeHour | None, after: VolumeHour) -> VolumeHour:
    if before is None:
        return after
    return VolumeHour(before.hour, tuple(sorted({**dict(before.counts), **dict(after.counts)}.items())))


def _point(known: VolumeHour | None, start_ms: int, *, is_over: bool) -> VolumePoint:
    counts = () if known is None else known.counts
    return VolumePoint(
        hour=instant(start_ms),
        event_count=sum(count for _, count in counts) if counts else None,
        window_count=len(counts),
        is_over=is_over,
    )
