"""Timestamps of health rows: UTC text of fixed width with milliseconds, so that text order is time order."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from headgate.durable.model import records
from headgate.errors import InvalidPayloadError

_CANONICAL: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_THOUSANDTHS: Final = re.compile(r"[0-9]{3}Z")
_SECOND_CHARS: Final = len("2026-01-15T10:00:00.")
_YEAR_MAX: Final = 9000


@lru_cache(maxsize=4096)
def instant(ms: int) -> str:
    """Return a timestamp in canonical form. Cached, because one transaction formats the same time repeatedly."""
    return f"{_second(ms // 1000)}{ms % 1000:03d}Z"


# Cached apart: many timestamps share a second, and formatting the date is the expensive part.
@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Return the canonical timestamp of a second, up to and including the decimal point."""
    return records.instant(seconds * 1000)[:-4]


def moment(given: str | datetime, *, field: str) -> str:
    """Return a timestamp in canonical form. Raises `InvalidPayloadError`, naming the field.

    A timestamp without an offset is rejected as ambiguous.
    """
    return given if type(given) is str and is_canonical(given) else _moment(given, field)


# Cached, because the windows of one batch mostly end together.
@lru_cache(maxsize=4096)
def is_canonical(text: str) -> bool:
    """Whether a text is a timestamp in canonical form."""
    return _THOUSANDTHS.fullmatch(text, _SECOND_CHARS) is not None and _is_second(text[:_SECOND_CHARS])


@lru_cache(maxsize=4096)
def _is_second(text: str) -> bool:
    """Whether a text is the start of a canonical timestamp, up to and including the decimal point."""
    try:
        return _moment(f"{text}000Z", "") == f"{text}000Z"
    except InvalidPayloadError:
        return False


@lru_cache(maxsize=4096)
def _moment(given: str | datetime, field: str) -> str:
    try:
        read = datetime.fromisoformat(given) if isinstance(given, str) else given
        if read.tzinfo is None or read.year >= _YEAR_MAX or read.year < 1970:
            raise ValueError(given)
        text = read.astimezone(UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError) as exc:
        raise InvalidPayloadError(
            f"{field} {str(given)[:40]!r}: not a timestamp; write one such as 2026-01-15T10:00:00Z"
        ) from exc
    return f"{text[:23]}Z"


@lru_cache(maxsize=4096)
def milliseconds(text: str) -> int:
    """Return the epoch milliseconds of a canonical timestamp. Raises `InvalidPayloadError` for another form."""
    if not _CANONICAL.fullmatch(text):
        raise InvalidPayloadError(f"timestamp {text[:40]!r}: not in the form 2026-01-15T10:00:00.000Z")
    return round(datetime.fromisoformat(text).timestamp() * 1000)
