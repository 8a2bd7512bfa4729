"""Single items: put, get, get_many and delete."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from headgate.errors import InvalidItemError
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, HEALTH_CHECK, PIPELINES, TURNS
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key, Table
from headgate.store.port import Store
from tests.contract.conftest import contents

READS_INDEXES = False

TABLES = (CONTROL, EVIDENCE_CACHE, HEALTH_CHECK, PIPELINES, TURNS)
KEY = Key("p", "s")


def _item(**attributes: Any) -> dict[str, Any]:
    return {"PK": "p", "SK": "s", **attributes}


# Put and get


def test_get__after_put__gives_the_item(store: Store) -> None:
    store.put(CONTROL, _item(name="orders", count=3))

    assert store.get(CONTROL, KEY, consistent=True) == _item(name="orders", count=3)


def test_get__nothing_there__is_none(store: Store) -> None:
    assert store.get(CONTROL, KEY) is None
    assert store.get(CONTROL, KEY, consistent=True) is None


def test_put__item_that_is_all_key__is_there(store: Store) -> None:
    store.put(CONTROL, _item())

    assert store.get(CONTROL, KEY, consistent=True) == _item()


def test_put__over_another_item__replaces_the_whole_of_it(store: Store) -> None:
    store.put(CONTROL, _item(old="x", both=1))

    store.put(CONTROL, _item(new="y", both=2))

    assert store.get(CONTROL, KEY, consistent=True) == _item(new="y", both=2)


def test_put__table_without_a_sort_key__is_found_by_its_partition(store: Store) -> None:
    store.put(EVIDENCE_CACHE, {"evidence_id": "evd-1", "result": "FAIL"})

    assert store.get(EVIDENCE_CACHE, Key("evd-1"), consistent=True) == {"evidence_id": "evd-1", "result": "FAIL"}


@pytest.mark.parametrize("turn", [0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63) + 1])
def test_put__number_as_sort_key__is_found_by_that_number(store: Store, turn: int) -> None:
    item = {"execution_id": "exe_1", "turn": turn, "events": []}

    store.put(TURNS, item)

    assert store.get(TURNS, Key("exe_1", turn), consistent=True) == item
    assert store.get(TURNS, Key("exe_1", turn - 1 if turn > 0 else turn + 1), consistent=True) is None


@pytest.mark.parametrize("turn", [2**63, -(2**64), 10**38 - 1])
def test_put__number_beyond_64_bits_as_sort_key__is_found_or_refused(store: Store, turn: int) -> None:
    item = {"execution_id": "exe_1", "turn": turn}

    try:
        store.put(TURNS, item)
        stored = [item]
    except InvalidItemError:
        stored = []

    assert contents(store, TURNS, "exe_1") == stored


def test_put__same_sort_key_in_other_partitions_and_tables__are_other_items(store: Store) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "s", "n": 1})
    store.put(CONTROL, {"PK": "q", "SK": "s", "n": 2})
    store.put(PIPELINES, {"PK": "p", "SK": "s", "n": 3})

    found = [
        store.get(table, Key(partition, "s"), consistent=True)
        for table, partition in ((CONTROL, "p"), (CONTROL, "q"), (PIPELINES, "p"), (PIPELINES, "q"))
    ]

    assert [item and item["n"] for item in found] == [1, 2, 3, None]


@pytest.mark.parametrize(
    ("partition", "sort"),
    [
        ("a#b", "c#d"),
        ("urn:dp:orders:order_created:v1", "CONFIG#LATEST"),
        (" ", " "),
        ("p ", " s"),
        ("é漢字😀", "ß"),
        ("'\"\\;--", "%_*?"),
        ("line\nbreak", "tab\t"),
        ("nul\0nul", "\0"),
        ("x" * 2048, "y" * 1024),
        ("é" * 1024, "漢" * 341),
    ],
    ids=lambda part: repr(part)[:16],
)
def test_put__any_text_as_key__is_found_again(store: Store, partition: str, sort: str) -> None:
    item = {"PK": partition, "SK": sort, "n": 1}

    store.put(CONTROL, item)

    assert store.get(CONTROL, Key(partition, sort), consistent=True) == item
    assert contents(store, CONTROL, partition) == [item]


def test_put__keys_that_only_look_alike__are_different_items(store: Store) -> None:
    # Upper and lower case, composed and decomposed, with and without a blank, a number and its digits.
    sorts = ["a", "A", "a ", "\u00e9", "e\u0301", "1", "01", "1.0", "a\0", "a\0b"]
    for number, sort in enumerate(sorts):
        store.put(CONTROL, {"PK": "p", "SK": sort, "n": number})

    found = store.get_many(CONTROL, [Key("p", sort) for sort in sorts], consistent=True)

    assert [item and item["n"] for item in found] == list(range(len(sorts)))


def test_put__any_mapping__is_stored(store: Store) -> None:
    store.put(CONTROL, MappingProxyType(_item(n=1)))

    assert store.get(CONTROL, KEY, consistent=True) == _item(n=1)


def test_put__item_changed_by_the_caller_afterwards__is_stored_as_it_was(store: Store) -> None:
    item = _item(tags=["a"], nested={"deep": ["x"]})

    store.put(CONTROL, item)
    item["tags"].append("b")
    item["nested"]["deep"].append("y")

    assert store.get(CONTROL, KEY, consistent=True) == _item(tags=["a"], nested={"deep": ["x"]})


def test_put__any_item__leaves_the_callers_item_alone(store: Store) -> None:
    item = _item(pair=(1, 2.0), tags={"a"}, big="x" * 500_000)

    store.put(CONTROL, item)

    assert item == _item(pair=(1, 2.0), tags={"a"}, big="x" * 500_000)
    assert type(item["pair"]) is tuple


def test_get__answer_changed_by_the_caller__does_not_change_the_store(store: Store) -> None:
    store.put(CONTROL, _item(tags=["a"]))
    first = store.get(CONTROL, KEY, consistent=True)
    assert first is not None

    first["tags"].append("b")
    first["other"] = 1

    assert store.get(CONTROL, KEY, consistent=True) == _item(tags=["a"])


# Several at once


def test_get_many__some_there_some_not__keeps_the_order_of_the_keys(store: Store) -> None:
    for sort in ("a", "b", "c"):
        store.put(CONTROL, {"PK": "p", "SK": sort})

    found = store.get_many(CONTROL, [Key("p", sort) for sort in ("c", "x", "a", "y", "b")], consistent=True)

    assert [item and item["SK"] for item in found] == ["c", None, "a", None, "b"]


def test_get_many__a_key_twice__answers_it_twice(store: Store) -> None:
    store.put(CONTROL, _item(n=1))

    found = store.get_many(CONTROL, [KEY, Key("p", "x"), KEY, Key("p", "x")], consistent=True)

    assert found == [_item(n=1), None, _item(n=1), None]


def test_get_many__no_keys__is_empty(store: Store) -> None:
    assert store.get_many(CONTROL, []) == []


def test_get_many__more_keys_than_a_backend_takes_at_once__answers_all(store: Store) -> None:
    store.batch_write([Put(CONTROL, {"PK": "p", "SK": f"{number:03d}", "n": number}) for number in range(230)])

    found = store.get_many(CONTROL, [Key("p", f"{number:03d}") for number in reversed(range(240))], consistent=True)

    assert [item and item["n"] for item in found] == [None] * 10 + list(reversed(range(230)))


def test_get_many__more_bytes_than_a_backend_sends_at_once__answers_all(store: Store) -> None:
    # 60 items of 300 KB are 18 MB, over the 16 MB of one answer of DynamoDB.
    keys = [Key("p", f"{number:02d}") for number in range(60)]
    for key in keys:
        store.put(CONTROL, {"PK": key.partition, "SK": key.sort, "text": "x" * 300_000})

    found = store.get_many(CONTROL, keys, consistent=True)

    assert [item and (item["SK"], len(item["text"])) for item in found] == [(key.sort, 300_000) for key in keys]


def test_get_many__tables_without_sort_key_and_with_number_key__answer(store: Store) -> None:
    store.put(EVIDENCE_CACHE, {"evidence_id": "e1"})
    store.put(TURNS, {"execution_id": "x", "turn": 5})

    assert store.get_many(EVIDENCE_CACHE, [Key("e2"), Key("e1")], consistent=True) == [None, {"evidence_id": "e1"}]
    assert store.get_many(TURNS, [Key("x", 5), Key("x", 4)], consistent=True) == [
        {"execution_id": "x", "turn": 5},
        None,
    ]


# Delete


def test_delete__an_item__returns_what_was_there(store: Store) -> None:
    store.put(CONTROL, _item(n=1))

    assert store.delete(CONTROL, KEY) == _item(n=1)
    assert store.get(CONTROL, KEY, consistent=True) is None


def test_delete__nothing_there__returns_none(store: Store) -> None:
    assert store.delete(CONTROL, KEY) is None


def test_delete__one_of_two__leaves_the_other(store: Store) -> None:
    store.put(CONTROL, _item())
    store.put(CONTROL, {"PK": "p", "SK": "t"})

    store.delete(CONTROL, KEY)

    assert contents(store, CONTROL, "p") == [{"PK": "p", "SK": "t"}]


def test_put__after_delete__starts_afresh(store: Store) -> None:
    store.put(CONTROL, _item(old=1))
    store.delete(CONTROL, KEY)

    store.put(CONTROL, _item(new=2))

    assert store.get(CONTROL, KEY, consistent=True) == _item(new=2)


def test_get__table_of_every_shape__answers_none(store: Store) -> None:
    tables: list[tuple[Table, Key]] = [
        (CONTROL, KEY),
        (TURNS, Key("x", 1)),
        (EVIDENCE_CACHE, Key("e")),
        (HEALTH_CHECK, Key("h")),
    ]

    assert [store.get(table, key, consistent=True) for table, key in tables] == [None] * 4
