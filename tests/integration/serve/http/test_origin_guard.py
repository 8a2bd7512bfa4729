"""The guard lets programs on this machine in, and keeps web pages from elsewhere out."""

from __future__ import annotations

import pytest

from headgate.serve.http.origin_guard import BODY_BYTES_MAX
from tests.integration.serve.conftest import Application


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8400", "127.0.0.1", "127.0.0.1:8400", "127.8.8.8:1", "[::1]", "[::1]:8400"]
)
def test_host__loopback__is_served(application: Application, host: str) -> None:
    assert application.ask("GET", "/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "localhost@evil.example",
        "evil.example@localhost",
        "localhost/evil.example",
        "localhost?evil.example",
        "evil.example/localhost",
        "0.0.0.0",
        "10.0.0.1:8400",
        "[::]:8400",
        "localhost:port",
        "",
    ],
)
def test_host__anything_else__is_421(application: Application, host: str) -> None:
    answer = application.ask("GET", "/", headers={"Host": host})

    assert answer.status_code == 421
    assert answer.json()["code"] == "host_not_allowed"
    assert answer.headers["content-type"] == "application/problem+json"


def test_host__given_twice__is_421(application: Application) -> None:
    answer = application.ask("GET", "/", headers=[("Host", "localhost"), ("Host", "evil.example")])

    assert answer.status_code == 421


def test_host__in_allowed_hosts__is_served_on_any_port(application: Application) -> None:
    application.allowed_hosts = ["Gate.Example"]

    assert application.ask("GET", "/", headers={"Host": "gate.example:443"}).status_code == 200
    assert application.ask("GET", "/", headers={"Host": "other.example"}).status_code == 421


@pytest.mark.parametrize("origin", ["http://127.0.0.1:8400", "http://localhost:3000", "https://[::1]"])
def test_origin__this_machine__is_served(application: Application, origin: str) -> None:
    assert application.ask("GET", "/", headers={"Origin": origin}).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1.evil.example", "null", "file://localhost", "", "localhost"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_origin__another_site__is_403(application: Application, origin: str, method: str) -> None:
    answer = application.ask(method, "/", headers={"Origin": origin})

    assert answer.status_code == 403
    assert answer.json()["code"] == "origin_not_allowed"


def test_origin__in_allowed_hosts__is_served(application: Application) -> None:
    application.allowed_hosts = ["gate.example"]

    assert application.ask("GET", "/", headers={"Origin": "https://gate.example"}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/health", "/nowhere"])
def test_body__declared_longer_than_the_limit__is_413_on_every_route(application: Application, path: str) -> None:
    answer = application.ask("POST", path, content=b"x" * (BODY_BYTES_MAX + 1))

    assert answer.status_code == 413
    assert answer.json()["code"] == "content_too_large"


def test_body__exactly_the_limit__passes_the_guard(application: Application) -> None:
    assert application.ask("POST", "/", content=b"x" * BODY_BYTES_MAX).status_code == 405


def test_cross_site__without_an_origin__is_403(application: Application) -> None:
    answer = application.ask("GET", "/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"})

    assert answer.status_code == 403
    assert answer.json()["code"] == "origin_not_allowed"


def test_cross_site__a_link_to_a_page_is_followed__passes_and_nothing_else_does(application: Application) -> None:
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}

    # There are no pages in this application: what counts is that it was asked for one.
    assert application.ask("GET", "/ui/incidents/INC-1", headers=visit).status_code == 404
    for method, path, changed in (
        ("POST", "/ui", {}),
        ("GET", "/health", {}),
        ("GET", "/ui2", {}),
        ("GET", "/ui", {"Sec-Fetch-Dest": "iframe"}),
        ("GET", "/ui", {"Sec-Fetch-Mode": "no-cors"}),
    ):
        assert application.ask(method, path, headers={**visit, **changed}).status_code == 403, (method, path, changed)


@pytest.mark.parametrize("site", ["none", "same-origin", "same-site"])
def test_cross_site__it_is_not__is_served(application: Application, site: str) -> None:
    assert application.ask("GET", "/", headers={"Sec-Fetch-Site": site}).status_code == 200


def test_cross_site__from_an_allowed_origin__is_served(application: Application) -> None:
    application.allowed_hosts = ["gate.example"]
    headers = {"Sec-Fetch-Site": "cross-site", "Origin": "https://gate.example"}

    assert application.ask("GET", "/", headers=headers).status_code == 200


@pytest.mark.parametrize(("headers", "status"), [({}, 200), ({"Origin": "http://evil.example"}, 403)])
def test_answer__any__may_not_be_taken_for_something_else(
    application: Application, headers: dict[str, str], status: int
) -> None:
    answer = application.ask("GET", "/", headers=headers)

    assert answer.status_code == status
    assert answer.headers["x-content-type-options"] == "nosniff"
