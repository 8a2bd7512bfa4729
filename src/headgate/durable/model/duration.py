"""Durations: text such as "90s", "1h30m" or "P3D", converted to and from seconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final

from headgate.errors import UserError

Duration = str | int | float | timedelta

# A longer duration is more likely a wrong unit.
SECONDS_MAX: Final = 100 * 365.25 * 86_400.0

_UNITS: Final = (
    ("w", Decimal(604_800)),
    ("d", Decimal(86_400)),
    ("h", Decimal(3_600)),
    ("m", Decimal(60)),
    ("s", Decimal(1)),
    ("ms", Decimal("0.001")),
)
_NUMBER: Final = r"([0-9]{1,20}(?:\.[0-9]{1,400})?)"
# Each unit at most once, the largest first, so that "5m1h" is refused.
_SHORT: Final = re.compile(r"\s*".join(rf"(?:{_NUMBER}\s*{unit})?" for unit, _ in _UNITS))
_SECONDS: Final = re.compile(_NUMBER)
_ISO: Final = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?"
)
_ALLOWED: Final = (
    'use text such as "250ms", "90s", "5m", "1h30m", "3d", "2w" or "PT5M" (months and years have no fixed length), '
    "a timedelta, or a number of seconds from 0 to 100 years"
)


def seconds(duration: Duration, *, name: str = "duration") -> float:
    """Return a duration in seconds. Raises `UserError`, naming the field `name` and what is allowed."""
    number = duration if type(duration) is float else _number(duration)
    # Written so that NaN, which compares false with any number, is refused too.
    if number is None or not 0 <= number <= SECONDS_MAX:
        raise _refusal(duration, name)
    return number


def optional_seconds(duration: Duration | None, *, name: str) -> float | None:
    """Return a duration in seconds, or None for None. Raises `UserError` as `seconds` does."""
    return None if duration is None else seconds(duration, name=name)


def text(seconds: float) -> str:
    """Return the short text for exactly these seconds: 5400 is "1h30m", and 0 is "0s".

    Raises `UserError` for a value that is not a duration.
    """
    if not 0 <= seconds <= SECONDS_MAX:
        raise _refusal(seconds, "duration")
    # From `repr`, so that 0.1 is a tenth and not the nearest binary fraction.
    left = Decimal(repr(float(seconds)))
    parts = []
    for unit, size in _UNITS:
        # Days are more readable than weeks and days.
        if unit == "w" and left % size:
            continue
        count = left / size if unit == "ms" else left // size
        if count:
            parts.append(f"{count.normalize():f}{unit}")
            left -= count * size
    return "".join(parts) or "0s"


@lru_cache(maxsize=1024)
def _parsed(text: str) -> float | None:
    """Return the seconds of a text; None if it is not a duration."""
    stripped = text.strip()
    if _SECONDS.fullmatch(stripped):
        return float(Decimal(stripped))
    match = _ISO.fullmatch(stripped) if stripped.startswith("P") else _SHORT.fullmatch(stripped)
    if match is None:
        return None
    # Both patterns have their groups in the order of the units; ISO 8601 has no milliseconds.
    counts = [(count, size) for count, (_, size) in zip(match.groups(), _UNITS, strict=False) if count is not None]
    if not counts:
        return None
    return float(sum((Decimal(count) * size for count, size in counts), Decimal(0)))


def _number(duration: object) -> float | None:
    """Return a duration of any kind in seconds, before the check of limits; None if it is not a duration."""
    match duration:
        case bool():
            return None
        case str():
            return _parsed(str(duration))
        case timedelta():
            return duration.total_seconds()
        case int() | float():
            # An integer may be too large to become a float.
            return float(duration) if -1 < duration <= SECONDS_MAX else math.nan
    return None


def _refusal(duration: object, name: str) -> UserError:
    # An integer can have more digits than Python converts to text.
    shown = "…" if isinstance(duration, int) and duration.bit_length() > 400 else repr(duration)
    return UserError(f"{name} {shown if len(shown) <= 40 else shown[:40] + '…'} is not a duration: {_ALLOWED}")


class Seconds(float):
    """A duration, decoded from a number of seconds or a text such as "90s" or "1h30m"."""


def seconds_of(value: object) -> Seconds:
    """Return a duration from a number of seconds or from text. Raises `ValueError`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{value!r} is not a duration; use a number of seconds or a text such as 90s")
    try:
        return Seconds(seconds(value))
    except UserError as exc:
        raise ValueError(str(exc)) from exc


def from_json_type(kind: type, value: object) -> object:
    """Decode a type of this module from JSON: a `dec_hook` of msgspec, which expects this error for other types."""
    if kind is Seconds:
        return seconds_of(value)
    raise NotImplementedError(f"JSON holds no {kind.__name__}")
