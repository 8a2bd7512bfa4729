"""Cursors through a store: good for their own query, on any handle, and for nothing else."""

from __future__ import annotations

import string
from typing import Any

import msgspec
import pytest

from headgate.clock import VirtualClock
from headgate.errors import CursorError
from headgate.store.catalogue.tables import CONTROL, FANOUT, TURNS
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.requests import Put, Query, Range, Sort
from headgate.store.port import Store
from tests.contract.conftest import Eventually, OpenStore

TABLES = (CONTROL, FANOUT, TURNS)
QUERY = Query(table=CONTROL, partition="p", limit=3, consistent=True)
CHARACTERS = string.ascii_letters + string.digits + "-_"


@pytest.fixture
def cursor(store: Store) -> str:
    """The cursor of the first three of ten items."""
    store.batch_write([Put(CONTROL, {"PK": "p", "SK": f"{number:02d}"}) for number in range(10)])
    cursor = store.query(QUERY).cursor
    assert cursor is not None
    return cursor


def _resumed(cursor: str, **changes: Any) -> Query:
    return msgspec.structs.replace(QUERY, cursor=cursor, **changes)


def _is_accepted(store: Store, cursor: str) -> bool:
    try:
        store.query(_resumed(cursor))
    except CursorError:
        return False
    return True


def test_query__with_its_own_cursor__goes_on(store: Store, cursor: str) -> None:
    page = store.query(_resumed(cursor))

    assert [item["SK"] for item in page.items] == ["03", "04", "05"]


def test_query__with_one_cursor_twice__gives_the_same_page(store: Store, cursor: str) -> None:
    assert store.query(_resumed(cursor)) == store.query(_resumed(cursor))


def test_query__cursor_given_to_another_handle__goes_on(store: Store, open_store: OpenStore, cursor: str) -> None:
    page = open_store().query(_resumed(cursor))

    assert [item["SK"] for item in page.items] == ["03", "04", "05"]


def test_query__cursor_after_the_key_was_rotated__goes_on(
    store: Store, open_store: OpenStore, cursor: str, keyring: Keyring, clock: VirtualClock
) -> None:
    other = open_store(keyring=keyring.rotated(Purpose.CURSOR, clock))

    assert [item["SK"] for item in other.query(_resumed(cursor)).items] == ["03", "04", "05"]


def test_query__cursor_of_another_key_ring__is_refused(
    store: Store, open_store: OpenStore, cursor: str, clock: VirtualClock
) -> None:
    other = open_store(keyring=Keyring.generate(clock))

    with pytest.raises(CursorError) as caught:
        other.query(_resumed(cursor))

    assert caught.type is CursorError


def test_query__cursor_altered_at_any_position__is_refused(store: Store, cursor: str) -> None:
    accepted = []
    for place, original in enumerate(cursor):
        following = CHARACTERS[(CHARACTERS.find(original) + 1) % len(CHARACTERS)]
        if _is_accepted(store, cursor[:place] + following + cursor[place + 1 :]):
            accepted.append(place)

    assert accepted == []


@pytest.mark.parametrize(
    "garbage", ["", ".", "..", "a.b.c", "null", "0", "é", "\0", "x" * 10_000, "{}", "00.00.00", "../../x"]
)
def test_query__garbage_for_a_cursor__is_refused(store: Store, garbage: str) -> None:
    with pytest.raises(CursorError) as caught:
        store.query(_resumed(garbage))

    assert caught.type is CursorError


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": "q"},
        {"table": FANOUT},
        {"descending": True},
        {"sort": Sort(Range.AT_LEAST, "05")},
        {"index": "due-index", "consistent": False},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_query__cursor_of_another_query__is_refused(store: Store, cursor: str, changes: dict[str, Any]) -> None:
    with pytest.raises(CursorError) as caught:
        store.query(_resumed(cursor, **changes))

    assert caught.type is CursorError


def test_query__cursor_of_the_table_given_to_the_index__is_refused(store: Store, eventually: Eventually) -> None:
    store.batch_write([Put(FANOUT, {"PK": "p", "SK": f"{n}", "GSI1_PK": "p", "GSI1_SK": f"{n}"}) for n in range(5)])
    index = Query(table=FANOUT, index="GSI1", partition="p", limit=2)
    page = eventually(lambda: store.query(index), lambda page: page.cursor is not None)

    with pytest.raises(CursorError):
        store.query(Query(table=FANOUT, partition="p", limit=2, cursor=page.cursor))


def test_query_many__one_bad_cursor__is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(CursorError):
        store.query_many([QUERY, _resumed(cursor[::-1])])


def test_query__cursor_that_is_still_good_after_bad_ones__goes_on(store: Store, cursor: str) -> None:
    assert not _is_accepted(store, "bad")

    assert _is_accepted(store, cursor)


def test_query__cursor_of_a_number_key__goes_on(store: Store) -> None:
    store.batch_write([Put(TURNS, {"execution_id": "x", "turn": turn}) for turn in range(-5, 5)])
    first = store.query(Query(table=TURNS, partition="x", limit=4, consistent=True))

    second = store.query(Query(table=TURNS, partition="x", limit=4, cursor=first.cursor, consistent=True))

    assert [item["turn"] for item in second.items] == [-1, 0, 1, 2]
