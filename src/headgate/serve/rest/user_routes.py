"""User routes: serves the routes and commands of users' apps beside the server's own.

As for API operations, requests are matched on the undecoded path. Every error is a problem response: an `HttpError` as
its handler raised it, a Headgate error with its status and code, and any other error without details, which are in the
log.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import structlog
from litestar import Request as ServerRequest
from litestar import Response as ServerResponse
from litestar.enums import HttpMethod
from litestar.types import ASGIApp, ControllerRouterHandler, Message, Receive, Scope, Send

from headgate.durable.http.messages import WireResponse, to_json
from headgate.durable.http.openapi import describe
from headgate.durable.http.paths import SegmentKind
from headgate.durable.http.router import BadInputError, Cors, Headers, HttpError, Match, Request, Route, Router
from headgate.durable.http.routes import METHODS, RouteTable
from headgate.errors import BadOutputError, FatalError, UnauthenticatedError
from headgate.serve.http.access_log import CORRELATION_HEADER
from headgate.serve.http.framework import CATCH_ALL, DescribedHandler, raw_path
from headgate.serve.http.operations import principal_of
from headgate.serve.http.origin_guard import BODY_BYTES_MAX
from headgate.serve.http.problem import Problem, response
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.telemetry import correlation_id

QUERY_ARGUMENTS_MAX: Final = 1000
# Schema name prefix in the OpenAPI document, to avoid clashes with the server's schemas.
_PREFIX: Final = "app."
# The server adds these headers to every response.
_SET_BY_SERVER: Final = frozenset({CORRELATION_HEADER.decode(), "x-content-type-options"})
# Exceptions that a future cannot hold, or that would end the server or the request without a response.
_CONTROL_FLOW: Final = (StopIteration, SystemExit, KeyboardInterrupt, concurrent.futures.CancelledError)
_INTERNAL: Final = "internal error; the server log has the details under this correlation id"
_log = structlog.get_logger(__name__)

_ServerRequest = ServerRequest[Any, Any, Any]


class AppRoutes:
    """The routes and commands that one or more apps have now, as one table. Each keeps the CORS policy of its app."""

    def __init__(self, routers: Sequence[Router]) -> None:
        """Raises `DefinitionError` if two of them have the same method and path."""
        self._routers = tuple(routers)
        self._owners: dict[int, Router] = {}
        self.table = RouteTable()
        for router in routers:
            for route in router.table:
                self.table.add(route)
                self._owners[id(route)] = router

    def cors_at(self, scope: Scope) -> Cors | None:
        """Return the CORS policy of the app that has the route of a request, or would have that of a preflight."""
        if len(self._routers) == 1:
            return self._routers[0].cors
        requested = _header(scope, b"access-control-request-method")
        method = str(scope.get("method", ""))
        if requested and method == "OPTIONS":
            method = requested
        try:
            match = self.table.match(method, raw_path(scope))
            if match is not None and match.route is None:
                # Of the path, for a response that says which methods it has.
                of_path = next((each for each in match.methods if each != "OPTIONS"), "OPTIONS")
                match = self.table.match(of_path, raw_path(scope))
        except HttpError:
            return None
        return None if match is None or match.route is None else self._owners[id(match.route)].cors


def user_routes(apps: AppRoutes, pool: WorkPool) -> list[ControllerRouterHandler]:
    """Return the handler of the routes and commands of the apps. Sync handlers run in `pool`."""
    routes = list(apps.table)
    if not routes:
        return []
    dispatcher = _Dispatcher(apps, pool)

    async def dispatch(request: _ServerRequest) -> ASGIApp:
        return await dispatcher.answer(request)

    handler = DescribedHandler(
        _catch_alls(routes),
        describe=lambda: describe(routes, prefix=_PREFIX),
        http_method=[HttpMethod(method) for method in METHODS],
        status_code=HTTPStatus.OK,
        exception_handlers={HttpError: _from_http_error, FatalError: _from_fatal},
        middleware=[lambda app: _Finish(app, apps)],
        request_max_body_size=BODY_BYTES_MAX,
    )
    return [handler(dispatch)]


def admits_origin(apps: AppRoutes) -> Callable[[Scope, str], bool]:
    """Return a check whether the CORS policy of an app admits an origin to a path of that app."""

    def admits(scope: Scope, origin: str) -> bool:
        cors = apps.cors_at(scope)
        if cors is None or not cors.allows(origin):
            return False
        try:
            return apps.table.match("OPTIONS", raw_path(scope)) is not None
        except HttpError:
            return False

    return admits


class _Dispatcher:
    """Matches a request to a route of an app, and runs its handler."""

    def __init__(self, apps: AppRoutes, pool: WorkPool) -> None:
        self._apps = apps
        self._pool = pool

    async def answer(self, request: _ServerRequest) -> ASGIApp:
        """Return the response. Raises errors of the handler, and `HttpError` if no route matches."""
        method, path = request.method, raw_path(request.scope)
        # The route label of the metrics: the framework's own match is a catch-all.
        request.scope["path_template"] = ""
        match = self._apps.table.match(method, path)
        if match is None:
            raise HttpError(HTTPStatus.NOT_FOUND, f"{path}: not found; / lists the API")
        request.scope["path_template"] = match.path
        if method == "OPTIONS" and (match.route is None or self._preflight_cors(request.scope) is not None):
            return _answer(self._options(request.scope, match))
        if principal_of(request.scope) is None:
            # Authentication is required here; authorization is up to the app.
            raise UnauthenticatedError(f"{path}: not authenticated; send 'Authorization: Bearer' with a key")
        if match.route is None:
            methods = ", ".join(match.methods)
            detail = f"{path}: {method} is not supported; use {methods}"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, detail, headers={"allow": methods})
        user_request = Request(
            method=method,
            path=path,
            path_params=match.path_params,
            query=_query(request.scope["query_string"]),
            headers=Headers.received(request.scope["headers"]),
            body=await request.body(),
            correlation_id=correlation_id(),
        )
        return _answer(await self._respond(match.route, user_request))

    def _options(self, scope: Scope, match: Match) -> WireResponse:
        headers = [("allow", ", ".join(match.methods))]
        cors = self._preflight_cors(scope)
        if cors is not None:
            headers += cors.preflight_headers(_header(scope, b"origin"), match.methods).items()
        return WireResponse(int(HTTPStatus.NO_CONTENT), headers, b"")

    def _preflight_cors(self, scope: Scope) -> Cors | None:
        """Return the policy that answers a preflight; None if the request is none, or the app has no policy."""
        is_requested = _header(scope, b"origin") and _header(scope, b"access-control-request-method")
        return self._apps.cors_at(scope) if is_requested else None

    async def _respond(self, route: Route, request: Request) -> WireResponse:
        what = f"{route.method} {route.path}"
        if route.endpoint.is_async and not route.middleware:
            result = await _guarded(route.endpoint.bind(request)(), what)
            return route.endpoint.response(result).to_wire()
        loop = asyncio.get_running_loop()

        def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - the handler's result
            return asyncio.run_coroutine_threadsafe(_guarded(coroutine, what), loop).result()

        def work() -> WireResponse:
            try:
                return route.respond(request, wait).to_wire()
            except (*_CONTROL_FLOW, asyncio.CancelledError) as exc:
                raise _unexpected(what, exc) from exc

        return await self._pool.run(work)


class _Finish:
    """ASGI middleware that adds CORS headers to every response, errors too, and drops the body for HEAD."""

    def __init__(self, app: ASGIApp, apps: AppRoutes) -> None:
        self._app = app
        self._apps = apps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _header(scope, b"origin")
        cors = self._apps.cors_at(scope)
        more = cors.answer_headers(origin) if cors is not None else {}
        is_head = scope.get("method") == "HEAD"

        async def send_finished(message: Message) -> None:
            if message["type"] == "http.response.start":
                replaced = [name.encode() for name in more if name != "vary"]
                others = [pair for pair in message["headers"] if pair[0].lower() not in replaced]
                message["headers"] = [*others, *((name.encode(), value.encode()) for name, value in more.items())]
            elif message["type"] == "http.response.body" and is_head:
                message["body"] = b""
            await send(message)

        await self._app(scope, receive, send_finished)


class UserProblem(Problem, frozen=True, omit_defaults=True):
    """A problem raised by the app, with its data."""

    data: Any = None


def _from_http_error(request: _ServerRequest, error: HttpError) -> ServerResponse[bytes]:
    problems = error.problems if isinstance(error, BadInputError) else ()
    problem = UserProblem.of(error.status, error.code, error.message, errors=problems)
    if error.data is not None:
        try:
            problem = msgspec.structs.replace(problem, data=msgspec.Raw(to_json(error.data, "data of an HttpError")))
        except BadOutputError as exc:
            return _from_fatal(request, exc)
    return response(problem, dict(error.headers))


def _from_fatal(_request: _ServerRequest, error: FatalError) -> ServerResponse[bytes]:
    _log.error("request failed", action="http.request", code=error.code, exc_info=error)
    return response(Problem.of(error.http_status, error.code, _INTERNAL))


async def _guarded(coroutine: Coroutine[Any, Any, Any], what: str) -> Any:  # noqa: ANN401 - the handler's result
    try:
        return await coroutine
    except _CONTROL_FLOW as exc:
        raise _unexpected(what, exc) from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # From something the handler awaited; it must not cancel the request.
        raise _unexpected(what, exc) from exc


def _unexpected(what: str, error: BaseException) -> BadOutputError:
    return BadOutputError(f"{what}: the handler raised {type(error).__name__}; catch it there")


def _answer(wire: WireResponse) -> ASGIApp:
    headers = [(name, value) for name, value in wire.headers if name not in _SET_BY_SERVER]
    if wire.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        headers.append(("content-length", str(len(wire.body))))
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": wire.status, "headers": raw})
        await send({"type": "http.response.body", "body": wire.body, "more_body": False})

    return answer


def _header(scope: Scope, header: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == header), "")


def _query(raw: bytes) -> dict[str, list[str]]:
    arguments: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=QUERY_ARGUMENTS_MAX)
    except ValueError as exc:
        detail = f"the query is not UTF-8, or has more than {QUERY_ARGUMENTS_MAX:,} arguments"
        raise HttpError(HTTPStatus.BAD_REQUEST, detail, code="bad_query") from exc
    for name, value in pairs:
        arguments.setdefault(name, []).append(value)
    return arguments


def _catch_alls(routes: Iterable[Route]) -> list[str]:
    """Return catch-all paths for the framework.

    Below a literal first segment the framework no longer tries a parameter in its place, so each needs its own.
    """
    firsts = dict.fromkeys(route.template.segments[0] for route in routes)
    texts = [f"/{each.text}" for each in firsts if each.kind is SegmentKind.TEXT]
    below = [f"{text}/{CATCH_ALL}" for text in texts]
    return [*texts, *below, f"/{CATCH_ALL}"] if len(texts) < len(firsts) else [*texts, *below]
