"""Signing in at a real OIDC issuer: the authorization code flow through a browser's requests, and attacks on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.acceptance.program import Server, until
from tests.ports import free_port

CLIENT = "headgate-pages"
ATTEMPT = "headgate-sign-in"
SESSION = "headgate-session"


class Issuer:
    """The issuer as a subprocess."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        with (folder / "issuer.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )
        until(self._is_up, "the issuer")

    def person(self, name: str, *roles: str) -> None:
        httpx.put(f"{self.url}/users/{name}", json={"roles": roles}, timeout=20).raise_for_status()

    def approve(self, address: str, name: str) -> str:
        """Sign in at the issuer, and return where it sends the browser."""
        answer = httpx.post(address, data={"sub": name}, timeout=20)
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])

    def _is_up(self) -> bool:
        try:
            return httpx.get(f"{self.url}/.well-known/openid-configuration", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


class Site:
    def __init__(self, server: Server, issuer: Issuer) -> None:
        self.server = server
        self.issuer = issuer

    def browser(self) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, timeout=20)

    def started(self, browser: httpx.Client, after: str = "/ui") -> str:
        answer = browser.get("/ui/sign-in/oidc", params={"next": after})
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])

    def answered(self, browser: httpx.Client, name: str, after: str = "/ui") -> str:
        return self.issuer.approve(self.started(browser, after), name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("oidc")
    secret = folder / "client-secret"
    secret.write_text("of-the-client\n")
    issuer = Issuer(folder)
    try:
        with Server(
            folder / "server",
            HEADGATE_AUTH_REQUIRED="true",
            HEADGATE_AUTH_OIDC_ISSUER=issuer.url,
            HEADGATE_AUTH_OIDC_CLIENT_ID=CLIENT,
            HEADGATE_AUTH_OIDC_CLIENT_SECRET_FILE=str(secret),
            HEADGATE_AUTH_OIDC_ROLES='{"data-oncall": "operator"}',
            HEADGATE_FORWARD_PRIVATE_HOSTS="127.0.0.1",
            HEADGATE_FORWARD_PLAIN_HTTP="true",
        ) as server:
            issuer.person("ada", "data-oncall", "admin")
            yield Site(server, issuer)
    finally:
        issuer.process.terminate()
        issuer.process.wait(20)


def test_sign_in__at_the_issuer__opens_a_session_with_the_mapped_roles(site: Site) -> None:
    with site.browser() as browser:
        form = browser.get("/ui/sign-in", params={"next": "/ui/datasets"})
        assert 'href="/ui/sign-in/oidc?next=/ui/datasets"' in form.text
        answer = browser.get(site.answered(browser, "ada", "/ui/datasets"))
        page = browser.get("/ui/datasets")
        forbidden = browser.get("/api/v1/api-keys")
        csrf = re.search(r'name="csrf" value="([0-9a-f]{64})"', page.text)
        assert csrf is not None
        out = browser.post("/ui/sign-out", data={"csrf": csrf.group(1)})
        after = browser.get("/ui/datasets")

    assert answer.status_code == 200
    assert 'content="0;url=/ui/datasets"' in answer.text
    assert page.status_code == 200
    # "admin" is a role of the issuer that is not mapped.
    assert 'title="Roles: operator">ada<' in page.text
    assert forbidden.status_code == 403
    assert out.status_code == 303
    assert after.status_code == 303


def test_start__asks_with_state_nonce_and_challenge_and_sets_a_cookie_for_the_way_back(site: Site) -> None:
    with site.browser() as browser:
        answer = browser.get("/ui/sign-in/oidc")

    asked = {name: values[0] for name, values in parse_qs(urlsplit(answer.headers["location"]).query).items()}
    assert asked["code_challenge_method"] == "S256"
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{43}", asked[each]) for each in ("state", "nonce", "code_challenge"))
    assert asked["redirect_uri"] == f"{site.server.url}/ui/sign-in/callback"
    assert asked["scope"].split() == ["openid", "profile"]
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(answer.headers["set-cookie"].split("; "))


def test_callback__of_another_browser__is_refused(site: Site) -> None:
    with site.browser() as attacker, site.browser() as victim:
        address = site.answered(attacker, "ada")
        without = victim.get(address)
        site.started(victim)
        other = victim.get(address)

    for answer in (without, other):
        assert answer.status_code == 401
        assert SESSION not in answer.cookies


def test_callback__twice__is_refused(site: Site) -> None:
    with site.browser() as browser:
        address = site.answered(browser, "ada")
        attempt = browser.cookies[ATTEMPT]
        assert browser.get(address).cookies[SESSION]
        assert ATTEMPT not in browser.cookies
        browser.cookies.clear()
        browser.cookies.set(ATTEMPT, attempt)
        again = browser.get(address)

    # The issuer accepts a code once.
    assert again.status_code == 401
    assert SESSION not in again.cookies


def test_callback__code_of_another_attempt__fails_the_nonce(site: Site) -> None:
    with site.browser() as attacker, site.browser() as victim:
        stolen = parse_qs(urlsplit(site.answered(attacker, "ada")).query)["code"][0]
        state = parse_qs(urlsplit(site.started(victim)).query)["state"][0]
        answer = victim.get("/ui/sign-in/callback", params={"code": stolen, "state": state})

    assert answer.status_code == 401
    assert "another sign-in" in answer.text
    assert SESSION not in answer.cookies


def test_callback__issuer_refuses_or_names_another__is_shown_without_markup(site: Site) -> None:
    with site.browser() as browser:
        state = parse_qs(urlsplit(site.started(browser)).query)["state"][0]
        refused = browser.get("/ui/sign-in/callback", params={"state": state, "error": "access_denied<script>"})
        state = parse_qs(urlsplit(site.started(browser)).query)["state"][0]
        mixed = browser.get("/ui/sign-in/callback", params={"state": state, "code": "x", "iss": "https://evil.example"})

    assert refused.status_code == 401
    assert "access_deniedscript" in refused.text
    assert mixed.status_code == 401
    assert "another issuer" in mixed.text


def test_next__to_another_site__is_not_followed(site: Site) -> None:
    with site.browser() as browser:
        answer = browser.get(site.answered(browser, "ada", "https://evil.example/"))

    assert 'content="0;url=/ui"' in answer.text
