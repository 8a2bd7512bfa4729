"""Tokens: JWTs of an issuer that the settings name, checked and turned into principals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import jwt
from msgspec import Struct

from headgate.auth.key_sets import ALGORITHMS, KeySet
from headgate.auth.principals import EVERYWHERE, LOCAL, Kind, Principal, checked_scopes
from headgate.auth.roles import Role
from headgate.clock import Clock
from headgate.errors import InvalidPayloadError, SettingsError, UnauthenticatedError

TOKEN_BYTES_MAX: Final = 16 * 1024
NAME_MAX: Final = 200
LEEWAY_SECONDS_MAX: Final = 300.0


class TokenPolicy(Struct, frozen=True, kw_only=True):
    """Which tokens are accepted, and what their claims mean. Raises `SettingsError` for what cannot be safe.

    Claims are named by paths such as `realm_access.roles`. Without a claim for scopes every dataset is in scope; with
    one, a token that lacks it reaches none. `roles` maps names that the issuer uses to ours: with it no other name
    counts, for a group that is called `admin` may be another program's. Unknown names are passed over.
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
                f"auth.oidc_algorithms: {', '.join(unsafe) or 'none'} cannot be used; choose of {', '.join(ALGORITHMS)}"
            )
        if not 0 <= self.leeway_seconds <= LEEWAY_SECONDS_MAX:
            raise SettingsError(f"auth.oidc_leeway_seconds: use 0 to {LEEWAY_SECONDS_MAX:g}")
        wrong = [name for name in self.roles.values() if name not in set(Role)]
        if wrong:
            raise SettingsError(f"auth.oidc_roles: {', '.join(wrong)} is no role; use one of {', '.join(Role)}")


class Tokens:
    """Checks tokens. Safe to use from many threads."""

    def __init__(self, policy: TokenPolicy, keys: KeySet, clock: Clock) -> None:
        self._policy = policy
        self._keys = keys
        self._clock = clock

    def principal(self, text: str) -> Principal:
        """Return whose token this is. Raises `UnauthenticatedError`, or `TransientError` if its key cannot be had."""
        key_id, algorithm = self._header(text)
        return self._checked(text, self._keys.key(key_id, algorithm).key, algorithm)

    def remembered(self, text: str) -> Principal | None:
        """Return whose token this is if its key is at hand. Raises `UnauthenticatedError`."""
        key_id, algorithm = self._header(text)
        found = self._keys.remembered(key_id, algorithm)
        return None if found is None else self._checked(text, found.key, algorithm)

    def _header(self, text: str) -> tuple[str | None, str]:
        if len(text) > TOKEN_BYTES_MAX:
            raise UnauthenticatedError(f"token: longer than {TOKEN_BYTES_MAX:,} characters")
        try:
            header = jwt.get_unverified_header(text)
        except (jwt.exceptions.PyJWTError, ValueError, RecursionError) as exc:
            raise UnauthenticatedError(f"token: it is not a JWT ({exc})") from exc
        algorithm, key_id = header.get("alg"), header.get("kid")
        # Before any key is looked at: neither "none" nor a shared secret is ever among them.
        if algorithm not in self._policy.algorithms:
            raise UnauthenticatedError(
                f"token: it is signed with {str(algorithm)[:20]!r}; accepted are {', '.join(self._policy.algorithms)}"
            )
        if "crit" in header or not isinstance(key_id, str | None):
            raise UnauthenticatedError("token: its header asks for what is not understood here")
        return key_id, str(algorithm)

    def _checked(self, text: str, key: Any, algorithm: str) -> Principal:  # noqa: ANN401 - of the cryptography in use
        try:
            claims = jwt.decode(
                text,
                key,
                algorithms=[algorithm],
                audience=self._policy.audience,
                issuer=self._policy.issuer,
                # Times are compared below, with the clock that everything else goes by.
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
        return self._read(claims)

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
                f"token: its claim {self._policy.name_claim} names nobody, in 1 to {NAME_MAX} characters"
            )
        if name == LOCAL.name:
            raise UnauthenticatedError(f"token: {name!r} is what programs on this machine are called, and nobody else")
        told = _texts(_claim(claims, self._policy.roles_claim))
        mapped = {self._policy.roles.get(each) for each in told} if self._policy.roles else set(told)
        roles = frozenset(role for role in Role if role in mapped)
        return Principal(name, roles, self._scopes(claims), Kind.TOKEN)

    def _scopes(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        if self._policy.scopes_claim is None:
            return (EVERYWHERE,)
        try:
            return checked_scopes(_texts(_claim(claims, self._policy.scopes_claim)))
        except InvalidPayloadError as exc:
            raise UnauthenticatedError(f"token: claim {self._policy.scopes_claim}: {exc.message}") from exc


def _claim(claims: Mapping[str, Any], path: str) -> object:
    """Return a claim by its own name, which may have dots in it, or else by the path to it."""
    if path in claims:
        return claims[path]
    value: object = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _texts(value: object) -> list[str]:
    """Return a claim's words: of a list, or divided by spaces or commas."""
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
