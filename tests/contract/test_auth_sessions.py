"""Sessions on every backend: listed by index, and ended with the ids that replaced theirs."""

from __future__ import annotations

import mmap

import pytest

from headgate.auth.api_keys import ApiKeys
from headgate.auth.principals import LOCAL
from headgate.auth.roles import Role
from headgate.auth.sessions import CACHE_SECONDS, SessionLimits, Sessions
from headgate.clock import VirtualClock
from headgate.errors import NotFoundError, UnauthenticatedError
from headgate.health.audit.log import Audit
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import API_KEYS, AUDIT, SESSIONS, STREAM_CHECKPOINTS
from headgate.store.keyring import Keyring
from headgate.store.peer_changes import SharedChanges, memory_bytes
from tests.contract.conftest import AnyStore, Eventually

TABLES = (API_KEYS, SESSIONS, AUDIT, STREAM_CHECKPOINTS)
LIMITS = SessionLimits(idle_seconds=3600, total_seconds=7200, rotate_seconds=900)


def test_session__listed_rotated_and_ended__is_the_same_on_every_backend(
    store: AnyStore, clock: VirtualClock, keyring: Keyring, eventually: Eventually
) -> None:
    ids = IdMaker(clock)
    audit = Audit(store, clock, ids, keyring)
    keys = ApiKeys(store, clock, ids, audit)
    sessions, other = (Sessions(store, clock, ids, audit, keys, LIMITS) for _ in range(2))
    opened = sessions.open_by_key(keys.issue("ada", [Role.OPERATOR], issuer=LOCAL).key.reveal())
    (listed,) = eventually(lambda: sessions.ls().sessions, lambda found: len(found) == 1)
    assert listed.principal == "ada"
    cookie = sessions.rotate(opened.session)
    assert cookie is not None
    assert other.session(cookie.reveal()).principal.name == "ada"

    # At once after the rotation: the index may not have the new id yet.
    sessions.end_by_id(listed.sign_in_id, actor=LOCAL)

    clock.advance(CACHE_SECONDS)
    for each in (opened.cookie, cookie):
        with pytest.raises(UnauthenticatedError):
            other.session(each.reveal())
    eventually(lambda: sessions.ls().sessions, lambda found: not found)
    with pytest.raises(NotFoundError):
        sessions.end_by_id("01aaaaaaaaaaaaaaaaaaaaaaaa", actor=LOCAL)


def test_session_and_key__changed_by_another_serving_process__take_effect_at_once(
    store: AnyStore, clock: VirtualClock, keyring: Keyring
) -> None:
    ids, memory = IdMaker(clock), mmap.mmap(-1, memory_bytes(2))
    audit = Audit(store, clock, ids, keyring)
    processes = []
    for number in range(2):
        changes = SharedChanges(memory, process=number, processes=2)
        keys = ApiKeys(store, clock, ids, audit, changes)
        processes.append((keys, Sessions(store, clock, ids, audit, keys, LIMITS, changes)))
    (our_keys, ours), (their_keys, theirs) = processes
    key = our_keys.issue("ada", [Role.OPERATOR], issuer=LOCAL)
    opened = ours.open_by_key(key.key.reveal())
    token = our_keys.issue("reader", [Role.VIEWER], issuer=LOCAL)
    for sessions in (ours, theirs):
        assert sessions.session(opened.cookie.reveal()).principal.name == "ada"
        assert sessions.remembered(opened.cookie.reveal()) is not None
    assert their_keys.principal(token.key.reveal()).name == "reader"

    ours.end(opened.session)
    our_keys.revoke(token.about.key_id, issuer=LOCAL)

    with pytest.raises(UnauthenticatedError):
        theirs.session(opened.cookie.reveal())
    with pytest.raises(UnauthenticatedError):
        their_keys.principal(token.key.reveal())
    with pytest.raises(UnauthenticatedError):
        our_keys.principal(token.key.reveal())
