"""Field values: reads numbers, times and nested fields of sensor data, in the forms that producers write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

MISSING: Final = object()
SHOWN_MAX: Final = 80

_NUMBER: Final = re.compile(r"\s*[+-]?(\d{1,300}(\.\d{0,300})?|\.\d{1,300})([eE][+-]?\d{1,3})?\s*", re.ASCII)
_WHOLE: Final = re.compile(r"\s*[+-]?\d{1,300}\s*", re.ASCII)
# Upper bounds that tell seconds, milliseconds and microseconds since 1970 apart, until the year 5138.
_SECONDS_BELOW: Final = 1e11
_MILLISECONDS_BELOW: Final = 1e14
_MICROSECONDS_BELOW: Final = 1e17


def number(value: object) -> int | float | None:
    """Return a value as a number, also from text; None if it is not one. A bool is not a number."""
    kind = type(value)
    if kind is int:
        return value  # type: ignore[return-value]
    if kind is float:
        return value if math.isfinite(value) else None  # type: ignore[return-value,arg-type]
    if isinstance(value, str):
        return _number_of_text(value)
    return None


@lru_cache(maxsize=8192)
def _number_of_text(text: str) -> int | float | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    if not _NUMBER.fullmatch(text):
        return None
    read = float(text)
    return read if math.isfinite(read) else None


def moment_ms(value: object) -> float | None:
    """Return a time as milliseconds since 1970; None if it is not one.

    The size of a number, also as text, tells seconds, milliseconds, micro- and nanoseconds apart. Other text is
    ISO 8601 with an offset: without one its meaning would depend on the reader.
    """
    read = number(value)
    if read is not None:
        return _milliseconds(read)
    return _moment_of_text(value) if isinstance(value, str) else None


def _milliseconds(epoch: float) -> float | None:
    if epoch <= 0:
        return None
    if epoch < _SECONDS_BELOW:
        return epoch * 1000
    if epoch < _MILLISECONDS_BELOW:
        return epoch
    return epoch / 1000 if epoch < _MICROSECONDS_BELOW else epoch / 1_000_000


@lru_cache(maxsize=8192)
def _moment_of_text(text: str) -> float | None:
    try:
        read = datetime.fromisoformat(text.strip())
        return None if read.tzinfo is None else read.timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def field_of(data: Mapping[str, Any], field: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return a field by its name or dotted path; `MISSING` if it is absent or null."""
    value = data.get(field, MISSING)
    if value is MISSING and "." in field:
        value = data
        for name in field.split("."):
            value = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
    return MISSING if value is None else value


def is_equal(left: object, right: object) -> bool:
    """Whether two values are equal across their written forms: 1, 1.0 and "1"; true and "true"."""
    if isinstance(left, bool) or isinstance(right, bool):
        return _truth(left) is not None and _truth(left) is _truth(right)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, int | float) or isinstance(right, int | float):
        first, second = number(left), number(right)
        return first is not None and first == second
    return left == right


def shown(value: object) -> str:
    """Return a value as shown in reasons, cut to a readable length."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= SHOWN_MAX else f'"{value[:SHOWN_MAX]}…"'
    text = str(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


def _truth(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return None
