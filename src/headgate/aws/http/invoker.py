"""Application invoker: runs an ASGI application for one request of API Gateway at a time.

A function answers with a whole response. A stream of server-sent events therefore ends soon after its first event, and
tells the client when to connect again: it becomes a poll.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, Final

from litestar.types import ASGIApp, HTTPScope, Message

from headgate.auth.principals import Principal
from headgate.aws.http.payloads import Headers, body_of, is_too_large, response_of, scope_of
from headgate.errors import DeadlineExceededError, HeadgateError, TransientError
from headgate.serve.http.problem import MEDIA_TYPE, Problem, retry_after
from headgate.serve.http.sse import MEDIA_TYPE as EVENT_STREAM

# A stream without events ends after this time; one with events, when no further event follows for a moment.
STREAM_SECONDS: Final = 10.0
STREAM_IDLE_SECONDS: Final = 0.3
RECONNECT: Final = b"retry: 5000\n\n"
# What the function needs to return a response.
MARGIN_SECONDS: Final = 1.0
_DISCONNECT_SECONDS: Final = 1.0
_EVENT: Final = b"data:"
_NO_HEADERS: Final[Mapping[str, str]] = {}

Event = Mapping[str, Any]


class Invoker:
    """Runs an application on an event loop of its own. Safe to use from many threads."""

    def __init__(
        self, app: ASGIApp, *, stream_seconds: float = STREAM_SECONDS, margin_seconds: float = MARGIN_SECONDS
    ) -> None:
        self._app = app
        self._stream_seconds = stream_seconds
        self._margin_seconds = margin_seconds
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headgate-http", daemon=True)
        self._thread.start()

    def __call__(self, event: Event, *, left_seconds: float, principal: Principal | None = None) -> dict[str, Any]:
        """Return the response of a request, of a caller that is authenticated already if `principal` is given.

        Raises `InvalidPayloadError` for an event that is no request.
        """
        scope, body = scope_of(event), body_of(event)
        if principal is not None:
            scope["principal"] = principal  # type: ignore[typeddict-unknown-key]  # ours
        answering = asyncio.run_coroutine_threadsafe(
            self._answer(scope, body, left_seconds - self._margin_seconds), self._loop
        )
        response = answering.result()
        if not is_too_large(response):
            return response
        return _problem(
            413, "response_too_large", "the response has more than the 6 MB of a function; ask for less with 'limit'"
        )

    def close(self) -> None:
        """End the event loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _answer(self, scope: HTTPScope, body: bytes, seconds: float) -> dict[str, Any]:
        exchange = _Exchange(body)
        running = asyncio.ensure_future(self._app(scope, exchange.receive, exchange.send))
        ending = asyncio.ensure_future(self._end_stream(exchange))
        try:
            await asyncio.wait({running, ending}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
            exchange.disconnect()
            is_over = running.done() or exchange.is_stream
            if not running.done():
                await asyncio.wait({running}, timeout=_DISCONNECT_SECONDS)
        finally:
            for each in (running, ending):
                each.cancel()
            await asyncio.gather(running, ending, return_exceptions=True)
        if not is_over:
            return refusal(
                DeadlineExceededError("the function had no time left for an answer; check the effect, then retry")
            )
        if running.done() and not running.cancelled():
            # An error of the application before its response is an error of the function.
            running.result()
        return exchange.response()

    async def _end_stream(self, exchange: _Exchange) -> None:
        """Return when a stream of events has had its time."""
        await exchange.stream_started.wait()
        try:
            async with asyncio.timeout(self._stream_seconds):
                while not await exchange.has_paused(STREAM_IDLE_SECONDS):
                    pass
        except TimeoutError:
            return


class _Exchange:
    """The messages between the application and one request."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 0
        self._headers: Headers = []
        self._content = bytearray()
        self._disconnected = asyncio.Event()
        self._sent = asyncio.Event()
        self.stream_started = asyncio.Event()

    @property
    def is_stream(self) -> bool:
        return self.stream_started.is_set()

    async def receive(self) -> Any:  # noqa: ANN401 - the framework's union does not match its parts
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(bytes(name), bytes(value)) for name, value in message["headers"]]
            types = [value for name, value in self._headers if name.lower() == b"content-type"]
            if any(each.startswith(EVENT_STREAM.encode()) for each in types):
                self.stream_started.set()
        elif message["type"] == "http.response.body" and not self._disconnected.is_set():
            self._content += message.get("body", b"")
            self._sent.set()

    def disconnect(self) -> None:
        self._disconnected.set()

    async def has_paused(self, seconds: float) -> bool:
        """Return whether there are events, and none was sent for some time."""
        self._sent.clear()
        if _EVENT not in self._content:
            await self._sent.wait()
            return False
        try:
            await asyncio.wait_for(self._sent.wait(), seconds)
        except TimeoutError:
            return True
        return False

    def response(self) -> dict[str, Any]:
        assert self._status, "an application that ends without an error has sent a response"
        content = bytes(self._content) + (RECONNECT if self.is_stream else b"")
        return response_of(self._status, self._headers, content)


def refusal(error: HeadgateError) -> dict[str, Any]:
    """Return the problem response of an error."""
    more = retry_after(error.retry_after_seconds) if isinstance(error, TransientError) else {}
    return _problem(error.http_status, error.code, error.message, more)


def _problem(status: int, code: str, detail: str, more: Mapping[str, str] = _NO_HEADERS) -> dict[str, Any]:
    fields = {"content-type": MEDIA_TYPE, **more}
    headers = [(name.encode(), value.encode()) for name, value in fields.items()]
    return response_of(status, headers, Problem.of(status, code, detail).content())
