"""GraphQL over HTTP: queries by POST and GET as JSON, subscriptions as server-sent events or on a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
from graphql import ExecutionResult, create_source_event_stream
from litestar import Request, Response

from headgate import typed_decode
from headgate.auth.principals import Principal
from headgate.errors import (
    DeadlineExceededError,
    HeadgateError,
    InvalidPayloadError,
    QueryLimitError,
    UnauthenticatedError,
)
from headgate.health.service import HealthService
from headgate.serve.graphql.engine import Body, Engine, GraphqlRequest, Outcome, Prepared, Refusal, outcome_of, refused
from headgate.serve.graphql.errors import fault_of, shaped
from headgate.serve.graphql.limits import Limits
from headgate.serve.graphql.subscriptions import Following, StreamContext
from headgate.serve.graphql.websocket import SUBPROTOCOL, Connection, SocketCaller, SocketResponse, Timings
from headgate.serve.http import sse
from headgate.serve.http.authentication import CallerCredentials
from headgate.serve.http.operations import principal_of
from headgate.serve.http.problem import Problem, response
from headgate.serve.http.websocket import WebSocket, socket_of
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

JSON: Final = "application/json"
GRAPHQL: Final = "application/graphql-response+json"
BODY_BYTES_MAX: Final = 256 * 1024
STREAM_SECONDS: Final = sse.STREAM_SECONDS_MAX
COMPLETE: Final = b"event: complete\ndata: \n\n"
# Grace beyond the query timeout, for the query to notice it.
_GRACE_SECONDS: Final = 1.0
_ARGUMENTS_MAX: Final = 20


class View:
    """Answers HTTP requests."""

    def __init__(
        self,
        health: HealthService,
        pool: WorkPool,
        watches: WatchHub,
        limits: Limits | None = None,
        timings: Timings | None = None,
    ) -> None:
        self._timings = timings or Timings()
        self._engine = Engine(health, limits or Limits())
        self._following = Following(health, pool, watches)
        self._pool = pool
        self._clock = health.clock

    async def answer(self, request: Request[Any, Any, Any]) -> Response[Any]:
        """Return the response. Raises `UnauthenticatedError` and `ServerBusyError` before execution."""
        principal = principal_of(request.scope)
        if (socket := socket_of(request.scope)) is not None:
            return self._upgraded(request, socket, principal)
        if principal is None:
            raise UnauthenticatedError("GraphQL: not authenticated; send 'Authorization: Bearer' with a key")
        media = _accepted(request.headers.get("accept", ""))
        if media is None:
            detail = f"responses are {GRAPHQL}, {JSON} or {sse.MEDIA_TYPE}; accept one of them"
            return response(Problem.of(HTTPStatus.NOT_ACCEPTABLE.value, "not_acceptable", detail))
        is_read_only = request.method == "GET"
        if not is_read_only and _media_type(request.headers.get("content-type", "")) != JSON:
            detail = f"send the query as {JSON}: an object with query, variables and operationName"
            return response(Problem.of(HTTPStatus.UNSUPPORTED_MEDIA_TYPE.value, "unsupported_media_type", detail))
        try:
            asked = _from_query(request.scope["query_string"]) if is_read_only else _from_body(await request.body())
        except HeadgateError as exc:
            return _written(Outcome({"errors": [shaped(exc)]}, is_refused=True), media, HTTPStatus.BAD_REQUEST)
        if media == sse.MEDIA_TYPE and not is_read_only:
            return sse.stream(self._streamed(asked, principal))
        answer, fault = await self._once(asked, principal, JSON if media == sse.MEDIA_TYPE else media, request.method)
        if fault is not None:
            # The HTTP status is 200; the status for metrics is set here.
            request.scope["api_status"] = fault  # type: ignore[typeddict-unknown-key]  # ours
        return answer

    async def _once(
        self, asked: GraphqlRequest, principal: Principal, media: str, method: str
    ) -> tuple[Response[Any], str | None]:
        """Return the response, and the status of an error that is not the caller's fault."""
        ends_at = self._clock.monotonic() + self._engine.limits.seconds_max

        def work() -> Outcome | None:
            prepared = self._engine.prepare(asked)
            return None if prepared.is_subscription else self._engine.execute(prepared, principal, ends_at)

        try:
            outcome = await self._in_time(work)
        except Refusal as refusal:
            return _written(refused(refusal), media), None
        except DeadlineExceededError as exc:
            return _written(Outcome({"errors": [shaped(exc)]}, is_refused=True), media, exc.http_status), None
        if outcome is not None:
            return _written(outcome, media), fault_of(outcome.content.get("errors", ()))
        if method == "GET":
            detail = f"/graphql: subscriptions need POST, and are answered as {sse.MEDIA_TYPE}"
            problem = Problem.of(HTTPStatus.METHOD_NOT_ALLOWED.value, "method_not_allowed", detail)
            return response(problem, {"allow": "POST"}), None
        stream = InvalidPayloadError(f"a subscription is answered as a stream: send 'Accept: {sse.MEDIA_TYPE}'")
        return _written(Outcome({"errors": [shaped(stream)]}, is_refused=True), media), None

    async def _in_time(self, work: Any) -> Any:  # noqa: ANN401 - the result of the work
        seconds = self._engine.limits.seconds_max + _GRACE_SECONDS
        try:
            return await asyncio.wait_for(self._pool.run(work), seconds)
        except TimeoutError as exc:
            raise DeadlineExceededError(f"the query took longer than {seconds:g} s; request less") from exc

    # Streams: distinct connections mode of GraphQL over server-sent events.

    async def _streamed(self, asked: GraphqlRequest, principal: Principal) -> AsyncIterator[bytes]:
        yield sse.OPENING
        ends_at = self._clock.monotonic() + self._engine.limits.seconds_max
        try:
            prepared: Prepared = await self._in_time(lambda: self._engine.prepare(asked))
            if not prepared.is_subscription:
                work = lambda: self._engine.execute(prepared, principal, ends_at)  # noqa: E731
                outcome: Outcome = await self._in_time(work)
                yield _next(outcome)
                yield COMPLETE
                return
            source = await self._source(prepared, principal)
        except Refusal as refusal:
            yield _next(refused(refusal))
            yield COMPLETE
            return
        except HeadgateError as exc:
            # No complete message: the client reconnects.
            yield _next(Outcome({"errors": [shaped(exc)]}))
            return
        if isinstance(source, ExecutionResult):
            yield _next(outcome_of(source))
            yield COMPLETE
            return
        try:
            async with aclosing(self._outcomes(prepared, principal, source)) as outcomes:
                async for each in outcomes:
                    yield sse.ALIVE if each is None else _next(each)
        except HeadgateError as exc:
            yield _next(Outcome({"errors": [shaped(exc)]}))

    # WebSockets.

    def _upgraded(
        self, request: Request[Any, Any, Any], socket: WebSocket, principal: Principal | None
    ) -> Response[Any]:
        """Return the response that accepts a handshake and serves the subscriptions. The first message may sign in."""
        if SUBPROTOCOL not in socket.subprotocols:
            offered = ", ".join(socket.subprotocols)[:60] or "none"
            raise InvalidPayloadError(f"sec-websocket-protocol: {offered}: not supported; offer {SUBPROTOCOL}")
        credentials: CallerCredentials | None = request.scope.get("credentials")  # type: ignore[assignment]  # ours
        caller = SocketCaller(principal, credentials)
        return SocketResponse(Connection(socket, caller, self.subscription, self._clock, self._timings))

    async def subscription(self, asked: GraphqlRequest, principal: Principal) -> AsyncGenerator[Outcome | None, None]:
        """Yield the outcomes of a subscription, and None while there is none. It ends when the server stops.

        Raises `Refusal` for a document that is not executed, and `HeadgateError`.
        """
        prepared: Prepared = await self._in_time(lambda: self._engine.prepare(asked))
        if not prepared.is_subscription:
            raise InvalidPayloadError("a WebSocket serves subscriptions only; send queries with POST /graphql")
        source = await self._source(prepared, principal)
        if isinstance(source, ExecutionResult):
            raise Refusal(source.errors or [])
        async with aclosing(self._outcomes(prepared, principal, source)) as outcomes:
            async for each in outcomes:
                yield each

    async def _source(self, prepared: Prepared, principal: Principal) -> Any:  # noqa: ANN401 - events, or an error
        context = StreamContext(self._following, principal)
        return await create_source_event_stream(
            self._engine.schema,
            prepared.document,
            context_value=context,
            variable_values=dict(prepared.asked.variables),
            operation_name=prepared.asked.operation_name,
        )

    async def _outcomes(
        self,
        prepared: Prepared,
        principal: Principal,
        source: Any,  # noqa: ANN401 - as `_source` returns it
    ) -> AsyncGenerator[Outcome | None, None]:
        """Yield the outcomes of a subscription, and None for each interval without any. Raises `HeadgateError`.

        At its end no complete message is sent, so that the client reconnects.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + STREAM_SECONDS
        waiting: asyncio.Future[Any] | None = None
        try:
            while loop.time() < ends_at:
                waiting = waiting or asyncio.ensure_future(anext(source, None))
                done, _ = await asyncio.wait({waiting}, timeout=sse.ALIVE_SECONDS)
                if not done:
                    yield None
                    continue
                batch, waiting = waiting.result(), None
                if batch is None:
                    return
                until = self._clock.monotonic() + self._engine.limits.seconds_max
                work = lambda: self._engine.execute(prepared, principal, until, batch)  # noqa: E731, B023
                yield await self._in_time(work)
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.wait({waiting})
            await source.aclose()


def _next(outcome: Outcome) -> bytes:
    return sse.message("next", outcome.content)


def _written(outcome: Outcome, media: str, status: int | None = None) -> Response[Any]:
    """Return the HTTP response: a refusal is 400 by GraphQL's media type, and 200 as plain JSON."""
    if status is None:
        status = HTTPStatus.BAD_REQUEST if outcome.is_refused and media == GRAPHQL else HTTPStatus.OK
    headers = {"cache-control": "no-store"}
    return Response(msgspec.json.encode(outcome.content), status_code=int(status), media_type=media, headers=headers)


def _from_body(content: bytes) -> GraphqlRequest:
    if len(content) > BODY_BYTES_MAX:
        raise QueryLimitError(f"the body is {len(content):,} bytes: send at most {BODY_BYTES_MAX:,}")
    try:
        body = typed_decode.from_json(content, Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidPayloadError(f"body: {exc}; send an object with query, variables and operationName") from exc
    return body.request()


def _from_query(raw: bytes) -> GraphqlRequest:
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=_ARGUMENTS_MAX)
        given = dict(pairs)
        if len(given) != len(pairs):
            raise InvalidPayloadError("query: repeated argument")
        variables = typed_decode.from_json(given.get("variables") or "{}", dict[str, Any] | None)
    except (ValueError, msgspec.DecodeError, RecursionError) as exc:
        raise InvalidPayloadError(f"query: {exc}; send query, variables as JSON, and operationName") from exc
    if "query" not in given:
        raise InvalidPayloadError("query is missing: GET /graphql?query={activeIncidents{title}}, or POST it as JSON")
    return GraphqlRequest(given["query"], variables or {}, given.get("operationName") or None)


def _accepted(header: str) -> str | None:
    """Return the supported media type that the client prefers, or None."""
    liked: dict[str, float] = {}
    for part in header.split(",") if header.strip() else ["*/*"]:
        name, *parameters = (each.strip().lower() for each in part.split(";"))
        quality = next((each[2:] for each in parameters if each.startswith("q=")), "1")
        try:
            liked[name] = float(quality)
        except ValueError:
            liked[name] = 0.0
    offered: Mapping[str, float] = {
        GRAPHQL: liked.get(GRAPHQL, 0.0),
        JSON: max(liked.get(JSON, 0.0), liked.get("application/*", 0.0), liked.get("*/*", 0.0)),
        sse.MEDIA_TYPE: liked.get(sse.MEDIA_TYPE, 0.0),
    }
    best = max(offered, key=lambda each: offered[each])
    return best if offered[best] > 0 else None


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
