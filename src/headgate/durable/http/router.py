"""Router: declares the HTTP routes, commands and middleware of an app. The server package serves them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

from headgate.durable.http.commands import Command, RestEndpoint, RpcEndpoint
from headgate.durable.http.inputs import Params
from headgate.durable.http.messages import BadInputError, Headers, HttpError, Request, Response
from headgate.durable.http.openapi import openapi
from headgate.durable.http.paths import PathTemplate
from headgate.durable.http.routes import (
    METHODS,
    Endpoint,
    HandlerEndpoint,
    Match,
    Middleware,
    Next,
    Route,
    RouteTable,
    check_middleware,
)
from headgate.durable.model.duration import Duration, seconds
from headgate.errors import BadOutputError, DefinitionError

__all__ = (
    "BadInputError",
    "BadOutputError",
    "Command",
    "Cors",
    "Headers",
    "HttpError",
    "Match",
    "Middleware",
    "Next",
    "Request",
    "Response",
    "Route",
    "Router",
    "openapi",
)

H = TypeVar("H", bound=Callable[..., Any])

_ANY: Final = "*"
_ORIGIN: Final = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.IGNORECASE)


class RouteTexts(TypedDict, total=False):
    """The name and description of a route, if not those of its function."""

    name: str | None
    summary: str | None
    description: str | None


class Cors:
    """The cross-origin policy of an app's routes.

    `origins` are such as `https://shop.example`, or `*` for all. Without `methods`, those of the path are allowed.
    """

    def __init__(
        self,
        *,
        origins: Sequence[str],
        methods: Sequence[str] | None = None,
        headers: Sequence[str] = ("authorization", "content-type"),
        exposed_headers: Sequence[str] = (),
        credentials: bool = False,
        max_age: Duration = "10m",
    ) -> None:
        """Raises `DefinitionError` for a policy that browsers do not accept."""
        if isinstance(origins, str) or not origins:
            raise DefinitionError(f"Cors(origins={origins!r}): give a list of origins")
        if credentials and _ANY in origins:
            raise DefinitionError("Cors(origins=['*'], credentials=True): browsers refuse it; name the origins")
        self.origins = frozenset(_checked_origin(origin) for origin in origins)
        self.methods = None if methods is None else tuple(_checked_method(method) for method in methods)
        self.headers = _checked_names(headers)
        self.exposed_headers = _checked_names(exposed_headers)
        self.credentials = credentials
        self.max_age_seconds = int(seconds(max_age, name="max_age"))

    def allows(self, origin: str) -> bool:
        """Whether a page from this origin may call the app."""
        return _ANY in self.origins or origin.lower() in self.origins

    def answer_headers(self, origin: str) -> dict[str, str]:
        """Return the headers that let a page of an allowed `origin` read a response."""
        if _ANY in self.origins:
            headers = {"access-control-allow-origin": _ANY}
        elif self.allows(origin):
            headers = {"access-control-allow-origin": origin, "vary": "origin"}
        else:
            # Tells caches that the response depends on the origin.
            return {"vary": "origin"}
        if self.credentials:
            headers["access-control-allow-credentials"] = "true"
        if self.exposed_headers:
            headers["access-control-expose-headers"] = ", ".join(self.exposed_headers)
        return headers

    def preflight_headers(self, origin: str, methods: Sequence[str]) -> dict[str, str]:
        """Return the headers of a preflight response for a path with `methods`."""
        if not self.allows(origin):
            return {}
        allowed = methods if self.methods is None else [each for each in self.methods if each in methods]
        return {
            "access-control-allow-methods": ", ".join(allowed),
            "access-control-allow-headers": ", ".join(self.headers),
            "access-control-max-age": str(self.max_age_seconds),
        }


class _Collection:
    def __init__(self) -> None:
        self.routes: list[Route] = []
        self.commands: dict[str, Command] = {}
        self.table = RouteTable()
        self.cors: Cors | None = None


class Router:
    """Collects routes and commands. Routers made by `use` add to the same collection."""

    def __init__(self) -> None:
        self._collection = _Collection()
        self._middleware: tuple[Middleware, ...] = ()

    @property
    def routes(self) -> list[Route]:
        """The declared routes, without those of commands."""
        return self._collection.routes

    @property
    def commands(self) -> dict[str, Command]:
        """The commands by name."""
        return self._collection.commands

    @property
    def table(self) -> RouteTable:
        """All routes, including those of commands."""
        return self._collection.table

    @property
    def cors(self) -> Cors | None:
        """The cross-origin policy of the whole collection; None allows no other origin."""
        return self._collection.cors

    @cors.setter
    def cors(self, cors: Cors | None) -> None:
        self._collection.cors = cors

    def use(self, middleware: Middleware) -> Router:
        """Return a router that wraps its routes and commands in `middleware`, inside of the existing middleware.

        A middleware gets the request and `next`, and returns a response: that of `next(request)`, changed or not, or
        its own. Raises `DefinitionError` if it cannot be called so.
        """
        check_middleware(middleware)
        router = Router()
        router._collection = self._collection
        router._middleware = (*self._middleware, middleware)
        return router

    def match(self, method: str, raw_path: str) -> Match | None:
        """Return the match of a raw path, or None. Raises `HttpError` 400 if it cannot be decoded."""
        return self._collection.table.match(method, raw_path)

    def route(
        self,
        method: str,
        path: str,
        *,
        name: str | None = None,
        summary: str | None = None,
        description: str | None = None,
    ) -> Callable[[H], H]:
        """Declare the decorated function as the handler of `method` at `path`.

        It gets the `Request`, or nothing if it has no parameter, and returns a `Response` or a body: text, bytes, a
        JSON value, or None. Its docstring describes the route unless `summary` and `description` do.
        Raises `DefinitionError` for a path that is taken, reserved or not valid, and for a function that cannot be
        called so.
        """
        method = _checked_method(method)
        template = PathTemplate.parse(path)
        template.check_not_reserved()

        def declare(handler: H) -> H:
            first_line, rest = _documentation(handler)
            route = Route(
                method=method,
                template=template,
                endpoint=HandlerEndpoint.of(handler, f"{method} {path}"),
                name=name or _name(handler),
                summary=first_line if summary is None else summary,
                description=rest if description is None else description,
                middleware=self._middleware,
            )
            self.table.add(route)
            self.routes.append(route)
            return handler

        return declare

    def get(self, path: str, **texts: Unpack[RouteTexts]) -> Callable[[H], H]:
        """Declare a route for GET, which serves HEAD too; see `route`."""
        return self.route("GET", path, **texts)

    def head(self, path: str, **texts: Unpack[RouteTexts]) -> Callable[[H], H]:
        """Declare a route for HEAD only; see `route`."""
        return self.route("HEAD", path, **texts)

    def post(self, path: str, **texts: Unpack[RouteTexts]) -> Callable[[H], H]:
        """Declare a route for POST; see `route`."""
        return self.route("POST", path, **texts)

    def put(self, path: str, **texts: Unpack[RouteTexts]) -> Callable[[H], H]:
        """Declare a route for PUT; see `route`."""
        return self.route("PUT", path, **texts)

    def patch(self, path: str, **texts: Unpack[RouteTexts]) -> Callable[[H], H]:
        """Declare a route for PATCH; see `route`."""
        return self.route("PATCH", path, **texts)

    def delete(self, path: str, **texts: Unpack[RouteTexts]) -> Callable[[H], H]:
        """Declare a route for DELETE; see `route`."""
        return self.route("DELETE", path, **texts)

    def options(self, path: str, **texts: Unpack[RouteTexts]) -> Callable[[H], H]:
        """Declare a route for OPTIONS; by default the response has the methods of the path; see `route`."""
        return self.route("OPTIONS", path, **texts)

    @overload
    def command(self, name: H, /) -> H: ...

    @overload
    def command(
        self,
        name: str | None = None,
        *,
        method: str | None = None,
        path: str | None = None,
        params: Params | None = None,
        summary: str | None = None,
        description: str | None = None,
        status: int = HTTPStatus.OK,
    ) -> Callable[[H], H]: ...

    def command(
        self,
        name: Any = None,
        *,
        method: str | None = None,
        path: str | None = None,
        params: Params | None = None,
        summary: str | None = None,
        description: str | None = None,
        status: int = HTTPStatus.OK,
    ) -> Any:
        """Declare the decorated function as a command: `POST /rpc/NAME`, and `method` at `path` if set.

        There, path parameters are fields of the input, and the other fields are in the query for GET, HEAD and DELETE,
        or else in the body; `params` overrides that: `{"shop": "header", "limit": ("query", "max")}`.
        `status` is the success status at `path`. Raises `DefinitionError` for an invalid declaration.
        """
        if callable(name):
            return self.command()(name)
        if path is None and (method is not None or params is not None):
            raise DefinitionError(f"command {name!r}: give a path along with method and params")
        template = None if path is None else PathTemplate.parse(path)
        used = None if path is None else _checked_method(method or "POST")

        def declare(handler: H) -> H:
            first_line, rest = _documentation(handler)
            command = Command(
                handler,
                name=_name(handler) if name is None else name,
                method=used,
                template=template,
                params=params,
                summary=first_line if summary is None else summary,
                description=rest if description is None else description,
                status=status,
            )
            self._add(command)
            return handler

        return declare

    def _add(self, command: Command) -> None:
        routes = [self._command_route(command, "POST", command.rpc_template, RpcEndpoint(command))]
        if command.method is not None and command.template is not None and command.rest_input is not None:
            command.template.check_not_reserved()
            endpoint = RestEndpoint(command, command.rest_input)
            routes.append(self._command_route(command, command.method, command.template, endpoint))
        # Both or none.
        for route in routes:
            self.table.check(route.method, route.template)
        for route in routes:
            self.table.add(route)
        self.commands[command.name] = command

    def _command_route(self, command: Command, method: str, template: PathTemplate, endpoint: Endpoint) -> Route:
        return Route(
            method=method,
            template=template,
            endpoint=endpoint,
            name=command.name,
            summary=command.summary,
            description=command.description,
            middleware=self._middleware,
        )


def _checked_method(method: str) -> str:
    known = method.upper() if isinstance(method, str) else method
    if known not in METHODS:
        raise DefinitionError(f"method {method!r}: use one of {', '.join(METHODS)}")
    return known


def _checked_origin(origin: str) -> str:
    if origin != _ANY and not _ORIGIN.fullmatch(origin):
        raise DefinitionError(f"Cors origin {origin!r}: write it as browsers do, https://HOST or https://HOST:PORT")
    return origin.lower()


def _checked_names(headers: Sequence[str]) -> tuple[str, ...]:
    try:
        return tuple(Headers(dict.fromkeys(headers, "")))
    except BadOutputError as exc:
        raise DefinitionError(f"Cors: {exc}") from exc


def _documentation(handler: Callable[..., Any]) -> tuple[str, str]:
    """Return the first line of a handler's docstring, and what follows it."""
    first_line, _, rest = (inspect.getdoc(handler) or "").partition("\n")
    return first_line.strip(), rest.strip()


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__name__", type(handler).__name__)
