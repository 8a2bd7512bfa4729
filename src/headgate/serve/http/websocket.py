"""WebSockets within the HTTP application: the handshake is a GET request, and status 101 accepts it.

Access log, origin guard, readiness gate, authentication and routing therefore apply to a handshake as to any other
request, and a refusal is an HTTP response. The handler of the route talks through the `WebSocket` of the scope.
"""

from __future__ import annotations

from typing import Any, Final

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

# The paths that accept a WebSocket. On all others an upgrade is ignored, and the request is an ordinary one.
PATHS: Final = frozenset({b"/graphql"})
SWITCHING_PROTOCOLS: Final = 101
_KEY: Final = "headgate.websocket"
_SUBPROTOCOL: Final = b"sec-websocket-protocol"


class SocketGoneError(Exception):
    """The client has disconnected."""


class WebSocket:
    """The connection of a handshake. Messages are sent and received after it was accepted."""

    def __init__(self, receive: Receive, send: Send, subprotocols: list[str]) -> None:
        self.subprotocols = subprotocols
        # Set by the origin guard: a page of this server opened it, so that the cookie of a session counts.
        self.is_own_page = False
        self._receive = receive
        self._send = send

    async def receive(self) -> str | None:
        """Return the next message; None for a binary one. Raises `SocketGoneError`."""
        message: Any = await self._receive()
        if message["type"] != "websocket.receive":
            raise SocketGoneError
        text: str | None = message.get("text")
        return text

    async def send(self, text: str) -> None:
        """Send a message when the client has read enough of the earlier ones. Raises `SocketGoneError`."""
        await self._pass_on({"type": "websocket.send", "text": text, "bytes": None})

    async def close(self, code: int, reason: str) -> None:
        """Close the connection. Raises `SocketGoneError`."""
        await self._pass_on({"type": "websocket.close", "code": code, "reason": reason})

    async def _pass_on(self, message: Any) -> None:  # noqa: ANN401 - an ASGI message
        try:
            await self._send(message)
        except OSError as exc:
            raise SocketGoneError from exc


def socket_of(scope: Any) -> WebSocket | None:  # noqa: ANN401 - of any kind of connection
    """Return the WebSocket whose handshake a request is; None for an ordinary request."""
    socket: WebSocket | None = scope.get(_KEY)
    return socket


def accepted(subprotocol: str) -> Message:
    """Return the start of the response that accepts a handshake."""
    headers = [(_SUBPROTOCOL, subprotocol.encode("ascii"))]
    return {"type": "http.response.start", "status": SWITCHING_PROTOCOLS, "headers": headers}


def as_http(app: ASGIApp) -> ASGIApp:
    """Return an application for WebSocket connections that passes handshakes to `app` as HTTP requests."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        given: Any = scope
        await receive()
        request = {
            **given,
            "type": ScopeType.HTTP,
            "method": "GET",
            "scheme": "https" if given["scheme"] == "wss" else "http",
            _KEY: WebSocket(receive, send, list(given["subprotocols"])),
        }
        await app(request, _no_body, _Responses(send))  # type: ignore[arg-type]  # a scope

    return run


async def _no_body() -> Any:  # noqa: ANN401 - an ASGI message
    return {"type": "http.request", "body": b"", "more_body": False}


class _Responses:
    """Turns the messages of an HTTP response into those that answer a handshake."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_accepted = False

    async def __call__(self, message: Any) -> None:  # noqa: ANN401 - an ASGI message
        if message["type"] == "http.response.start" and message["status"] == SWITCHING_PROTOCOLS:
            self._is_accepted = True
            headers = [pair for pair in message["headers"] if pair[0] != _SUBPROTOCOL]
            chosen = next(value.decode("ascii") for name, value in message["headers"] if name == _SUBPROTOCOL)
            await self._answer({"type": "websocket.accept", "subprotocol": chosen, "headers": headers})
        elif not self._is_accepted:
            await self._answer({**message, "type": f"websocket.{message['type']}"})

    async def _answer(self, message: Any) -> None:  # noqa: ANN401 - an ASGI message
        await self._send(message)
