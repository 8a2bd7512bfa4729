"""Connect protocol: serves RPC methods over plain HTTP POST, so that curl or any HTTP client can call them.

It runs in front of the web framework for speed, and does the middleware's work itself: the origin guard's checks here,
correlation id, metrics and log line in the dispatcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Receive, Scope, Send

from headgate.errors import InvalidPayloadError
from headgate.serve.http.access_log import CORRELATION_HEADER
from headgate.serve.http.fast_path import DEFERRED, Deferred, FullResponse, RawPairs, head_of
from headgate.serve.http.origin_guard import is_preflight
from headgate.serve.http.problem import Problem, retry_after, send_problem
from headgate.serve.rpc.codec import Binary, Codec
from headgate.serve.rpc.connect_wire import (
    JSON,
    PROTO,
    STATUSES,
    Json,
    RawHeaders,
    decompressed,
    end_of_stream,
    enveloped,
    error_content,
    opened,
    queried,
)
from headgate.serve.rpc.dispatcher import Dispatcher
from headgate.serve.rpc.errors import RpcFailure, failure
from headgate.serve.rpc.methods import MESSAGE_BYTES_MAX, Method, RpcCall, merge_headers
from headgate.telemetry import correlated

API: Final = "connect"
_UNARY: Final[dict[bytes, Codec]] = {PROTO: Binary(), JSON: Json()}
_STREAMS: Final[dict[bytes, Codec]] = {b"application/connect+proto": Binary(), b"application/connect+json": Json()}
_NO_SNIFFING: Final = (b"x-content-type-options", b"nosniff")
_TIMEOUT_DIGITS_MAX: Final = 10
# Maximum number of cached hosts that passed the guard; content-length digits that are always below the guard's limit.
_HOSTS_MAX: Final = 64
_LENGTH_DIGITS_MAX: Final = 6
# Longer requests take long to decode and are not answered on the event loop.
_SMALL_DIGITS: Final = 4
_CUT_OFF: Final = "the server stopped before the call completed; check its effect before you retry"


class _ParsedHead(NamedTuple):
    """The parsed head of a call."""

    method: Method
    codec: Codec
    media: bytes
    headers: dict[str, str]
    # The caller's correlation id, or None.
    name: str | None
    timeout_seconds: float | None


class Connect:
    """ASGI middleware that answers RPC calls and passes all other requests on."""

    def __init__(
        self,
        app: ASGIApp,
        dispatcher: Dispatcher,
        *,
        refusal: Callable[[HTTPScope], Problem | None],
        shared: Callable[[HTTPScope, Send], Send] = lambda _scope, send: send,
    ) -> None:
        """Answer calls that `refusal`, the check of the origin guard, does not refuse.

        `shared` adds the guard's headers that let pages of configured origins read a response.
        """
        self._app = app
        self._shared = shared
        self._dispatcher = dispatcher
        self._methods = dispatcher.methods
        self._refusal = refusal
        self._hosts: set[bytes] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = self._methods.get(scope["path"]) if scope["type"] == ScopeType.HTTP else None
        # The origin guard answers the preflight requests of browsers.
        if method is None or is_preflight(scope):  # type: ignore[arg-type]  # its type is "http"
            await self._app(scope, receive, send)
            return
        headers = merge_headers(scope["headers"], b", ")
        if b"origin" in headers:
            send = self._shared(scope, send)  # type: ignore[arg-type]
        exchange = _Exchange(scope, headers, receive, send, self._name(headers))  # type: ignore[arg-type]
        try:
            await self._serve(method, exchange)
        except asyncio.CancelledError:
            # Requests are cancelled only when the drain deadline passes; this response is the last action.
            if exchange.has_begun:
                raise
            await exchange.fail(RpcFailure("UNAVAILABLE", "draining", _CUT_OFF, []))

    def length_digits_max(self, url: bytes) -> int:
        """Return the maximum content-length digits for the fast path; 0 disables it."""
        method = self._dispatcher.fast_methods.get(url)
        if method is None:
            return 0
        # Offloaded calls are not decoded here; the guard's limit applies.
        return _LENGTH_DIGITS_MAX if method.runs_in_intake else _SMALL_DIGITS

    def parsed_head(self, url: bytes, headers: RawPairs) -> _ParsedHead | None:
        """Parse the head of a common call, or return None if the call must go over ASGI."""
        found = merge_headers(headers, b", ")
        codec = _UNARY.get(found.get(b"content-type", b""))
        if codec is None or b"content-encoding" in found or not self._is_plain(found, len(headers)):
            return None
        try:
            timeout_seconds = _timeout_seconds(found)
        except InvalidPayloadError:
            return None
        texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in found.items()}
        name = self._name(found) if CORRELATION_HEADER in found else None
        if name is not None and found[CORRELATION_HEADER] != name.encode("latin-1"):
            # An invalid id is replaced, by a new one for each call: not cacheable.
            return None
        return _ParsedHead(
            self._dispatcher.fast_methods[url], codec, found[b"content-type"], texts, name, timeout_seconds
        )

    def answer_fast(
        self,
        parsed_head: _ParsedHead,
        peer: str,
        body: bytes,
        defer: Callable[[], Callable[[FullResponse], None]],
    ) -> FullResponse | Deferred | None:
        """Answer a call inline or offload it; None: it must go over ASGI."""
        dispatcher = self._dispatcher
        method, codec, media, headers, name, timeout_seconds = parsed_head
        clock = dispatcher.clock
        deadline_at = None if timeout_seconds is None else clock.monotonic() + timeout_seconds
        call = RpcCall(headers, peer, clock, deadline_at)
        if name is None:
            name = dispatcher.correlation(None)
        if method.runs_in_intake:
            is_offloaded = dispatcher.offload(
                API, method, body, codec, call, name, partial(_responder, defer, media, name)
            )
            return DEFERRED if is_offloaded else None
        try:
            content = dispatcher.answer_inline(API, method, body, codec, call, name)
        except RpcFailure as exc:
            return _failed(name, exc).full()
        return None if content is None else _succeeded(name, media, content).full()

    def _name(self, headers: dict[bytes, bytes]) -> str:
        given = headers.get(CORRELATION_HEADER)
        return self._dispatcher.correlation(None if given is None else given.decode("latin-1"))

    async def _serve(self, method: Method, exchange: _Exchange) -> None:
        is_plain = self._is_plain(exchange.headers, len(list(exchange.scope["headers"])))
        if not (is_plain and exchange.is_common_form(method)):
            with correlated(exchange.name):
                problem = self._refusal(exchange.scope) or exchange.form_problem(method)
            if problem is not None:
                await exchange.refuse(problem)
                return
            if len(self._hosts) < _HOSTS_MAX:
                self._hosts.add(exchange.headers[b"host"])
        try:
            call = self._call(exchange.headers, exchange.scope["client"])
            if exchange.is_large:
                await self._dispatcher.check_caller(method, call)
            media, content = await exchange.content()
        except (InvalidPayloadError, RpcFailure) as exc:
            with correlated(exchange.name):
                failed = exc if isinstance(exc, RpcFailure) else failure(exc, method.request)
                self._dispatcher.record(API, method, failed.status, 0.0)
            await (exchange.end_stream(failed) if method.is_stream else exchange.fail(failed))
            return
        if method.is_stream:
            await self._stream(method, exchange, content, call)
            return
        try:
            answer = await self._dispatcher.unary(API, method, content, _UNARY[media], call, exchange.name)
        except RpcFailure as exc:
            await exchange.fail(exc)
        else:
            await exchange.answer(_succeeded(exchange.name, media, answer))

    async def _stream(self, method: Method, exchange: _Exchange, content: bytes, call: RpcCall) -> None:
        codec = _STREAMS[exchange.media]
        answers = self._dispatcher.stream(API, method, content, codec, call, exchange.name)
        failed: RpcFailure | None = None
        await exchange.begin_stream()
        try:
            async with aclosing(_until(exchange.gone(), answers)) as parts:
                async for each in parts:
                    await exchange.send_part(enveloped(each))
        except RpcFailure as exc:
            failed = exc
        await exchange.end_stream(failed)

    def _is_plain(self, headers: dict[bytes, bytes], given: int) -> bool:
        """Whether the guard would accept the request, judged by cached hosts and absent headers."""
        return (
            headers.get(b"host") in self._hosts
            and b"origin" not in headers
            and b"sec-fetch-site" not in headers
            and len(headers.get(b"content-length", b"")) <= _LENGTH_DIGITS_MAX
            # No repeated header.
            and len(headers) == given
        )

    def _call(self, headers: dict[bytes, bytes], client: tuple[str, int] | None) -> RpcCall:
        """Build the call from the headers. Raises `InvalidPayloadError`."""
        clock, timeout_seconds = self._dispatcher.clock, _timeout_seconds(headers)
        deadline_at = None if timeout_seconds is None else clock.monotonic() + timeout_seconds
        peer = "" if client is None else f"{client[0]}:{client[1]}"
        return RpcCall(RawHeaders(headers), peer, clock, deadline_at)


def _timeout_seconds(headers: dict[bytes, bytes]) -> float | None:
    """Return the caller's timeout, or None. Raises `InvalidPayloadError`."""
    if headers.get(b"connect-protocol-version", b"1") != b"1":
        raise InvalidPayloadError("connect-protocol-version: only version 1 is supported")
    timeout = headers.get(b"connect-timeout-ms")
    if timeout is None:
        return None
    if not timeout.isdigit() or len(timeout) > _TIMEOUT_DIGITS_MAX:
        raise InvalidPayloadError("connect-timeout-ms: write whole milliseconds, at most ten digits")
    return int(timeout) / 1000


class _Answer(NamedTuple):
    """A complete response, independent of fast path or ASGI."""

    status: int
    headers: RawPairs
    content: bytes

    def full(self) -> FullResponse:
        return FullResponse(self.status, head_of(self.headers), self.content)


def _responder(
    defer: Callable[[], Callable[[FullResponse], None]], media: bytes, name: str
) -> Callable[[bytes | RpcFailure], None]:
    """Return the callback that sends the outcome of an offloaded call."""
    respond = defer()

    def on_outcome(outcome: bytes | RpcFailure) -> None:
        answer = _failed(name, outcome) if isinstance(outcome, RpcFailure) else _succeeded(name, media, outcome)
        respond(answer.full())

    return on_outcome


def _headers(media: bytes, content: bytes, name: str) -> RawPairs:
    return [
        (b"content-type", media),
        (b"content-length", b"%d" % len(content)),
        (CORRELATION_HEADER, name.encode("latin-1")),
        _NO_SNIFFING,
    ]


def _succeeded(name: str, media: bytes, content: bytes) -> _Answer:
    return _Answer(200, _headers(media, content, name), content)


def _failed(name: str, failed: RpcFailure) -> _Answer:
    seconds = failed.retry_seconds
    more = {"headgate-code": failed.code, **({} if seconds is None else retry_after(seconds))}
    content = error_content(failed)
    headers = _headers(JSON, content, name)
    headers += [(field.encode("latin-1"), value.encode("latin-1")) for field, value in more.items()]
    return _Answer(STATUSES[failed.status][1], headers, content)


class _Exchange:
    """One request and its response over ASGI."""

    __slots__ = ("_receive", "_send", "has_begun", "headers", "media", "name", "scope")

    def __init__(self, scope: HTTPScope, headers: dict[bytes, bytes], receive: Receive, send: Send, name: str) -> None:
        self.scope = scope
        self.headers = headers
        self.name = name
        self.has_begun = False
        self.media = headers.get(b"content-type", b"")
        self._receive = receive
        self._send = send

    @property
    def is_large(self) -> bool:
        """Whether the body is too large to be read for a caller without the permission."""
        length = self.headers.get(b"content-length", b"")
        return len(length) > _SMALL_DIGITS or b"transfer-encoding" in self.headers

    def is_common_form(self, method: Method) -> bool:
        """Whether the request is a POST with a plain media type."""
        return self.media in (_STREAMS if method.is_stream else _UNARY) and self.scope["method"] == "POST"

    def form_problem(self, method: Method) -> Problem | None:
        """Normalize the media type; return a problem if verb or media type does not fit the method."""
        verb = self.scope["method"]
        if verb == "GET" and not method.has_side_effects and not method.is_stream:
            return None
        if verb != "POST":
            detail = f"{method.path}: {verb} is not supported; use POST"
            return Problem.of(405, "method_not_allowed", detail)
        accepted = _STREAMS if method.is_stream else _UNARY
        if self.media not in accepted:
            self.media = self.media.partition(b";")[0].strip().lower()
        if self.media not in accepted:
            names = " or ".join(media.decode() for media in accepted)
            return Problem.of(415, "unsupported_media_type", f"{method.path}: send content-type {names}")
        return None

    async def content(self) -> tuple[bytes, bytes]:
        """Return the media type and the decompressed message. Raises `InvalidPayloadError` and `RpcFailure`."""
        if self.scope["method"] == "GET":
            return queried(self.scope["query_string"])
        body = await self._body()
        if self.media in _STREAMS:
            return self.media, opened(body, self.headers.get(b"connect-content-encoding", b""))
        return self.media, decompressed(body, self.headers.get(b"content-encoding", b""))

    async def _body(self) -> bytes:
        message: Any = await self._receive()
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            return body
        parts, size = [body], len(body)
        # The rest of an oversized body is not read.
        while message.get("more_body", False) and size <= MESSAGE_BYTES_MAX:
            message = await self._receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
        return b"".join(parts)

    async def gone(self) -> None:
        """Return once the caller has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def answer(self, answer: _Answer) -> None:
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await self._send({"type": "http.response.body", "body": answer.content, "more_body": False})

    async def fail(self, failed: RpcFailure) -> None:
        await self.answer(_failed(self.name, failed))

    async def refuse(self, problem: Problem) -> None:
        """Send a problem response for a malformed request."""
        self.has_begun = True
        # The body is not read, so the connection cannot serve another request.
        more = {CORRELATION_HEADER.decode(): self.name, "x-content-type-options": "nosniff", "connection": "close"}
        if problem.code == "method_not_allowed":
            more["allow"] = "POST"
        if problem.code == "unsupported_media_type":
            more["accept-post"] = ", ".join(media.decode() for media in (*_UNARY, *_STREAMS))
        await send_problem(self._send, problem, more)

    async def begin_stream(self) -> None:
        self.has_begun = True
        headers = [
            (b"content-type", self.media),
            (CORRELATION_HEADER, self.name.encode("latin-1")),
            _NO_SNIFFING,
            (b"cache-control", b"no-store"),
        ]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send_part(self, content: bytes) -> None:
        await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def end_stream(self, failed: RpcFailure | None) -> None:
        """Send the end-of-stream message. A failed stream has HTTP status 200 too; its last message holds the error."""
        if not self.has_begun:
            await self.begin_stream()
        await self._send({"type": "http.response.body", "body": end_of_stream(failed), "more_body": False})


async def _until(gone: Any, answers: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:  # noqa: ANN401
    """Yield answers until the caller disconnects."""
    disconnected = asyncio.ensure_future(gone)
    upcoming: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            upcoming = asyncio.ensure_future(anext(answers, None))
            await asyncio.wait({upcoming, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not upcoming.done() or (each := upcoming.result()) is None:
                return
            yield each
    finally:
        disconnected.cancel()
        if upcoming is not None and not upcoming.done():
            upcoming.cancel()
            await asyncio.wait({upcoming})
        await answers.aclose()
