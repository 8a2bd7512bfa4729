"""What SQLite must do itself where DynamoDB does it unasked: delete what expired, and forget old changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import InvalidItemError, StreamTrimmedError
from headgate.store.catalogue.tables import CONTROL, SIGNAL_STATE
from headgate.store.model.requests import ChangeKind, StreamStart
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import SqliteStore
from tests.stores import open_sqlite

HOUR = 3600


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=clock)
    yield opened
    opened.close()


def stored_rows(folder: Path, table: str) -> int:
    connection = sqlite3.connect(folder / "headgate.db")
    try:
        (count,) = connection.execute(f'SELECT count(*) FROM "{table}"').fetchone()
        return int(count)
    finally:
        connection.close()


def put_signals(store: SqliteStore, clock: VirtualClock, count: int, lifetime_seconds: int) -> None:
    for number in range(count):
        ttl = int(clock.seconds()) + lifetime_seconds + number
        store.put(SIGNAL_STATE, {"PK": f"urn:dp:d{number:03d}", "SK": "FRESHNESS", "state": "OK", "ttl": ttl})


def test_sweep__expired_rows__deleted_in_bounded_batches_oldest_first(
    store: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    put_signals(store, clock, 25, lifetime_seconds=10)
    store.put(SIGNAL_STATE, {"PK": "urn:dp:kept", "SK": "FRESHNESS"})
    clock.advance(HOUR)

    assert [store.sweep(limit=10) for _ in range(4)] == [10, 10, 5, 0]

    assert stored_rows(tmp_path, SIGNAL_STATE.name) == 1
    removed = [
        change for change in store.changes(SIGNAL_STATE, "c", limit=100).changes if change.kind is ChangeKind.REMOVE
    ]
    assert [change.key.partition for change in removed] == [f"urn:dp:d{number:03d}" for number in range(25)]


def test_sweep__expired_row__removal_carries_the_old_image_and_says_it_expired(
    store: SqliteStore, clock: VirtualClock
) -> None:
    put_signals(store, clock, 1, lifetime_seconds=10)
    clock.advance(11)
    store.sweep()

    insert, removal = store.changes(SIGNAL_STATE, "c").changes

    assert insert.kind is ChangeKind.INSERT
    assert removal.kind is ChangeKind.REMOVE
    assert removal.expired
    assert removal.old == insert.new
    assert removal.new is None


def test_sweep__not_yet_expired__left_alone(store: SqliteStore, clock: VirtualClock, tmp_path: Path) -> None:
    put_signals(store, clock, 3, lifetime_seconds=100)
    clock.advance(99)

    assert store.sweep() == 0
    assert stored_rows(tmp_path, SIGNAL_STATE.name) == 3


def test_sweep__several_tables__shares_the_limit(store: SqliteStore, clock: VirtualClock, tmp_path: Path) -> None:
    put_signals(store, clock, 4, lifetime_seconds=1)
    for number in range(4):
        store.put(CONTROL, {"PK": f"DEDUP#{number}", "SK": "DEDUP", "ttl": int(clock.seconds()) + 1})
    clock.advance(60)

    assert store.sweep(limit=6) == 6
    assert store.sweep(limit=6) == 2
    assert stored_rows(tmp_path, SIGNAL_STATE.name) + stored_rows(tmp_path, CONTROL.name) == 0


def test_changes__consumer_away_for_longer_than_a_day__given_what_was_lost(
    store: SqliteStore, clock: VirtualClock
) -> None:
    put_signals(store, clock, 3, lifetime_seconds=10**6)
    batch = store.changes(SIGNAL_STATE, "sleeper", limit=1)
    store.checkpoint(SIGNAL_STATE, "sleeper", batch.position)
    clock.advance(25 * HOUR)
    store.put(SIGNAL_STATE, {"PK": "urn:dp:new", "SK": "FRESHNESS"})
    store.sweep()

    with pytest.raises(StreamTrimmedError, match="rebuild from the table and checkpoint 3"):
        store.changes(SIGNAL_STATE, "sleeper")

    store.checkpoint(SIGNAL_STATE, "sleeper", "3")
    assert [change.key.partition for change in store.changes(SIGNAL_STATE, "sleeper").changes] == ["urn:dp:new"]


def test_changes__new_consumer_after_a_trim__starts_at_the_oldest_kept(store: SqliteStore, clock: VirtualClock) -> None:
    put_signals(store, clock, 3, lifetime_seconds=10**6)
    clock.advance(25 * HOUR)
    store.put(SIGNAL_STATE, {"PK": "urn:dp:new", "SK": "FRESHNESS"})
    store.sweep()

    assert [change.key.partition for change in store.changes(SIGNAL_STATE, "late").changes] == ["urn:dp:new"]


def test_changes__kept_for_a_day__a_sweep_before_that_takes_none(store: SqliteStore, clock: VirtualClock) -> None:
    put_signals(store, clock, 3, lifetime_seconds=10**6)
    clock.advance(23 * HOUR)
    store.sweep()

    assert len(store.changes(SIGNAL_STATE, "c").changes) == 3


def test_changes__newest_start__a_change_between_the_first_two_calls_is_not_missed(store: SqliteStore) -> None:
    store.put(SIGNAL_STATE, {"PK": "urn:dp:before", "SK": "FRESHNESS"})
    assert store.changes(SIGNAL_STATE, "c", start=StreamStart.NEWEST).changes == []

    store.put(SIGNAL_STATE, {"PK": "urn:dp:after", "SK": "FRESHNESS"})

    changes = store.changes(SIGNAL_STATE, "c", start=StreamStart.NEWEST).changes
    assert [change.key for change in changes] == [Key("urn:dp:after", "FRESHNESS")]


def test_checkpoint__not_a_position__refused(store: SqliteStore) -> None:
    with pytest.raises(InvalidItemError, match="position"):
        store.checkpoint(SIGNAL_STATE, "c", "the end")


@pytest.mark.parametrize("position", ["²", "9" * 30, "-1", ""])
def test_checkpoint__number_that_cannot_be_a_position__refused(store: SqliteStore, position: str) -> None:
    with pytest.raises(InvalidItemError, match="position"):
        store.checkpoint(SIGNAL_STATE, "c", position)


def test_sweep__many_old_changes__says_that_there_is_more_until_all_are_gone(
    store: SqliteStore, clock: VirtualClock, tmp_path: Path
) -> None:
    put_signals(store, clock, 25, lifetime_seconds=10**6)
    clock.advance(25 * HOUR)

    assert [store.sweep(limit=10) for _ in range(4)] == [10, 10, 5, 0]
    assert stored_rows(tmp_path, "headgate:changes") == 0


def test_changes__newest_after_everything_was_trimmed__starts_without_complaint(
    store: SqliteStore, clock: VirtualClock
) -> None:
    put_signals(store, clock, 3, lifetime_seconds=10**6)
    clock.advance(25 * HOUR)
    store.sweep()

    assert store.changes(SIGNAL_STATE, "fresh", start=StreamStart.NEWEST).changes == []
    store.put(SIGNAL_STATE, {"PK": "urn:dp:new", "SK": "FRESHNESS"})
    assert len(store.changes(SIGNAL_STATE, "fresh").changes) == 1


def test_changes__older_than_their_retention_and_not_swept_yet__count_as_gone(
    store: SqliteStore, clock: VirtualClock
) -> None:
    store.put(SIGNAL_STATE, {"PK": "urn:dp:a", "SK": "FRESHNESS"})
    store.checkpoint(SIGNAL_STATE, "sleeper", store.changes(SIGNAL_STATE, "sleeper").position)
    store.put(SIGNAL_STATE, {"PK": "urn:dp:b", "SK": "FRESHNESS"})
    clock.advance(25 * HOUR)

    with pytest.raises(StreamTrimmedError):
        store.changes(SIGNAL_STATE, "sleeper")


def test_changes__new_consumer_while_old_changes_wait_for_the_sweep__starts_after_them(
    store: SqliteStore, clock: VirtualClock
) -> None:
    put_signals(store, clock, 3, lifetime_seconds=10**6)
    clock.advance(25 * HOUR)
    store.put(SIGNAL_STATE, {"PK": "urn:dp:new", "SK": "FRESHNESS"})

    changes = store.changes(SIGNAL_STATE, "newcomer").changes

    assert [change.key.partition for change in changes] == ["urn:dp:new"]
