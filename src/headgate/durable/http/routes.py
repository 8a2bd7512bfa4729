"""Routes: a method and a path with their handler and middleware, and the table of all routes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from headgate.durable.http.messages import Request, Response, respond
from headgate.durable.http.paths import PathTemplate, PathTree, SegmentKind, is_reserved, split_path
from headgate.errors import BadOutputError, DefinitionError

# In the order of the `Allow` header.
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

Next = Callable[[Request], Response]
Middleware = Callable[[Request, Next], Response]
Await = Callable[[Coroutine[Any, Any, Any]], Any]


class Endpoint(Protocol):
    """The function of a route, with the conversion of a request to arguments and of its result to a response."""

    @property
    def handler(self) -> Callable[..., Any]:
        """The user's function."""

    @property
    def is_async(self) -> bool:
        """Whether the bound call returns a coroutine."""

    def bind(self, request: Request) -> Callable[[], Any]:
        """Return the call with its arguments bound. Raises `HttpError` for an invalid request."""

    def response(self, result: object) -> Response:
        """Return the result of the call as a response. Raises `BadOutputError` for an invalid result."""


class HandlerEndpoint(msgspec.Struct, frozen=True):
    """A function that takes the request, or nothing, and returns a response or its body."""

    handler: Callable[..., Any]
    takes_request: bool
    is_async: bool

    @classmethod
    def of(cls, handler: Callable[..., Any], what: str) -> HandlerEndpoint:
        """Return the endpoint of a handler. Raises `DefinitionError` if it cannot be called with a request."""
        if takes(handler, 1, what):
            return cls(handler, takes_request=True, is_async=is_async(handler))
        if takes(handler, 0, what):
            return cls(handler, takes_request=False, is_async=is_async(handler))
        raise DefinitionError(f"{what}: a handler is called with the request and nothing else; {_signature(handler)}")

    def bind(self, request: Request) -> Callable[[], Any]:
        return partial(self.handler, request) if self.takes_request else self.handler

    def response(self, result: object) -> Response:
        return respond(result)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path. The first `middleware` is the outermost."""

    method: str
    template: PathTemplate
    endpoint: Endpoint
    name: str
    summary: str
    description: str
    middleware: tuple[Middleware, ...] = ()

    @property
    def path(self) -> str:
        """The text of the path template."""
        return self.template.text

    @property
    def handler(self) -> Callable[..., Any]:
        """The user's function."""
        return self.endpoint.handler

    def respond(self, request: Request, wait: Await) -> Response:
        """Return the response of middleware and handler to a request; `wait` runs the coroutine of an async handler.

        Raises whatever they raise: `HttpError` is meant for the caller.
        """
        return self._respond_from(0, wait, request)

    def _respond_from(self, layer: int, wait: Await, request: Request) -> Response:
        if layer == len(self.middleware):
            call = self.endpoint.bind(request)
            return self.endpoint.response(wait(call()) if self.endpoint.is_async else call())
        middleware = self.middleware[layer]
        response = middleware(request, partial(self._respond_from, layer + 1, wait))
        if not isinstance(response, Response):
            raise BadOutputError(
                f"{self.method} {self.path}: middleware {_name(middleware)} returned {type(response).__name__}; "
                "return a Response, such as the one that next(request) returns"
            )
        return response


class Match(msgspec.Struct, frozen=True):
    """The match of a path. `route` is None if the path exists with other `methods` only."""

    route: Route | None
    path: str
    path_params: dict[str, str]
    methods: tuple[str, ...]


class _Place(msgspec.Struct):
    template: PathTemplate
    routes: dict[str, Route]


class RouteTable:
    """All routes of an app, found by method and path."""

    def __init__(self) -> None:
        self._tree: PathTree[_Place] = PathTree()
        self._documented: set[tuple[str, str]] = set()
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def __len__(self) -> int:
        return len(self._routes)

    def check(self, method: str, template: PathTemplate) -> dict[str, Route]:
        """Return the routes at a template, by method. Raises `DefinitionError` if this method is taken."""
        place = self._tree.at(template, _Place(template, {}))
        if method in place.routes:
            taken = place.routes[method]
            raise DefinitionError(f"{method} {template.text}: {taken.name!r} answers there already; change one of them")
        if (method, template.documented) in self._documented:
            raise DefinitionError(
                f"{method} {template.text}: there is a {template.documented} already; rename one parameter"
            )
        return place.routes

    def add(self, route: Route) -> None:
        """Add a route. Raises `DefinitionError` if the method and the path are taken."""
        self.check(route.method, route.template)[route.method] = route
        self._documented.add((route.method, route.template.documented))
        self._routes.append(route)

    def match(self, method: str, raw_path: str) -> Match | None:
        """Return the match of a raw path, or None. GET routes serve HEAD, unless the path has its own.

        Raises `HttpError` 400 for a path that cannot be decoded.
        """
        segments = split_path(raw_path)
        places = [each for each in self._tree.find(segments) if _is_ours(each[0], segments[0])]
        if not places:
            return None
        methods = _allowed(places)
        for candidate in ("HEAD", "GET") if method == "HEAD" else (method,):
            for place, values in places:
                if candidate in place.routes:
                    return Match(place.routes[candidate], place.template.text, values, methods)
        place, values = places[0]
        return Match(None, place.template.text, values, methods)


def is_async(handler: Callable[..., Any]) -> bool:
    """Whether calling a handler returns a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def takes(function: object, count: int, what: str) -> bool:
    """Whether a function accepts `count` positional arguments. Raises `DefinitionError` if it is not callable."""
    if not callable(function) or isinstance(function, type):
        raise DefinitionError(f"{what}: {function!r} is not a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{what}: it is a generator; return the whole answer instead of yielding it")
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError as exc:
        raise DefinitionError(f"{what}: its parameters cannot be seen; wrap it in a function of your own") from exc
    return True


def check_middleware(middleware: Middleware) -> None:
    """Raise `DefinitionError` if a middleware cannot be called with a request and `next`."""
    what = f"middleware {_name(middleware)}"
    if is_async(middleware):
        raise DefinitionError(f"{what}: write it as 'def', not 'async def'; it may stand before handlers of both kinds")
    if not takes(middleware, 2, what):
        raise DefinitionError(f"{what}: it is called with the request and next; {_signature(middleware)}")


def _allowed(places: Iterable[tuple[_Place, dict[str, str]]]) -> tuple[str, ...]:
    methods = {"OPTIONS"}.union(*(place.routes for place, _ in places))
    if "GET" in methods:
        methods.add("HEAD")
    return tuple(method for method in METHODS if method in methods)


def _is_ours(place: _Place, first: str) -> bool:
    """Whether a place has routes and may match this path: a parameter does not match a reserved first segment."""
    return bool(place.routes) and (place.template.segments[0].kind is SegmentKind.TEXT or not is_reserved(first))


def _name(function: object) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _signature(function: Callable[..., Any]) -> str:
    return f"this one is {_name(function)}{inspect.signature(function)}"
