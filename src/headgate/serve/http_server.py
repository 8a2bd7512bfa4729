"""The HTTP port: a socket that is taken at once, and uvicorn on it without its own ideas about signals and logs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import ssl
import sys
from typing import Final

import structlog
import uvicorn
from litestar.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.errors import SettingsError
from headgate.serve.problem import MEDIA_TYPE, Problem
from headgate.serve.tls import Tls
from headgate.settings import Address
from headgate.telemetry import correlated

_BACKLOG: Final = 512
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
    """Tells whoever sends what is not HTTP so in the shape of every other error: the application never sees it."""

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
