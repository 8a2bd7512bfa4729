"""Commands: what they take and give is validated, by name and at paths of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from headgate.durable.http.router import BadInputError, BadOutputError, Headers, HttpError, Request, Response, Router
from headgate.errors import DefinitionError
from tests.unit.durable.http_app import (
    Line,
    Odd,
    Order,
    Patch,
    Receipt,
    Search,
    body_of,
    call,
    declared,
    problems_of,
)


def _generator(request: Request) -> Iterator[str]:
    yield ""


def test_command__called_by_name__decodes_validates_and_encodes() -> None:
    router = Router()

    @router.command
    def charge(order: Order) -> Receipt:
        return Receipt(order.total_price)

    response = call(router, "POST", "/rpc/charge", body=b'{"orderId":"7","totalPrice":12}')

    assert response.status == 200
    assert body_of(response) == {"number": 12}
    command = router.commands["charge"]
    assert (command.name, command.input.type, command.output) == ("charge", Order, Receipt)
    assert charge(Order("1", 2)) == Receipt(2)


@pytest.mark.parametrize(
    ("body", "problems"),
    [
        (b"", [("body", "")]),
        (b"{", [("body", "")]),
        (b"[]", [("body", "")]),
        (b"null", [("body", "")]),
        (b"{}", [("body", "orderId"), ("body", "totalPrice")]),
        (b'{"orderId":1,"totalPrice":"x","lines":[{"sku":2}]}', [("body", k) for k in ("orderId", "totalPrice")]),
        (b'{"orderId":"1","totalPrice":2,"lines":[{"sku":"a"},{"sku":2}]}', [("body", "lines[1].sku")]),
        (b'{"orderId":"1","totalPrice":2,"surprise":1}', [("body", "")]),
        (b'{"orderId":"1","totalPrice":' + b"[" * 100_000, [("body", "")]),
    ],
)
def test_command__input_does_not_fit__lists_every_problem(body: bytes, problems: list[tuple[str, str]]) -> None:
    router = Router()
    router.command("charge")(_charge)

    with pytest.raises(BadInputError) as caught:
        call(router, "POST", "/rpc/charge", body=body)

    assert problems_of(caught)[: len(problems)] == problems
    assert caught.value.status == 400


def _charge(order: Order) -> int:
    return order.total_price


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json; charset=utf-8", 200),
        ("application/vnd.x+json", 200),
        ("", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_command__content_type__must_be_json_if_it_is_said(content_type: str, status: int) -> None:
    router = Router()
    router.command("charge")(_charge)
    headers = Headers({"content-type": content_type} if content_type else {})

    def ask() -> int:
        try:
            body = b'{"orderId":"7","totalPrice":12}'
            return call(router, "POST", "/rpc/charge", headers=headers, body=body).status
        except HttpError as error:
            return error.status

    assert ask() == status


def test_command__several_parameters__are_an_object_by_name() -> None:
    router = Router()

    @router.command
    def total(shop: str, request: Request, day: date | None = None, *, exact: bool = True) -> list[Any]:
        return [shop, day, exact, request.method]

    assert body_of(call(router, "POST", "/rpc/total", body=b'{"shop":"x"}')) == ["x", None, True, "POST"]
    everything = b'{"shop":"x","day":"2024-02-29","exact":false}'
    assert body_of(call(router, "POST", "/rpc/total", body=everything)) == ["x", "2024-02-29", False, "POST"]
    with pytest.raises(BadInputError) as caught:
        call(router, "POST", "/rpc/total", body=b'{"day":"x","other":1}')
    assert problems_of(caught) == [("body", "shop"), ("body", "day")]


def test_command__no_or_optional_input__may_be_left_out() -> None:
    router = Router()
    router.command("ping")(_ping)
    router.command("page")(_page)
    router.command("sum")(_sum)

    assert [body_of(call(router, "POST", "/rpc/ping", body=body)) for body in (b"", b"null", b"{}")] == ["pong"] * 3
    assert body_of(call(router, "POST", "/rpc/page")) == 1
    assert body_of(call(router, "POST", "/rpc/page", body=b"5")) == 5
    assert body_of(call(router, "POST", "/rpc/sum", body=b"[1,2]")) == 3
    with pytest.raises(BadInputError):
        call(router, "POST", "/rpc/ping", body=b'{"a":1}')
    with pytest.raises(BadInputError) as caught:
        call(router, "POST", "/rpc/sum", body=b'[1,"x"]')
    assert problems_of(caught) == [("body", "[1]")]


def _ping() -> str:
    return "pong"


def _page(number: int = 1) -> int:
    return number


def _sum(numbers: list[int]) -> int:
    return sum(numbers)


def test_command__async__is_awaited_and_validated() -> None:
    router = Router()

    @router.command
    async def later(order: Order) -> Receipt:
        await asyncio.sleep(0)
        return Receipt(order.total_price)

    response = call(router, "POST", "/rpc/later", wait=asyncio.run, body=b'{"orderId":"7","totalPrice":1}')

    assert body_of(response) == {"number": 1}


@pytest.mark.parametrize("output", [{"number": "x"}, {}, None, [], Receipt("x"), object()])  # type: ignore[arg-type]
def test_command__output_is_not_what_was_declared__is_bad_output(output: Any) -> None:
    router = Router()

    @router.command
    def charge() -> Receipt:
        return output  # type: ignore[no-any-return]

    with pytest.raises(BadOutputError, match="command charge"):
        call(router, "POST", "/rpc/charge")


def test_command__declared_to_return_nothing__has_no_content_and_must_keep_to_it() -> None:
    router = Router()
    router.command("quiet")(_quiet)

    assert call(router, "POST", "/rpc/quiet", body=b"null").status == 204
    with pytest.raises(BadOutputError):
        call(router, "POST", "/rpc/quiet", body=b"5")


def _quiet(value: Any) -> None:
    return value  # type: ignore[no-any-return]


def test_command__returns_none_where_it_may__is_null() -> None:
    router = Router()
    router.command("find")(_find)

    assert call(router, "POST", "/rpc/find").to_wire()[::2] == (200, b"null")


def _find() -> Receipt | None:
    return None


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", "é", "1a", "a" * 129])
def test_command__name_cannot_be_in_a_path__refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="command"):
        Router().command(name)(_ping)


def test_command__name_is_taken__refused_and_the_first_stays() -> None:
    router = Router()
    router.command("ping")(_ping)

    with pytest.raises(DefinitionError, match="/rpc/ping"):
        router.command("ping", method="GET", path="/ping")(_find)

    assert router.commands["ping"].handler is _ping
    assert router.match("GET", "/ping") is None


def _odd_input(value: Odd) -> None: ...


def _odd_output() -> Odd: ...  # type: ignore[empty-body]


def _any_number(*values: int) -> None: ...


def _by_position(value: int, /) -> None: ...


def _response() -> Response:
    return Response()


def _unknown(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def _untagged(value: Order | Line) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [_odd_input, _odd_output, _any_number, _by_position, _response, _unknown, _untagged, _generator, Odd, 5],
)
def test_command__function_cannot_be_one__refused(handler: Any) -> None:
    router = Router()

    with pytest.raises(DefinitionError, match="'c'"):
        router.command("c")(handler)

    assert router.commands == {}
    assert router.match("POST", "/rpc/c") is None


def test_rest__get__takes_the_path_and_the_query_and_converts_them() -> None:
    router = Router()

    @router.command(method="GET", path="/shops/{shop}/orders")
    def search(query: Search) -> Search:
        return query

    query = {"limit": ["5"], "colours": ["red", "red"], "since": ["2024-02-29"], "exact": ["true"], "other": ["1"]}

    assert body_of(call(router, "GET", "/shops/a%2Fb/orders", query=query)) == {
        "shop": "a/b",
        "limit": 5,
        "colours": ["red", "red"],
        "since": "2024-02-29",
        "exact": True,
    }
    assert body_of(call(router, "POST", "/rpc/search", body=b'{"shop":"x"}'))["limit"] == 10


@pytest.mark.parametrize(
    ("query", "problems"),
    [
        ({"limit": ["x"], "colours": ["red", "blue"]}, [("query", "limit"), ("query", "colours[1]")]),
        ({"limit": ["1", "2"]}, [("query", "limit")]),
        ({"limit": ["0"]}, [("query", "limit")]),
        ({"limit": [""], "since": ["yesterday"]}, [("query", "limit"), ("query", "since")]),
        ({"exact": ["perhaps"]}, [("query", "exact")]),
    ],
)
def test_rest__query_does_not_fit__lists_every_problem(
    query: dict[str, list[str]], problems: list[tuple[str, str]]
) -> None:
    router = Router()
    router.command("search", method="GET", path="/shops/{shop}")(_search)

    with pytest.raises(BadInputError) as caught:
        call(router, "GET", "/shops/x", query=query)

    assert problems_of(caught) == problems


def _search(query: Search) -> int:
    return query.limit


def test_rest__params_with_other_names__are_taken_from_where_they_say() -> None:
    router = Router()
    params: dict[str, Any] = {
        "shop": "header",
        "limit": ("query", "max"),
        "colours": ("header", "X-Colours"),
        "since": ("body", "from"),
        "exact": ("path", "how"),
    }
    router.command("search", method="POST", path="/search/{how}", params=params)(_everything)
    headers = Headers([("Shop", "x"), ("x-colours", "red, red"), ("x-colours", "red")])

    response = call(
        router,
        "POST",
        "/search/true",
        headers=headers,
        query={"max": ["7"]},
        body=b'{"from":"2024-01-01","since":"2020-01-01","limit":99}',
    )

    assert body_of(response) == ["x", 7, 3, "2024-01-01", True]
    with pytest.raises(BadInputError) as caught:
        call(router, "POST", "/search/maybe", query={"max": ["x"]}, body=b'{"from":5}')
    assert problems_of(caught) == [("query", "max"), ("path", "how"), ("header", "shop"), ("body", "from")]


def _everything(query: Search) -> list[Any]:
    return [query.shop, query.limit, len(query.colours), query.since, query.exact]


def test_rest__put__takes_the_rest_from_the_body_strictly() -> None:
    router = Router()
    router.command("charge", method="PUT", path="/orders/{orderId}", status=202)(_charge)

    command = router.commands["charge"]
    response = call(router, "PUT", "/orders/7", body=b'{"totalPrice":12,"orderId":"other"}')

    assert (command.method, command.path, command.status) == ("PUT", "/orders/{orderId}", 202)

    assert (response.status, body_of(response)) == (202, 12)
    assert call(router, "POST", "/rpc/charge", body=b'{"totalPrice":1,"orderId":"7"}').status == 200
    for body, problems in [
        (b'{"totalPrice":"12"}', [("body", "totalPrice")]),
        (b"", [("body", "totalPrice")]),
        (b"[]", [("body", "")]),
        (b"{", [("body", "")]),
        (b'{"totalPrice":1,"surprise":1}', [("body", "")]),
    ]:
        with pytest.raises(BadInputError) as caught:
            call(router, "PUT", "/orders/7", body=body)
        assert problems_of(caught) == problems


def test_rest__one_plain_parameter_or_several__are_fields_by_their_names() -> None:
    router = Router()

    @router.command(method="GET", path="/orders/{id}")
    def show(id: int) -> int:
        return id

    @router.command(method="GET", path="/days/{day}")
    def day_of(day: date, request: Request, shops: frozenset[str] = frozenset()) -> list[Any]:
        return [day, sorted(shops), request.path]

    assert body_of(call(router, "GET", "/orders/7")) == 7
    assert body_of(call(router, "POST", "/rpc/show", body=b"7")) == 7
    assert body_of(call(router, "GET", "/days/2024-01-02", query={"shops": ["b", "a"]})) == [
        "2024-01-02",
        ["a", "b"],
        "/days/2024-01-02",
    ]
    with pytest.raises(BadInputError) as caught:
        call(router, "GET", "/orders/x")
    assert problems_of(caught) == [("path", "id")]


def test_rest__no_input__takes_nothing_from_anywhere() -> None:
    router = Router()
    router.command("ping", method="GET", path="/ping")(_ping)
    router.command("quietly", method="POST", path="/quietly", status=201)(_nothing)

    assert body_of(call(router, "GET", "/ping", query={"a": ["1"]}, body=b"x")) == "pong"
    assert call(router, "POST", "/quietly", body=b"x").to_wire() == (201, [], b"")


def _nothing(request: Request) -> None: ...


def test_rest__a_dict__takes_whatever_comes() -> None:
    router = Router()
    router.command("find", method="GET", path="/find/{id}")(_echo)
    router.command("save", method="POST", path="/save/{id}", params={"who": ("header", "x-who")})(_echo)
    router.command("count", method="GET", path="/count")(_count)
    router.command("patch", method="PATCH", path="/patch/{id}")(_patch)

    found = call(router, "GET", "/find/7", query={"a": ["1"], "b": ["2", "3"], "id": ["8"]})
    saved = call(router, "POST", "/save/7", headers=Headers({"X-Who": "ann"}), body=b'{"id":8,"deep":{"a":[1]}}')

    assert body_of(found) == {"id": "7", "a": "1", "b": ["2", "3"]}
    assert body_of(saved) == {"id": "7", "who": "ann", "deep": {"a": [1]}}
    assert body_of(call(router, "GET", "/count", query={"a": ["1"], "b": ["2"]})) == 3
    assert body_of(call(router, "PATCH", "/patch/7", body=b'{"note":"x"}')) == {"id": "7", "note": "x"}
    for query in ({"a": ["x"]}, {"a": ["1", "2"]}):
        with pytest.raises(BadInputError) as caught:
            call(router, "GET", "/count", query=query)
        assert problems_of(caught) == [("query", "a")]


def _echo(value: dict[str, Any]) -> dict[str, Any]:
    return value


def _count(counts: dict[str, int]) -> int:
    return sum(counts.values())


def _patch(patch: Patch) -> Patch:
    return patch


@pytest.mark.parametrize(
    "declaration",
    [
        {"path": "/orders/{id}"},
        {"path": "/rpc/charge2"},
        {"path": "/api/charge"},
        {"path": "charge"},
        {"path": "/taken", "method": "GET"},
        {"path": "/charge", "method": "BREW"},
        {"path": "/charge", "params": {"nothing": "query"}},
        {"path": "/charge", "params": {"orderId": "cookie"}},
        {"path": "/charge", "params": {"orderId": ("query", "")}},
        {"path": "/charge", "params": {"orderId": "path"}},
        {"path": "/charge/{x}", "params": {"orderId": ("path", "y")}},
        {"path": "/charge", "method": "GET", "params": {"totalPrice": "body"}},
        {"path": "/charge", "status": 404},
        {"path": "/charge", "status": 204},
        {"path": "/charge", "status": 299},
        {"method": "GET"},
        {"params": {"orderId": "query"}},
    ],
)
def test_rest__cannot_be_mapped_so__refused_and_nothing_is_declared(declaration: dict[str, Any]) -> None:
    router = declared(("GET", "/taken"))

    with pytest.raises(DefinitionError):
        router.command("charge", **declaration)(_charge)

    assert router.commands == {}
    assert len(router.table) == 1
    assert router.match("POST", "/rpc/charge") is None
