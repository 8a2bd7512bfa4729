"""Server-sent events: streams that say they are alive, and end after a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from litestar.response import Stream

from headgate.durable.model import duration
from headgate.errors import UserError

MEDIA_TYPE: Final = "text/event-stream"
# How often a stream without news says that it is there; what is between closes connections that are silent.
ALIVE_SECONDS: Final = 15.0
STREAM_SECONDS_MAX: Final = 6 * 3600.0
ALIVE: Final = b": alive\n\n"
# What a client waits before it comes back after the end of a stream.
OPENING: Final = b"retry: 1000\n\n"


def message(event: str, data: object, *, id: str = "") -> bytes:
    """Return one event of a stream. Its data is JSON, which has no line breaks of its own."""
    label = f"id: {id}\n" if id else ""
    return f"{label}event: {event}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def stream(messages: AsyncIterator[bytes]) -> Stream:
    """Return the answer that carries these messages."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return Stream(messages, media_type=MEDIA_TYPE, headers=headers)


def stream_seconds(text: str) -> float:
    """Return for how long a stream was asked for. Raises `UserError`."""
    seconds = duration.seconds(text, name="for")
    if seconds > STREAM_SECONDS_MAX:
        raise UserError(f"for {text!r}: a stream ends after at most 6h; come back for more")
    return seconds
