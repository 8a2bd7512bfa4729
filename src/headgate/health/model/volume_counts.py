"""Counts of windows by the hour: which hour a window belongs to, and what is known of each hour, decided purely.

A window is told by the moment it ended at, and belongs to the hour that this moment closes or lies in: one that ended
at 11:00 is of the hour from ten to eleven. An hour knows the count of each of its windows, so that a window that is
sent again, corrected or late changes what it should and nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.health.model.timestamps import instant, milliseconds

HOUR_MS: Final = 3_600_000
DAY_HOURS: Final = 24
DAYS: Final = 7
# Two of the weeks that a baseline is usually of, so that one can be held against the other.
DAYS_MAX: Final = 14
# Windows of a minute are told apart; of shorter ones the earliest are counted as one.
WINDOWS_MAX: Final = 60
_COUNT_MAX: Final = 2**53 - 1
_HOUR_LENGTH: Final = len("2026-01-15T10")


class VolumeHour(Struct, frozen=True):
    """Windows of one hour (`2026-01-15T10`): when each ended, in milliseconds of the hour, and what it counted."""

    hour: str
    counts: tuple[tuple[int, int], ...]

    @property
    def start_ms(self) -> int:
        return milliseconds(f"{self.hour}:00:00.000Z")

    def has_folded(self, ended_ms: int) -> bool:
        """Whether a window is one of those that were counted and are told apart no longer."""
        return len(self.counts) >= WINDOWS_MAX and ended_ms < self.counts[0][0]


class VolumePoint(Struct, frozen=True, kw_only=True):
    """What was counted in an hour. `event_count` None: nobody has counted, which is not the same as nothing.

    `window_count` tells how much of the hour that is; `is_over` is false for the hour that still goes on.
    """

    hour: str
    event_count: int | None
    window_count: int
    is_over: bool


def window_of(window_end: str, count: int) -> VolumeHour:
    """Return an hour of which one window is known, given in the one form of moments."""
    end_ms = milliseconds(window_end)
    start_ms = (end_ms - 1) // HOUR_MS * HOUR_MS
    return VolumeHour(instant(start_ms)[:_HOUR_LENGTH], ((end_ms - start_ms, count),))


def counted(held: VolumeHour | None, window: VolumeHour) -> VolumeHour:
    """Return the hour in progress after a window that is not earlier than those it holds.

    The same window again replaces its count. A window of a later hour begins that one: the one held is over.
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
    """Whether an hour is young enough that anyone can still ask for it."""
    return hour.start_ms > now_ms - DAYS_MAX * DAY_HOURS * HOUR_MS - HOUR_MS


def together(in_time: Iterable[VolumeHour], late: Iterable[VolumeHour]) -> dict[str, VolumeHour]:
    """Return hours by name, with the windows that came late: what was said of a window last is its count.

    Where an hour is there twice, the later one of them knows better.
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
    """Return the hours of some days, oldest first, up to the present one; those nobody has counted are gaps."""
    present_ms = now_ms // HOUR_MS * HOUR_MS
    starts = range(present_ms - (days * DAY_HOURS - 1) * HOUR_MS, present_ms + HOUR_MS, HOUR_MS)
    return [_point(known.get(instant(start)[:_HOUR_LENGTH]), start, is_over=start < present_ms) for start in starts]


def hour_of(stored: Mapping[str, Any]) -> VolumeHour:
    """Return the hour that a map in a row stands for."""
    return VolumeHour(stored["hour"], tuple((ended_ms, count) for ended_ms, count in stored["counts"]))


def stored_hour(hour: VolumeHour) -> dict[str, Any]:
    """Return an hour as a map in a row."""
    return {"hour": hour.hour, "counts": [[ended_ms, count] for ended_ms, count in hour.counts]}


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
