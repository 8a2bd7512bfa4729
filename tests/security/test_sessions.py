"""Stolen, forged and planted session cookies, and requests that other sites cause, change nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.program import Server, run

COOKIE = "headgate-session"
KEYS = "/api/v1/api-keys"
ISSUE = {"principal": "mallory", "roles": ["admin"]}
_CSRF = re.compile(r'<meta name="csrf" content="([0-9a-f]{64})">')


class Site:
    """A server that requires authentication, and its first key."""

    def __init__(self, server: Server, folder: Path) -> None:
        made = run("api-key", "first", "--home", server.home, "--json", folder=folder)
        assert made.returncode == 0, made.stderr
        self.key: str = json.loads(made.stdout)["text"]
        self.url = server.url
        self.server = server

    def ask(self, method: str, path: str, cookie: str | None = None, **more: Any) -> httpx.Response:
        headers = {**more.pop("headers", {}), **({} if cookie is None else {"cookie": f"{COOKIE}={cookie}"})}
        return httpx.request(method, self.url + path, headers=headers, timeout=20, **more)

    def sign_in(self, key: str | None = None, **more: Any) -> httpx.Response:
        form = {"key": self.key if key is None else key, "next": more.pop("after", "/ui")}
        return self.ask("POST", "/ui/sign-in", data=form, **more)

    def cookie(self, key: str | None = None) -> str:
        answer = self.sign_in(key)
        assert answer.status_code == 303, answer.text
        return str(answer.cookies[COOKIE])

    def csrf(self, cookie: str) -> str:
        found = _CSRF.search(self.ask("GET", "/ui", cookie).text)
        assert found is not None
        return found.group(1)

    def issue(self, principal: str, role: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.key}"}
        answer = self.ask("POST", KEYS, json={"principal": principal, "roles": [role]}, headers=headers)
        assert answer.status_code == 201, answer.text
        issued: dict[str, Any] = answer.json()
        return issued

    def is_signed_in(self, cookie: str) -> bool:
        status = self.ask("GET", KEYS, cookie).status_code
        assert status in (200, 401)
        return status == 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("sessions")
    with Server(
        folder,
        HEADGATE_AUTH_REQUIRED="true",
        HEADGATE_LOG_FORMAT="json",
        HEADGATE_ALLOWED_ORIGINS="https://console.example",
    ) as server:
        yield Site(server, folder)


def test_stolen_cookie__without_the_csrf_token__changes_nothing(site: Site) -> None:
    cookie = site.cookie()
    other = site.csrf(site.cookie())

    for headers in ({}, {"headgate-csrf": ""}, {"headgate-csrf": "0" * 64}, {"headgate-csrf": other}):
        answer = site.ask("POST", KEYS, cookie, json=ISSUE, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    for method, path in (("PUT", "/api/v1/machines/x"), ("DELETE", "/api/v1/machines/x"), ("POST", "/graphql")):
        assert site.ask(method, path, cookie, content=b"{}").status_code == 403

    assert site.ask("POST", KEYS, cookie, json=ISSUE, headers={"headgate-csrf": site.csrf(cookie)}).status_code == 201


@pytest.mark.parametrize(
    "value", ["", "x", "A" * 43, "A" * 4000, "../../etc", "hg_x", "%00" * 10, '"' + "A" * 43 + '"']
)
def test_forged_cookie__is_no_session(site: Site, value: str) -> None:
    assert site.ask("GET", KEYS, value).status_code == 401
    page = site.ask("GET", "/ui", value)
    assert page.status_code == 303
    assert page.headers["location"] == "/ui/sign-in?next=/ui"


def test_cookie__on_a_remote_procedure_call__is_not_accepted(site: Site) -> None:
    cookie = site.cookie()

    answer = site.ask(
        "POST",
        "/observability.statestore.v1.SignalStateService/GetSignalState",
        cookie,
        json={},
        headers={"headgate-csrf": site.csrf(cookie)},
    )

    assert answer.status_code == 401


def test_sign_out__ended_session__is_refused(site: Site) -> None:
    cookie = site.cookie()
    assert site.ask("POST", "/ui/sign-out", cookie, data={}).status_code == 403
    assert site.ask("GET", "/ui/sign-out", cookie).status_code in (404, 405)
    assert site.is_signed_in(cookie)

    answer = site.ask("POST", "/ui/sign-out", cookie, data={"csrf": site.csrf(cookie)})

    assert answer.status_code == 303
    assert not site.is_signed_in(cookie)


@pytest.mark.parametrize(("method", "path", "status"), [("DELETE", "", 200), ("POST", "/rotate", 201)])
def test_key__revoked_or_rotated__its_sessions_are_refused(site: Site, method: str, path: str, status: int) -> None:
    issued = site.issue("temp", "admin")
    cookie = site.cookie(issued["text"])
    assert site.is_signed_in(cookie)

    answer = site.ask(
        method, f"{KEYS}/{issued['key']['key_id']}{path}", json={}, headers={"authorization": f"Bearer {site.key}"}
    )

    assert answer.status_code == status, answer.text
    assert not site.is_signed_in(cookie)


def test_fixation__planted_cookie__is_never_adopted(site: Site) -> None:
    planted = "A" * 43
    assert site.sign_in(headers={"cookie": f"{COOKIE}={planted}"}).cookies[COOKIE] != planted
    assert not site.is_signed_in(planted)
    mallory = site.cookie(site.issue("mallory", "viewer")["text"])

    after = site.sign_in(headers={"cookie": f"{COOKIE}={mallory}"})

    assert after.cookies[COOKIE] != mallory
    assert site.ask("GET", "/ui", mallory).status_code == 303


@pytest.mark.parametrize(
    "target",
    ["https://evil.example", "//evil.example", "/\\evil.example", "/ui/../api/v1", "/ui\r\nx: y", "/ui/sign-out"],
)
def test_open_redirect__is_refused(site: Site, target: str) -> None:
    assert site.sign_in(after=target).headers["location"] == "/ui"
    form = site.ask("GET", "/ui/sign-in", params={"next": target})
    assert 'name="next" value="/ui"' in form.text


@pytest.mark.parametrize("path", ["/ui/sign-in", "/ui/sign-out", KEYS])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:1", "sec-fetch-site": "same-site"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"origin": "https://evil.example"},
    ],
)
def test_post_of_another_origin__is_refused(site: Site, path: str, headers: dict[str, str]) -> None:
    cookie = site.cookie()
    form = {"key": site.key, "csrf": site.csrf(cookie)}

    answer = site.ask("POST", path, cookie, data=form, headers={**headers, "headgate-csrf": form["csrf"]})

    assert (answer.status_code, answer.json()["code"]) == (403, "origin_not_allowed")
    assert "set-cookie" not in answer.headers
    assert site.is_signed_in(cookie)


def test_configured_origin__may_not_use_the_cookie_to_change_something(site: Site) -> None:
    answer = site.ask("POST", KEYS, site.cookie(), json=ISSUE, headers={"origin": "https://console.example"})

    assert answer.status_code == 403
    assert "access-control-allow-credentials" not in answer.headers


def test_cookie__flags_and_pages_are_not_cached(site: Site) -> None:
    answer = site.sign_in()

    flags = [each.strip().lower() for each in answer.headers["set-cookie"].split(";")[1:]]
    assert {"httponly", "samesite=strict", "path=/"} <= set(flags)
    assert not any(each.startswith("domain") for each in flags)
    assert answer.headers["cache-control"] == "no-store"
    assert site.ask("GET", "/ui", answer.cookies[COOKIE]).headers["cache-control"] == "no-store"


def test_secrets__are_in_neither_log_nor_database(site: Site) -> None:
    cookie = site.cookie()
    assert site.is_signed_in(cookie)

    assert cookie not in site.server.stderr
    assert site.key not in site.server.stderr
    stored = b"".join(each.read_bytes() for each in site.server.home.iterdir() if each.is_file())
    assert b"session.sign_in" in stored
    assert cookie.encode() not in stored
