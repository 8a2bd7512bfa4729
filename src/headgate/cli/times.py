"""Times on the command line: parses absolute and relative times, and formats ages and durations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil, floor
from typing import Final

from headgate.errors import UserError

# Upper limit in seconds, size and symbol of each unit of an age; longer ages are given in days.
_UNITS: Final = ((120, 1, "s"), (120 * 60, 60, "m"), (48 * 3600, 3600, "h"))
_DAY: Final = 86_400


def now() -> datetime:
    """Return the current time."""
    from headgate.clock import SystemClock

    return SystemClock().now()


def past_time(text: str | None, name: str, present: datetime | None = None) -> str | None:
    """Parse a time, or a duration before now. Raises `UserError`."""
    return _parsed(text, name, -1, "how long ago", present)


def future_time(text: str | None, name: str) -> str | None:
    """Parse a time, or a duration from now. Raises `UserError`."""
    return _parsed(text, name, 1, "a duration from now", None)


def _parsed(text: str | None, name: str, sign: int, relative: str, present: datetime | None) -> str | None:
    from headgate.durable.model import duration

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).isoformat()
    except ValueError:
        pass
    try:
        distance = timedelta(seconds=duration.seconds(text, name=name))
        return ((present or now()) + sign * distance).isoformat()
    except (UserError, OverflowError) as exc:
        raise UserError(f"{name} {text!r}: write a time such as 2026-01-31T06:00:00Z, or {relative}: 2h") from exc


def ago(moment: str | None, present: datetime | None = None) -> str:
    """Return the age of a moment ("5m ago"), or the time until it ("in 5m"); empty for None."""
    if not moment:
        return ""
    seconds = ((present or now()) - datetime.fromisoformat(moment)).total_seconds()
    # Ages round down and remaining times round up.
    return f"{_rounded(seconds, floor)} ago" if seconds >= 0 else f"in {_rounded(-seconds, ceil)}"


def _rounded(seconds: float, whole: Callable[[float], int]) -> str:
    size, unit = next(((size, unit) for limit, size, unit in _UNITS if seconds < limit), (_DAY, "d"))
    return f"{whole(seconds / size)}{unit}"


def duration_text(seconds: float | None) -> str:
    """Return a duration in at most two units; "?" for None."""
    if seconds is None:
        return "?"
    if 0 < seconds < 0.9995:
        return f"{max(1, round(1000 * seconds))}ms"
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
