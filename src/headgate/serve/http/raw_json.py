"""Users' values in requests and answers: JSON that is checked on the way in and passed on as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from headgate.durable.model import payload
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import NULL

# In a body that leaves the value out.
MISSING: Final = Raw()
_CAUSES_MAX: Final = 10


def missing() -> Raw:
    """Return what stands for a value that was left out, as the default of a struct's member."""
    return MISSING


def checked(raw: Raw, what: str) -> Raw:
    """Return a value that was given, null if it was left out.

    Raises `InvalidPayloadError` for what could not be read later: text that is not UTF-8, or too many levels.
    """
    if len(raw) == 0:
        return NULL
    value = payload.decode(raw, Any, what=what)
    content = bytes(raw)
    if content.count(b"[") + content.count(b"{") > payload.DEPTH_MAX:
        payload.encode(value, what=what)
    return NULL if value is None else Raw(content)


def optional_raw(stored: str | None) -> Raw | None:
    """Return stored JSON text as a value of an answer."""
    return None if stored is None else Raw(stored.encode())


class ErrorView(Struct, frozen=True, omit_defaults=True):
    """An error of user code: the name of its class, what it says, its attributes, and what caused it."""

    type: str
    message: str
    data: Raw | None = None
    cause: ErrorView | None = None
    trace: str = ""
    retryable: bool = True


_error_decoder: Final = msgspec.json.Decoder(ErrorInfo)


def error_view(error: ErrorInfo | str | None) -> ErrorView | None:
    """Return an error, as it is or as its stored text, as it is shown."""
    info = _error_decoder.decode(error) if isinstance(error, str) else error
    links: list[ErrorInfo] = []
    while info is not None and len(links) < _CAUSES_MAX:
        links.append(info)
        info = info.cause
    view: ErrorView | None = None
    for each in reversed(links):
        data = each.data if len(each.data) else None
        view = ErrorView(each.type, each.message, data, view, each.trace, each.retryable)
    return view


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that the caller gave the request, without the quotes in which it may stand."""
    given = headers.get("idempotency-key", "").strip().strip('"')
    return given or None
