"""Hashes: the algorithms that both query languages know, by the names that Step Functions gives them.

Moments as Amazon States Language writes them: RFC 3339 with a T, and a Z or an offset.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Final

ALGORITHMS: Final = {
    "MD5": hashlib.md5,
    "SHA-1": hashlib.sha1,
    "SHA-256": hashlib.sha256,
    "SHA-384": hashlib.sha384,
    "SHA-512": hashlib.sha512,
}

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def iso_timestamp(at_ms: int) -> str:
    """Return a moment as text, with milliseconds and a Z."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()[:19]}.{at_ms % 1000:03}Z"


def parse_timestamp(text: object) -> int | None:
    """Return the milliseconds since 1970 of a moment, or None if `text` is not one."""
    if not isinstance(text, str) or not _MOMENT.fullmatch(text):
        return None
    try:
        # Python reads at most six digits of a fraction.
        parsed = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        return None
    return round(parsed.timestamp() * 1000)
