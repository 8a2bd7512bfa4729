"""Batches: many unconditional writes of distinct items, each atomic by itself."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import InvalidItemError, TransactionLimitError
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, PIPELINES, TURNS
from headgate.store.model.conditions import absent, exists
from headgate.store.model.requests import Check, Delete, Put, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import assert_refused, contents

READS_INDEXES = False

TABLES = (CONTROL, EVIDENCE_CACHE, PIPELINES, TURNS)


def _item(sort: str, **attributes: Any) -> Item:
    return {"PK": "p", "SK": sort, **attributes}


def test_batch_write__puts_and_deletes__are_all_done(store: Store) -> None:
    store.put(CONTROL, _item("old", n=1))
    store.put(CONTROL, _item("gone"))

    store.batch_write(
        [
            Put(CONTROL, _item("new", n=2)),
            Put(CONTROL, _item("old", n=3)),
            Delete(CONTROL, Key("p", "gone")),
            Delete(CONTROL, Key("p", "never was")),
        ]
    )

    assert contents(store, CONTROL, "p") == [_item("new", n=2), _item("old", n=3)]


def test_batch_write__500_puts_and_then_500_deletes__are_all_done(store: Store) -> None:
    items = [_item(f"{number:03d}", n=number) for number in range(500)]

    store.batch_write([Put(CONTROL, item) for item in items])
    assert contents(store, CONTROL, "p") == items

    store.batch_write([Delete(CONTROL, Key("p", f"{number:03d}")) for number in range(500)])
    assert contents(store, CONTROL, "p") == []


def test_batch_write__500_mixed__leaves_what_is_left(store: Store) -> None:
    store.batch_write([Put(CONTROL, _item(f"{number:03d}", n=0)) for number in range(250)])

    store.batch_write(
        [Delete(CONTROL, Key("p", f"{number:03d}")) for number in range(0, 250, 2)]
        + [Put(CONTROL, _item(f"{number:03d}", n=1)) for number in range(1, 500, 2)]
        + [Put(CONTROL, _item(f"{number:03d}", n=2)) for number in range(250, 500, 2)]
    )

    found = {int(item["SK"]): item["n"] for item in contents(store, CONTROL, "p")}
    assert found == {number: 1 if number % 2 else 2 for number in range(500) if number % 2 or number >= 250}


def test_batch_write__several_tables__are_all_written(store: Store) -> None:
    store.batch_write(
        [
            Put(CONTROL, _item("s")),
            Put(EVIDENCE_CACHE, {"evidence_id": "e"}),
            Put(TURNS, {"execution_id": "x", "turn": 1}),
            Put(PIPELINES, _item("s")),
        ]
    )

    assert contents(store, CONTROL, "p") == contents(store, PIPELINES, "p") == [_item("s")]
    assert contents(store, EVIDENCE_CACHE, "e") == [{"evidence_id": "e"}]
    assert contents(store, TURNS, "x") == [{"execution_id": "x", "turn": 1}]


def test_batch_write__more_bytes_than_a_backend_takes_at_once__are_all_written(store: Store) -> None:
    # 60 items of 300 KB are 18 MB, over the 16 MB of one request to DynamoDB.
    store.batch_write([Put(CONTROL, _item(f"{number:02d}", text="x" * 300_000)) for number in range(60)])

    assert [len(item["text"]) for item in contents(store, CONTROL, "p")] == [300_000] * 60


def test_batch_write__nothing__is_harmless(store: Store) -> None:
    store.batch_write([])

    assert contents(store, CONTROL, "p") == []


def test_batch_write__again__gives_the_same(store: Store) -> None:
    writes: list[Put | Delete] = [Put(CONTROL, _item("a", n=1)), Delete(CONTROL, Key("p", "b"))]

    store.batch_write(writes)
    store.batch_write(writes)

    assert contents(store, CONTROL, "p") == [_item("a", n=1)]


@pytest.mark.parametrize(
    "second", [Put(CONTROL, _item("s", n=3)), Delete(CONTROL, Key("p", "s"))], ids=["put", "delete"]
)
def test_batch_write__an_item_twice__is_refused(store: Store, second: Put | Delete) -> None:
    store.put(CONTROL, _item("s", n=1))
    writes = [Put(CONTROL, _item("a")), Put(CONTROL, _item("s", n=2)), Put(CONTROL, _item("z")), second]

    assert_refused(TransactionLimitError, lambda: store.batch_write(writes), lambda: contents(store, CONTROL, "p"))


def test_batch_write__an_item_twice_far_apart__is_refused(store: Store) -> None:
    writes = [Put(CONTROL, _item(f"{number:03d}")) for number in range(100)]

    assert_refused(
        TransactionLimitError,
        lambda: store.batch_write([*writes, Put(CONTROL, _item("000", n=2))]),
        lambda: contents(store, CONTROL, "p"),
    )


def test_batch_write__same_key_in_two_tables__is_two_items(store: Store) -> None:
    store.batch_write([Put(CONTROL, _item("s", n=1)), Put(PIPELINES, _item("s", n=2))])

    assert contents(store, CONTROL, "p") == [_item("s", n=1)]
    assert contents(store, PIPELINES, "p") == [_item("s", n=2)]


BAD: dict[str, Any] = {
    "put with a condition": Put(CONTROL, _item("s", n=2), absent()),
    "delete with a condition": Delete(CONTROL, Key("p", "s"), exists()),
    "update": Update(CONTROL, Key("p", "s"), set={"n": 2}),
    "check": Check(CONTROL, Key("p", "s"), exists()),
    "put of nan": Put(CONTROL, _item("s", n=float("nan"))),
    "not a write": {"PK": "p", "SK": "s"},
    "none": None,
}


@pytest.mark.parametrize("bad", BAD)
def test_batch_write__one_write_it_cannot_take__is_refused_as_a_whole(store: Store, bad: str) -> None:
    store.put(CONTROL, _item("s", n=1))
    good = [Put(CONTROL, _item(f"{number:03d}")) for number in range(30)]

    assert_refused(
        InvalidItemError, lambda: store.batch_write([*good, BAD[bad]]), lambda: contents(store, CONTROL, "p")
    )
