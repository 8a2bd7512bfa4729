"""How requests are read from connections: uvicorn's way, and a shorter one for what the application answers directly.

A request that is not too long is kept until all of it is there, and offered to the application. If that does not answer
it, it goes on as if it had just begun. Clients send the same head again and again: one that was understood before is
known by its bytes, and what comes with it is not parsed.
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

from headgate.serve.http.fast_path import LATER, DirectApp, RawPairs, Whole, head_of
from headgate.serve.http.problem import MEDIA_TYPE, Problem
from headgate.telemetry import correlated

# So many heads are known at a time, none longer than this.
HEADS_MAX: Final = 512
HEAD_BYTES_MAX: Final = 2048
_END: Final = b"\r\n\r\n"
_CLOSE: Final = b"connection: close\r\n"
_log = structlog.get_logger(__name__)


class _Head(NamedTuple):
    understood: Any
    body_bytes: int


class Heads:
    """The heads of requests that were understood, by their bytes, for all connections of a server.

    And what is in the head of every answer, which uvicorn renews once a second.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, _Head] = {}
        self._default_headers: RawPairs = []
        self._default_head = b""

    def default(self, headers: RawPairs) -> bytes:
        """Return the headers of every answer as they are sent."""
        if headers is not self._default_headers:
            self._default_headers, self._default_head = headers, head_of(headers)
        return self._default_head

    def find(self, data: bytes) -> tuple[Any, bytes] | None:
        """Return what is understood of a request, and its body, if `data` is a whole one whose head is known."""
        end = data.find(_END) + len(_END)
        head = self._known.get(data[:end])
        if head is None or len(data) - end != head.body_bytes:
            return None
        return head.understood, data[end:]

    def learn(self, data: bytes, understood: object, body: bytes) -> None:
        """Know the head of `data` again, if that is one whole request."""
        end = data.find(_END) + len(_END)
        if end > HEAD_BYTES_MAX or data[end:] != body:
            return
        if len(self._known) >= HEADS_MAX:
            # Heads of which each is another, as where something is counted in them, are not worth the room.
            self._known.clear()
        self._known[data[:end]] = _Head(understood, len(body))


class _Waiting:
    """Stands where uvicorn has a request that is being answered, so that what comes after it waits its turn."""

    response_complete = False
    disconnected = False
    keep_alive = True
    more_body = False
    body = b""

    @property
    def message_event(self) -> _Waiting:
        return self

    def set(self) -> None:
        """Be told of more to read, for which nobody waits here."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. What is not HTTP is told so in the shape of all errors."""

    heads: Heads

    def __init__(self, config: uvicorn.Config, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(config, *arguments, **more)
        self._direct_app = config.app if isinstance(config.app, DirectApp) else None
        # The body so far of a request that may be answered directly.
        self._kept: list[bytes] | None = None
        self._understood: Any = None
        self._is_in_message = False
        # What was received last, if a request begins with it, and whether that was offered already.
        self._received = b""
        self._was_offered = False
        self._peer = ""
        self._idle_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._peer = "" if self.client is None else f"{self.client[0]}:{self.client[1]}"

    def data_received(self, data: bytes) -> None:
        if self._direct_app is not None and not self._is_in_message:
            found = self.heads.find(data) if self._is_free() else None
            if found is not None:
                if self._answer(*found):
                    return
                self._was_offered = True
            self._received = data
        super().data_received(data)
        self._received = b""
        self._was_offered = False

    def on_message_begin(self) -> None:
        self._is_in_message = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._may_be_direct():
            self._kept = []
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._kept is None:
            super().on_body(body)
        else:
            self._kept.append(body)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        if self._kept is not None:
            body = b"".join(self._kept)
            if self._received:
                self.heads.learn(self._received, self._understood, body)
            if self._answer(self._understood, body):
                self._kept = None
                return
            self._go_on()
        super().on_message_complete()

    def shutdown(self) -> None:
        self._go_on()
        super().shutdown()

    def _is_free(self) -> bool:
        """Whether nothing is before the next request: no answer under way, and room for one."""
        is_next = self.cycle is None or self.cycle.response_complete
        return is_next and not self.flow.write_paused and not self.transport.is_closing()

    def _may_be_direct(self) -> bool:
        app, parser = self._direct_app, self.parser
        digits_max = 0 if app is None or self._was_offered else app.length_digits_max(self.url)
        if app is None or digits_max == 0 or parser.get_method() != b"POST" or not self._is_free():
            return False
        is_plain = parser.should_keep_alive() and not parser.should_upgrade() and parser.get_http_version() == "1.1"
        lengths = [value for name, value in self.headers if name == b"content-length"]
        is_short = len(lengths) == 1 and len(lengths[0]) <= digits_max
        if not (is_plain and is_short) or self.expect_100_continue:
            return False
        self._understood = app.understood(self.url, self.headers)
        return self._understood is not None

    def _answer(self, understood: object, body: bytes) -> bool:
        """Have a request answered, now or in a moment. False if it has to take its usual way."""
        assert self._direct_app is not None, "only what such an application takes is offered to it"
        answer = self._direct_app.direct(understood, self._peer, body, self._later)
        if answer is None:
            return False
        if answer is not LATER:
            self._send(answer, keep_alive=True)
        return True

    def _later(self) -> Callable[[Whole], None]:
        """Let what comes next wait for an answer, and return what is to be called with it."""
        waiting = _Waiting()

        def answered(whole: Whole) -> None:
            waiting.response_complete = True
            if not waiting.disconnected and not self.transport.is_closing():
                self._send(whole, keep_alive=waiting.keep_alive)

        # It is a request as far as uvicorn looks at it.
        self.cycle = waiting  # type: ignore[assignment]
        return answered

    def _go_on(self) -> None:
        """Let a request that was kept take its usual way."""
        kept, self._kept = self._kept, None
        if kept is not None:
            super().on_headers_complete()
            super().on_body(b"".join(kept))

    def _send(self, whole: Whole, *, keep_alive: bool) -> None:
        state = self.server_state
        default, close = self.heads.default(state.default_headers), b"" if keep_alive else _CLOSE
        self.transport.write(b"".join((STATUS_LINE[whole.status], default, whole.head, close, b"\r\n", whole.content)))
        if not keep_alive:
            self.transport.close()
        if self.pipeline or not keep_alive:
            self.on_response_complete()
            return
        state.total_requests += 1
        self._idle_since = self.loop.time()
        # One that was set before is left, and looks when it ends: setting one for each answer costs more than that.
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
            # A request is being answered. When it is, it is waited for the next.
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
            problem = Problem.of(400, "bad_request", f"the request is not HTTP/1.1 as it is spoken here: {fact}")
            _log.info("request refused", action="http.request", status=400, fact=fact)
        content = problem.content()
        head = (
            f"HTTP/1.1 400 {problem.title}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(content)}\r\n"
            f"x-correlation-id: {identifier}\r\nx-content-type-options: nosniff\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + content)
        self.transport.close()


def protocol_of(heads: Heads) -> type[HttpProtocol]:
    """Return the protocol for the connections of one server."""
    return type("HttpProtocol", (HttpProtocol,), {"heads": heads})
