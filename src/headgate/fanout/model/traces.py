"""Traces: the traceback of a failed attempt as text of limited length."""

from __future__ import annotations

import traceback
from typing import Final

TRACEBACK_CHARS_MAX: Final = 6_000
_HALF: Final = TRACEBACK_CHARS_MAX // 2


def formatted_traceback(error: BaseException) -> str:
    """Return the traceback of an error, without values of variables. Of a long one the beginning and the end."""
    try:
        text = "".join(traceback.format_exception(error)).rstrip("\n")
    except Exception as exc:  # noqa: BLE001 - the error's own __str__ fails
        return f"its traceback is unavailable ({type(exc).__name__})"
    if len(text) > TRACEBACK_CHARS_MAX:
        left_out = len(text) - 2 * _HALF
        text = f"{text[:_HALF]}\n[{left_out:,} characters left out]\n{text[-_HALF:]}"
    return text.encode("utf-8", "replace").decode()
