"""Error fingerprints: a short hash that is equal for errors differing only in numbers, ids, paths and quotes."""

from __future__ import annotations

import hashlib
import re
from typing import Final

# In this order: ids contain digits, and quotes may contain both.
_SPECIFICS: Final = (
    (re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`"), "<text>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b(?:0x[0-9a-fA-F]+|[0-9a-fA-F]{16,})\b"), "<id>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:/[\w.+~-]+){2,}"), "<path>"),
    (re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"), "<n>"),
)
_MESSAGE_MAX: Final = 512
# Of a longer message the beginning tells what is wrong.
_READ_MAX: Final = 4_096


def generalised(message: str) -> str:
    """Return the message with quotes, ids, paths and numbers replaced by placeholders."""
    # Cut after the replacements: a cut through a number or path would make one error two.
    text = message[:_READ_MAX]
    for pattern, name in _SPECIFICS:
        text = pattern.sub(name, text)
    return " ".join(text.split())[:_MESSAGE_MAX]


def fingerprint(error_class: str, message: str) -> str:
    """Return the fingerprint of an error: twelve hexadecimal digits."""
    return hashlib.sha256(f"{error_class}: {generalised(message)}".encode("utf-8", "replace")).hexdigest()[:12]
