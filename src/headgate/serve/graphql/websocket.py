"""GraphQL subscriptions on a WebSocket, by the protocol `graphql-transport-ws`.

One connection carries several subscriptions. The caller is authenticated by the handshake or by the payload of
`connection_init`, and checked again before each message and at intervals: a key that is revoked or a session that has
ended closes the connection. Queries are refused: they have no limit of requests in progress here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import structlog
from litestar import Request, Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.principals import Principal
from headgate.auth.rate_limits import Level, Rate, take
from headgate.clock import Clock
from headgate.errors import HeadgateError, InvalidPayloadError, QueryLimitError, UnauthenticatedError
from headgate.serve.graphql.engine import Body, GraphqlRequest, Outcome, Refusal, refused
from headgate.serve.graphql.errors import shaped
from headgate.serve.http import sse
from headgate.serve.http.authentication import CallerCredentials
from headgate.serve.http.websocket import SWITCHING_PROTOCOLS, SocketGoneError, WebSocket, accepted

SUBPROTOCOL: Final = "graphql-transport-ws"
SUBSCRIPTIONS_MAX: Final = 16
ID_CHARACTERS_MAX: Final = 128
# Messages of a client on one connection.
MESSAGES: Final = Rate(per_second=20, burst=100)
# Close codes of WebSocket and of the protocol.
GOING_AWAY: Final = 1001
INTERNAL_ERROR: Final = 1011
TRY_AGAIN_LATER: Final = 1013
BAD_MESSAGE: Final = 4400
UNAUTHORIZED: Final = 4401
FORBIDDEN: Final = 4403
INIT_TIMEOUT: Final = 4408
DUPLICATE_ID: Final = 4409
TOO_MANY: Final = 4429
# Limit of the reason of a close.
_REASON_BYTES_MAX: Final = 123
_log = structlog.get_logger(__name__)

Subscribe: TypeAlias = Callable[[GraphqlRequest, Principal], AsyncGenerator[Outcome | None, None]]


class Timings(NamedTuple):
    """Times of a connection, in seconds: until it is initialised, between checks of the caller, and in all."""

    init_seconds: float = 10.0
    check_seconds: float = sse.ALIVE_SECONDS
    seconds_max: float = sse.STREAM_SECONDS_MAX


class ClientMessage(Struct):
    """A message of a client."""

    type: str
    id: str | None = None
    payload: Any = None


class _Close(Exception):
    """Ends the connection with a code and a reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore")


class SocketCaller:
    """The caller of a connection: by its handshake, or by the payload of `connection_init`."""

    def __init__(self, principal: Principal | None, credentials: CallerCredentials | None) -> None:
        self._principal = principal
        self._credentials = credentials

    async def sign_in(self, payload: object) -> None:
        """Take the credentials of `connection_init`, if it has any. Raises `HeadgateError`."""
        given = {key.lower(): value for key, value in payload.items()} if isinstance(payload, dict) else {}
        authorization = given.get("authorization")
        if authorization is not None and self._credentials is not None:
            if not isinstance(authorization, str) or not authorization.isascii():
                raise InvalidPayloadError("payload.Authorization: send 'Bearer' followed by an API key or a token")
            self._principal = await self._credentials.sign_in(authorization)
        if self._principal is None:
            raise UnauthenticatedError("not authenticated; send {'Authorization': 'Bearer KEY'} with connection_init")

    async def principal(self) -> Principal:
        """Return the caller as of now. Raises `HeadgateError`."""
        assert self._principal is not None, "asked after connection_init was accepted"
        if self._credentials is not None and await self._credentials.check() != self._principal:
            raise UnauthenticatedError("the credentials have ended or changed; connect again with valid ones")
        return self._principal


class Connection:
    """Serves one WebSocket, from its acceptance to its end."""

    def __init__(
        self, socket: WebSocket, caller: SocketCaller, subscribe: Subscribe, clock: Clock, timings: Timings
    ) -> None:
        self._socket = socket
        self._caller = caller
        self._subscribe = subscribe
        self._clock = clock
        self._timings = timings
        self._is_initialised = False
        self._active: dict[str, asyncio.Task[None]] = {}
        self._level: Level | None = None

    async def serve(self, send: Send) -> None:
        """Accept the handshake with `send`, and serve the connection."""
        await send(accepted(SUBPROTOCOL))
        ended: BaseException | None = None
        is_gone = False
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
                tasks.create_task(self._read(tasks))
        except* SocketGoneError:
            is_gone = True
        except* _Close as group:
            ended = group.exceptions[0]
        except* Exception as group:  # noqa: BLE001 - top of a task
            _log.error("WebSocket failed", action="graphql.websocket", exc_info=group)
            ended = _Close(INTERNAL_ERROR, "internal error; the server log has the details")
        if isinstance(ended, _Close) and not is_gone:
            with suppress(SocketGoneError):
                await self._socket.close(ended.code, ended.reason)

    async def _watch(self) -> None:
        """Limit the times of the connection, and check its caller at intervals."""
        timings, opened_at = self._timings, self._clock.monotonic()
        await asyncio.sleep(timings.init_seconds)
        if not self._is_initialised:
            raise _Close(INIT_TIMEOUT, "Connection initialisation timeout")
        while self._clock.monotonic() - opened_at < timings.seconds_max:
            await self._principal()
            await asyncio.sleep(timings.check_seconds)
        raise _Close(GOING_AWAY, "the maximum duration of a connection has passed; connect again")

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            text = await self._socket.receive()
            self._level, wait_seconds = take(self._level, MESSAGES, self._clock.monotonic())
            if wait_seconds > 0:
                raise _Close(TOO_MANY, f"too many messages; send at most {MESSAGES.per_second:g} a second")
            await self._handle(_decoded(text), tasks)

    async def _handle(self, message: ClientMessage, tasks: asyncio.TaskGroup) -> None:
        match message.type:
            case "connection_init":
                await self._initialise(message.payload)
            case "ping":
                await self._send("pong")
            case "pong":
                pass
            case "subscribe":
                await self._start(message, tasks)
            case "complete":
                if (task := self._active.pop(message.id or "", None)) is not None:
                    task.cancel()
            case _:
                raise _Close(BAD_MESSAGE, f"type {message.type[:40]!r}: not a message of {SUBPROTOCOL}")

    async def _initialise(self, payload: object) -> None:
        if self._is_initialised:
            raise _Close(TOO_MANY, "Too many initialisation requests")
        try:
            await self._caller.sign_in(payload)
        except HeadgateError as exc:
            raise _refusal(exc) from exc
        self._is_initialised = True
        await self._send("connection_ack")

    async def _start(self, message: ClientMessage, tasks: asyncio.TaskGroup) -> None:
        if not self._is_initialised:
            raise _Close(UNAUTHORIZED, "Unauthorized")
        identifier = message.id
        if not identifier or len(identifier) > ID_CHARACTERS_MAX:
            raise _Close(BAD_MESSAGE, f"id: send 1 to {ID_CHARACTERS_MAX} characters with subscribe")
        if identifier in self._active:
            raise _Close(DUPLICATE_ID, f"Subscriber for {identifier} already exists")
        try:
            asked = typed_decode.convert(message.payload, Body).request()
        except msgspec.ValidationError as exc:
            raise _Close(BAD_MESSAGE, f"payload: {exc}") from exc
        if len(self._active) >= SUBSCRIPTIONS_MAX:
            many = QueryLimitError(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions; complete one first")
            await self._send("error", identifier, [shaped(many)])
            return
        self._active[identifier] = tasks.create_task(self._follow(identifier, asked))

    async def _follow(self, identifier: str, asked: GraphqlRequest) -> None:
        """Serve one subscription until it fails, the client completes it, or the connection ends."""
        try:
            async with aclosing(self._subscribe(asked, await self._principal())) as outcomes:
                async for outcome in outcomes:
                    if outcome is not None:
                        await self._principal()
                        await self._send("next", identifier, outcome.content)
        except Refusal as refusal:
            errors = refused(refusal).content["errors"]
        except HeadgateError as exc:
            errors = [shaped(exc)]
        else:
            raise _Close(GOING_AWAY, "the server stops; connect again")
        # The client may use the id again as soon as it has the message.
        self._active.pop(identifier, None)
        await self._send("error", identifier, errors)

    async def _principal(self) -> Principal:
        try:
            return await self._caller.principal()
        except HeadgateError as exc:
            raise _refusal(exc) from exc

    async def _send(self, kind: str, identifier: str | None = None, payload: object = None) -> None:
        message: dict[str, object] = {"type": kind}
        if identifier is not None:
            message |= {"id": identifier, "payload": payload}
        await self._socket.send(msgspec.json.encode(message).decode())


class SocketResponse(Response[None]):
    """The response to a handshake: the framework sends it by serving the connection."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(None, status_code=SWITCHING_PROTOCOLS)
        self._connection = connection

    def to_asgi_response(self, app: Any, request: Request[Any, Any, Any], **_more: Any) -> ASGIResponse:  # noqa: ANN401, ARG002 - the framework's
        return _Serving(self._connection)


class _Serving(ASGIResponse):
    def __init__(self, connection: Connection) -> None:
        super().__init__(status_code=SWITCHING_PROTOCOLS)
        self._connection = connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - the framework's
        await self._connection.serve(send)


def _decoded(text: str | None) -> ClientMessage:
    if text is None:
        raise _Close(BAD_MESSAGE, "binary message; send text")
    try:
        return typed_decode.from_json(text, ClientMessage)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise _Close(BAD_MESSAGE, f"message: {exc}") from exc


def _refusal(error: HeadgateError) -> _Close:
    """Return how the connection of a caller ends that is not, or not now, admitted."""
    if isinstance(error, InvalidPayloadError):
        return _Close(BAD_MESSAGE, error.message)
    is_refused = isinstance(error, UnauthenticatedError)
    return _Close(FORBIDDEN if is_refused else TRY_AGAIN_LATER, error.message)
