"""Fences: counting beside a write that refuses to happen twice."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from headgate.errors import ConflictError, InvalidItemError
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.conditions import (
    absent,
    all_of,
    any_of,
    at_least,
    differs,
    equals,
    exists,
    has,
    lacks,
    version_is,
)
from headgate.store.model.requests import Check, Delete, Put, Update, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.contract.conftest import contents

READS_INDEXES = False

TABLES = (CONTROL,)
COUNT = Update(CONTROL, Key("p", "count"), add={"n": 1})


class Colour(enum.StrEnum):
    RED = "red"


def _put(condition: Any, **attributes: Any) -> Put:
    return Put(CONTROL, {"PK": "p", "SK": "row", **attributes}, condition)


def _update(condition: Any, **attributes: Any) -> Update:
    return Update(CONTROL, Key("p", "row"), set=attributes, condition=condition)


FENCED: dict[str, Write] = {
    "put that moves what it demands": _put(equals("state", "a"), state="b"),
    "put that drops what it demands": _put(equals("state", "a"), other=1),
    "put among several clauses": _put(all_of(exists(), equals("state", "a")), state="b"),
    "put of the next version": _put(version_is(1), version=2, state="a"),
    "update that moves what it demands": _update(equals("state", "a"), state="b"),
    "update that removes what it demands": Update(
        CONTROL, Key("p", "row"), remove=("state",), condition=equals("state", "a")
    ),
    "delete of what exists": Delete(CONTROL, Key("p", "row"), exists()),
    "delete of what has it": Delete(CONTROL, Key("p", "row"), has("state")),
    "delete of a certain state": Delete(CONTROL, Key("p", "row"), equals("state", "a")),
}
OPEN: dict[str, Write] = {
    "put without a condition": _put(None, state="b"),
    "put that keeps what it demands": _put(equals("state", "a"), state="a"),
    "put that may be one or the other": _put(any_of(equals("state", "a"), equals("state", "b")), state="b"),
    "put that demands a difference": _put(differs("state", "b"), state="b"),
    "put that demands that something is there": _put(exists(), state="b"),
    "update of something else": _update(equals("state", "a"), other=1),
    "update to the same in other clothes": _update(equals("state", "red"), state=Colour.RED),
    "update beyond a number": _update(at_least("version", 1), version=2),
    "delete of what lacks it": Delete(CONTROL, Key("p", "row"), lacks("ghost")),
    "delete without a condition": Delete(CONTROL, Key("p", "row")),
    "check": Check(CONTROL, Key("p", "row"), equals("state", "a")),
}


@pytest.fixture(autouse=True)
def _rows(store: Store) -> None:
    store.put(CONTROL, {"PK": "p", "SK": "count", "n": 0})
    store.put(CONTROL, {"PK": "p", "SK": "row", "state": "a", "version": 1})


def _count(store: Store) -> int:
    return int(next(item["n"] for item in contents(store, CONTROL, "p") if item["SK"] == "count"))


@pytest.mark.parametrize("case", FENCED)
def test_transact__add_beside_a_write_that_undoes_its_condition__counts_once(store: Store, case: str) -> None:
    store.transact([FENCED[case], COUNT])
    with pytest.raises(ConflictError):
        store.transact([FENCED[case], COUNT])

    assert _count(store) == 1


def test_transact__add_beside_the_first_of_a_row__counts_once(store: Store) -> None:
    first = Put(CONTROL, {"PK": "p", "SK": "new"}, absent())

    store.transact([first, COUNT])
    with pytest.raises(ConflictError):
        store.transact([first, COUNT])

    assert _count(store) == 1


@pytest.mark.parametrize("case", OPEN)
def test_transact__add_beside_a_write_that_could_happen_again__is_refused(store: Store, case: str) -> None:
    before = contents(store, CONTROL, "p")

    with pytest.raises(InvalidItemError, match="could count twice"):
        store.transact([OPEN[case], COUNT])

    assert contents(store, CONTROL, "p") == before


def test_transact_many__each_with_a_fence_of_its_own__counts_what_was_applied(store: Store) -> None:
    moves: list[list[Write]] = [
        [_put(equals("state", a), state=b), COUNT] for a, b in (("a", "b"), ("a", "c"), ("b", "c"))
    ]

    outcomes = store.transact_many(moves)

    assert [outcome is None for outcome in outcomes] == [True, False, True]
    assert _count(store) == 2
