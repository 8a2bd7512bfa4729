"""WebSocket protocol: uvicorn's handler of an upgraded connection, within the limits of the HTTP port.

It relies on internals of uvicorn, as `protocol` does.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

import uvicorn
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from wsproto.events import CloseConnection, Ping
from wsproto.utilities import LocalProtocolError

from headgate.serve.http.limits.connection_limits import ConnectionCounter
from headgate.serve.http.limits.load_shedder import LoadShedder
from headgate.serve.http.websocket import as_http

# The same as a body of GraphQL. Messages are not compressed: a small one could expand to a large one.
MESSAGE_BYTES_MAX: Final = 256 * 1024
# A client that does not answer a ping in time is disconnected.
PING_SECONDS: Final = 15.0
PONG_SECONDS: Final = 20.0
GOING_AWAY: Final = 1001
_STOPPING: Final = "the server stops; connect again"


class WebSocketProtocol(WSProtocol):
    """One upgraded connection. It counts like any other connection."""

    counter: ConnectionCounter
    shedder: LoadShedder

    def __init__(self, config: uvicorn.Config, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(config, *arguments, **more)
        self.app = as_http(self.shedder.counted(self.app))  # type: ignore[assignment, arg-type]  # two names for ASGI
        self._counted: str | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.client is None:
            # The client has reset the connection.
            transport.abort()
        elif self.counter.add(self.client[0]) is None:
            # The HTTP protocol has given up its place for this one.
            self._counted = self.client[0]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted is not None:
            self.counter.remove(self._counted)
            self._counted = None
        super().connection_lost(exc)

    async def send(self, message: Any) -> None:  # noqa: ANN401 - an ASGI message
        await self.writable.wait()
        if self.close_sent:
            # Closed by the protocol, for example for a message that is too large.
            raise ClientDisconnected
        await super().send(message)

    def handle_ping(self, event: Ping) -> None:
        if self.writable.is_set():
            super().handle_ping(event)
        else:
            # The client sends pings and does not read the answers, which would fill the memory.
            self.transport.abort()

    def keepalive_timeout(self) -> None:
        if self.writable.is_set():
            super().keepalive_timeout()
        else:
            # A transport is closed only after everything is written, which this client does not read.
            self.transport.abort()

    def shutdown(self) -> None:
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
            return
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY, "reason": _STOPPING})
        with suppress(LocalProtocolError):  # The client is closing it already.
            self.transport.write(self.conn.send(CloseConnection(code=GOING_AWAY, reason=_STOPPING)))
        self.transport.close()


def websocket_protocol_of(counter: ConnectionCounter, shedder: LoadShedder) -> type[WebSocketProtocol]:
    """Return the protocol class for the upgraded connections of one server."""
    return type("WebSocketProtocol", (WebSocketProtocol,), {"counter": counter, "shedder": shedder})
