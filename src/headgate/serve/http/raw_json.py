"""Raw JSON: user values in requests and responses, validated and passed on unparsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from headgate.durable.model import payload
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import NULL

# An omitted value.
MISSING: Final = Raw()
_CAUSES_MAX: Final = 10


def missing() -> Raw:
    """Return the marker of an omitted value, as default factory."""
    return MISSING


def checked(raw: Raw, what: str) -> Raw:
    """Return the value, or null if it was omitted. Raises `InvalidPayloadError` for invalid UTF-8 or deep nesting."""
    if len(raw) == 0:
        return NULL
    value = payload.decode(raw, Any, what=what)
    content = bytes(raw)
    if content.count(b"[") + content.count(b"{") > payload.DEPTH_MAX:
        payload.encode(value, what=what)
    return NULL if value is None else Raw(content)


def optional_raw(stored: str | None) -> Raw | None:
    """Return stored JSON text as a response value."""
    return None if stored is None else Raw(stored.encode())


class ErrorView(Struct, frozen=True, omit_defaults=True):
    """An error of user code: class name, message, attributes and cause."""

    type: str
    message: str
    data: Raw | None = None
    cause: ErrorView | None = None
    trace: str = ""
    retryable: bool = True
    # Where its class is defined.
    module: str = ""
    qualname: str = ""


_error_decoder: Final = msgspec.json.Decoder(ErrorInfo)


def error_view(error: ErrorInfo | str | None) -> ErrorView | None:
    """Return the view of an error or of its stored JSON."""
    info = _error_decoder.decode(error) if isinstance(error, str) else error
    links: list[ErrorInfo] = []
    while info is not None and len(links) < _CAUSES_MAX:
        links.append(info)
        info = info.cause
    view: ErrorView | None = None
    for each in reversed(links):
        data = each.data if len(each.data) else None
        view = ErrorView(each.type, each.message, data, view, each.trace, each.retryable, each.module, each.qualname)
    return view


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """Return the Idempotency-Key header without optional quotes."""
    return headers.get("idempotency-key", "").strip().strip('"') or None
