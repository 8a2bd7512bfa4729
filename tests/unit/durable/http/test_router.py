"""Declaring routes and middleware, and what becomes of a request without any server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from headgate.durable.http.router import BadOutputError, Cors, HttpError, Next, Request, Response, Router
from headgate.errors import DefinitionError
from tests.unit.durable.http_app import (
    Line,
    Odd,
    Order,
    call,
)


def test_route__handler_signatures_that_can_be_called__are_taken() -> None:
    class Callable_:
        def __call__(self, request: Request) -> str:
            return "object"

    def with_default(request: Request, shop: str = "x") -> str:
        return shop

    router = Router()
    router.get("/none")(lambda: "nothing")
    router.get("/object")(Callable_())
    router.get("/default")(with_default)
    router.get("/partial")(partial(with_default, shop="y"))

    assert [call(router, "GET", path).body for path in ("/none", "/object", "/default", "/partial")] == [
        "nothing",
        "object",
        "x",
        "y",
    ]


def _two(request: Request, other: str) -> None: ...


def _keyword(*, request: Request) -> None: ...


def _generator(request: Request) -> Iterator[str]:
    yield ""


async def _async_generator(request: Request) -> AsyncIterator[str]:
    yield ""


@pytest.mark.parametrize("handler", [_two, _keyword, _generator, _async_generator, Odd, "text", None])
def test_route__handler_cannot_be_called_with_a_request__refused(handler: Any) -> None:
    router = Router()

    with pytest.raises(DefinitionError, match="GET /a"):
        router.get("/a")(handler)

    assert router.routes == []
    assert router.match("GET", "/a") is None


def test_route__declared__still_the_function_and_described_by_its_docstring() -> None:
    router = Router()

    @router.get("/a")
    def show(request: Request) -> str:
        """Show it.

        All of it.
        """
        return request.path

    (route,) = router.routes
    assert show(Request(path="/x")) == "/x"
    assert (route.name, route.summary, route.description) == ("show", "Show it.", "All of it.")
    assert (route.method, route.path, route.handler, route.middleware) == ("GET", "/a", show, ())


@pytest.mark.parametrize(
    ("value", "status", "content_type", "body"),
    [
        ({"a": [1, None]}, 200, "application/json", b'{"a":[1,null]}'),
        ([], 200, "application/json", b"[]"),
        (0, 200, "application/json", b"0"),
        (Line("x"), 200, "application/json", b'{"sku":"x","count":1}'),
        ("café", 200, "text/plain; charset=utf-8", "café".encode()),
        ("", 200, "text/plain; charset=utf-8", b""),
        (b"\x00\xff", 200, "application/octet-stream", b"\x00\xff"),
        (None, 204, None, b""),
        (Response(201, {"a": 1}), 201, "application/json", b'{"a":1}'),
        (Response(200, "<p>", headers={"Content-Type": "text/html"}), 200, "text/html", b"<p>"),
        (Response(404), 404, None, b""),
    ],
)
def test_response__of_what_a_handler_returns__has_the_right_type(
    value: object, status: int, content_type: str | None, body: bytes
) -> None:
    router = Router()
    router.get("/a")(lambda: value)

    wire = call(router, "GET", "/a").to_wire()

    assert wire.status == status
    assert dict(wire.headers).get("content-type") == content_type
    assert wire.body == body


@pytest.mark.parametrize(
    "value",
    [
        object(),
        float("nan"),
        {(1, 2): 3},
        "\ud800",
        Response(99),
        Response(100),
        Response(600),
        Response("200"),  # type: ignore[arg-type]
        Response(204, "text"),
        Response(304, {"a": 1}),
        Response(headers={"Content-Length": "5"}),
        Response(headers={"Transfer-Encoding": "chunked"}),
        Response(headers={"Connection": "close"}),
    ],
)
def test_response__cannot_be_sent__is_bad_output(value: object) -> None:
    router = Router()
    router.get("/a")(lambda: value)

    with pytest.raises(BadOutputError):
        call(router, "GET", "/a").to_wire()


def test_async_handler__with_and_without_middleware__is_awaited_by_the_caller_that_serves() -> None:
    router = Router()

    async def show(request: Request) -> str:
        await asyncio.sleep(0)
        return request.path

    router.get("/a")(show)
    router.use(lambda request, next: next(request)).get("/b")(show)

    assert [route.endpoint.is_async for route in router.routes] == [True, True]
    assert [call(router, "GET", path, wait=asyncio.run).body for path in ("/a", "/b")] == ["/a", "/b"]


def test_middleware__several__from_the_outside_in_and_back() -> None:
    seen: list[str] = []

    def named(name: str) -> Callable[[Request, Next], Response]:
        def middleware(request: Request, next: Next) -> Response:
            seen.append(f"{name} before")
            request.context[name] = len(request.context)
            response = next(request)
            seen.append(f"{name} after")
            response.headers[f"x-{name}"] = "1"
            return response

        return middleware

    router = Router()
    outer = router.use(named("a")).use(named("b"))
    outer.get("/a")(lambda request: request.context)
    router.get("/plain")(lambda request: request.context)

    response = call(router, "GET", "/a")

    assert seen == ["a before", "b before", "b after", "a after"]
    assert response.body == {"a": 0, "b": 1}
    assert dict(response.headers) == {"x-b": "1", "x-a": "1"}
    assert call(router, "GET", "/plain").body == {}


def test_middleware__answers_itself__nothing_further_in_is_called() -> None:
    router = Router()
    calls: list[str] = []

    def closed(_request: Request, _next: Next) -> Response:
        return Response(403, "no")

    def inner(request: Request, next: Next) -> Response:
        calls.append("inner")
        return next(request)

    guarded = router.use(closed).use(inner)

    @guarded.command
    def charge(order: Order) -> int:
        calls.append("handler")
        return 1

    assert call(router, "POST", "/rpc/charge", body=b"not even JSON").status == 403
    assert calls == []


def test_middleware__replaces_request_or_response_or_catches__has_the_last_word() -> None:
    router = Router()

    def rescuing(request: Request, next: Next) -> Response:
        try:
            return next(msgspec.structs.replace(request, path_params={"id": "8"}))
        except HttpError as error:
            return Response(error.status, "rescued")

    @router.use(rescuing).get("/a/{id}")
    def show(request: Request) -> str:
        if request.arg("fail"):
            raise HttpError(409)
        return request.path_params["id"]

    assert call(router, "GET", "/a/7").body == "8"
    assert call(router, "GET", "/a/7", query={"fail": ["1"]}).body == "rescued"


@pytest.mark.parametrize("value", [None, {"a": 1}, "text"])
def test_middleware__returns_no_response__is_bad_output(value: Any) -> None:
    router = Router()
    router.use(lambda _request, _next: value).get("/a")(lambda: "fine")

    with pytest.raises(BadOutputError, match="return a Response"):
        call(router, "GET", "/a")


async def _async_middleware(request: Request, next: Next) -> Response:
    return next(request)


@pytest.mark.parametrize("middleware", [_async_middleware, lambda: None, lambda _request: None, Odd, 5])
def test_use__cannot_be_called__refused(middleware: Any) -> None:
    with pytest.raises(DefinitionError, match="middleware"):
        Router().use(middleware)


def test_use__collection_and_cors__are_one_for_all() -> None:
    class App(Router):
        def __init__(self) -> None:
            super().__init__()
            self.name = "orders"

    app = App()
    inner = app.use(lambda request, next: next(request))
    app.cors = Cors(origins=["https://shop.example"])
    inner.get("/a")(lambda: "a")
    inner.command("c")(lambda: "c")

    assert inner.cors is app.cors
    assert [route.path for route in app.routes] == ["/a"]
    assert list(app.commands) == ["c"]
    assert inner.routes is app.routes
    assert len(app.table) == 2


@pytest.mark.parametrize(
    "origin",
    [
        "shop.example",
        "https://shop.example/",
        "https://shop.example/x",
        "ftp://a",
        "",
        "https://",
        "null",
        "https://a@b",
        "https://a:b",
        "https://*.shop.example?",
    ],
)
def test_cors__not_as_a_browser_writes_an_origin__refused(origin: str) -> None:
    with pytest.raises(DefinitionError, match="Cors"):
        Cors(origins=[origin])


def test_cors__contradictions__refused() -> None:
    for bad in (
        partial(Cors, origins=["*"], credentials=True),
        partial(Cors, origins=[]),
        partial(Cors, origins="https://shop.example"),
        partial(Cors, origins=["*"], methods=["BREW"]),
        partial(Cors, origins=["*"], headers=["a\r\nb"]),
    ):
        with pytest.raises(DefinitionError):
            bad()


def test_cors__one_origin__only_it_is_reported() -> None:
    cors = Cors(origins=["https://Shop.example:8443"], methods=["post"], exposed_headers=["X-A"], credentials=True)

    assert cors.answer_headers("https://evil.example") == {"vary": "origin"}
    assert cors.preflight_headers("https://evil.example", ["POST"]) == {}
    assert cors.answer_headers("https://shop.example:8443") == {
        "access-control-allow-origin": "https://shop.example:8443",
        "vary": "origin",
        "access-control-allow-credentials": "true",
        "access-control-expose-headers": "x-a",
    }
    assert cors.preflight_headers("https://shop.example:8443", ["GET", "POST"]) == {
        "access-control-allow-methods": "POST",
        "access-control-allow-headers": "authorization, content-type",
        "access-control-max-age": "600",
    }
