"""What the writing connection remembers of rows: never what is no longer so, and no second look at what is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Check, Delete, Put, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, dump, trusted_item
from headgate.store.sqlite.row_cache import ROWS_MAX
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

KEY = Key("urn:dp:a:b", "FRESHNESS")


def item(version: int, **more: object) -> Item:
    return {"PK": KEY.partition, "SK": KEY.sort, "version": version, **more}


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as opened:
        yield opened


def test_condition__another_store_has_written_since__is_asked_of_what_is_there_now(
    store: SqliteStore, tmp_path: Path, clock: VirtualClock
) -> None:
    store.put(SIGNAL_STATE, item(1))
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as other:
        other.put(SIGNAL_STATE, item(2, by="other"), condition=version_is(1))
        with pytest.raises(ConflictError) as refused:
            store.put(SIGNAL_STATE, item(2, by="store"), condition=version_is(1))
        assert refused.value.current == item(2, by="other")
        store.put(SIGNAL_STATE, item(3, by="store"), condition=version_is(2))
        other.delete(SIGNAL_STATE, KEY, condition=version_is(3))
        store.put(SIGNAL_STATE, item(1), condition=absent())


def test_condition__what_was_written_was_undone__is_asked_of_what_was_there_before(store: SqliteStore) -> None:
    store.put(SIGNAL_STATE, item(1))
    [second] = store._operations([Put(SIGNAL_STATE, item(2), version_is(1))], None)

    def undone(connection: sqlite3.Connection) -> None:
        second.execute(connection)
        raise OverflowError("after the write")

    with pytest.raises(OverflowError):
        store._commits.run(undone)
    store.put(SIGNAL_STATE, item(2, said="again"), condition=version_is(1))
    assert store.get(SIGNAL_STATE, KEY) == item(2, said="again")


def test_check__again_and_again__is_asked_of_what_is_there_now(
    store: SqliteStore, tmp_path: Path, clock: VirtualClock
) -> None:
    noted = Put(SIGNAL_STATE, {"PK": "urn:dp:a:b", "SK": "VOLUME", "version": 1})
    store.put(SIGNAL_STATE, item(1, ttl=int(clock.seconds()) + 100))
    for _ in range(2):
        store.transact([noted, Check(SIGNAL_STATE, KEY, version_is(1))])
    store.put(SIGNAL_STATE, item(2, ttl=int(clock.seconds()) + 100))
    with pytest.raises(ConflictError) as refused:
        store.transact([noted, Check(SIGNAL_STATE, KEY, version_is(1))])
    assert refused.value.current is not None
    refused.value.current["version"] = 1
    for _ in range(2):
        store.transact([noted, Check(SIGNAL_STATE, KEY, version_is(2))])
    with closing(open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)) as other:
        other.put(SIGNAL_STATE, item(3, ttl=int(clock.seconds()) + 100))
    with pytest.raises(ConflictError):
        store.transact([noted, Check(SIGNAL_STATE, KEY, version_is(2))])
    store.transact([noted, Check(SIGNAL_STATE, KEY, version_is(3))])
    clock.advance(101)
    with pytest.raises(ConflictError):
        store.transact([noted, Check(SIGNAL_STATE, KEY, version_is(3))])


def test_change__row_was_swept_since__is_reported_as_a_new_one(store: SqliteStore, clock: VirtualClock) -> None:
    store.put(SIGNAL_STATE, item(1, ttl=int(clock.seconds()) + 10))
    clock.advance(11)
    assert store.sweep() == 1
    store.put(SIGNAL_STATE, item(1))
    kinds = [change.kind for change in store.changes(SIGNAL_STATE, "test").changes]
    assert kinds == ["INSERT", "REMOVE", "INSERT"]


def test_condition__rows_written_a_moment_ago__are_not_read_again(store: SqliteStore) -> None:
    statements: list[str] = []
    store.put(SIGNAL_STATE, item(1))
    store._commits._connection.set_trace_callback(statements.append)
    for version in range(1, 4):
        store.put(SIGNAL_STATE, item(version + 1), condition=version_is(version))
    store.delete(SIGNAL_STATE, KEY, condition=version_is(4))
    assert [each for each in statements if each.startswith("SELECT")] == []
    assert sum(each.startswith("COMMIT") for each in statements) == 4


def test_condition__row_that_others_have_followed__is_not_read_again_and_is_still_the_last_one(
    store: SqliteStore,
) -> None:
    store.put(SIGNAL_STATE, item(1))
    others: list[Put | Delete] = [Put(SIGNAL_STATE, {**item(1), "SK": f"S{place}"}) for place in range(ROWS_MAX // 2)]
    store.batch_write(others)
    store.put(SIGNAL_STATE, item(2), condition=version_is(1))
    statements: list[str] = []
    store._commits._connection.set_trace_callback(statements.append)
    store.put(SIGNAL_STATE, item(3), condition=version_is(2))
    with pytest.raises(ConflictError):
        store.put(SIGNAL_STATE, item(2), condition=version_is(1))
    assert [each for each in statements if each.startswith("SELECT")] == []


def test_condition__row_that_its_maker_vouches_for__who_is_refused_gets_an_item_of_their_own(
    store: SqliteStore, clock: VirtualClock
) -> None:
    made = item(1, tags=["a"], ttl=int(clock.seconds()) + 100)
    store.put(SIGNAL_STATE, trusted_item(made, dump(made, special=False)))
    writes: list[Write] = [Put(SIGNAL_STATE, item(2), version_is(9)), Delete(SIGNAL_STATE, KEY, version_is(9))]
    for write in writes:
        with pytest.raises(ConflictError) as refused:
            store.transact([write])
        assert refused.value.current == made
        refused.value.current |= {"version": 9}
        refused.value.current["tags"].append("b")
    assert store.delete(SIGNAL_STATE, KEY, condition=version_is(1)) == made
    store.put(SIGNAL_STATE, trusted_item(made, dump(made, special=False)), condition=absent())
    clock.advance(101)
    with pytest.raises(ConflictError):
        store.delete(SIGNAL_STATE, KEY, condition=version_is(1))


def test_recent__many_rows__keeps_only_so_many_and_judges_all_of_them(store: SqliteStore) -> None:
    places = range(ROWS_MAX + 50)
    first: list[list[Write]] = [[Put(SIGNAL_STATE, {**item(1), "SK": f"S{place}"}, absent())] for place in places]
    again: list[list[Write]] = [[Put(SIGNAL_STATE, {**item(2), "SK": f"S{place}"}, version_is(1))] for place in places]
    assert store.transact_many(first) == [None] * len(places)
    assert store.transact_many(again) == [None] * len(places)
    assert all(isinstance(each, ConflictError) for each in store.transact_many(again))
    recent = store._rows[SIGNAL_STATE.name].recent
    assert ROWS_MAX // 2 <= len(recent._contents) + len(recent._older) <= ROWS_MAX
