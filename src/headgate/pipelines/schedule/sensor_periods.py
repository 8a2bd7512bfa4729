"""The period that a sensor speaks of, as its key or its fields name it, and the forms in which that is written.

A key may end in a period: `orders#2026-03-03T07`, or compact, `orders#20260303T07`. Fields may name one too: `date`,
as text or number, with `hour`. All of them come to the one text form that runs have as their date.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from headgate.errors import UserError
from headgate.pipelines.definition.model import Period
from headgate.pipelines.schedule.periods import PeriodKey, parse

DELIMITER: Final = "#"

_DAY_LENGTH: Final = len("2026-03-03")
_HOURS: Final = 24
_LENGTHS: Final = {
    # By its start alone, because its length is the pipeline's.
    Period.CUSTOM: timedelta(seconds=1),
    Period.HOURLY: timedelta(hours=1),
    Period.DAILY: timedelta(days=1),
    Period.WEEKLY: timedelta(days=7),
}


@lru_cache(maxsize=8192)
def period_text(given: str) -> str | None:
    """Return the text that runs have as their date for a period in any of its forms; None: it is not a period."""
    try:
        return str(parse(given))
    except UserError:
        return None


def forms_of(period: str) -> tuple[str, ...]:
    """Return how a period may be written at the end of a key, the form of runs first."""
    if "W" in period or len(period) < _DAY_LENGTH:
        return (period,)
    # Only the day: there may be an offset behind it.
    return period, period[:_DAY_LENGTH].replace("-", "") + period[_DAY_LENGTH:]


def split_key(key: str) -> tuple[str, str | None]:
    """Return the key without its period, and the period; None: the key is not of one period."""
    base, delimiter, end = key.rpartition(DELIMITER)
    period = period_text(end) if delimiter and base else None
    return (key, None) if period is None else (base, period)


def is_key_of(key: str, wanted: str) -> bool:
    """Whether a sensor's key is the wanted one or one of its periods or parts. `orders-eu` is no part of `orders`."""
    return key == wanted or key.startswith(wanted + DELIMITER)


def period_of_fields(data: Mapping[str, Any]) -> str | None:
    """Return the period that fields name by `date` and `hour`; None if there is no such date.

    An hour that is none leaves the day. Dates and hours may be numbers, as some stores give them back.
    """
    text = _digits(data.get("date"))
    period = None if text is None else period_text(text)
    if period is None or len(period) != _DAY_LENGTH:
        return period
    hour = _digits(data.get("hour"))
    if hour is None or not hour.isascii() or not hour.isdigit() or len(hour) > 2 or int(hour) >= _HOURS:
        return period
    return f"{period}T{int(hour):02d}"


@lru_cache(maxsize=8192)
def may_speak_of(period: str, date: str) -> bool:
    """Whether what was said of one period can be meant for a run of another: the same, a part of it, or around it."""
    said, run = parse(period), parse(date)
    return said.wall < _end(run) and run.wall < _end(said)


def _end(key: PeriodKey) -> datetime:
    if key.period is Period.MONTHLY:
        return (key.wall.replace(day=28) + timedelta(days=4)).replace(day=1)
    return key.wall + _LENGTHS[key.period]


def _digits(value: object) -> str | None:
    match value:
        case bool() | None:
            return None
        case str():
            return value.strip()
        case int():
            return str(value)
        case float() if value.is_integer():
            return str(int(value))
    return None
