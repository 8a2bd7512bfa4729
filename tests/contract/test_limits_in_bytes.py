"""Limits count bytes, not characters, and enums are the text or number they stand for, on every backend."""

from __future__ import annotations

import enum
from typing import Final

import pytest

from headgate.errors import InvalidItemError, ItemTooLargeError, TransactionLimitError
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import equals, version_is
from headgate.store.model.requests import Put, Query
from headgate.store.model.schema import Key
from headgate.store.port import Store

READS_INDEXES = False

TABLES: Final = (CONTROL,)
KEY: Final = Key("p", "s")


class State(enum.StrEnum):
    OPEN = "OPEN"


class Level(enum.IntEnum):
    HIGH = 3


def test_put__many_small_attributes_of_wide_characters__too_large_by_their_bytes(store: Store) -> None:
    # 190,000 characters, 570,000 bytes, and no attribute large enough to spill.
    item = {"PK": "p", "SK": "s", **{f"a{number}": "字" * 5000 for number in range(38)}}

    with pytest.raises(ItemTooLargeError):
        store.put(CONTROL, item)

    assert store.get(CONTROL, KEY, consistent=True) is None


def test_update__wide_characters_take_the_item_over_the_limit__refused_and_the_old_item_stands(store: Store) -> None:
    item = {"PK": "p", "SK": "s", "version": 1, **{f"a{number}": "字" * 5000 for number in range(25)}}
    store.put(CONTROL, item)

    with pytest.raises(ItemTooLargeError):
        store.update(CONTROL, KEY, set={f"b{number}": "字" * 5000 for number in range(5)})

    assert store.get(CONTROL, KEY, consistent=True) == item


def test_transact__wide_characters__too_large_by_their_bytes(store: Store) -> None:
    writes = [Put(CONTROL, {"PK": "p", "SK": f"{number}", "text": "字" * 19_000}) for number in range(90)]

    with pytest.raises(TransactionLimitError):
        store.transact(writes)

    assert store.query(Query(table=CONTROL, partition="p", consistent=True)).items == []


def test_enums__stored_compared_and_used_as_keys__are_what_they_stand_for(store: Store) -> None:
    store.put(CONTROL, {"PK": "p", "SK": State.OPEN, "state": State.OPEN, "level": Level.HIGH, "version": 1})

    found = store.get(CONTROL, Key("p", State.OPEN), consistent=True)
    changed = store.update(
        CONTROL, Key("p", "OPEN"), set={"level": 4, "version": 2}, condition=equals("state", State.OPEN)
    )

    assert found == {"PK": "p", "SK": "OPEN", "state": "OPEN", "level": 3, "version": 1}
    assert changed["level"] == 4


@pytest.mark.parametrize("ttl", [2**63, -(2**63), 1.5, "soon"])
def test_put__ttl_that_is_no_time__refused(store: Store, ttl: object) -> None:
    with pytest.raises(InvalidItemError):
        store.put(CONTROL, {"PK": "p", "SK": "s", "ttl": ttl})

    assert store.get(CONTROL, KEY, consistent=True) is None


@pytest.mark.parametrize("name", ["due_at_ms", "ttl"])
def test_update__add_to_an_index_key_or_the_ttl__refused_and_nothing_changes(store: Store, name: str) -> None:
    item = {"PK": "p", "SK": "s", "version": 1, "due_pk": "d", "due_at_ms": 5, "ttl": 4_000_000_000}
    store.put(CONTROL, item)

    with pytest.raises(InvalidItemError, match="set it"):
        store.update(CONTROL, KEY, set={"version": 2}, add={name: 1}, condition=version_is(1))

    assert store.get(CONTROL, KEY, consistent=True) == item
