"""The HTTP port: a socket that is taken at once, and uvicorn on it without its own ideas about signals and logs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
import sys
from typing import Any, Final

import structlog
import uvicorn
from litestar.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headgate.errors import SettingsError
from headgate.serve.direct import DirectApp, Whole
from headgate.serve.problem import MEDIA_TYPE, Problem
from headgate.serve.tls import Tls
from headgate.settings import Address
from headgate.telemetry import correlated

_BACKLOG: Final = 512
# A body whose length has more digits is not small.
_SMALL_DIGITS: Final = 4
_log = structlog.get_logger(__name__)


class HttpServer:
    """Serves an ASGI application on one address."""

    def __init__(self, address: Address, *, tls: Tls | None = None) -> None:
        """Listen on `address`. Raises `SettingsError` if the port is taken or the address is not this machine's."""
        self._tls = tls
        self._socket = _listen(address)
        self.address = Address(address.host, self._socket.getsockname()[1])
        self._uvicorn: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp, *, grace_seconds: float) -> asyncio.Task[None]:
        """Return, once requests are answered, the task that answers them. It ends when the server is drained."""
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, int(grace_seconds)),
        )
        self._uvicorn = _Uvicorn(config, None if self._tls is None else self._tls.context)
        self._serving = asyncio.create_task(self._uvicorn.serve([self._socket]))
        started = asyncio.create_task(self._uvicorn.listening.wait())
        await asyncio.wait({started, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if self._serving.done():
            await self._serving
        return self._serving

    async def drain(self) -> None:
        """Stop accepting, finish the requests under way, and return; what takes longer than the grace is cut off."""
        if self._uvicorn is not None and self._serving is not None:
            self._uvicorn.should_exit = True
            await self._serving

    def close(self) -> None:
        self._socket.close()


class _Protocol(HttpToolsProtocol):
    """Answers directly what the application can, and tells whoever sends what is not HTTP so in the shape of errors.

    A small request is kept until all of it is there. If it is not answered then, it goes on as if it had just begun.
    """

    def __init__(self, config: uvicorn.Config, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(config, *arguments, **more)
        self._direct_app = config.app if isinstance(config.app, DirectApp) else None
        # The body so far of a request that may be answered directly.
        self._kept: bytes | None = None

    def on_headers_complete(self) -> None:
        if self._may_be_direct():
            self._kept = b""
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._kept is None:
            super().on_body(body)
        else:
            self._kept += body

    def on_message_complete(self) -> None:
        if self._kept is not None and self._direct_app is not None:
            whole = self._direct_app.direct(self.url, self.headers, self.client, self._kept)
            if whole is not None:
                self._kept = None
                self._send(whole)
                return
            self._go_on()
        super().on_message_complete()

    def shutdown(self) -> None:
        self._go_on()
        super().shutdown()

    def _may_be_direct(self) -> bool:
        if self._direct_app is None or not self._direct_app.takes(self.url) or self.parser.get_method() != b"POST":
            return False
        is_next = self.cycle is None or self.cycle.response_complete
        parser = self.parser
        is_plain = parser.should_keep_alive() and not parser.should_upgrade() and parser.get_http_version() == "1.1"
        lengths = [value for name, value in self.headers if name == b"content-length"]
        is_small = len(lengths) == 1 and len(lengths[0]) <= _SMALL_DIGITS
        return is_next and is_plain and is_small and not self.expect_100_continue and not self.flow.write_paused

    def _go_on(self) -> None:
        """Let a request that was kept take its usual way."""
        kept, self._kept = self._kept, None
        if kept is not None:
            super().on_headers_complete()
            super().on_body(kept)

    def _send(self, whole: Whole) -> None:
        parts = [STATUS_LINE[whole.status]]
        for name, value in (*self.server_state.default_headers, *whole.headers):
            parts += [name, b": ", value, b"\r\n"]
        self.transport.write(b"".join([*parts, b"\r\n", whole.content]))
        self.on_response_complete()

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


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Ours rather than one that uvicorn makes from files: it was checked before anything was started.
        self.config.ssl = self._tls
        await super().startup(sockets)
        self.listening.set()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        # Signals belong to `headgate.serve.stop`: they end both ports, not this one alone.
        return contextlib.nullcontext()


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as exc:
        raise SettingsError(f"http = {address}: this host name is not known here; correct --http HOST:PORT") from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        # Listening at once, not when the rest is ready: two processes may both bind, but only one can listen.
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise SettingsError(
            f"http = {address}: cannot listen there: {exc.strerror}; stop what listens on port {address.port}, "
            "or choose another with --http HOST:PORT (port 0 picks a free one)"
        ) from exc
    return listener
