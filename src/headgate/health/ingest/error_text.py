"""Error text of outside tools: bounded, without control characters, and with credentials masked.

Drivers put connection strings into their messages. The text is stored, shown on pages and sent to alert channels.
"""

from __future__ import annotations

import re
from typing import Final

MESSAGE_LENGTH_MAX: Final = 2_000
_HIDDEN: Final = "***"
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Newlines and tabs stay.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_USER_INFO: Final = re.compile(r"(://[^\s/:@]*):[^\s/@]+@")
_ASSIGNED: Final = re.compile(
    r"(?i)\b([\w-]*(?:password|passwd|pwd|secret|token|api_?key|access_?key|private_?key|credential)[\w-]*)"
    r"(\"?'?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&)}]+)"
)
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_AWS_KEY: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
# More is never needed to fill the bound, and patterns on megabytes take seconds.
_READ_MAX: Final = 20_000


def plain_text(text: str, length_max: int) -> str:
    """Return a text without control characters, within a bound."""
    return _CONTROL.sub(" ", text[:length_max])


def error_text(text: str, length_max: int = MESSAGE_LENGTH_MAX) -> str:
    """Return a text as it is stored."""
    plain = _CONTROL.sub(" ", _ANSI.sub("", text[:_READ_MAX])).strip()
    masked = _USER_INFO.sub(rf"\1:{_HIDDEN}@", plain)
    masked = _ASSIGNED.sub(rf"\1\2{_HIDDEN}", masked)
    masked = _BEARER.sub(rf"\1 {_HIDDEN}", masked)
    return _AWS_KEY.sub(_HIDDEN, masked)[:length_max]
