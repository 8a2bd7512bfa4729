"""Formats shared by both query languages: hash algorithms by Step Functions' names, and RFC 3339 timestamps."""

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

_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


def iso_timestamp(at_ms: int) -> str:
    """Return a timestamp with milliseconds, in UTC."""
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC).isoformat()[:19]}.{at_ms % 1000:03}Z"


def parse_timestamp(text: object) -> int | None:
    """Return milliseconds since the epoch, or None if `text` is not an RFC 3339 timestamp with a T and a zone."""
    if not isinstance(text, str) or not _TIMESTAMP.fullmatch(text):
        return None
    try:
        # Python parses at most six fractional digits.
        parsed = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    except ValueError:
        return None
    return round(parsed.timestamp() * 1000)
