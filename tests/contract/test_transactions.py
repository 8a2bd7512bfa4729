"""Transactions: all of the writes or none, named failures, and limits."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import (
    ConflictError,
    HeadgateError,
    InvalidItemError,
    ItemTooLargeError,
    TransactionLimitError,
)
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE, PIPELINES, TURNS
from headgate.store.model.conditions import absent, equals, exists, version_is
from headgate.store.model.requests import Check, Delete, Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from tests.contract.conftest import assert_refused, contents

READS_INDEXES = False

TABLES = (CONTROL, EVIDENCE_CACHE, PIPELINES, TURNS)


def _item(sort: str, **attributes: Any) -> Item:
    return {"PK": "p", "SK": sort, **attributes}


def _put(sort: str, **attributes: Any) -> Put:
    return Put(CONTROL, _item(sort, **attributes))


def _everything(store: Store) -> list[Item]:
    return contents(store, CONTROL, "p")


# All or nothing


def test_transact__every_kind_of_write__are_all_done(store: Store) -> None:
    store.put(CONTROL, _item("updated", n=1, gone=1))
    store.put(CONTROL, _item("deleted"))
    store.put(CONTROL, _item("checked", n=1))

    store.transact(
        [
            _put("put", n=1),
            Update(CONTROL, Key("p", "updated"), set={"n": 2}, remove=("gone",)),
            Delete(CONTROL, Key("p", "deleted")),
            Check(CONTROL, Key("p", "checked"), equals("n", 1)),
            Check(CONTROL, Key("p", "missing"), absent()),
        ]
    )

    assert _everything(store) == [_item("checked", n=1), _item("put", n=1), _item("updated", n=2)]


def test_transact__across_tables__is_all_done(store: Store) -> None:
    store.transact(
        [
            _put("s", n=1),
            Put(PIPELINES, {"PK": "p", "SK": "s", "n": 2}),
            Put(EVIDENCE_CACHE, {"evidence_id": "e", "n": 3}),
            Put(TURNS, {"execution_id": "x", "turn": 1, "n": 4}),
        ]
    )

    found = [
        store.get(table, key, consistent=True)
        for table, key in (
            (CONTROL, Key("p", "s")),
            (PIPELINES, Key("p", "s")),
            (EVIDENCE_CACHE, Key("e")),
            (TURNS, Key("x", 1)),
        )
    ]
    assert [item and item["n"] for item in found] == [1, 2, 3, 4]


def test_transact__across_tables_with_one_refused__does_nothing_in_any(store: Store) -> None:
    store.put(EVIDENCE_CACHE, {"evidence_id": "e"})

    error = assert_refused(
        ConflictError,
        lambda: store.transact(
            [
                _put("s"),
                Put(TURNS, {"execution_id": "x", "turn": 1}),
                Put(EVIDENCE_CACHE, {"evidence_id": "e", "n": 1}, absent()),
            ]
        ),
        lambda: (
            _everything(store),
            contents(store, TURNS, "x"),
            store.get(EVIDENCE_CACHE, Key("e"), consistent=True),
        ),
    )

    assert isinstance(error, ConflictError)
    assert error.write_index == 2
    assert error.current == {"evidence_id": "e"}


def test_transact__same_key_in_two_tables__are_two_items(store: Store) -> None:
    store.transact([_put("s", n=1), Put(PIPELINES, {"PK": "p", "SK": "s", "n": 2})])

    assert contents(store, CONTROL, "p") == [_item("s", n=1)]
    assert contents(store, PIPELINES, "p") == [_item("s", n=2)]


@pytest.mark.parametrize("refused", range(4))
def test_transact__one_of_many_refused__does_none_of_them(store: Store, refused: int) -> None:
    store.put(CONTROL, _item("there", n=1))
    store.put(CONTROL, _item("deleted", n=1))
    writes: list[Write] = [
        _put("put"),
        Update(CONTROL, Key("p", "there"), set={"n": 2}),
        Delete(CONTROL, Key("p", "deleted")),
    ]
    writes.insert(refused, Check(CONTROL, Key("p", "nowhere"), exists()))

    error = assert_refused(ConflictError, lambda: store.transact(writes), lambda: _everything(store))

    assert isinstance(error, ConflictError)
    assert error.write_index == refused
    assert error.failures == {refused: None}


def test_transact__update_of_a_missing_item__conflicts_and_creates_nothing(store: Store) -> None:
    error = assert_refused(
        ConflictError,
        lambda: store.transact([_put("a"), Update(CONTROL, Key("p", "b"), set={"n": 1})]),
        lambda: _everything(store),
    )

    assert isinstance(error, ConflictError)
    assert error.write_index == 1
    assert error.current is None


def test_conflict__several_writes_refused__names_every_one_with_its_item(store: Store) -> None:
    store.put(CONTROL, _item("b", n=1))
    store.put(CONTROL, _item("e", n=5))

    error = assert_refused(
        ConflictError,
        lambda: store.transact(
            [
                _put("a"),
                Put(CONTROL, _item("b", n=2), absent()),
                Update(CONTROL, Key("p", "c"), set={"n": 1}),
                Delete(CONTROL, Key("p", "d"), absent()),
                Check(CONTROL, Key("p", "e"), version_is(1)),
            ]
        ),
        lambda: _everything(store),
    )

    assert isinstance(error, ConflictError)
    assert error.failures == {1: _item("b", n=1), 2: None, 4: _item("e", n=5)}
    assert error.write_index == 1
    assert error.current == _item("b", n=1)


def test_transact__condition__sees_the_state_before_the_transaction(store: Store) -> None:
    store.put(CONTROL, _item("a", n=1))

    # The check of one item must not see the write of another that comes before it in the list.
    store.transact([Put(CONTROL, _item("b", n=1), absent()), Check(CONTROL, Key("p", "a"), equals("n", 1))])

    assert _everything(store) == [_item("a", n=1), _item("b", n=1)]


def test_transact__only_checks__changes_nothing(store: Store) -> None:
    store.put(CONTROL, _item("a", n=1))

    store.transact([Check(CONTROL, Key("p", "a"), equals("n", 1)), Check(CONTROL, Key("p", "b"), absent())])

    assert _everything(store) == [_item("a", n=1)]


def test_transact__a_hundred_writes__are_all_done(store: Store) -> None:
    store.transact([_put(f"{number:03d}", n=number) for number in range(100)])

    assert [item["n"] for item in _everything(store)] == list(range(100))


def test_transact__a_hundred_writes_with_the_last_refused__does_none(store: Store) -> None:
    writes: list[Write] = [_put(f"{number:03d}") for number in range(99)]

    error = assert_refused(
        ConflictError,
        lambda: store.transact([*writes, Check(CONTROL, Key("p", "x"), exists())]),
        lambda: _everything(store),
    )

    assert isinstance(error, ConflictError)
    assert error.write_index == 99


# Limits


def test_transact__more_than_a_hundred_writes__is_refused(store: Store) -> None:
    writes = [_put(f"{number:03d}") for number in range(101)]

    assert_refused(TransactionLimitError, lambda: store.transact(writes), lambda: _everything(store))


def test_transact__no_writes__is_refused(store: Store) -> None:
    assert_refused(TransactionLimitError, lambda: store.transact([]), lambda: _everything(store))


PAIRS: dict[str, list[Write]] = {
    "two puts": [_put("s", n=2), _put("s", n=3)],
    "put and update": [_put("s", n=2), Update(CONTROL, Key("p", "s"), set={"n": 3})],
    "put and delete": [_put("s", n=2), Delete(CONTROL, Key("p", "s"))],
    "put and check": [_put("s", n=2), Check(CONTROL, Key("p", "s"), exists())],
    "two checks": [Check(CONTROL, Key("p", "s"), exists()), Check(CONTROL, Key("p", "s"), equals("n", 1))],
    "apart": [_put("s", n=2), _put("t"), Update(CONTROL, Key("p", "s"), set={"n": 3})],
}


@pytest.mark.parametrize("pair", PAIRS)
def test_transact__two_writes_of_one_item__is_refused(store: Store, pair: str) -> None:
    store.put(CONTROL, _item("s", n=1))

    assert_refused(TransactionLimitError, lambda: store.transact(PAIRS[pair]), lambda: _everything(store))


def _wide(sort: str, kilobytes: int) -> Item:
    """Return an item of about so many kilobytes, none of whose attributes is large enough to spill."""
    return _item(sort, **{f"a{number:03d}": "x" * 1019 for number in range(kilobytes)})


def test_transact__more_than_four_megabytes__is_refused(store: Store) -> None:
    writes = [Put(CONTROL, _wide(f"{number:02d}", 390)) for number in range(11)]

    assert_refused(TransactionLimitError, lambda: store.transact(writes), lambda: _everything(store))


def test_transact__close_to_four_megabytes__is_done(store: Store) -> None:
    store.transact([Put(CONTROL, _wide(f"{number:02d}", 390)) for number in range(10)])

    assert len(_everything(store)) == 10


def test_transact__four_megabytes_that_spill__is_done(store: Store) -> None:
    store.transact([_put(f"{number:02d}", text="x" * 600_000) for number in range(8)])

    assert [len(item["text"]) for item in _everything(store)] == [600_000] * 8


def test_transact__one_item_too_large__is_refused(store: Store) -> None:
    store.put(CONTROL, _item("b", n=1))

    assert_refused(
        ItemTooLargeError,
        lambda: store.transact([_put("a"), Put(CONTROL, _wide("b", 420))]),
        lambda: _everything(store),
    )


BAD: dict[str, tuple[Write, type[HeadgateError]]] = {
    "put without a sort key": (Put(CONTROL, {"PK": "p"}), InvalidItemError),
    "put without any key": (Put(CONTROL, {"n": 1}), InvalidItemError),
    "put with a list as key": (Put(CONTROL, {"PK": "p", "SK": ["s"]}), InvalidItemError),
    "put with a map as key": (Put(CONTROL, {"PK": {}, "SK": "s"}), InvalidItemError),
    "put with an empty key": (Put(CONTROL, {"PK": "p", "SK": ""}), InvalidItemError),
    "put of nan": (_put("s", n=float("nan")), InvalidItemError),
    "put with a bad index key": (_put("s", due_pk="x", due_at_ms="soon"), InvalidItemError),
    "update of nothing": (Update(CONTROL, Key("p", "s")), InvalidItemError),
    "update of a key": (Update(CONTROL, Key("p", "s"), set={"SK": "t"}), InvalidItemError),
    "update with an empty set": (Update(CONTROL, Key("p", "s"), set={"n": set()}), InvalidItemError),
    "add without a token": (Update(CONTROL, Key("p", "s"), add={"n": 1}), InvalidItemError),
    "delete with an empty key": (Delete(CONTROL, Key("p", "")), InvalidItemError),
    "delete without a sort key": (Delete(CONTROL, Key("p")), InvalidItemError),
    "delete with a list as key": (Delete(CONTROL, Key("p", ["s"])), InvalidItemError),  # type: ignore[arg-type]
    "check with a number as text key": (Check(CONTROL, Key("p", 7), exists()), InvalidItemError),
    "check with a sort key too many": (Check(EVIDENCE_CACHE, Key("e", "s"), exists()), InvalidItemError),
}


@pytest.mark.parametrize("bad", BAD)
def test_transact__one_bad_write_among_good_ones__is_refused_as_a_whole(store: Store, bad: str) -> None:
    store.put(CONTROL, _item("s", n=1))
    write, error = BAD[bad]

    assert_refused(error, lambda: store.transact([_put("a"), write, _put("z")]), lambda: _everything(store))
