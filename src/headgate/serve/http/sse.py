"""Server-sent events: message encoding, heartbeats and the maximum duration of streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec
from litestar.response import Stream

from headgate.durable.model import duration
from headgate.errors import UserError

MEDIA_TYPE: Final = "text/event-stream"
# Heartbeat interval of an idle stream; proxies close silent connections.
ALIVE_SECONDS: Final = 15.0
STREAM_SECONDS_MAX: Final = 6 * 3600.0
ALIVE: Final = b": alive\n\n"
# Reconnect delay of the client.
OPENING: Final = b"retry: 1000\n\n"


def message(event: str, data: object, *, id: str = "") -> bytes:
    """Encode one event, with data as single-line JSON."""
    label = f"id: {id}\n" if id else ""
    return f"{label}event: {event}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def stream(messages: AsyncIterator[bytes]) -> Stream:
    """Return the streaming response of these messages."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return Stream(messages, media_type=MEDIA_TYPE, headers=headers)


def stream_seconds(text: str) -> float:
    """Parse the requested duration of a stream. Raises `UserError`."""
    seconds = duration.seconds(text, name="for")
    if seconds > STREAM_SECONDS_MAX:
        raise UserError(f"for {text!r}: a stream lasts at most 6h; reconnect for more")
    return seconds
