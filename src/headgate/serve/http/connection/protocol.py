"""HTTP protocol: uvicorn's connection handler, with a fast path for requests that the application answers directly.

A short request is buffered until it is complete and offered to the application. If the application declines, the
request continues through uvicorn. Clients repeat the same head bytes, so parsed heads are cached by their bytes.

Limits apply before a request is complete. Data is parsed in pieces no larger than the header limit, so that a head
never takes more than two limits of memory. The listener checks the times of all connections once a second, which costs
a request nothing.

It relies on internals of uvicorn. The dependency is bounded by version, and a test fails when an internal is gone
(`tests/unit/serve/http/connection/test_uvicorn_internals.py`).
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Callable
from http import HTTPStatus
from time import monotonic
from typing import Any, Final

import structlog
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headgate.serve.http.connection.head_cache import HeadCache
from headgate.serve.http.fast_path import DEFERRED, FastPathApp, FullResponse
from headgate.serve.http.limits.connection_limits import ConnectionCounter, Refusal, check_head, is_body_late
from headgate.serve.http.limits.load_shedder import BEGUN, LoadShedder, Priority, priority_of
from headgate.serve.http.origin_guard import BODY_BYTES_MAX
from headgate.serve.http.problem import MEDIA_TYPE, Problem, retry_after
from headgate.serve.http.websocket import PATHS as WEBSOCKET_PATHS
from headgate.settings import LimitSettings
from headgate.telemetry import correlated

# Bodies whose length has at least this many digits share a memory budget until their caller is authenticated.
_LARGE_DIGITS: Final = 5
LARGE_BYTES_MAX: Final = 64 * 1024 * 1024
_CLOSE: Final = b"connection: close\r\n"
_HTTP_VERSION_BYTES: Final = len(" HTTP/1.1") + len(" ")
_RETRY_SECONDS: Final = 1.0
# The body of a refused request is read if its length has at most this many digits; otherwise the connection is closed.
_DISCARDED_DIGITS_MAX: Final = 6
_log = structlog.get_logger(__name__)


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


class _RefusedError(Exception):
    """Ends the parsing of a request that is refused."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. Malformed HTTP is answered with `application/problem+json`."""

    heads: HeadCache
    limits: LimitSettings
    counter: ConnectionCounter
    shedder: LoadShedder

    def __init__(self, config: uvicorn.Config, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(config, *arguments, **more)
        self._fast_app = config.app if isinstance(config.app, FastPathApp) else None
        self.app = self.shedder.counted(self.app)
        # The priority of a request that is refused under overload, until all of it has arrived.
        self._shed_priority: Priority | None = None
        # Whether the request may become a WebSocket, and whether the connection has.
        self._may_upgrade = self._is_upgraded = False
        # Body chunks of a request that is a candidate for the fast path, and its share of the budget.
        self._buffered: list[bytes] | None = None
        self._large_bytes = 0
        self._parsed_head: Any = None
        self._is_in_message = False
        # The last data received if a request starts with it, and whether the application already declined it.
        self._received = b""
        self._was_declined = False
        self._peer = ""
        self._read_at = 0.0
        self._accepted_at = self._idle_since = self.loop.time()
        # The address that is counted; None before it is, and for a refused connection.
        self._counted: str | None = None
        # Why the request that is parsed is refused.
        self._refusal: Refusal | None = None
        # Of a head that did not arrive at once: its start time, and a lower bound of its bytes received.
        self._is_in_head = False
        self._head_since = 0.0
        self._head_bytes = 0
        # Of a body that did not arrive at once: bytes since a time, total bytes, and bytes of framing.
        self._body_since: float | None = None
        self._body_bytes = self._body_bytes_total = self._framing_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.client is None:
            # The client has reset the connection. What it sent would still arrive, without the address of its sender.
            transport.abort()
            return
        address, port = self.client
        self._peer = f"{address}:{port}"
        refusal = self.counter.add(address)
        if refusal is None:
            self._counted = address
        else:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted is not None:
            self.counter.remove(self._counted)
            self._counted = None
        self._release_budget()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # Not `loop.time`: uvloop's clock does not advance within a pass. A request is judged by when it was read: a
        # process that is suspended while it parses the only request of a pass is not overloaded.
        now = self._read_at = monotonic()
        if self.shedder.on_data(self.loop, now) and self._shed_unparsed(data, now):
            return
        if self._fast_app is not None and not self._is_in_message:
            found = self.heads.find(data) if self._is_free() else None
            if found is not None:
                if self._answer(*found):
                    return
                self._was_declined = True
            self._received = data
        piece_bytes = self.limits.header_bytes
        if len(data) <= piece_bytes:
            self._parse(data)
        else:
            for start in range(0, len(data), piece_bytes):
                if self.transport.is_closing():
                    break
                self._parse(data[start : start + piece_bytes])
        self._received = b""
        self._was_declined = False

    def _shed_unparsed(self, data: bytes, now: float) -> bool:
        """Refuse a whole request without parsing it, if it is a plain one. Return whether it was refused."""
        if self._is_in_message or not self._is_free():
            return False
        url = self.heads.plain_url(data)
        if url is None:
            return False
        priority = priority_of(url)
        is_fast = self._fast_app is not None and self._fast_app.length_digits_max(url) > 0
        if self.shedder.accepts(priority, now, is_task=not is_fast):
            return False
        self.shedder.refuse(priority, self.loop, now, self._defer())
        return True

    def _parse(self, data: bytes) -> None:
        if self._is_upgraded:
            # A client may send nothing more before its handshake is answered.
            return
        super().data_received(data)
        if self._is_in_message and not self.transport.is_closing():
            refusal = self._check_head_part(len(data)) if self._is_in_head else self._check_body_part(len(data))
            if refusal is not None:
                self._refuse(refusal)

    def _check_head_part(self, received_bytes: int) -> Refusal | None:
        # The head may begin anywhere in the first piece, which is no larger than the limit: it is not counted.
        self._head_bytes += received_bytes if self._head_bytes else 1
        return check_head(self.limits, line_bytes=len(self.url), head_bytes=self._head_bytes, headers=len(self.headers))

    def _check_body_part(self, received_bytes: int) -> Refusal | None:
        if self._body_since is None:
            self._body_since = self.loop.time()
        if self._body_bytes_total > 2 * BODY_BYTES_MAX:
            return Refusal(413, "content_too_large", f"the body is larger than {BODY_BYTES_MAX:,} bytes; send less")
        # Chunk extensions and trailers; the parser appends trailers to the headers.
        self._framing_bytes += received_bytes
        return check_head(self.limits, line_bytes=0, head_bytes=self._framing_bytes, headers=len(self.headers))

    def check_times(self, now: float) -> None:
        """Close the connection if the client is too slow. Called once a second."""
        if self.transport is None or self.transport.is_closing():
            return
        if not self._is_in_message:
            self._check_idle(now)
        elif self._is_in_head:
            if now - self._head_since > self.limits.header_seconds:
                detail = f"the headers did not arrive in {self.limits.header_seconds:g} s; send them at once"
                self._refuse(Refusal(408, "request_timeout", detail))
        elif self._body_since is not None:
            self._check_body_time(now, self._body_since)

    def _check_idle(self, now: float) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            return
        limits, is_new = self.limits, self._idle_since == self._accepted_at
        if now - self._idle_since > (limits.header_seconds if is_new else limits.idle_seconds):
            self.transport.close()

    def _check_body_time(self, now: float, since: float) -> None:
        # While reading is paused the application is slow, not the client.
        is_late = not self.flow.read_paused and is_body_late(
            self.limits, seconds=now - since, received_bytes=self._body_bytes
        )
        if is_late:
            detail = f"the body made no progress in {self.limits.body_seconds:g} s; send it faster"
            self._refuse(Refusal(408, "request_timeout", detail))
        elif is_late is not None:
            self._body_since, self._body_bytes = now, 0

    def on_message_begin(self) -> None:
        self._is_in_message = self._is_in_head = True
        self._may_upgrade = False
        self._head_since = self.loop.time()
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        line_bytes = len(self.url) + len(self.parser.get_method()) + _HTTP_VERSION_BYTES
        # A head that arrived in one piece is not larger than the piece.
        head_bytes = sum(len(name) + len(value) + 4 for name, value in self.headers) if self._head_bytes else 0
        refusal = check_head(self.limits, line_bytes=line_bytes, head_bytes=head_bytes, headers=len(self.headers))
        if refusal is not None:
            self._refusal = refusal
            raise _RefusedError
        self._body_since = None
        self._body_bytes = self._body_bytes_total = self._framing_bytes = 0
        is_next, is_fast = self._is_free(), self._is_fast_path_candidate()
        if is_next and not self._is_accepted(is_fast=is_fast):
            return
        if is_fast:
            self._buffered = []
            return
        self._may_upgrade = is_next and self._is_handshake()
        super().on_headers_complete()
        if is_next and not self.parser.should_upgrade():
            # Its task is created now and starts in a later pass.
            self.shedder.begin()
            self.scope[BEGUN] = True  # type: ignore[typeddict-unknown-key]  # ours

    def _is_handshake(self) -> bool:
        is_upgrade = self.parser.should_upgrade() and self.parser.get_method() == b"GET"
        return is_upgrade and self.url.partition(b"?")[0] in WEBSOCKET_PATHS

    def _should_upgrade(self) -> bool:
        return self._may_upgrade and super()._should_upgrade()

    def handle_websocket_upgrade(self) -> None:
        if self._counted is not None:
            # The WebSocket protocol counts the connection from now on.
            self.counter.remove(self._counted)
            self._counted = None
        self._is_upgraded, self._is_in_message = True, False
        super().handle_websocket_upgrade()

    def _is_accepted(self, *, is_fast: bool) -> bool:
        """Whether the request whose head is complete is accepted; if not, it is refused when all of it has arrived."""
        priority = priority_of(self.url)
        if self.shedder.accepts(priority, self._read_at, is_task=not is_fast):
            return True
        if is_fast:
            self._release_budget()
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if self.expect_100_continue or len(length) > _DISCARDED_DIGITS_MAX or b"chunked" in dict(self.headers).values():
            self.shedder.count(priority)
            self._refusal = Refusal(503, "server_busy", "the server is overloaded; retry after the given time")
            raise _RefusedError
        self._shed_priority = priority
        return False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_bytes_total += len(body)
        self._framing_bytes = 0
        if self._shed_priority is not None:
            return
        if self._buffered is None:
            super().on_body(body)
        else:
            self._buffered.append(body)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        if self._shed_priority is not None:
            priority, self._shed_priority = self._shed_priority, None
            self.shedder.refuse(priority, self.loop, monotonic(), self._defer())
            return
        if self._buffered is not None:
            body = b"".join(self._buffered)
            if self._received:
                self.heads.learn(self._received, self._parsed_head, body)
            if self._answer(self._parsed_head, body):
                self._buffered = None
                self._release_budget()
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
        return self._parsed_head is not None and self._take_budget(lengths[0])

    def _take_budget(self, length: bytes) -> bool:
        """Reserve the memory of a large body. Without it, uvicorn reads the body only as fast as it is consumed."""
        if len(length) < _LARGE_DIGITS:
            return True
        if not length.isdigit() or self.heads.large_bytes + int(length) > LARGE_BYTES_MAX:
            return False
        self._large_bytes = int(length)
        self.heads.large_bytes += self._large_bytes
        return True

    def _release_budget(self) -> None:
        self.heads.large_bytes -= self._large_bytes
        self._large_bytes = 0

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
        self._release_budget()
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
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        fact = str(sys.exception() or msg)
        self._refuse(Refusal(400, "bad_request", f"the request is not valid HTTP/1.1: {fact}"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer with a problem, unless a response has begun, and close the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            # Its task must not write to the connection any more; it sees that the client has disconnected.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.cycle is None or not getattr(self.cycle, "response_started", False) or self.cycle.response_complete:
            self.transport.write(_problem_response(refusal))
        self.transport.close()


def _problem_response(refusal: Refusal) -> bytes:
    identifier = f"req_{secrets.token_hex(13)}"
    with correlated(identifier):
        problem = Problem.of(refusal.status, refusal.code, refusal.detail)
        _log.info("request refused", action="http.request", status=refusal.status, fact=refusal.detail)
    content = problem.content()
    headers = {
        "content-type": MEDIA_TYPE,
        "content-length": str(len(content)),
        "x-correlation-id": identifier,
        "x-content-type-options": "nosniff",
        "connection": "close",
        **(retry_after(_RETRY_SECONDS) if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE else {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {refusal.status} {problem.title}\r\n{head}\r\n".encode("ascii") + content


def protocol_of(
    heads: HeadCache,
    limits: LimitSettings | None = None,
    counter: ConnectionCounter | None = None,
    shedder: LoadShedder | None = None,
) -> type[HttpProtocol]:
    """Return the protocol class for the connections of one server."""
    limits = LimitSettings() if limits is None else limits
    shared = {
        "heads": heads,
        "limits": limits,
        "counter": ConnectionCounter(limits) if counter is None else counter,
        "shedder": LoadShedder(in_flight_max=limits.in_flight) if shedder is None else shedder,
    }
    return type("HttpProtocol", (HttpProtocol,), shared)
