"""Moments as people write and read them: a time, or how long ago it was."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil, floor
from typing import Annotated, Final

import typer

from headgate.errors import UserError

SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="From then on, such as 2h (ago) or 2026-01-31.")
]
# For those that must be given.
Since = Annotated[
    str,
    typer.Option(
        "--since", metavar="TIME", help="A time, a date, or how long ago: 2026-01-31T06:00:00Z, 2026-01-31, 2h."
    ),
]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="The same; not included.")]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Until then, such as 1h (ago).")]

# Up to how many seconds to speak of which unit; so much and no more is read at a glance.
_UNITS: Final = ((120, 1, "s"), (120 * 60, 60, "m"), (48 * 3600, 3600, "h"))
_DAY: Final = 86_400


def now() -> datetime:
    """Return the present moment."""
    from headgate.clock import SystemClock

    return SystemClock().now()


def asked(text: str | None, name: str, present: datetime | None = None) -> str | None:
    """Return a moment that was given as such, or as how long ago it was. Raises `UserError`."""
    from headgate.durable.model import duration

    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).isoformat()
    except ValueError:
        pass
    try:
        ago = timedelta(seconds=duration.seconds(text, name=name))
        return ((present or now()) - ago).isoformat()
    except (UserError, OverflowError) as exc:
        raise UserError(f"{name} {text!r}: write a time such as 2026-01-31T06:00:00Z, or how long ago: 2h") from exc


def ago(moment: str | None, present: datetime | None = None) -> str:
    """Return how long ago a moment was, or in how long it will be; nothing for none."""
    if not moment:
        return ""
    seconds = ((present or now()) - datetime.fromisoformat(moment)).total_seconds()
    # What was ten seconds more than an hour ago was an hour ago; what will be in nearly an hour is in an hour.
    return f"{_about(seconds, floor)} ago" if seconds >= 0 else f"in {_about(-seconds, ceil)}"


def _about(seconds: float, whole: Callable[[float], int]) -> str:
    size, unit = next(((size, unit) for limit, size, unit in _UNITS if seconds < limit), (_DAY, "d"))
    return f"{whole(seconds / size)}{unit}"
