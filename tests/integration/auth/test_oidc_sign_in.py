"""OIDC sign-in: what is sent to the issuer's token endpoint, and answers that are not trusted."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from headgate.auth.key_sets import KeySet
from headgate.auth.oidc_sign_in import OidcSignIn
from headgate.auth.roles import Role
from headgate.auth.tokens import TokenPolicy, Tokens
from headgate.clock import VirtualClock
from headgate.durable.bus.egress_policy import Destinations
from headgate.errors import SettingsError, TransientError, UnauthenticatedError
from tests.unit.auth.issuing import claims, jwk, jwks, rsa_key, sign

CLIENT = "pages"
BACK = "http://127.0.0.1:8400/ui/sign-in/callback"
LOCAL = Destinations(("127.0.0.1",), (), True)


class Issuer:
    """An issuer that records token requests, and answers them as it is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, str]]] = []
        self.more: dict[str, Any] = {}
        self.discovery: dict[str, Any] = {}
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, issuer.discovery)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                issuer.requests.append(({name.lower(): value for name, value in self.headers.items()}, form))
                self._send(200, {"id_token": issuer.token()})

            def _send(self, status: int, content: object) -> None:
                raw = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.discovery = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }
        self.clock = VirtualClock()
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def token(self) -> str:
        given = {"iss": self.url, "aud": CLIENT, **self.more}
        return sign(claims(self.clock.seconds(), **given), rsa_key(), "RS256")

    def client(self, *, destinations: Destinations = LOCAL, secret_file: Path | None = None) -> OidcSignIn:
        keys = KeySet(lambda: jwks(jwk(rsa_key(), "k1")), self.clock)
        tokens = Tokens(TokenPolicy(issuer=self.url, audience=CLIENT), keys, self.clock)
        return OidcSignIn(
            self.clock,
            tokens,
            issuer=self.url,
            client_id=CLIENT,
            scopes=("profile",),
            secret_file=secret_file,
            destinations=destinations,
        )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


def asked(address: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


def test_finish__right_answer__proves_the_challenge_and_returns_the_person(issuer: Issuer) -> None:
    client = issuer.client()
    started = client.start(BACK)
    query = asked(started.address)
    issuer.more = {"nonce": query["nonce"]}

    principal = client.finish(started.attempt.reveal(), {"state": query["state"], "code": "c1"}, BACK)

    ((headers, form),) = issuer.requests
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == query["code_challenge"]
    assert (form["code"], form["redirect_uri"], form["client_id"]) == ("c1", BACK, CLIENT)
    assert "authorization" not in headers
    assert (principal.name, principal.roles) == ("ann", frozenset({Role.VIEWER}))


@pytest.mark.parametrize("methods", [["client_secret_basic"], ["client_secret_post"]])
def test_finish__client_with_a_secret__authenticates_as_the_issuer_supports(
    issuer: Issuer, tmp_path: Path, methods: list[str]
) -> None:
    file = tmp_path / "secret"
    file.write_text("first\n")
    client = issuer.client(secret_file=file)
    issuer.discovery["token_endpoint_auth_methods_supported"] = methods
    started = client.start(BACK)
    query = asked(started.address)
    issuer.more = {"nonce": query["nonce"]}
    # It is read on each use.
    file.write_text("s:ecret\n")

    client.finish(started.attempt.reveal(), {"state": query["state"], "code": "c1"}, BACK)

    ((headers, form),) = issuer.requests
    if methods == ["client_secret_basic"]:
        assert base64.b64decode(headers["authorization"].removeprefix("Basic ")) == b"pages:s%3Aecret"
        assert "client_secret" not in form
    else:
        assert (form["client_id"], form["client_secret"]) == (CLIENT, "s:ecret")


@pytest.mark.parametrize("more", [{}, {"nonce": "x"}, {"nonce": 1}, {"aud": "another"}, {"azp": "another"}])
def test_finish__token_of_another_sign_in_or_client__is_refused(issuer: Issuer, more: dict[str, Any]) -> None:
    client = issuer.client()
    started = client.start(BACK)
    query = asked(started.address)
    issuer.more = {**({"nonce": query["nonce"]} if set(more) & {"aud", "azp"} else {}), **more}

    with pytest.raises(UnauthenticatedError):
        client.finish(started.attempt.reveal(), {"state": query["state"], "code": "c1"}, BACK)


@pytest.mark.parametrize("attempt", [None, "", "x", "A" * 43])
def test_finish__attempt_of_no_browser__asks_the_issuer_nothing(issuer: Issuer, attempt: str | None) -> None:
    client = issuer.client()
    state = asked(client.start(BACK).address)["state"]

    with pytest.raises(UnauthenticatedError):
        client.finish(attempt, {"state": state, "code": "c1"}, BACK)

    assert issuer.requests == []


def test_start__issuer_at_a_private_address_that_is_not_allowed__is_not_called(issuer: Issuer) -> None:
    with pytest.raises(TransientError, match="not allowed"):
        issuer.client(destinations=Destinations()).start(BACK)


def test_start__discovery_of_another_issuer__is_not_trusted(issuer: Issuer) -> None:
    issuer.discovery["issuer"] = "https://evil.example"

    with pytest.raises(TransientError, match="names issuer"):
        issuer.client().start(BACK)


def test_client__secret_file_is_missing_or_empty__does_not_start(issuer: Issuer, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        issuer.client(secret_file=tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(SettingsError, match="empty"):
        issuer.client(secret_file=tmp_path / "empty")
