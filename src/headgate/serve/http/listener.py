"""HTTP listener: binds the socket at construction, and runs uvicorn on it without its signal handlers and logs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

import uvicorn
from litestar.types import ASGIApp

from headgate.errors import SettingsError
from headgate.serve.http.protocol import HeadCache, protocol_of
from headgate.serve.http.tls import Tls
from headgate.settings import Address

_BACKLOG: Final = 512


class HttpServer:
    """Serves an ASGI application on one address."""

    def __init__(self, address: Address, *, tls: Tls | None = None) -> None:
        """Listen on `address`. Raises `SettingsError` if the port is in use or the address is not local."""
        self._tls = tls
        self._socket = _listen(address)
        self.address = Address(address.host, self._socket.getsockname()[1])
        self._uvicorn: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp, *, grace_seconds: float) -> asyncio.Task[None]:
        """Start serving, and return the serving task. The task ends when the server is drained."""
        config = uvicorn.Config(
            app,
            http=protocol_of(HeadCache()),
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
        """Stop accepting and finish requests in progress; those that exceed the grace period are cut off."""
        if self._uvicorn is not None and self._serving is not None:
            self._uvicorn.should_exit = True
            await self._serving

    def close(self) -> None:
        self._socket.close()


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Our own context, which was validated before the start.
        self.config.ssl = self._tls
        await super().startup(sockets)
        self.listening.set()

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        # `headgate.serve.process.Stop` handles signals, for both ports.
        return contextlib.nullcontext()


def _listen(address: Address) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as exc:
        raise SettingsError(f"http = {address}: unknown host name; correct --http HOST:PORT") from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        # Listen now: two processes may bind the port, but only one can listen.
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise SettingsError(
            f"http = {address}: cannot listen: {exc.strerror}; stop the process that listens on port {address.port}, "
            "or choose another with --http HOST:PORT (port 0 picks a free one)"
        ) from exc
    return listener
