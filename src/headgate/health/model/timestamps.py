"""Moments of health rows: UTC text of one width, to the millisecond, so that later always sorts after earlier."""

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
    """Return a moment in the one form. Kept for a while: what is decided at one go shares it."""
    return f"{_second(ms // 1000)}{ms % 1000:03d}Z"


# Few seconds are spoken of at a time, and thousands of milliseconds: what takes long to write is the same for each.
@lru_cache(maxsize=4096)
def _second(seconds: int) -> str:
    """Return a moment in the one form as far as the point after its seconds."""
    return records.instant(seconds * 1000)[:-4]


def moment(given: str | datetime, *, field: str) -> str:
    """Return a moment in the one form. Raises `InvalidPayloadError`, naming the field, for what is not one.

    What has no offset is not a moment: two programs would read it differently.
    """
    if type(given) is str and _THOUSANDTHS.fullmatch(given, _SECOND_CHARS) and _is_second(given[:_SECOND_CHARS]):
        return given
    return _moment(given, field)


@lru_cache(maxsize=4096)
def _is_second(text: str) -> bool:
    """Whether a text is how a moment in the one form begins, up to the point after its seconds."""
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
            f"{field} {str(given)[:40]!r}: not a moment; write one such as 2026-01-15T10:00:00Z"
        ) from exc
    return f"{text[:23]}Z"


@lru_cache(maxsize=4096)
def milliseconds(text: str) -> int:
    """Return the milliseconds since 1970 of a moment in the one form. Raises `InvalidPayloadError` for another."""
    if not _CANONICAL.fullmatch(text):
        raise InvalidPayloadError(f"moment {text[:40]!r}: not in the form 2026-01-15T10:00:00.000Z")
    return round(datetime.fromisoformat(text).timestamp() * 1000)
