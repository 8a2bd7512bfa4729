"""Bad input is refused by every backend alike, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headgate.errors import HeadgateError, InvalidItemError, ItemTooLargeError
from headgate.store.catalogue.tables import (
    CONTROL,
    DATASET_REGISTRY,
    EVIDENCE_CACHE,
    PIPELINES,
    STREAM_CHECKPOINTS,
    TURNS,
)
from headgate.store.model.conditions import exists, version_is
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key, Table
from headgate.store.model.validation import ITEM_BYTES_MAX
from headgate.store.model.values import Item, stored_bytes
from headgate.store.port import Store
from tests.cases import each
from tests.contract.conftest import assert_refused, contents

READS_INDEXES = False

TABLES = (CONTROL, DATASET_REGISTRY, EVIDENCE_CACHE, PIPELINES, STREAM_CHECKPOINTS, TURNS)
KEY = Key("p", "s")


@pytest.fixture
def everything(store: Store) -> Callable[[], object]:
    """Reads all that the tests of this module could have written by mistake."""
    store.put(CONTROL, {"PK": "p", "SK": "s", "n": 1, "version": 1})

    def read() -> object:
        events = {
            (change.table.name, change.key, change.kind) for change in store.changes(PIPELINES, "witness").changes
        }
        return (
            contents(store, CONTROL, "p"),
            contents(store, PIPELINES, "p"),
            contents(store, TURNS, "x", "p"),
            contents(store, EVIDENCE_CACHE, "e"),
            contents(store, DATASET_REGISTRY, "p"),
            events,
        )

    return read


# Keys

BAD_ITEMS: dict[str, tuple[Table, Any]] = {
    "no key at all": (CONTROL, {"n": 1}),
    "no item at all": (CONTROL, {}),
    "no partition key": (CONTROL, {"SK": "s"}),
    "no sort key": (CONTROL, {"PK": "p"}),
    "no single key": (EVIDENCE_CACHE, {"n": 1}),
    "empty partition key": (CONTROL, {"PK": "", "SK": "s"}),
    "empty sort key": (CONTROL, {"PK": "p", "SK": ""}),
    "none as key": (CONTROL, {"PK": None, "SK": "s"}),
    "number as text key": (CONTROL, {"PK": "p", "SK": 7}),
    "bool as text key": (CONTROL, {"PK": True, "SK": "s"}),
    "bytes as text key": (CONTROL, {"PK": "p", "SK": b"s"}),
    "list as key": (CONTROL, {"PK": "p", "SK": ["s"]}),
    "map as key": (CONTROL, {"PK": {"a": 1}, "SK": "s"}),
    "text as number key": (TURNS, {"execution_id": "x", "turn": "7"}),
    "bool as number key": (TURNS, {"execution_id": "x", "turn": True}),
    "fraction as number key": (TURNS, {"execution_id": "x", "turn": 1.5}),
    "none as number key": (TURNS, {"execution_id": "x", "turn": None}),
    "39 digits as number key": (TURNS, {"execution_id": "x", "turn": 10**38}),
    "partition key of 2049 bytes": (CONTROL, {"PK": "x" * 2049, "SK": "s"}),
    "partition key of 2050 bytes in 1025 characters": (CONTROL, {"PK": "é" * 1025, "SK": "s"}),
    "sort key of 1025 bytes": (CONTROL, {"PK": "p", "SK": "x" * 1025}),
    "sort key of 1026 bytes in 342 characters": (CONTROL, {"PK": "p", "SK": "漢" * 342}),
    "half a surrogate pair as key": (CONTROL, {"PK": "p", "SK": "\ud800"}),
    "half a surrogate pair in a long key": (CONTROL, {"PK": "p", "SK": "x" * 500 + "\ud800"}),
    "half a surrogate pair as attribute name": (CONTROL, {"PK": "p", "SK": "t", "\ud800": 1}),
    "a list": (CONTROL, [("PK", "p"), ("SK", "s")]),
    "none": (CONTROL, None),
    "text": (CONTROL, "item"),
}


@each("bad", BAD_ITEMS)
def test_put__item_without_a_good_key__is_refused(store: Store, everything: Callable[[], object], bad: str) -> None:
    table, item = BAD_ITEMS[bad]

    assert_refused(InvalidItemError, lambda: store.put(table, item), everything)


@each("bad", BAD_ITEMS)
def test_batch_write__one_item_without_a_good_key__writes_nothing(
    store: Store, everything: Callable[[], object], bad: str
) -> None:
    table, item = BAD_ITEMS[bad]
    good = Put(CONTROL, {"PK": "p", "SK": "good"})

    assert_refused(InvalidItemError, lambda: store.batch_write([good, Put(table, item)]), everything)


BAD_KEYS: dict[str, tuple[Table, Any]] = {
    "no sort key": (CONTROL, Key("p")),
    "a sort key too many": (EVIDENCE_CACHE, Key("e", "s")),
    "empty partition key": (CONTROL, Key("", "s")),
    "empty sort key": (CONTROL, Key("p", "")),
    "number for text": (CONTROL, Key("p", 7)),
    "text for number": (TURNS, Key("x", "7")),
    "bool for number": (TURNS, Key("x", True)),
    "list": (CONTROL, Key("p", ["s"])),  # type: ignore[arg-type]
    "none": (CONTROL, Key(None, "s")),  # type: ignore[arg-type]
    "half a surrogate pair": (CONTROL, Key("p", "\ud800")),
    "2049 bytes": (CONTROL, Key("x" * 2049, "s")),
    "1025 bytes": (CONTROL, Key("p", "x" * 1025)),
}
KEY_CALLS: dict[str, Callable[[Store, Table, Key], object]] = {
    "get": lambda store, table, key: store.get(table, key),
    "get consistently": lambda store, table, key: store.get(table, key, consistent=True),
    "get_many": lambda store, table, key: store.get_many(table, [key]),
    "update": lambda store, table, key: store.update(table, key, set={"n": 1}),
    "delete": lambda store, table, key: store.delete(table, key),
    "batch_write": lambda store, table, key: store.batch_write([Delete(table, key)]),
}


@each("bad", BAD_KEYS)
@each("call", KEY_CALLS)
def test_any_call__with_a_bad_key__is_refused(
    store: Store, everything: Callable[[], object], call: str, bad: str
) -> None:
    table, key = BAD_KEYS[bad]

    assert_refused(InvalidItemError, lambda: KEY_CALLS[call](store, table, key), everything)


# Index keys

BAD_INDEX_KEYS: dict[str, tuple[Table, Item]] = {
    "empty": (EVIDENCE_CACHE, {"evidence_id": "e", "dataset_urn": "", "created_at": "t"}),
    "none": (EVIDENCE_CACHE, {"evidence_id": "e", "dataset_urn": None, "created_at": "t"}),
    "number for text": (EVIDENCE_CACHE, {"evidence_id": "e", "dataset_urn": "u", "created_at": 7}),
    "text for number": (CONTROL, {"PK": "p", "SK": "s", "due_pk": "w", "due_at_ms": "7"}),
    "fraction for number": (CONTROL, {"PK": "p", "SK": "s", "due_pk": "w", "due_at_ms": 1.5}),
    "bool for number": (CONTROL, {"PK": "p", "SK": "s", "due_pk": "w", "due_at_ms": True}),
    "one bad key alone": (CONTROL, {"PK": "p", "SK": "s", "due_at_ms": "7"}),
    "sort key of 1025 bytes": (EVIDENCE_CACHE, {"evidence_id": "e", "dataset_urn": "u", "created_at": "x" * 1025}),
    "partition key of 2049 bytes": (EVIDENCE_CACHE, {"evidence_id": "e", "dataset_urn": "x" * 2049, "created_at": "t"}),
    "list": (EVIDENCE_CACHE, {"evidence_id": "e", "dataset_urn": ["u"], "created_at": "t"}),
    "table key of 1025 bytes that an index sorts by": (
        DATASET_REGISTRY,
        {"PK": "x" * 1025, "SK": "CONFIG#LATEST", "latest_tier": "TIER_1"},
    ),
}


@each("bad", BAD_INDEX_KEYS)
def test_put__bad_index_key__is_refused(store: Store, everything: Callable[[], object], bad: str) -> None:
    table, item = BAD_INDEX_KEYS[bad]

    assert_refused(InvalidItemError, lambda: store.put(table, item), everything)


@each("bad", [bad for bad in BAD_INDEX_KEYS if not bad.startswith("table key")])
def test_update__bad_index_key__is_refused(store: Store, everything: Callable[[], object], bad: str) -> None:
    table, item = BAD_INDEX_KEYS[bad]
    key = table.key_of(item)
    values = {name: value for name, value in item.items() if name not in table.key_names}
    store.put(table, table.key_attributes(key))

    assert_refused(InvalidItemError, lambda: store.update(table, key, set=values), everything)


def test_put__index_partition_key_of_2048_bytes__is_stored(store: Store) -> None:
    item = {"evidence_id": "e", "dataset_urn": "x" * 2048, "created_at": "y" * 1024}

    store.put(EVIDENCE_CACHE, item)

    assert store.get(EVIDENCE_CACHE, Key("e"), consistent=True) == item


def test_put__whole_float_as_a_number_key__is_the_whole_number(store: Store) -> None:
    store.put(TURNS, {"execution_id": "x", "turn": 7.0})

    assert store.get(TURNS, Key("x", 7), consistent=True) == {"execution_id": "x", "turn": 7}


# Updates

BAD_UPDATES: dict[str, dict[str, Any]] = {
    "nothing to do": {},
    "nothing in everything": {"set": {}, "add": {}, "remove": []},
    "set a partition key": {"set": {"PK": "q"}},
    "set a sort key to what it is": {"set": {"SK": "s"}},
    "remove a key": {"remove": ["SK"]},
    "add to a key": {"add": {"SK": 1}, "condition": version_is(1)},
    "set and remove one": {"set": {"n": 2}, "remove": ["n"]},
    "set and add one": {"set": {"n": 2}, "add": {"n": 1}, "condition": version_is(1)},
    "add and remove one": {"add": {"n": 1}, "remove": ["n"], "condition": version_is(1)},
    "remove one twice": {"remove": ["n", "n"]},
    "set without a name": {"set": {"": 1}},
    "remove without a name": {"remove": [""]},
    "add without a version": {"add": {"n": 1}},
    "add if it exists": {"add": {"n": 1}, "condition": exists()},
    "add text": {"add": {"n": "1"}, "condition": version_is(1)},
    "add a bool": {"add": {"n": True}, "condition": version_is(1)},
    "add nan": {"add": {"n": float("nan")}, "condition": version_is(1)},
    "add infinity": {"add": {"n": float("inf")}, "condition": version_is(1)},
    "add 39 digits": {"add": {"n": 10**38}, "condition": version_is(1)},
    "add none": {"add": {"n": None}, "condition": version_is(1)},
    "add under a version that does not move": {"add": {"n": 1}, "condition": version_is(1)},
}


@each("bad", BAD_UPDATES)
def test_update__that_makes_no_sense__is_refused(store: Store, everything: Callable[[], object], bad: str) -> None:
    assert_refused(InvalidItemError, lambda: store.update(CONTROL, KEY, **BAD_UPDATES[bad]), everything)


# Size


def _sized(size: int, **attributes: Any) -> Item:
    """Return an item of exactly `size` bytes, none of whose attributes is large enough to spill."""
    item: Item = {"PK": "p", "SK": "big", **attributes}
    number = 0
    while (missing := size - stored_bytes(item)) > 0:
        name = f"a{number:03d}"
        item[name] = "x" * min(10_000, missing - len(name))
        number += 1
    return item


def test_put__item_of_exactly_the_limit__is_stored(store: Store) -> None:
    item = _sized(ITEM_BYTES_MAX)
    assert stored_bytes(item) == ITEM_BYTES_MAX

    store.put(CONTROL, item)

    assert store.get(CONTROL, Key("p", "big"), consistent=True) == item


@pytest.mark.parametrize("size", [ITEM_BYTES_MAX + 1, 500_000, 2_000_000])
def test_put__many_small_attributes_over_the_limit__is_refused(
    store: Store, everything: Callable[[], object], size: int
) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "big", "old": 1})

    assert_refused(ItemTooLargeError, lambda: store.put(CONTROL, _sized(size)), everything)


def test_batch_write__one_item_over_the_limit__writes_nothing(store: Store, everything: Callable[[], object]) -> None:
    writes = [Put(CONTROL, {"PK": "p", "SK": "good"}), Put(CONTROL, _sized(500_000))]

    assert_refused(ItemTooLargeError, lambda: store.batch_write(writes), everything)


def test_update__that_grows_an_item_over_the_limit__is_refused_and_leaves_it(
    store: Store, everything: Callable[[], object]
) -> None:
    store.put(CONTROL, _sized(ITEM_BYTES_MAX - 1000))

    assert_refused(
        ItemTooLargeError,
        lambda: store.update(CONTROL, Key("p", "big"), set={"more": "x" * 1000}),
        everything,
    )


def test_update__many_attributes_below_the_size_that_spills__is_refused_at_the_limit(
    store: Store, everything: Callable[[], object]
) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "big"})
    for number in range(6):
        store.update(CONTROL, Key("p", "big"), set={f"a{number}": "x" * 60_000})

    assert_refused(
        ItemTooLargeError,
        lambda: store.update(CONTROL, Key("p", "big"), set={"a6": "x" * 60_000}),
        everything,
    )


def test_update__that_shrinks_a_full_item__is_done(store: Store) -> None:
    store.put(CONTROL, _sized(ITEM_BYTES_MAX))

    after = store.update(CONTROL, Key("p", "big"), set={"a000": "small"}, remove=["a001"])

    assert after["a000"] == "small"
    assert "a001" not in after


@pytest.mark.parametrize("error", [InvalidItemError, ItemTooLargeError])
def test_refusal__any__names_the_table(store: Store, error: type[HeadgateError]) -> None:
    item = {"PK": "p", "SK": ""} if error is InvalidItemError else _sized(500_000)

    with pytest.raises(error) as caught:
        store.put(CONTROL, item)

    assert "headgate-control" in caught.value.message
