"""The routes and commands of a user's app, served beside the server's own.

The web framework matches paths after decoding them, when an encoded slash in a value looks like the end of a
segment. It is therefore given the declared paths, for its document, and everything that begins like one of
them; whatever comes in is then matched as it was sent.

Every error is a problem in the server's one shape. An `HttpError` is what its handler says, an error of Headgate
itself keeps its status and code, and anything else is told to the log alone.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine, Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl, quote

import msgspec
import structlog
from litestar import Litestar
from litestar import Request as ServerRequest
from litestar import Response as ServerResponse
from litestar.enums import HttpMethod
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Operation, Schema
from litestar.types import ASGIApp, ControllerRouterHandler, Message, Receive, Scope, Send

from headgate.durable.http.messages import WireResponse, to_json
from headgate.durable.http.openapi import Document, describe
from headgate.durable.http.paths import Kind, PathTemplate
from headgate.durable.http.router import BadInputError, Headers, HttpError, Match, Request, Route, Router
from headgate.durable.http.routes import METHODS
from headgate.errors import BadOutputError, FatalError, UnauthenticatedError
from headgate.serve.http.access_log import CORRELATION_HEADER
from headgate.serve.http.operations import principal_of
from headgate.serve.http.origin_guard import BODY_BYTES_MAX
from headgate.serve.http.problem import Problem, response
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.telemetry import correlation_id

QUERY_ARGUMENTS_MAX: Final = 1000
# In the server's document, so that no name of an app is one of the server's.
_PREFIX: Final = "app."
# No parameter of a user can have this name.
_ANYTHING: Final = "{-:path}"
# The server adds these to every answer, and twice is once too often.
_SET_BY_SERVER: Final = frozenset({CORRELATION_HEADER.decode(), "x-content-type-options"})
# What a future cannot hold, or takes for the end of the server or of the request: nobody would get an answer.
_ESCAPES: Final = (StopIteration, SystemExit, KeyboardInterrupt, concurrent.futures.CancelledError)
_IN_THE_LOG: Final = "internal error; the server log has the details under this correlation id"
_log = structlog.get_logger(__name__)

_ServerRequest = ServerRequest[Any, Any, Any]


def user_routes(router: Router, pool: WorkPool) -> list[ControllerRouterHandler]:
    """Return what serves the routes and commands that `router` has now. Handlers that are not async run in `pool`."""
    routes = list(router.table)
    described = describe(routes, prefix=_PREFIX)
    make = _HandlerMaker(router, pool, described.schemas)
    by_path: dict[str, list[HTTPRouteHandler]] = {}
    for route, operation in zip(routes, described.operations, strict=True):
        path = _framework_path(route.template)
        by_path.setdefault(path, []).append(make.documented(path, route.method, operation))
    handlers: list[ControllerRouterHandler] = []
    for path, documented in by_path.items():
        taken = {method for handler in documented for method in handler.http_methods}
        others = [method for method in METHODS if method not in taken]
        group = [*documented, make.hidden(path, others)] if others else documented
        # The framework adds an OPTIONS of its own to a path whose first handler has none.
        group.sort(key=lambda handler: "OPTIONS" not in handler.http_methods)
        handlers += group
    return [*handlers, *(make.hidden(path, METHODS) for path in _catch_alls(routes) if path not in by_path)]


def admits_origin(router: Router) -> Callable[[Scope, str], bool]:
    """Return whether a page from an origin may make a request: the app allows it, and the path is the app's."""

    def admits(scope: Scope, origin: str) -> bool:
        if router.cors is None or not router.cors.allows(origin):
            return False
        try:
            return router.match("OPTIONS", _raw_path(scope)) is not None
        except HttpError:
            return False

    return admits


class _HandlerMaker:
    """Makes the handlers that the framework calls: all do the same, some are in its document."""

    def __init__(self, router: Router, pool: WorkPool, schemas: dict[str, Document]) -> None:
        self._router = router
        self._schemas = _Schemas(schemas)
        dispatcher = _Dispatcher(router, pool)

        # The framework reads the annotations of a function, and this is the one for all.
        async def dispatch(request: _ServerRequest) -> ASGIApp:
            return await dispatcher.answer(request)

        self._dispatch = dispatch

    def documented(self, path: str, method: str, document: Document) -> HTTPRouteHandler:
        described = self._schemas.operation_class(document)
        return self._handler(path, [method], operation_class=described, operation_id=document["operationId"])

    def hidden(self, path: str, methods: Sequence[str]) -> HTTPRouteHandler:
        return self._handler(path, methods, include_in_schema=False)

    def _handler(self, path: str, methods: Sequence[str], **more: Any) -> HTTPRouteHandler:  # noqa: ANN401
        make = _Handler(
            path,
            http_method=[HttpMethod(method) for method in methods],
            status_code=HTTPStatus.OK,
            exception_handlers={HttpError: _from_http_error, FatalError: _from_fatal},
            middleware=[self._finished],
            request_max_body_size=BODY_BYTES_MAX,
            schemas=self._schemas,
            **more,
        )
        return make(self._dispatch)

    def _finished(self, app: ASGIApp) -> ASGIApp:
        return _Finish(app, self._router)


class _Handler(HTTPRouteHandler):
    """A handler that tells where its schemas belong."""

    def __init__(self, path: str, *, schemas: _Schemas, **more: Any) -> None:  # noqa: ANN401 - the framework's own
        super().__init__(path, **more)
        self._schemas = schemas

    def on_registration(self, app: Litestar) -> None:
        super().on_registration(app)
        self._schemas.app = app


class _Schemas:
    """The schemas of the app's types, and the operations that refer to them, in the server's document."""

    def __init__(self, schemas: dict[str, Document]) -> None:
        self._schemas = {name: _VerbatimSchema(schema) for name, schema in schemas.items()}
        self.app: Litestar | None = None

    def operation_class(self, document: Document) -> type[Operation]:
        schemas = self

        class Described(Operation):
            def to_schema(self) -> Document:
                # A document is written in the order of its specification, operations before schemas.
                schemas.add()
                return document

        return Described

    def add(self) -> None:
        if self.app is not None and self.app.openapi_schema.components.schemas is not None:
            self.app.openapi_schema.components.schemas.update(self._schemas)


class _VerbatimSchema(Schema):
    def __init__(self, document: Document) -> None:
        super().__init__()
        self._document = document

    def to_schema(self) -> Document:
        return self._document


class _Dispatcher:
    """Answers a request with what the app has at its path."""

    def __init__(self, router: Router, pool: WorkPool) -> None:
        self._router = router
        self._pool = pool

    async def answer(self, request: _ServerRequest) -> ASGIApp:
        """Return the answer to send. Raises what the handler raises, and `HttpError` if it cannot be called."""
        method, raw_path = request.method, _raw_path(request.scope)
        # What the metrics call the route: the framework matched another, or none.
        request.scope["path_template"] = ""
        match = self._router.match(method, raw_path)
        if match is None:
            raise HttpError(HTTPStatus.NOT_FOUND, f"{raw_path}: there is nothing here; / lists what there is")
        request.scope["path_template"] = match.path
        if method == "OPTIONS" and (match.route is None or _is_preflight(request.scope, self._router)):
            return _answer(self._options(request.scope, match))
        if principal_of(request.scope) is None:
            # What they may do is the app's own affair; who they are is not.
            raise UnauthenticatedError(f"{raw_path}: who calls is not known; send 'Authorization: Bearer' with a key")
        if match.route is None:
            methods = ", ".join(match.methods)
            detail = f"{raw_path}: {method} is not supported; use {methods}"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, detail, headers={"allow": methods})
        given = Request(
            method=method,
            path=raw_path,
            path_params=match.path_params,
            query=_query(request.scope["query_string"]),
            headers=Headers.received(request.scope["headers"]),
            body=await request.body(),
            correlation_id=correlation_id(),
        )
        return _answer(await self._respond(match.route, given))

    def _options(self, scope: Scope, match: Match) -> WireResponse:
        headers = [("allow", ", ".join(match.methods))]
        if self._router.cors is not None and _is_preflight(scope, self._router):
            headers += self._router.cors.preflight_headers(_header(scope, b"origin"), match.methods).items()
        return WireResponse(int(HTTPStatus.NO_CONTENT), headers, b"")

    async def _respond(self, route: Route, request: Request) -> WireResponse:
        what = f"{route.method} {route.path}"
        if route.endpoint.is_async and not route.middleware:
            result = await _guarded(route.endpoint.bind(request)(), what)
            return route.endpoint.response(result).to_wire()
        loop = asyncio.get_running_loop()

        def wait(coroutine: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 - what the handler returns
            return asyncio.run_coroutine_threadsafe(_guarded(coroutine, what), loop).result()

        def work() -> WireResponse:
            try:
                return route.respond(request, wait).to_wire()
            except (*_ESCAPES, asyncio.CancelledError) as exc:
                raise _escaped(what, exc) from exc

        return await self._pool.run(work)


class _Finish:
    """Adds to every answer, an error's too, what pages from elsewhere need, and leaves the body of a HEAD out."""

    def __init__(self, app: ASGIApp, router: Router) -> None:
        self._app = app
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _header(scope, b"origin")
        cors = self._router.cors
        more = cors.answer_headers(origin) if cors is not None else {}
        is_head = scope.get("method") == "HEAD"

        async def send_finished(message: Message) -> None:
            if message["type"] == "http.response.start":
                replaced = [name.encode() for name in more if name != "vary"]
                kept = [pair for pair in message["headers"] if pair[0].lower() not in replaced]
                message["headers"] = [*kept, *((name.encode(), value.encode()) for name, value in more.items())]
            elif message["type"] == "http.response.body" and is_head:
                message["body"] = b""
            await send(message)

        await self._app(scope, receive, send_finished)


class UserProblem(Problem, frozen=True, omit_defaults=True):
    """A problem that the app tells of, with what it adds for the caller's program."""

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
    return response(Problem.of(error.http_status, error.code, _IN_THE_LOG))


async def _guarded(coroutine: Coroutine[Any, Any, Any], what: str) -> Any:  # noqa: ANN401 - what the handler returns
    try:
        return await coroutine
    except _ESCAPES as exc:
        raise _escaped(what, exc) from exc
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # It comes from something that the handler awaited, and would read as the end of the request.
        raise _escaped(what, exc) from exc


def _escaped(what: str, error: BaseException) -> BadOutputError:
    return BadOutputError(f"{what}: its handler ended with {type(error).__name__}; catch it there")


def _answer(wire: WireResponse) -> ASGIApp:
    headers = [(name, value) for name, value in wire.headers if name not in _SET_BY_SERVER]
    if wire.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        headers.append(("content-length", str(len(wire.body))))
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": wire.status, "headers": raw})
        await send({"type": "http.response.body", "body": wire.body, "more_body": False})

    return answer


def _is_preflight(scope: Scope, router: Router) -> bool:
    asks = _header(scope, b"origin") and _header(scope, b"access-control-request-method")
    return router.cors is not None and bool(asks)


def _header(scope: Scope, wanted: bytes) -> str:
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), "")


def _raw_path(scope: Scope) -> str:
    """Return the path as it was sent; a server that does not tell leaves us the decoded one."""
    raw = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])


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


def _framework_path(template: PathTemplate) -> str:
    forms = {Kind.TEXT: "{}", Kind.PARAMETER: "{{{}:str}}", Kind.TAIL: "{{{}:path}}"}
    return "".join(f"/{forms[each.kind].format(each.text)}" for each in template.segments)


def _catch_alls(routes: Iterable[Route]) -> list[str]:
    """Return the paths that stand for everything that is matched here.

    Below a first segment that it knows, the framework does not look at a parameter in its place any more.
    """
    firsts = dict.fromkeys(route.template.segments[0] for route in routes)
    texts = [f"/{each.text}" for each in firsts if each.kind is Kind.TEXT]
    below = [f"{text}/{_ANYTHING}" for text in texts]
    return [*texts, *below, f"/{_ANYTHING}"] if len(texts) < len(firsts) else [*texts, *below]
