"""Items that their makers answer for, and writes under a version: what is looked at, and what is reported."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError, CorruptionError, InvalidItemError
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.conditions import version_is
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.model.validation import checked_item
from headgate.store.model.values import Item, TrustedItem
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


def test_checked__vouched__is_taken_as_it_is() -> None:
    given = TrustedItem(item(1))
    assert checked_item(SIGNAL_STATE, given) == (given, False)
    assert checked_item(SIGNAL_STATE, given)[0] is given


def test_checked__the_same_as_a_plain_item__is_looked_at() -> None:
    with pytest.raises(InvalidItemError, match="lone surrogate"):
        checked_item(SIGNAL_STATE, {**TrustedItem(item(1)), "owner_team": "\ud800"})
    with pytest.raises(InvalidItemError, match="SK"):
        checked_item(SIGNAL_STATE, {"PK": "urn:dp:a:b"})


def test_put__vouched__is_read_as_a_plain_one_is(store: SqliteStore) -> None:
    store.put(SIGNAL_STATE, TrustedItem(item(1, score=0.5, metrics={"n": 1}, breach_pk="B", breach_sk="1")))
    found = store.get(SIGNAL_STATE, KEY)
    assert found == item(1, score=0.5, metrics={"n": 1}, breach_pk="B", breach_sk="1")


@pytest.mark.parametrize("more", [{}, {"secret": b"\x00"}, {"$odd": 1}, {"breach_pk": "B", "breach_sk": "1"}])
def test_put__under_a_version__passes_once_and_is_then_reported_the_whole_item(
    store: SqliteStore, more: dict[str, object]
) -> None:
    store.put(SIGNAL_STATE, item(1, **more))
    put = Put(SIGNAL_STATE, item(2, **more, said="second"), version_is(1))
    assert store.transact_many([[put]]) == [None]
    [refused] = store.transact_many([[put]])
    assert isinstance(refused, ConflictError)
    assert refused.failures == {0: item(2, **more, said="second")}
    assert store.get(SIGNAL_STATE, KEY) == item(2, **more, said="second")


def test_put__under_a_version__moves_in_its_indexes(store: SqliteStore, tmp_path: Path) -> None:
    store.put(SIGNAL_STATE, item(1, breach_pk="B", breach_sk="1"))
    store.put(SIGNAL_STATE, item(2, breach_pk="C", breach_sk="2"), condition=version_is(1))
    store.put(SIGNAL_STATE, item(3), condition=version_is(2))
    with closing(sqlite3.connect(tmp_path / "headgate.db")) as raw:
        name = next(each for (each,) in raw.execute("SELECT name FROM sqlite_master") if each.endswith("signal-state"))
        assert raw.execute(f'SELECT i_breach_pk, i_breach_sk FROM "{name}"').fetchall() == [(None, None)]


def test_put__under_the_version_of_what_has_expired_or_never_was__is_refused(
    store: SqliteStore, clock: VirtualClock
) -> None:
    with pytest.raises(ConflictError) as refused:
        store.put(SIGNAL_STATE, item(2), condition=version_is(1))
    assert refused.value.failures == {0: None}
    store.put(SIGNAL_STATE, item(1, ttl=int(clock.seconds()) + 10))
    clock.advance(11)
    with pytest.raises(ConflictError) as refused:
        store.put(SIGNAL_STATE, item(2), condition=version_is(1))
    assert refused.value.failures == {0: None}


@pytest.mark.parametrize("held", ["1", True, 1.5, None])
def test_put__under_a_version_that_is_no_number_there__is_refused(store: SqliteStore, held: object) -> None:
    store.put(SIGNAL_STATE, {"PK": KEY.partition, "SK": KEY.sort, "version": held})
    with pytest.raises(ConflictError):
        store.put(SIGNAL_STATE, item(2), condition=version_is(1))


def test_put__under_a_version_of_a_damaged_row__is_corruption(store: SqliteStore, tmp_path: Path) -> None:
    store.put(SIGNAL_STATE, item(1))
    with closing(sqlite3.connect(tmp_path / "headgate.db")) as raw:
        name = next(each for (each,) in raw.execute("SELECT name FROM sqlite_master") if each.endswith("signal-state"))
        raw.execute(f"UPDATE \"{name}\" SET body = '[1'")
        raw.commit()
    with pytest.raises(CorruptionError):
        store.put(SIGNAL_STATE, item(2), condition=version_is(1))
