"""The authenticator: who is let in with what, over which connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.auth.api_keys import ApiKeys
from headgate.auth.authenticator import Authenticator
from headgate.auth.key_sets import KeySet
from headgate.auth.principals import LOCAL, CredentialKind
from headgate.auth.roles import Role
from headgate.auth.tokens import TokenPolicy, Tokens
from headgate.clock import VirtualClock
from headgate.errors import UnauthenticatedError
from headgate.health.audit.log import Audit
from headgate.ids import IdMaker
from headgate.store.keyring import Keyring
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite
from tests.unit.auth.issuing import AUDIENCE, ISSUER, claims, ec_key, jwk, jwks, sign


class Rig:
    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        ids = IdMaker(self.clock)
        audit = Audit(self.store, self.clock, ids, Keyring.generate(self.clock))
        self.keys = ApiKeys(self.store, self.clock, ids, audit)
        source = KeySet(lambda: jwks(jwk(ec_key(), "k1")), self.clock)
        self.tokens = Tokens(TokenPolicy(issuer=ISSUER, audience=AUDIENCE), source, self.clock)
        self.key = self.keys.issue("svc", [Role.VIEWER], issuer=LOCAL).key.reveal()
        self.token = sign(claims(self.clock.seconds()), ec_key(), "ES256")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with closing(made.store):
        yield made


def bearer(text: str) -> list[tuple[str, str]]:
    return [("host", "x"), ("authorization", f"Bearer {text}")]


def test_principal__given_key_or_token__is_whose_it_is(rig: Rig) -> None:
    server = Authenticator(rig.keys, rig.tokens, is_required=True)

    by_key = server.principal(bearer(rig.key), is_loopback_peer=True)
    by_token = server.principal([("Authorization", f"bearer  {rig.token} ")], is_loopback_peer=True)

    assert (by_key.name, by_key.kind) == ("svc", CredentialKind.API_KEY)
    assert (by_token.name, by_token.kind) == ("ann", CredentialKind.TOKEN)
    assert server.remembered(bearer(rig.key), is_loopback_peer=True) == by_key
    assert server.remembered(bearer(rig.token), is_loopback_peer=True) == by_token


@pytest.mark.parametrize(
    ("is_required", "is_behind_proxy", "is_loopback", "is_tls", "expected"),
    [
        (False, False, True, False, True),
        (False, False, True, True, True),
        (False, False, False, False, False),
        (False, False, False, True, False),
        (False, True, False, False, True),
        (False, True, True, False, True),
        (True, False, True, False, False),
        (True, False, False, True, False),
        (True, True, True, True, False),
        (True, True, False, False, False),
    ],
)
def test_principal__given_no_credentials__is_local_only_where_no_one_asks_for_more(
    rig: Rig, is_required: bool, is_behind_proxy: bool, is_loopback: bool, is_tls: bool, expected: bool
) -> None:
    server = Authenticator(rig.keys, rig.tokens, is_required=is_required, is_behind_proxy=is_behind_proxy)

    if expected:
        assert server.principal([], is_loopback_peer=is_loopback, is_tls=is_tls) is LOCAL
        assert server.remembered([], is_loopback_peer=is_loopback, is_tls=is_tls) is LOCAL
    else:
        for ask in (server.principal, server.remembered):
            with pytest.raises(UnauthenticatedError, match="not authenticated"):
                ask([], is_loopback_peer=is_loopback, is_tls=is_tls)


@pytest.mark.parametrize(
    ("is_behind_proxy", "is_loopback", "is_tls", "forwarded", "expected"),
    [
        (False, True, False, None, True),
        (False, False, True, None, True),
        (False, False, False, None, False),
        # Without a proxy anyone can say this.
        (False, False, False, "https", False),
        (True, False, False, None, True),
        (True, False, False, "https", True),
        (True, False, False, "http", False),
        (True, True, False, "HTTP ", False),
        (True, False, True, "http", True),
    ],
)
def test_principal__given_credentials_in_clear__refuses_them_off_this_machine(
    rig: Rig, is_behind_proxy: bool, is_loopback: bool, is_tls: bool, forwarded: str | None, expected: bool
) -> None:
    server = Authenticator(rig.keys, rig.tokens, is_required=True, is_behind_proxy=is_behind_proxy)
    headers = bearer(rig.key) + ([] if forwarded is None else [("X-Forwarded-Proto", forwarded)])

    if expected:
        assert server.principal(headers, is_loopback_peer=is_loopback, is_tls=is_tls).name == "svc"
    else:
        with pytest.raises(UnauthenticatedError, match="unencrypted") as caught:
            server.principal(headers, is_loopback_peer=is_loopback, is_tls=is_tls)
        assert rig.key not in caught.value.message


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer a b", "Bearer\u00a0x", "Token x", "Bearer x, Bearer y"]
)
def test_principal__given_authorization_of_another_form__is_refused_even_here(rig: Rig, value: str) -> None:
    with pytest.raises(UnauthenticatedError):
        Authenticator(rig.keys, rig.tokens).principal([("authorization", value)], is_loopback_peer=True)


def test_principal__given_bad_credentials_where_none_are_needed__is_refused(rig: Rig) -> None:
    server = Authenticator(rig.keys, rig.tokens)

    for text in (rig.key[:-4] + "0000", rig.token[:-8] + "AAAAAAAA"):
        with pytest.raises(UnauthenticatedError):
            server.principal(bearer(text), is_loopback_peer=True)


def test_principal__given_two_authorizations__is_refused(rig: Rig) -> None:
    with pytest.raises(UnauthenticatedError, match="send one header"):
        Authenticator(rig.keys).principal(bearer(rig.key) + bearer(rig.key), is_loopback_peer=True)


def test_principal__given_credentials_that_are_not_set_up__says_so(rig: Rig) -> None:
    with pytest.raises(UnauthenticatedError, match="oidc_issuer"):
        Authenticator(rig.keys).principal(bearer(rig.token), is_loopback_peer=True)
    with pytest.raises(UnauthenticatedError, match="send a token"):
        Authenticator(None, rig.tokens).principal(bearer(rig.key), is_loopback_peer=True)


@pytest.mark.parametrize("value", ["Bearer", "Bearer ", "bearer"])
def test_principal__an_empty_key__is_reported_where_none_is_needed(rig: Rig, value: str) -> None:
    headers = [("authorization", value)]

    with pytest.raises(UnauthenticatedError, match="on this machine need no key: leave the header out"):
        Authenticator(rig.keys).principal(headers, is_loopback_peer=True)
    for server, is_near in ((Authenticator(rig.keys, is_required=True), True), (Authenticator(rig.keys), False)):
        with pytest.raises(UnauthenticatedError, match="nothing follows 'Bearer'") as caught:
            server.principal(headers, is_loopback_peer=is_near)
        assert "need no key" not in str(caught.value)
