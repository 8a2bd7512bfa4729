"""Tokens: verifies JWTs of the configured OIDC issuer and turns them into principals."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

import jwt
from msgspec import Struct

from headgate.auth.key_sets import ALGORITHMS, KeySet
from headgate.auth.principals import EVERYWHERE, LOCAL, CredentialKind, Principal, checked_scopes
from headgate.auth.roles import Role
from headgate.clock import Clock
from headgate.errors import InvalidPayloadError, SettingsError, UnauthenticatedError

TOKEN_BYTES_MAX: Final = 16 * 1024
NAME_MAX: Final = 200
LEEWAY_SECONDS_MAX: Final = 300.0


class TokenPolicy(Struct, frozen=True, kw_only=True):
    """Which tokens are accepted, and how their claims are read. Raises `SettingsError` for an unsafe policy.

    Claims are named by paths such as `realm_access.roles`. Without a scopes claim every dataset is in scope; with one,
    a token that lacks it has no dataset in scope. `roles` maps the issuer's role names to Headgate's; if set, other
    names are ignored, because a group called `admin` may belong to another program. Unknown names are ignored.
    """

    issuer: str
    audience: str
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    leeway_seconds: float = 30.0
    name_claim: str = "sub"
    roles_claim: str = "roles"
    scopes_claim: str | None = None
    roles: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if not self.issuer or not self.audience:
            raise SettingsError("auth.oidc_issuer, auth.oidc_audience: tokens are checked against both; set both")
        unsafe = [name for name in self.algorithms if name not in ALGORITHMS]
        if unsafe or not self.algorithms:
            raise SettingsError(
                f"auth.oidc_algorithms: {', '.join(unsafe) or 'none'} cannot be used; use {', '.join(ALGORITHMS)}"
            )
        if not 0 <= self.leeway_seconds <= LEEWAY_SECONDS_MAX:
            raise SettingsError(f"auth.oidc_leeway_seconds: use 0 to {LEEWAY_SECONDS_MAX:g}")
        wrong = [name for name in self.roles.values() if name not in set(Role)]
        if wrong:
            raise SettingsError(f"auth.oidc_roles: {', '.join(wrong)} is not a role; use one of {', '.join(Role)}")


class Tokens:
    """Verifies tokens. Thread-safe."""

    def __init__(self, policy: TokenPolicy, keys: KeySet, clock: Clock) -> None:
        self._policy = policy
        self._keys = keys
        self._clock = clock

    def principal(self, text: str) -> Principal:
        """Return the principal of a token. Raises `UnauthenticatedError`, or `TransientError` without keys."""
        key_id, algorithm = self._header(text)
        return self._read(self._claims(text, self._keys.key(key_id, algorithm).key, algorithm))

    def remembered(self, text: str) -> Principal | None:
        """Return the principal of a token if its key is cached, else None. Raises `UnauthenticatedError`."""
        key_id, algorithm = self._header(text)
        public_key = self._keys.remembered(key_id, algorithm)
        return None if public_key is None else self._read(self._claims(text, public_key.key, algorithm))

    def signed_in(self, text: str, *, nonce: str) -> Principal:
        """Return the principal of an ID token that was requested with this nonce. Raises as `principal`."""
        key_id, algorithm = self._header(text)
        claims = self._claims(text, self._keys.key(key_id, algorithm).key, algorithm)
        given = claims.get("nonce")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), nonce.encode()):
            raise UnauthenticatedError("token: it is of another sign-in; try again")
        # With several audiences, the token must have been issued to us.
        if claims.get("azp", self._policy.audience) != self._policy.audience:
            raise UnauthenticatedError("token: it was issued to another client")
        return self._read(claims)

    def _header(self, text: str) -> tuple[str | None, str]:
        if len(text) > TOKEN_BYTES_MAX:
            raise UnauthenticatedError(f"token: longer than {TOKEN_BYTES_MAX:,} characters")
        try:
            header = jwt.get_unverified_header(text)
        except (jwt.exceptions.PyJWTError, ValueError, RecursionError) as exc:
            raise UnauthenticatedError(f"token: not a JWT ({exc})") from exc
        algorithm, key_id = header.get("alg"), header.get("kid")
        # Checked before any key is used: "none" and shared-secret algorithms are never accepted.
        if algorithm not in self._policy.algorithms:
            raise UnauthenticatedError(
                f"token: it is signed with {str(algorithm)[:20]!r}; accepted are {', '.join(self._policy.algorithms)}"
            )
        if "crit" in header or not isinstance(key_id, str | None):
            raise UnauthenticatedError("token: its header has an unsupported 'crit' or 'kid'")
        return key_id, str(algorithm)

    def _claims(self, text: str, key: Any, algorithm: str) -> Mapping[str, Any]:  # noqa: ANN401 - a key of the cryptography package
        try:
            claims: Mapping[str, Any] = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=self._policy.audience,
                issuer=self._policy.issuer,
                # Times are checked below, with Headgate's clock.
                options={
                    "require": ["exp", "iss", "aud"],
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except (jwt.exceptions.PyJWTError, ValueError, RecursionError, json.JSONDecodeError) as exc:
            raise UnauthenticatedError(f"token: {exc}") from exc
        self._check_times(claims)
        return claims

    def _check_times(self, claims: Mapping[str, Any]) -> None:
        now, leeway = self._clock.seconds(), self._policy.leeway_seconds
        expires, begins = _number(claims, "exp"), _number(claims, "nbf")
        if expires is None or now >= expires + leeway:
            raise UnauthenticatedError("token: it has expired; ask the issuer for a new one")
        if begins is not None and now < begins - leeway:
            raise UnauthenticatedError("token: it is not valid yet; compare the clocks of issuer and server")

    def _read(self, claims: Mapping[str, Any]) -> Principal:
        name = _claim(claims, self._policy.name_claim)
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= NAME_MAX:
            raise UnauthenticatedError(
                f"token: its claim {self._policy.name_claim} is not a name of 1 to {NAME_MAX} printable characters"
            )
        if name == LOCAL.name:
            raise UnauthenticatedError(f"token: the name {name!r} is reserved for programs on this machine")
        names = _texts(_claim(claims, self._policy.roles_claim))
        mapped = {self._policy.roles.get(each) for each in names} if self._policy.roles else set(names)
        roles = frozenset(role for role in Role if role in mapped)
        return Principal(name, roles, self._scopes(claims), CredentialKind.TOKEN)

    def _scopes(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        if self._policy.scopes_claim is None:
            return (EVERYWHERE,)
        try:
            return checked_scopes(_texts(_claim(claims, self._policy.scopes_claim)))
        except InvalidPayloadError as exc:
            raise UnauthenticatedError(f"token: claim {self._policy.scopes_claim}: {exc.message}") from exc


def _claim(claims: Mapping[str, Any], path: str) -> object:
    """Return a claim by its name, which may contain dots, or else by path."""
    if path in claims:
        return claims[path]
    value: object = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _texts(value: object) -> list[str]:
    """Return the texts of a claim: a list, or a text separated by spaces or commas."""
    if isinstance(value, str):
        return value.replace(",", " ").split()
    if isinstance(value, list):
        return [each for each in value if isinstance(each, str)]
    return []


def _number(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnauthenticatedError(f"token: its claim {name} is not a time")
    return float(value)
