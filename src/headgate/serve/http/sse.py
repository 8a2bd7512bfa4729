"""Server-sent events: message encoding, heartbeats and the maximum duration of streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, Protocol

import msgspec
from litestar import Litestar, Request
from litestar.response import Stream
from litestar.response.base import ASGIResponse

from headgate.auth.principals import Principal
from headgate.durable.model import duration
from headgate.errors import HeadgateError, UnauthenticatedError, UserError

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
    """Return the streaming response of these messages. It ends when the credentials of its caller do."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return _EventStream(messages, media_type=MEDIA_TYPE, headers=headers)


class CallerCheck(Protocol):
    """The credentials of the caller, as authentication keeps them in the scope of a request."""

    async def check(self) -> Principal | None:
        """Return the caller as of now: None, or `UnauthenticatedError`, if the credentials have ended."""


class _EventStream(Stream):
    """A stream whose caller is checked again before each message, heartbeats included."""

    def __init__(self, messages: AsyncIterator[bytes], *, media_type: str, headers: dict[str, str]) -> None:
        super().__init__(messages, media_type=media_type, headers=headers)
        self._messages = messages

    def to_asgi_response(self, app: Litestar | None, request: Request[Any, Any, Any], **more: Any) -> ASGIResponse:  # noqa: ANN401 - as the base class passes them
        credentials: CallerCheck | None = request.scope.get("credentials")  # type: ignore[assignment]  # ours
        if credentials is not None:
            self.iterator = _while_signed_in(self._messages, credentials)
        return super().to_asgi_response(app, request, **more)


async def _while_signed_in(messages: AsyncIterator[bytes], credentials: CallerCheck) -> AsyncIterator[bytes]:
    try:
        async for each in messages:
            if not await _is_signed_in(credentials):
                return
            yield each
    finally:
        if isinstance(messages, AsyncGenerator):
            await messages.aclose()


async def _is_signed_in(credentials: CallerCheck) -> bool:
    try:
        return await credentials.check() is not None
    except UnauthenticatedError:
        return False
    except HeadgateError:
        # It cannot be decided now, such as while the store is busy. The next message decides.
        return True


def stream_seconds(text: str) -> float:
    """Parse the requested duration of a stream. Raises `UserError`."""
    seconds = duration.seconds(text, name="for")
    if seconds > STREAM_SECONDS_MAX:
        raise UserError(f"for {text!r}: a stream lasts at most 6h; reconnect for more")
    return seconds
