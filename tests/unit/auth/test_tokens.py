"""Tokens: really signed, and forged in every way that is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headgate.auth.key_sets import KeySet, from_file
from headgate.auth.principals import CredentialKind, Principal
from headgate.auth.roles import Role
from headgate.auth.tokens import TokenPolicy, Tokens
from headgate.clock import VirtualClock
from headgate.errors import SettingsError, UnauthenticatedError
from tests.unit.auth.issuing import (
    AUDIENCE,
    ISSUER,
    claims,
    ec_key,
    ed_key,
    forged,
    jwk,
    jwks,
    rsa_key,
    sign,
    signed_with_public_key,
)

DOCUMENT = jwks(jwk(rsa_key(), "k1"), jwk(ec_key(), "e1"), jwk(ed_key(), "d1"))


class Rig:
    def __init__(self, document: bytes = DOCUMENT, **policy: Any) -> None:
        self.clock = VirtualClock()
        self.policy = TokenPolicy(issuer=ISSUER, audience=AUDIENCE, **policy)
        self.tokens = Tokens(self.policy, KeySet(lambda: document, self.clock), self.clock)

    def claims(self, **more: Any) -> dict[str, Any]:
        return claims(self.clock.seconds(), **more)

    def signed(self, **more: Any) -> str:
        return sign(self.claims(**more), rsa_key(), "RS256")

    def refused(self, token: str) -> str:
        with pytest.raises(UnauthenticatedError) as caught:
            self.tokens.principal(token)
        return caught.value.message


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [(rsa_key(), "RS256", "k1"), (rsa_key(), "PS256", "k1"), (ec_key(), "ES256", "e1"), (ed_key(), "EdDSA", "d1")],
)
def test_principal__given_good_token__is_who_it_says(rig: Rig, key: Any, algorithm: str, key_id: str) -> None:
    token = sign(rig.claims(), key, algorithm, key_id)

    assert rig.tokens.principal(token) == Principal("ann", frozenset({Role.VIEWER}), ("*",), CredentialKind.TOKEN)
    assert rig.tokens.remembered(token) == rig.tokens.principal(token)


def test_principal__given_times__has_a_leeway_and_goes_by_our_clock(rig: Rig) -> None:
    token = rig.signed(nbf=int(rig.clock.seconds()) + 25)
    rig.tokens.principal(token)
    rig.clock.advance(329)
    rig.tokens.principal(token)
    rig.clock.advance(1)
    assert "expired" in rig.refused(token)
    assert "not valid yet" in rig.refused(rig.signed(nbf=int(rig.clock.seconds()) + 31))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"aud": "another"}, "Audience"),
        ({"aud": ["x", "y"]}, "Audience"),
        ({"aud": None}, "aud"),
        ({"iss": "https://evil.example.com"}, "issuer"),
        ({"iss": f"{ISSUER}/"}, "issuer"),
        ({"iss": None}, "iss"),
        ({"exp": None}, "exp"),
        ({"exp": "tomorrow"}, "exp"),
        ({"exp": True}, "exp"),
        ({"nbf": "x"}, "nbf"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": "a\nb"}, "sub"),
        ({"sub": "x" * 201}, "sub"),
        ({"sub": "local"}, "this machine"),
    ],
)
def test_principal__given_claims_that_are_not_for_us__is_refused(rig: Rig, more: dict[str, Any], said: str) -> None:
    assert said.lower() in rig.refused(rig.signed(**more)).lower()


def test_principal__given_audience_among_several__is_accepted(rig: Rig) -> None:
    assert rig.tokens.principal(rig.signed(aud=["x", AUDIENCE])).name == "ann"


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", None, "HS256", "HS512", "RS1", "ES256K", 7])
def test_principal__given_algorithm_that_is_not_allowed__is_refused_before_any_key_is_asked_for(
    algorithm: object,
) -> None:
    clock = VirtualClock()

    def fetch() -> bytes:
        raise AssertionError("keys were asked for")

    tokens = Tokens(TokenPolicy(issuer=ISSUER, audience=AUDIENCE), KeySet(fetch, clock), clock)

    for signature in (b"", b"x" * 32):
        with pytest.raises(UnauthenticatedError):
            tokens.principal(forged({"alg": algorithm, "kid": "k1"}, claims(clock.seconds()), signature))


def test_principal__given_public_key_used_as_shared_secret__is_refused(rig: Rig) -> None:
    assert "HS256" in rig.refused(signed_with_public_key(rig.claims(), rsa_key()))


def test_principal__given_shared_secret_in_the_key_set__is_never_used(rig: Rig) -> None:
    oct_key = {"kty": "oct", "kid": "s1", "k": "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "alg": "RS256"}
    careless = Rig(jwks(oct_key, jwk(rsa_key(), "k1")))

    assert "is not published by the issuer" in careless.refused(sign(rig.claims(), rsa_key(1), "RS256", "s1"))


@pytest.mark.parametrize(
    ("key", "algorithm", "key_id"),
    [
        (rsa_key(1), "RS256", "k1"),  # Another key under the same id.
        (ec_key(), "ES256", "k1"),  # A key of another kind under the id of an RSA key.
        (rsa_key(), "RS256", "e1"),
        (ec_key(1), "ES256", "e1"),
        (rsa_key(), "RS256", "unknown"),
    ],
)
def test_principal__given_key_confusion__is_refused(rig: Rig, key: Any, algorithm: str, key_id: str) -> None:
    rig.refused(sign(rig.claims(), key, algorithm, key_id))


def test_principal__given_key_of_its_own_in_the_header__does_not_trust_it(rig: Rig) -> None:
    mine = jwk(rsa_key(1), "k1")

    for header in ({"jwk": mine}, {"jku": "https://evil.example.com/jwks"}, {"x5u": "https://evil.example.com/x"}):
        rig.refused(sign(rig.claims(), rsa_key(1), "RS256", **header))


def test_principal__given_key_that_is_for_another_algorithm__is_refused() -> None:
    rig = Rig(jwks(jwk(rsa_key(), "k1", alg="PS256")))

    rig.tokens.principal(sign(rig.claims(), rsa_key(), "PS256"))
    rig.refused(sign(rig.claims(), rsa_key(), "RS256"))


def test_principal__given_algorithm_that_the_settings_leave_out__is_refused() -> None:
    rig = Rig(algorithms=("ES256",))

    rig.refused(rig.signed())
    rig.tokens.principal(sign(rig.claims(), ec_key(), "ES256", "e1"))


def test_principal__given_no_key_id__is_accepted_only_if_there_is_no_choice(rig: Rig) -> None:
    token = sign(rig.claims(), rsa_key(), "RS256", None)

    rig.tokens.principal(token)
    Rig(jwks(jwk(rsa_key(), None))).tokens.principal(token)
    Rig(jwks(jwk(rsa_key(), "a"), jwk(rsa_key(1), "b"))).refused(token)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-8] + "AAAAAAAA",
        lambda token: token.rpartition(".")[0] + ".",
        lambda token: token.rpartition(".")[0],
        lambda token: token + ".x",
        lambda token: "A" + token,
        lambda _token: "a.b.c",
        lambda _token: "..",
        lambda _token: "é.é.é",
        lambda _token: "x" * 20_000,
        lambda token: token.split(".")[0] + "." + "W10" + "." + token.split(".")[2],
    ],
)
def test_principal__given_token_that_was_altered_or_is_none__is_refused(rig: Rig, spoil: Any) -> None:
    rig.refused(spoil(rig.signed()))


def test_principal__given_claims_changed_after_signing__is_refused(rig: Rig) -> None:
    header, _, signature = rig.signed().split(".")
    other = rig.signed(roles=["admin"]).split(".")[1]

    rig.refused(f"{header}.{other}.{signature}")


@pytest.mark.parametrize("header", [{"crit": ["exp"]}, {"crit": []}, {"crit": ["x"], "x": 1}])
def test_principal__given_header_that_asks_for_more__is_refused(rig: Rig, header: dict[str, Any]) -> None:
    rig.refused(sign(rig.claims(), rsa_key(), "RS256", **header))


def test_principal__given_key_id_that_is_no_text__is_refused(rig: Rig) -> None:
    rig.refused(forged({"alg": "RS256", "kid": {"a": 1}}, rig.claims(), b"x"))


@pytest.mark.parametrize(
    ("policy", "more", "roles"),
    [
        ({}, {"roles": ["viewer", "operator", "root", 7]}, {Role.VIEWER, Role.OPERATOR}),
        ({}, {"roles": "viewer operator"}, {Role.VIEWER, Role.OPERATOR}),
        ({}, {"roles": "viewer,operator"}, {Role.VIEWER, Role.OPERATOR}),
        ({}, {"roles": None}, set()),
        ({}, {"roles": 7}, set()),
        ({}, {"roles": {"admin": False}}, set()),
        ({"roles_claim": "realm_access.roles"}, {"realm_access": {"roles": ["admin"]}}, {Role.ADMIN}),
        ({"roles_claim": "realm_access.roles"}, {"realm_access": "x"}, set()),
        ({"roles_claim": "https://x.example/roles"}, {"https://x.example/roles": ["admin"]}, {Role.ADMIN}),
        ({"roles": {"data-oncall": "operator"}}, {"roles": ["data-oncall"]}, {Role.OPERATOR}),
        ({"roles": {"viewer": "enforcer"}}, {"roles": ["viewer"]}, {Role.ENFORCER}),
        # Another program's group of that name, for instance.
        ({"roles": {"data-oncall": "operator"}}, {"roles": ["admin", "data-oncall"]}, {Role.OPERATOR}),
    ],
)
def test_principal__given_claim_of_roles__takes_those_it_knows(
    policy: dict[str, Any], more: dict[str, Any], roles: set[Role]
) -> None:
    rig = Rig(**policy)

    assert rig.tokens.principal(rig.signed(**more)).roles == roles


@pytest.mark.parametrize(
    ("more", "scopes"),
    [
        ({"ds": ["urn:dp:a:*", "urn:dp:b:c"]}, ("urn:dp:a:*", "urn:dp:b:c")),
        ({"ds": "urn:dp:a:* urn:dp:b:c"}, ("urn:dp:a:*", "urn:dp:b:c")),
        ({"ds": []}, ()),
        ({}, ()),
    ],
)
def test_principal__given_claim_of_scopes__reaches_those_and_without_it_none(
    more: dict[str, Any], scopes: tuple[str, ...]
) -> None:
    rig = Rig(scopes_claim="ds")

    assert rig.tokens.principal(rig.signed(**more)).scopes == scopes


def test_principal__given_scopes_that_are_no_patterns__is_refused() -> None:
    rig = Rig(scopes_claim="ds")

    assert "ds" in rig.refused(rig.signed(ds=["[a-z]*"]))


def test_principal__given_another_claim_for_the_name__uses_it() -> None:
    rig = Rig(name_claim="email")

    assert rig.tokens.principal(rig.signed(email="ann@example.com")).name == "ann@example.com"


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithms": ("HS256",)}, {"algorithms": ("none",)}, {"algorithms": ("RS256", "none")}, {"algorithms": ()},
        {"issuer": ""}, {"audience": ""}, {"leeway_seconds": -1}, {"leeway_seconds": 301}, {"roles": {"x": "root"}},
    ],
)  # fmt: skip
def test_policy__given_what_cannot_be_safe__is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        TokenPolicy(**{"issuer": ISSUER, "audience": AUDIENCE, **wrong})


def test_from_file__given_keys__is_read_once_and_never_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_bytes(DOCUMENT)
    clock = VirtualClock()
    tokens = Tokens(TokenPolicy(issuer=ISSUER, audience=AUDIENCE), from_file(path, clock), clock)
    path.unlink()

    for _ in range(3):
        assert tokens.principal(sign(claims(clock.seconds()), rsa_key(), "RS256")).name == "ann"
        clock.advance(86_400 * 30)


@pytest.mark.parametrize("content", [None, b"", b"{}", b'{"keys": []}', b"[]", json.dumps({"keys": [{}]}).encode()])
def test_from_file__given_no_keys__is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "jwks.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SettingsError, match=r"jwks\.json"):
        from_file(path, VirtualClock())
