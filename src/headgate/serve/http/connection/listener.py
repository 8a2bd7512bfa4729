"""HTTP listener: binds the socket at construction, and runs uvicorn on it without its signal handlers and logs."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog
import uvicorn
from litestar.types import ASGIApp

from headgate.errors import SettingsError
from headgate.serve.http.connection.head_cache import HeadCache
from headgate.serve.http.connection.protocol import HttpProtocol, protocol_of
from headgate.serve.http.connection.tls import Tls
from headgate.serve.http.connection.websocket_protocol import (
    MESSAGE_BYTES_MAX,
    PING_SECONDS,
    PONG_SECONDS,
    websocket_protocol_of,
)
from headgate.serve.http.limits.connection_limits import ConnectionCounter
from headgate.serve.http.limits.load_shedder import LoadShedder
from headgate.serve.http.limits.shared_connections import SharedConnections
from headgate.settings import Address, LimitSettings

_BACKLOG: Final = 512
# uvicorn's main loop runs ten times a second.
_TICKS_PER_SECOND: Final = 10
_START_FAILED: Final = 3
# Connections accepted in one pass of the event loop, and the pause after an error.
_ACCEPTED_MAX: Final = 64
_PAUSE_SECONDS: Final = 1.0
# How long a serving process with more connections than another leaves a new one to the other.
_YIELD_SECONDS: Final = 0.002
# Connections that it accepts after that, if the other has not.
_YIELDED_MAX: Final = 16
_log = structlog.get_logger(__name__)


class HttpServer:
    """Serves an ASGI application on one address."""

    def __init__(
        self,
        address: Address,
        *,
        tls: Tls | None = None,
        limits: LimitSettings | None = None,
        is_behind_proxy: bool = False,
        shedder: LoadShedder | None = None,
        shared: SharedConnections | None = None,
        listening: socket.socket | None = None,
        setting: str = "http",
    ) -> None:
        """Listen on `address`. Raises `SettingsError`, which names the `setting`, if that is not possible.

        A serving process takes the socket on which the first one is `listening`; `shared` are the connections of all.
        """
        self._tls = tls
        self._limits = LimitSettings() if limits is None else limits
        self._counter = ConnectionCounter(self._limits, is_behind_proxy=is_behind_proxy, shared=shared)
        self.shedder = LoadShedder(in_flight_max=self._limits.in_flight) if shedder is None else shedder
        self._socket = _listen(address, setting) if listening is None else listening
        self.address = Address(address.host, self._socket.getsockname()[1])
        self._uvicorn: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(
        self, app: ASGIApp, *, grace_seconds: float, every_second: Callable[[], None] = lambda: None
    ) -> asyncio.Task[None]:
        """Start serving, and return the serving task, which ends when the server is drained.

        `every_second` is called about once a second while the server serves.
        """
        config = uvicorn.Config(
            app,
            http=protocol_of(HeadCache(), self._limits, self._counter, self.shedder),
            ws=websocket_protocol_of(self._counter, self.shedder),
            ws_max_size=MESSAGE_BYTES_MAX,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PONG_SECONDS,
            ws_per_message_deflate=False,
            lifespan="on",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, round(self._limits.idle_seconds)),
            timeout_graceful_shutdown=max(1, int(grace_seconds)),
        )
        context = None if self._tls is None else self._tls.context

        def on_second() -> None:
            self.shedder.log()
            every_second()

        self._uvicorn = _Uvicorn(config, context, self._limits.header_seconds, on_second, self._counter)
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

    def stop_listening(self) -> None:
        """Refuse new connections in all serving processes, whose sockets are one."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Return the descriptor of the listening socket, for further serving processes."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()


class _Acceptor:
    """Accepts the waiting connections of a socket, many in a pass of the event loop.

    uvloop accepts one connection in a pass. Under overload passes are long, and a probe would wait behind all other new
    clients.

    Several serving processes accept from one socket. The one with more connections than another waits a moment first:
    otherwise whichever wakes first would take all of a burst.
    """

    def __init__(
        self,
        listener: socket.socket,
        open_connection: Callable[[socket.socket], Coroutine[Any, Any, None]],
        counter: ConnectionCounter,
    ) -> None:
        self._listener = listener
        self._counter = counter
        self._open = open_connection
        self._loop = asyncio.get_running_loop()
        # The loop holds only weak references to tasks.
        self._opening: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        listener.settimeout(0)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Stop accepting."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()

    async def wait_closed(self) -> None:
        """Return at once: uvicorn waits for the connections itself."""

    def _accept(self, *, is_late: bool = False) -> None:
        for _ in range(_YIELDED_MAX if is_late else _ACCEPTED_MAX):
            if not is_late and self._counter.is_ahead(len(self._opening)):
                self._resume_in(_YIELD_SECONDS)
                return
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                if exc.errno == errno.EINVAL:
                    # The first of several serving processes has stopped listening for all.
                    self._loop.remove_reader(self._listener)
                    return
                # No file descriptor or memory left.
                self._pause(exc)
                return
            connection.settimeout(0)
            opening = self._loop.create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _pause(self, error: OSError) -> None:
        """Stop accepting for a second: the socket stays readable, and the loop would spin."""
        _log.error("connections cannot be accepted", action="http.accept", error=error.strerror)
        self._resume_in(_PAUSE_SECONDS)

    def _resume_in(self, seconds: float) -> None:
        def resume() -> None:
            self._loop.add_reader(self._listener, self._accept)
            # By now for all processes: the other ones may be busy, or gone.
            self._accept(is_late=True)

        self._loop.remove_reader(self._listener)
        self._retry = self._loop.call_later(seconds, resume)


class _Uvicorn(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        tls: ssl.SSLContext | None,
        handshake_seconds: float,
        every_second: Callable[[], None],
        counter: ConnectionCounter,
    ) -> None:
        super().__init__(config)
        self._counter = counter
        self.listening = asyncio.Event()
        # Our own context, which was validated before the start.
        self._tls = tls
        self._handshake_seconds = handshake_seconds
        self._every_second = every_second

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn does, with a time limit for TLS handshakes, and accept connections in batches."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(_START_FAILED)
        # An acceptor has the methods of a server that uvicorn calls.
        self.servers = [_Acceptor(each, self._open, self._counter) for each in sockets or []]  # type: ignore[misc]
        self.started = True
        self.listening.set()

    async def _open(self, connection: socket.socket) -> None:
        """Serve an accepted connection. Drop a client that disconnects at once or fails the TLS handshake."""
        with contextlib.suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else self._handshake_seconds,
            )

    async def on_tick(self, counter: int) -> bool:
        """Check the times of all connections once a second."""
        if counter % _TICKS_PER_SECOND == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, HttpProtocol):
                    connection.check_times(now)
            self._every_second()
        return await super().on_tick(counter)

    def _protocol(self) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:  # type: ignore[override]
        # `headgate.serve.process.Stop` handles signals, for both ports.
        return contextlib.nullcontext()


def _listen(address: Address, setting: str) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as exc:
        raise SettingsError(
            f"{setting} = {address}: unknown host name; correct --{setting.rpartition('.')[2]} HOST:PORT"
        ) from exc
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        # Listen now: two processes may bind the port, but only one can listen.
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise SettingsError(
            f"{setting} = {address}: cannot listen: {exc.strerror}; stop the process that listens on port "
            f"{address.port}, or choose another with --{setting.rpartition('.')[2]} HOST:PORT (port 0 picks a free one)"
        ) from exc
    return listener
