"""Refreshes: quiet puts under a version, most of which leave the index keys of their item as they are."""

from __future__ import annotations

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Put, Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, TrustedItem
from tests.contract.conftest import NOW, AnyStore, Eventually, OpenStore

URN = "urn:dp:shop:orders:v1"
KEY = Key(URN, "FRESHNESS")
BREACHES = Query(table=SIGNAL_STATE, index="breach-index", partition="BREACH#WARNING#TIER_1#0")
IN_BREACH = {"state": "WARNING", "breach_pk": "BREACH#WARNING#TIER_1#0", "breach_sk": "2026-01-15"}


def row(version: int, *, ttl: int | None = NOW + 600, signal_type: str = "FRESHNESS", **facts: object) -> Item:
    expires = {} if ttl is None else {"ttl": ttl}
    return {"PK": URN, "SK": signal_type, "state": "OK", "version": version, **expires, **facts}


def refresh(version: int, *, ttl: int | None = NOW + 600, signal_type: str = "FRESHNESS", **facts: object) -> Put:
    item = row(version, ttl=ttl, signal_type=signal_type, **facts)
    return Put(SIGNAL_STATE, TrustedItem(item), version_is(version - 1), quiet=True)


def test_refresh__version_is_current__is_written(store: AnyStore) -> None:
    store.put(SIGNAL_STATE, row(1))

    assert store.transact_many([[refresh(2)], [refresh(3, score=0.5)]]) == [None, None]

    assert store.get(SIGNAL_STATE, KEY, consistent=True) == row(3, score=0.5)


def test_refresh__item_is_not_trusted__is_validated_and_written(store: AnyStore) -> None:
    store.put(SIGNAL_STATE, row(1))
    put = Put(SIGNAL_STATE, row(2, owner_team="Équipe"), version_is(1), quiet=True)

    assert store.transact_many([[put]]) == [None]

    assert store.get(SIGNAL_STATE, KEY, consistent=True) == row(2, owner_team="Équipe")


def test_refresh__another_version__is_refused_with_the_current_item_and_the_others_are_written(
    store: AnyStore,
) -> None:
    store.put(SIGNAL_STATE, row(7))
    store.put(SIGNAL_STATE, row(1, signal_type="VOLUME"))

    first, second = store.transact_many([[refresh(7)], [refresh(2, signal_type="VOLUME")]])

    assert second is None
    assert isinstance(first, ConflictError)
    assert first.failures == {0: row(7)}
    assert store.get(SIGNAL_STATE, KEY, consistent=True) == row(7)


def test_refresh__no_item__is_refused_and_creates_none(store: AnyStore) -> None:
    (refusal,) = store.transact_many([[refresh(2)]])

    assert isinstance(refusal, ConflictError)
    assert refusal.failures == {0: None}
    assert store.get(SIGNAL_STATE, KEY, consistent=True) is None


def test_refresh__item_has_no_version__is_refused(store: AnyStore) -> None:
    store.put(SIGNAL_STATE, {"PK": URN, "SK": "FRESHNESS", "ttl": NOW + 600})

    (refusal,) = store.transact_many([[refresh(1)]])

    assert isinstance(refusal, ConflictError)


@pytest.mark.parametrize("ttl", [NOW + 60, NOW + 600])
def test_refresh__item_has_expired__is_refused_whatever_the_new_one_expires(
    store: AnyStore, clock: VirtualClock, ttl: int
) -> None:
    store.put(SIGNAL_STATE, row(1, ttl=NOW + 60))
    clock.advance(61)

    (refusal,) = store.transact_many([[refresh(2, ttl=ttl)]])

    assert isinstance(refusal, ConflictError)
    assert refusal.failures == {0: None}


def test_refresh__expiry_changes__is_written_and_the_new_one_holds(store: AnyStore, clock: VirtualClock) -> None:
    store.put(SIGNAL_STATE, row(1, ttl=NOW + 60))

    assert store.transact_many([[refresh(2, ttl=NOW + 600)]]) == [None]
    clock.advance(61)

    assert store.get(SIGNAL_STATE, KEY, consistent=True) == row(2)


def test_refresh__index_keys_change__the_index_follows(store: AnyStore, eventually: Eventually) -> None:
    store.put(SIGNAL_STATE, row(1))

    assert store.transact_many([[refresh(2, ttl=None, **IN_BREACH)]]) == [None]
    found = eventually(lambda: store.query(BREACHES).items, bool)
    assert found == [row(2, ttl=None, **IN_BREACH)]
    assert store.transact_many([[refresh(3, ttl=None, **IN_BREACH)]]) == [None]
    eventually(lambda: [each["version"] for each in store.query(BREACHES).items], lambda found: found == [3])
    assert store.transact_many([[refresh(4)]]) == [None]

    eventually(lambda: store.query(BREACHES).items, lambda found: found == [])


def test_refresh__an_update_came_before__is_decided_by_the_version_that_the_update_has_set(store: AnyStore) -> None:
    store.put(SIGNAL_STATE, row(1))
    store.update(SIGNAL_STATE, KEY, set={"owner_team": "orders", "version": 2}, condition=version_is(1))

    early, current = store.transact_many([[refresh(2)], [refresh(3)]])

    assert isinstance(early, ConflictError)
    assert current is None
    store.delete(SIGNAL_STATE, KEY, condition=version_is(3))


def test_refresh__reads_of_conditions_afterwards__know_the_new_item(store: AnyStore) -> None:
    store.put(SIGNAL_STATE, row(1))
    # The store may have this item at hand from the update.
    store.update(SIGNAL_STATE, KEY, set={"score": 0.5, "version": 2}, condition=version_is(1))

    store.transact_many([[refresh(3, score=0.25)]])

    assert store.update(SIGNAL_STATE, KEY, set={"version": 4}, condition=version_is(3))["score"] == 0.25


def test_refresh__another_process_was_first__is_refused(store: AnyStore, open_store: OpenStore) -> None:
    store.put(SIGNAL_STATE, row(1))
    other = open_store()
    assert other.transact_many([[refresh(2)]]) == [None]

    (refusal,) = store.transact_many([[refresh(2)]])

    assert isinstance(refusal, ConflictError)
    assert store.transact_many([[refresh(3)]]) == [None]
