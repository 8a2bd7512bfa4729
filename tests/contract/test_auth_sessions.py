"""Sessions on every backend: listed by index, and ended with the ids that replaced theirs."""

from __future__ import annotations

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
