"""OpenAPI documents of routes and commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from headgate.durable.http.router import Request, Response, Router, openapi
from tests.unit.durable.http_app import Line, Order, Receipt, Search


def _documented() -> Router:
    router = Router()

    @router.get("/orders/{id}", summary="One order")
    def show(request: Request) -> Order: ...  # type: ignore[empty-body]

    @router.get("/files/{rest:path}")
    def read(request: Request) -> bytes: ...  # type: ignore[empty-body]

    @router.post("/raw")
    def raw(request: Request) -> Response: ...  # type: ignore[empty-body]

    @router.delete("/orders/{id}")
    def remove(request: Request) -> None: ...

    router.command("charge", method="PUT", path="/orders/{orderId}/charge", status=202)(_charge)
    router.command("search", method="GET", path="/shops/{shop}", params={"limit": ("header", "x-limit")})(_search)
    router.command("a.b")(_two_fields)
    router.command("a_b")(_two_fields)
    router.command("quiet", method="POST", path="/quiet")(_quiet)
    return router


def _charge(order: Order) -> int:
    return order.total_price


def _search(query: Search) -> int:
    return query.limit


def _quiet(value: Any) -> None: ...


def _two_fields(first: int, second: Line | None = None) -> Receipt:
    return Receipt(first)


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for member in value:
            yield from references(member)


def test_openapi__of_a_router__every_reference_leads_somewhere_and_ids_are_unique() -> None:
    document = openapi(_documented(), "Orders", "1.2.3")

    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert document["openapi"].startswith("3.1")
    assert document["info"] == {"title": "Orders", "version": "1.2.3"}
    assert set(references(document)) == names
    assert len(set(ids)) == len(ids) == 12
    assert msgspec.json.decode(msgspec.json.encode(document)) == document


def test_openapi__of_routes_and_commands__reports_what_they_take_and_give() -> None:
    paths = openapi(_documented(), "Orders", "1")["paths"]

    show = paths["/orders/{id}"]["get"]
    assert show["summary"] == "One order"
    assert show["responses"]["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Order"}
    assert "application/problem+json" in show["responses"]["default"]["content"]
    assert "204" in paths["/orders/{id}"]["delete"]["responses"]
    assert [each["name"] for each in paths["/files/{rest}"]["get"]["parameters"]] == ["rest"]
    assert "application/octet-stream" in paths["/files/{rest}"]["get"]["responses"]["200"]["content"]
    assert "*/*" in paths["/raw"]["post"]["requestBody"]["content"]

    charge = paths["/orders/{orderId}/charge"]["put"]
    body = charge["requestBody"]["content"]["application/json"]["schema"]
    assert (list(body["properties"]), body["required"]) == (["totalPrice", "lines"], ["totalPrice"])
    assert charge["responses"]["202"]["content"]["application/json"]["schema"] == {"type": "integer"}
    search = {each["name"]: each for each in paths["/shops/{shop}"]["get"]["parameters"]}
    assert {name: (each["in"], each["required"]) for name, each in search.items()} == {
        "shop": ("path", True),
        "x-limit": ("header", False),
        "colours": ("query", False),
        "since": ("query", False),
        "exact": ("query", False),
    }
    assert search["x-limit"]["schema"] == {"type": "integer", "minimum": 1, "maximum": 100}
    assert paths["/rpc/charge"]["post"]["requestBody"]["required"] is True
    assert "204" in paths["/rpc/quiet"]["post"]["responses"]


def test_openapi__two_commands_of_one_shape__have_schemas_of_their_own() -> None:
    document = openapi(_documented(), "Orders", "1")

    schemas = [
        document["paths"][f"/rpc/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        for name in ("a.b", "a_b")
    ]
    assert len(set(schemas)) == 2
    schema = document["components"]["schemas"][schemas[0].rpartition("/")[2]]
    assert (list(schema["properties"]), schema["required"]) == (["first", "second"], ["first"])
