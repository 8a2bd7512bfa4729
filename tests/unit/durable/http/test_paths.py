"""Which of many path templates a path fits, and which paths cannot be declared."""

from __future__ import annotations

import pytest

from headgate.durable.http.router import HttpError, Router
from headgate.errors import DefinitionError
from tests.unit.durable.http_app import (
    declared,
)


@pytest.mark.parametrize(
    ("raw_path", "params"),
    [
        ("/orders/7", {"id": "7"}),
        ("/orders/7/", {"id": "7"}),
        ("/orders/a%2Fb", {"id": "a/b"}),
        ("/orders/100%25", {"id": "100%"}),
        ("/orders/%2525", {"id": "%25"}),
        ("/orders/caf%C3%A9%20%E2%98%83", {"id": "café ☃"}),
        ("/orders/a+b", {"id": "a+b"}),
        ("/%6Frders/7", {"id": "7"}),
    ],
)
def test_match__percent_encoded__is_taken_apart_first_and_decoded_once(raw_path: str, params: dict[str, str]) -> None:
    match = declared(("GET", "/orders/{id}")).match("GET", raw_path)

    assert match is not None
    assert match.path_params == params


@pytest.mark.parametrize(
    "raw_path",
    ["/", "", "/orders", "/orders/", "/orders//", "/orders/7/8", "/Orders/7", "/orders/..", "/orders/%2e%2E", "/x%2F7"],
)
def test_match__another_path__is_none(raw_path: str) -> None:
    assert declared(("GET", "/orders/{id}")).match("GET", raw_path) is None


@pytest.mark.parametrize(
    ("raw_path", "rest"),
    [("/files/a", "a"), ("/files/a/b.txt", "a/b.txt"), ("/files/a%2Fb/c", "a/b/c"), ("/files/a//b", "a//b")],
)
def test_match__tail__is_all_the_rest(raw_path: str, rest: str) -> None:
    match = declared(("GET", "/files/{rest:path}")).match("GET", raw_path)

    assert match is not None
    assert match.path_params == {"rest": rest}


@pytest.mark.parametrize(
    "raw_path", ["/files", "/files/", "/files/../x", "/files/a/..%2f..%2Fx", "/files/%2e%2e/x", "/files/..%5Cx"]
)
def test_match__tail_that_is_empty_or_climbs__is_none(raw_path: str) -> None:
    assert declared(("GET", "/files/{rest:path}")).match("GET", raw_path) is None


def test_match__several_fit__text_beats_a_parameter_beats_a_tail() -> None:
    router = declared(
        ("GET", "/a/{rest:path}"), ("GET", "/a/{id}"), ("GET", "/a/new"), ("POST", "/a/{id}"), ("GET", "/{x}/{y}/z")
    )

    def path(method: str, raw_path: str) -> str | None:
        match = router.match(method, raw_path)
        return match.route.path if match is not None and match.route is not None else None

    assert path("GET", "/a/new") == "/a/new"
    assert path("GET", "/a/7") == "/a/{id}"
    assert path("GET", "/a/7/z") == "/a/{rest:path}"
    assert path("GET", "/b/7/z") == "/{x}/{y}/z"
    # The best path that has the method, not the best path.
    assert path("POST", "/a/new") == "/a/{id}"


@pytest.mark.parametrize("raw_path", ["/api/x", "/health/x", "/rpc/x", "/ui/x", "/observability.statestore.v1.S/Get"])
def test_match__a_parameter_in_front__does_not_reach_the_servers_own(raw_path: str) -> None:
    router = declared(("GET", "/{shop}/{rest:path}"))

    assert router.match("GET", raw_path) is None
    assert router.match("GET", "/apis/x") is not None


def test_match__not_utf8__is_a_bad_path() -> None:
    with pytest.raises(HttpError) as caught:
        declared(("GET", "/orders/{id}")).match("GET", "/orders/%ff")

    assert (caught.value.status, caught.value.code) == (400, "bad_path")


def test_match__head__is_that_of_get_unless_there_is_one() -> None:
    router = declared(("GET", "/a"), ("GET", "/b"), ("HEAD", "/b"))

    def method(raw_path: str) -> str:
        match = router.match("HEAD", raw_path)
        assert match is not None
        assert match.route is not None
        return match.route.method

    assert method("/a") == "GET"
    assert method("/b") == "HEAD"


def test_match__method_is_not_there__reports_those_that_are() -> None:
    router = declared(("DELETE", "/a/{id}"), ("GET", "/a/{id}"), ("PUT", "/a/new"))

    match = router.match("PATCH", "/a/new")

    assert match is not None
    assert match.route is None
    assert match.methods == ("GET", "HEAD", "PUT", "DELETE", "OPTIONS")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "orders",
        "/",
        "/orders/",
        "//orders",
        "/a//b",
        "/a/../b",
        "/a b",
        "/a?b",
        "/a#b",
        "/a%20b",
        "/{",
        "/a-{id}",
        "/{id}-a",
        "/{1}",
        "/{a b}",
        "/{id:int}",
        "/{}",
        "/{rest:path}/a",
        "/{id}/{id}",
        "/a\nb",
        "/a\\b",
    ],
)
def test_route__path_is_not_understood__refused(path: str) -> None:
    with pytest.raises(DefinitionError, match="path"):
        Router().get(path)


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/orders",
        "/ui/x",
        "/graphql",
        "/metrics",
        "/health/mine",
        "/rpc/x",
        "/observability.statestore.v1.StateStore/Get",
        "/grpc.health.v1.Health/Check",
    ],
)
def test_route__reserved_path__refused(path: str) -> None:
    with pytest.raises(DefinitionError, match="server's own"):
        Router().get(path)


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "BREW", "", "GET POST"])
def test_route__method_is_not_served__refused(method: str) -> None:
    with pytest.raises(DefinitionError, match="GET, HEAD, POST"):
        Router().route(method, "/a")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("/orders/{id}", "/orders/{id}"),
        ("/orders/{id}", "/orders/{name}"),
        ("/files/{rest:path}", "/files/{rest:path}"),
        ("/files/{rest:path}", "/files/{rest}"),
    ],
)
def test_route__declared_twice__refused_and_the_first_stays(first: str, second: str) -> None:
    router = declared(("GET", first))

    with pytest.raises(DefinitionError):
        router.get(second)(lambda _request: "second")

    assert [route.path for route in router.routes] == [first]
    assert len(router.table) == 1


def test_route__same_path_under_another_name_of_its_parameter__refused_for_other_methods_too() -> None:
    router = declared(("GET", "/orders/{id}"))

    with pytest.raises(DefinitionError, match="other names"):
        router.delete("/orders/{order_id}")(lambda _request: None)

    assert router.match("GET", "/orders/7") is not None
