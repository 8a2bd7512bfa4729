"""API keys on every backend: issued, found by index, rotated against a rival, revoked, expired."""

from __future__ import annotations

import pytest

from headgate.auth.api_keys import CACHE_SECONDS, ApiKeys
from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.clock import VirtualClock
from headgate.errors import NotFoundError, UnauthenticatedError, VersionConflictError
from headgate.health.audit.log import Audit
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import API_KEYS, AUDIT, STREAM_CHECKPOINTS
from headgate.store.keyring import Keyring
from headgate.store.model.schema import Key
from tests.contract.conftest import AnyStore, Eventually

TABLES = (API_KEYS, AUDIT, STREAM_CHECKPOINTS)


def keys_of(store: AnyStore, clock: VirtualClock, keyring: Keyring) -> ApiKeys:
    ids = IdMaker(clock)
    return ApiKeys(store, clock, ids, Audit(store, clock, ids, keyring))


def test_keys__given_their_whole_life__are_the_same_on_every_backend(
    store: AnyStore, clock: VirtualClock, keyring: Keyring, eventually: Eventually
) -> None:
    keys, other = keys_of(store, clock, keyring), keys_of(store, clock, keyring)
    first = keys.issue("svc", [Role.SERVICE], ["urn:dp:a:*"], issuer=LOCAL, expires_seconds=3600)
    second = keys.issue("dash", [Role.VIEWER], issuer=LOCAL)

    assert other.principal(first.key.reveal()).scopes == ("urn:dp:a:*",)
    listed = eventually(lambda: keys.ls().keys, lambda found: len(found) == 2)
    assert {key.key_id for key in listed} == {first.about.key_id, second.about.key_id}
    assert [key.key_id for key in keys.ls("dash").keys] == [second.about.key_id]

    rotated = keys.rotate(first.about.key_id, issuer=LOCAL)
    clock.advance(CACHE_SECONDS)
    with pytest.raises(UnauthenticatedError):
        other.principal(first.key.reveal())
    other.principal(rotated.key.reveal())
    keys.revoke(first.about.key_id, issuer=LOCAL)
    clock.advance(CACHE_SECONDS)
    with pytest.raises(UnauthenticatedError, match="revoked"):
        other.principal(rotated.key.reveal())
    with pytest.raises(VersionConflictError):
        other.rotate(first.about.key_id, issuer=LOCAL)

    clock.advance(3600 + 30 * 86_400)
    with pytest.raises(NotFoundError):
        keys.show(first.about.key_id)
    assert keys.show(second.about.key_id).principal == "dash"


def test_rotate__given_key_that_is_gone_meanwhile__conflicts_and_raises_no_phantom(
    store: AnyStore, clock: VirtualClock, keyring: Keyring
) -> None:
    keys = keys_of(store, clock, keyring)
    issued = keys.issue("svc", [Role.VIEWER], issuer=LOCAL)
    keys.principal(issued.key.reveal())
    store.delete(API_KEYS, Key(issued.about.key_id))

    with pytest.raises(NotFoundError):
        keys.rotate(issued.about.key_id, issuer=LOCAL)
    clock.advance(7200)
    with pytest.raises(UnauthenticatedError):
        keys.principal(issued.key.reveal())
    assert store.get(API_KEYS, Key(issued.about.key_id), consistent=True) is None
