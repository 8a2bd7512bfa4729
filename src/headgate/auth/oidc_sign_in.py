"""OIDC sign-in: the authorization code flow with PKCE (S256), state and nonce, for people in browsers.

A random attempt in a cookie of the browser binds the steps together: state, nonce and code verifier are derived from
it. Nothing is stored on the server between the steps, and an answer of the issuer to another browser is refused.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.auth.key_sets import fetch
from headgate.auth.principals import Principal
from headgate.auth.tokens import Tokens
from headgate.clock import Clock
from headgate.durable.bus.egress_policy import Destinations, Resolve, system_resolve
from headgate.durable.bus.outbound_http import OutboundHttp
from headgate.errors import SettingsError, TransientError, UnauthenticatedError
from headgate.settings import Secret

# The discovery document is fetched again after this long.
DISCOVERY_SECONDS: Final = 600.0
# How long a person may take to sign in at the issuer.
ATTEMPT_SECONDS: Final = 600
_SECRET_BYTES_MAX: Final = 4_096
_ATTEMPT: Final = re.compile(r"[A-Za-z0-9_-]{43}")
_WORD: Final = re.compile(r"[^A-Za-z0-9 _.,:-]")
_WORD_CHARS_MAX: Final = 200


class StartedSignIn(Struct, frozen=True):
    """The address of the issuer that the browser opens, and the attempt that its cookie holds."""

    attempt: Secret
    address: str


class _Discovery(Struct, frozen=True):
    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _TokenAnswer(Struct, frozen=True):
    id_token: str


class OidcSignIn:
    """Signs people in at an issuer. Thread-safe.

    `tokens` verifies ID tokens: its audience is the client. The client secret is read from its file on each use, so
    that it can be replaced at run time; without a file the client is public, and PKCE alone protects the code.
    """

    def __init__(
        self,
        clock: Clock,
        tokens: Tokens,
        *,
        issuer: str,
        client_id: str,
        scopes: tuple[str, ...],
        secret_file: Path | None = None,
        destinations: Destinations = Destinations(),  # noqa: B008 - frozen
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.issuer = issuer
        self._clock = clock
        self._tokens = tokens
        self._client_id = client_id
        self._scopes = tuple(dict.fromkeys(("openid", *scopes)))
        self._secret_file = secret_file
        self._http = OutboundHttp(clock, destinations, resolve=resolve, tls=tls)
        self._lock = threading.Lock()
        self._discovered: tuple[float, _Discovery] | None = None
        if secret_file is not None:
            self._secret(secret_file)

    def start(self, redirect_uri: str) -> StartedSignIn:
        """Begin to sign in. Raises `TransientError` if the issuer cannot be reached."""
        attempt = secrets.token_urlsafe(32)
        verifier = _derived(attempt, "verifier")
        query = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self._scopes),
            "state": _derived(attempt, "state"),
            "nonce": _derived(attempt, "nonce"),
            "code_challenge": _base64(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        endpoint = self._discovery().authorization_endpoint
        separator = "&" if "?" in endpoint else "?"
        return StartedSignIn(Secret(attempt), f"{endpoint}{separator}{urlencode(query)}")

    def finish(self, attempt: str | None, answer: Mapping[str, str], redirect_uri: str) -> Principal:
        """Return the person that the issuer's answer is about. Raises `UnauthenticatedError` and `TransientError`."""
        if attempt is None or not _ATTEMPT.fullmatch(attempt):
            raise UnauthenticatedError("sign-in: this browser has not begun it, or too long ago; try again")
        if not hmac.compare_digest(answer.get("state", "").encode(), _derived(attempt, "state").encode()):
            raise UnauthenticatedError("sign-in: the answer of the issuer belongs to another attempt; try again")
        if answer.get("iss", self.issuer) != self.issuer:
            raise UnauthenticatedError("sign-in: the answer is of another issuer; try again")
        if "error" in answer or not answer.get("code"):
            raise UnauthenticatedError(f"sign-in: the issuer refused it: {_word(answer.get('error', 'no code'))}")
        token = self._exchanged(answer["code"], redirect_uri, _derived(attempt, "verifier"))
        return self._tokens.signed_in(token, nonce=_derived(attempt, "nonce"))

    def _exchanged(self, code: str, redirect_uri: str, verifier: str) -> str:
        """Exchange the code for an ID token."""
        discovery = self._discovery()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        if self._secret_file is None:
            form["client_id"] = self._client_id
        else:
            secret = self._secret(self._secret_file).reveal()
            if "client_secret_basic" in discovery.token_endpoint_auth_methods_supported:
                pair = f"{quote(self._client_id, safe='')}:{quote(secret, safe='')}"
                headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form |= {"client_id": self._client_id, "client_secret": secret}
        content = fetch(self._http, "POST", discovery.token_endpoint, headers, urlencode(form).encode())
        try:
            return typed_decode.from_json(content, _TokenAnswer).id_token
        except msgspec.DecodeError as exc:
            raise UnauthenticatedError("sign-in: the issuer gave no ID token; check the scopes of the client") from exc

    def _discovery(self) -> _Discovery:
        with self._lock:
            known, now = self._discovered, self._clock.monotonic()
            if known is not None and now < known[0]:
                return known[1]
            address = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                found = typed_decode.from_json(
                    fetch(self._http, "GET", address, {"accept": "application/json"}), _Discovery
                )
            except msgspec.DecodeError as exc:
                raise TransientError(f"{address}: not an OIDC discovery document ({exc})") from exc
            if found.issuer != self.issuer:
                raise TransientError(f"{address}: names issuer {found.issuer[:120]!r}, not {self.issuer!r}")
            if not found.authorization_endpoint.startswith(("https://", "http://")):
                raise TransientError(f"{address}: its authorization endpoint is not an HTTP address")
            self._discovered = (now + DISCOVERY_SECONDS, found)
            return found

    def _secret(self, path: Path) -> Secret:
        try:
            text = path.read_text()[:_SECRET_BYTES_MAX].strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise SettingsError(f"auth.oidc_client_secret_file = {path}: it cannot be read ({exc})") from exc
        if not text:
            raise SettingsError(f"auth.oidc_client_secret_file = {path}: it is empty; put the secret there")
        return Secret(text)


def _derived(attempt: str, purpose: str) -> str:
    return _base64(hmac.digest(attempt.encode(), purpose.encode(), "sha256"))


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _word(text: str) -> str:
    """Return a text of the issuer's answer, which anyone can put into the address, without anything but words."""
    return _WORD.sub("", text)[:_WORD_CHARS_MAX]
