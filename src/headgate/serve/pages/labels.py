"""How pages write moments, spans, numbers and commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from typing import Any, Final

from headgate.health.model.timestamps import milliseconds

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def span(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min"
    if whole < _DAY:
        hours, minutes = divmod(whole // _MINUTE, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(whole // _HOUR, 24)
    return f"{days} d {hours} h" if hours and days < 10 else f"{days} d"


def ago(at: str, now_ms: int) -> str:
    """Return how long ago a moment was, or in how long it will be."""
    seconds = (now_ms - milliseconds(at)) / 1000
    if seconds < 0:
        return f"in {span(-seconds)}"
    return "just now" if seconds < 5 else f"{span(seconds)} ago"


def stamp(at: str) -> str:
    """Return a moment as people read it, to the second."""
    return f"{at[:10]} {at[11:19]} UTC"


def clock_time(at: str, now: str) -> str:
    """Return a moment as short as it can be told from others: the time alone if it was today."""
    return f"{at[11:16]} UTC" if at[:10] == now[:10] else f"{at[:10]} {at[11:16]} UTC"


def number(value: float) -> str:
    """Return a number without digits that say nothing."""
    return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"


def compact(value: Any, chars_max: int = 200) -> str:  # noqa: ANN401 - whatever JSON holds
    """Return a value as JSON on one line, as much of it as can be read at a glance."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def command(*words: str) -> str:
    """Return a command of the program, quoted for a shell."""
    return shlex.join(("headgate", *words))


def options(given: Iterable[tuple[str, Any]]) -> list[str]:
    """Return options of a command, those that have a value; one with several is repeated."""
    words: list[str] = []
    for name, value in given:
        for each in value if isinstance(value, list) else [value]:
            words += [name, str(each)] if each else []
    return words
