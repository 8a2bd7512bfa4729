"""Sensor periods: the period that a sensor's key or fields name, and its written forms.

A key may end in a period: `orders#2026-03-03T07`, or compact, `orders#20260303T07`. Fields may name one too: `date`,
as text or number, with `hour`. All forms are normalised to the text that runs have as their date.
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
    # By its start alone: the pipeline knows its length.
    Period.CUSTOM: timedelta(seconds=1),
    Period.HOURLY: timedelta(hours=1),
    Period.DAILY: timedelta(days=1),
    Period.WEEKLY: timedelta(days=7),
}


@lru_cache(maxsize=8192)
def period_text(text: str) -> str | None:
    """Return a period in the form of run dates; None: it is not a period."""
    try:
        return str(parse(text))
    except UserError:
        return None


def forms_of(period: str) -> tuple[str, ...]:
    """Return the written forms of a period at the end of a key, the form of runs first."""
    if "W" in period or len(period) < _DAY_LENGTH:
        return (period,)
    # Only the day part: an offset may follow.
    return period, period[:_DAY_LENGTH].replace("-", "") + period[_DAY_LENGTH:]


def split_key(key: str) -> tuple[str, str | None]:
    """Return the key without its period, and the period or None."""
    base, delimiter, end = key.rpartition(DELIMITER)
    period = period_text(end) if delimiter and base else None
    return (key, None) if period is None else (base, period)


def is_key_of(key: str, wanted: str) -> bool:
    """Whether a sensor's key is the wanted one or one of its periods or parts. `orders-eu` is no part of `orders`."""
    return key == wanted or key.startswith(wanted + DELIMITER)


def period_of_fields(data: Mapping[str, Any]) -> str | None:
    """Return the period that the fields `date` and `hour` name; None if there is no such date.

    An invalid hour leaves the day. Dates and hours may be numbers.
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
def may_concern(period: str, date: str) -> bool:
    """Whether the data of one period can concern a run of another: the periods overlap."""
    sensor, run = parse(period), parse(date)
    return sensor.wall < _end(run) and run.wall < _end(sensor)


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
