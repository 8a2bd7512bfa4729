"""HTTP protocol: uvicorn's connection handler, with a fast path for requests that the application answers directly.

A short request is buffered until it is complete and offered to the application. If the application declines, the
request continues through uvicorn. Clients repeat the same head bytes, so parsed heads are cached by their bytes.

It relies on internals of uvicorn; the dependency is bounded, and `tests/unit/serve/http/test_uvicorn_internals.py`
fails when one of them is gone.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headgate.serve.http.fast_path import DEFERRED, FastPathApp, FullResponse, RawPairs, head_of
from headgate.serve.http.problem import MEDIA_TYPE, Problem
from headgate.telemetry import correlated

# Limits of the head cache: entries, and bytes of one head.
HEADS_MAX: Final = 512
HEAD_BYTES_MAX: Final = 2048
_END: Final = b"\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_log = structlog.get_logger(__name__)


class _Head(NamedTuple):
    parsed_head: Any
    body_bytes: int


class HeadCache:
    """Cache of parsed request heads, keyed by their bytes and shared by all connections of a server.

    Also caches the encoded default response headers, which uvicorn renews once a second.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, _Head] = {}
        self._default_headers: RawPairs = []
        self._default_head = b""

    def default(self, headers: RawPairs) -> bytes:
        """Return the default response headers, encoded."""
        if headers is not self._default_headers:
            self._default_headers, self._default_head = headers, head_of(headers)
        return self._default_head

    def find(self, data: bytes) -> tuple[Any, bytes] | None:
        """Return the parsed head and the body if `data` is one complete request with a cached head."""
        end = data.find(_END) + len(_END)
        head = self._entries.get(data[:end])
        if head is None or len(data) - end != head.body_bytes:
            return None
        return head.parsed_head, data[end:]

    def learn(self, data: bytes, parsed_head: object, body: bytes) -> None:
        """Cache the head of `data` if `data` is one complete request."""
        end = data.find(_END) + len(_END)
        if end > HEAD_BYTES_MAX or data[end:] != body:
            return
        if len(self._entries) >= HEADS_MAX:
            # Heads that all differ, for example by a counter in a header, are not worth caching.
            self._entries.clear()
        self._entries[data[:end]] = _Head(parsed_head, len(body))


class _DeferredCycle:
    """Stand-in for uvicorn's request cycle while a response is deferred, so that pipelined requests wait."""

    response_complete = False
    disconnected = False
    keep_alive = True
    more_body = False
    body = b""

    @property
    def message_event(self) -> _DeferredCycle:
        return self

    def set(self) -> None:
        """Ignore the notification: no task reads from this cycle."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. Malformed HTTP is answered with `application/problem+json`."""

    heads: HeadCache

    def __init__(self, config: uvicorn.Config, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(config, *arguments, **more)
        self._fast_app = config.app if isinstance(config.app, FastPathApp) else None
        # Body chunks of a request that is a candidate for the fast path.
        self._buffered: list[bytes] | None = None
        self._parsed_head: Any = None
        self._is_in_message = False
        # The last data received if a request starts with it, and whether the application already declined it.
        self._received = b""
        self._was_declined = False
        self._peer = ""
        self._idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._peer = "" if self.client is None else f"{self.client[0]}:{self.client[1]}"

    def data_received(self, data: bytes) -> None:
        if self._fast_app is not None and not self._is_in_message:
            found = self.heads.find(data) if self._is_free() else None
            if found is not None:
                if self._answer(*found):
                    return
                self._was_declined = True
            self._received = data
        super().data_received(data)
        self._received = b""
        self._was_declined = False

    def on_message_begin(self) -> None:
        self._is_in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_fast_path_candidate():
            self._buffered = []
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._buffered is None:
            super().on_body(body)
        else:
            self._buffered.append(body)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        if self._buffered is not None:
            body = b"".join(self._buffered)
            if self._received:
                self.heads.learn(self._received, self._parsed_head, body)
            if self._answer(self._parsed_head, body):
                self._buffered = None
                return
            self._resume_asgi()
        super().on_message_complete()

    def shutdown(self) -> None:
        self._resume_asgi()
        super().shutdown()

    def _is_free(self) -> bool:
        """Whether no response is in progress and the transport accepts writes."""
        is_next = self.cycle is None or self.cycle.response_complete
        return is_next and not self.flow.write_paused and not self.transport.is_closing()

    def _is_fast_path_candidate(self) -> bool:
        app, parser = self._fast_app, self.parser
        digits_max = 0 if app is None or self._was_declined else app.length_digits_max(self.url)
        if app is None or digits_max == 0 or parser.get_method() != b"POST" or not self._is_free():
            return False
        is_plain = parser.should_keep_alive() and not parser.should_upgrade() and parser.get_http_version() == "1.1"
        lengths = [value for name, value in self.headers if name == b"content-length"]
        is_short = len(lengths) == 1 and len(lengths[0]) <= digits_max
        if not (is_plain and is_short) or self.expect_100_continue:
            return False
        self._parsed_head = app.parsed_head(self.url, self.headers)
        return self._parsed_head is not None

    def _answer(self, parsed_head: object, body: bytes) -> bool:
        """Offer a request to the application. Return False if it declines."""
        assert self._fast_app is not None, "only a fast-path application is offered requests"
        answer = self._fast_app.answer_fast(parsed_head, self._peer, body, self._defer)
        if answer is None:
            return False
        if answer is not DEFERRED:
            self._send(answer, keep_alive=True)
        return True

    def _defer(self) -> Callable[[FullResponse], None]:
        """Hold back pipelined requests, and return the callback that takes the response."""
        cycle = _DeferredCycle()

        def on_response(response: FullResponse) -> None:
            cycle.response_complete = True
            if not cycle.disconnected and not self.transport.is_closing():
                self._send(response, keep_alive=cycle.keep_alive)

        # It has the attributes of a request cycle that uvicorn reads.
        self.cycle = cycle  # type: ignore[assignment]
        return on_response

    def _resume_asgi(self) -> None:
        """Pass a buffered request on to uvicorn."""
        buffered, self._buffered = self._buffered, None
        if buffered is not None:
            super().on_headers_complete()
            super().on_body(b"".join(buffered))

    def _send(self, response: FullResponse, *, keep_alive: bool) -> None:
        state = self.server_state
        default, close = self.heads.default(state.default_headers), b"" if keep_alive else _CLOSE
        self.transport.write(
            b"".join((STATUS_LINE[response.status], default, response.head, close, b"\r\n", response.content))
        )
        if not keep_alive:
            self.transport.close()
        if self.pipeline or not keep_alive:
            self.on_response_complete()
            return
        state.total_requests += 1
        self._idle_since = self.loop.time()
        # An armed timer is left to re-check on expiry: arming one per response costs more.
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self.cycle is not None and not self.cycle.response_complete:
            # A request is in progress; its completion arms the timer again.
            return
        left_seconds = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_seconds > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left_seconds, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        identifier = f"req_{secrets.token_hex(13)}"
        with correlated(identifier):
            fact = str(sys.exception() or msg)
            problem = Problem.of(400, "bad_request", f"the request is not valid HTTP/1.1: {fact}")
            _log.info("request refused", action="http.request", status=400, fact=fact)
        content = problem.content()
        head = (
            f"HTTP/1.1 400 {problem.title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(content)}\r\n"
            f"x-correlation-id: {identifier}\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + content)
        self.transport.close()


def protocol_of(heads: HeadCache) -> type[HttpProtocol]:
    """Return the protocol class for the connections of one server."""
    return type("HttpProtocol", (HttpProtocol,), {"heads": heads})
