"""Restore: a copy of a table is compared, repairs single items, and takes the place of the one in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import SettingsError
from headgate.health.regions.table_restore import Difference, compare, repair, swapped
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import HEALTH_CHECK, SIGNAL_STATE
from headgate.store.dynamodb.client import Calls
from headgate.store.dynamodb.store import DynamoStore
from headgate.store.dynamodb.tables import RestoredTables, create_request
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sqlite import scan as sqlite_scan
from headgate.store.sqlite.store import SqliteStore
from headgate.store.stats import StoreStats
from headgate.store.table_names import TableNames
from tests.contract.conftest import NOW, AnyStore, Aws

TABLES = (SIGNAL_STATE, HEALTH_CHECK)
RESTORED = "signal-state-restored"


def row(number: int, **changed: object) -> Item:
    return {"PK": f"urn:dp:a:d{number}", "SK": "FRESHNESS", "version": 3, "state": "OK", "score": 0.5, **changed}


def key(number: int) -> Key:
    return Key(f"urn:dp:a:d{number}", "FRESHNESS")


class Copies:
    """A table in use, a restored copy of it, and how to read all of each."""

    def __init__(
        self,
        in_use: Store,
        restored: Store,
        scan: Callable[[], Iterator[Item]],
        scan_restored: Callable[[], Iterator[Item]],
    ) -> None:
        self.in_use = in_use
        self.restored = restored
        self.scan = scan
        self.scan_restored = scan_restored

    def compare(self) -> Difference:
        return compare(SIGNAL_STATE, self.scan(), self.scan_restored())


@pytest.fixture
def copies(
    request: pytest.FixtureRequest, store: AnyStore, backend: str, names: TableNames, clock: VirtualClock,
    keyring: Keyring, spill: Spill, tmp_path: Path,
) -> Iterator[Copies]:  # fmt: skip
    if backend.startswith("sqlite"):
        assert isinstance(store, SqliteStore)
        other = SqliteStore.open(
            tmp_path / "restored.db", names=names, clock=clock, cursors=Cursors(keyring), spill=spill
        )
        with closing(other):
            yield Copies(
                store,
                other,
                lambda: sqlite_scan.items(store.read_sql, SIGNAL_STATE, names, clock.seconds()),
                lambda: sqlite_scan.items(other.read_sql, SIGNAL_STATE, names, clock.seconds()),
            )
        return
    aws: Aws = request.getfixturevalue("aws")
    # As a restore leaves it: keys and indexes, without expiry and stream.
    bare = create_request(SIGNAL_STATE, RESTORED)
    del bare["StreamSpecification"]
    aws.dynamodb.create_table(**bare)
    restored_names = TableNames("test-", {SIGNAL_STATE.name: RESTORED})
    second = DynamoStore(
        client=aws.dynamodb,
        streams=aws.streams,
        names=restored_names,
        clock=clock,
        cursors=Cursors(keyring),
        spill=spill,
    )
    calls = Calls(clock, StoreStats(), 10.0)
    scans = [RestoredTables(aws.dynamodb, calls, names=each, clock=clock) for each in (names, restored_names)]
    yield Copies(store, second, lambda: scans[0].items(SIGNAL_STATE), lambda: scans[1].items(SIGNAL_STATE))


def fill(store: Store, *rows: Item) -> None:
    store.batch_write([Put(SIGNAL_STATE, each) for each in rows])


def test_compare__the_same_items__are_alike_with_the_same_checksum(copies: Copies) -> None:
    rows = [row(number) for number in range(30)]
    fill(copies.in_use, *rows)
    fill(copies.restored, *reversed(rows))

    found = copies.compare()

    assert found.is_alike
    assert found.in_use == found.restored
    assert (found.in_use.items, found.equal_count) == (30, 30)


def test_compare__missing_extra_and_differing__are_named_and_counted(copies: Copies) -> None:
    fill(copies.in_use, row(1), row(2), row(3, state="CRITICAL"), row(4, ttl=NOW - 10))
    fill(copies.restored, row(2), row(3), row(5))

    found = copies.compare()

    assert (found.missing, found.extra, found.differing) == ((key(1),), (key(5),), (key(3),))
    assert (found.missing_count, found.extra_count, found.differing_count, found.equal_count) == (1, 1, 1, 1)
    assert found.in_use.items == 3, "what has expired is not there"
    assert found.in_use.checksum != found.restored.checksum
    assert not found.is_alike


def test_repair__chosen_items__are_as_they_were_under_a_higher_version(copies: Copies) -> None:
    fill(copies.in_use, row(1, score=0.9, version=9), row(2, score=0.9, version=9), row(4))
    fill(copies.restored, row(1), row(2), row(3), row(4))
    keys = [key(1), key(3), key(4), key(5)]

    def restored(wanted: Key) -> Item | None:
        return copies.restored.get(SIGNAL_STATE, wanted)

    dry = repair(copies.in_use, SIGNAL_STATE, keys, restored, dry_run=True)
    assert copies.in_use.get(SIGNAL_STATE, key(3), consistent=True) is None
    done = repair(copies.in_use, SIGNAL_STATE, keys, restored)

    assert (done.repaired, done.alike, done.absent) == ((key(1), key(3)), (key(4),), (key(5),))
    assert dry.repaired == done.repaired
    read = copies.in_use.get_many(SIGNAL_STATE, [key(1), key(2), key(3)], consistent=True)
    assert read == [row(1, version=10), row(2, score=0.9, version=9), row(3)]
    again = repair(copies.in_use, SIGNAL_STATE, keys, restored)
    assert (again.repaired, again.alike) == ((), (key(1), key(3), key(4)))


def test_repair__someone_writes_meanwhile__leaves_theirs(copies: Copies) -> None:
    fill(copies.in_use, row(1, score=0.9))
    fill(copies.restored, row(1), row(2))

    class Interrupted:
        """The store in use, with someone else at work between a look and a write."""

        def get(self, *args: object, **options: object) -> Item | None:
            found = copies.in_use.get(*args, **options)  # type: ignore[arg-type]
            copies.in_use.put(SIGNAL_STATE, row(1, score=0.1, version=4))
            copies.in_use.put(SIGNAL_STATE, row(2, score=0.1))
            return found

        def put(self, *args: object, **options: object) -> None:
            copies.in_use.put(*args, **options)  # type: ignore[arg-type]

    done = repair(Interrupted(), SIGNAL_STATE, [key(1)], lambda wanted: copies.restored.get(SIGNAL_STATE, wanted))  # type: ignore[arg-type]

    assert done.overtaken == (key(1),)
    assert copies.in_use.get(SIGNAL_STATE, key(1), consistent=True) == row(1, score=0.1, version=4)


def test_swap__names__there_and_back() -> None:
    there = swapped({}, SIGNAL_STATE, RESTORED, prefix="prod-")

    assert there == {SIGNAL_STATE.name: RESTORED}
    assert TableNames("prod-", there).physical(SIGNAL_STATE) == RESTORED
    assert swapped(there, SIGNAL_STATE, f"prod-{SIGNAL_STATE.name}", prefix="prod-") == {}
    with pytest.raises(SettingsError, match="would both be"):
        swapped({}, SIGNAL_STATE, f"prod-{HEALTH_CHECK.name}", prefix="prod-")


@pytest.mark.parametrize("backend", ["dynamodb"], indirect=True)
def test_restored_table__made_usable__has_expiry_and_stream_and_serves_after_the_swap(
    copies: Copies, aws: Aws, clock: VirtualClock, keyring: Keyring, spill: Spill
) -> None:
    fill(copies.in_use, row(1, state="CORRUPT"))
    fill(copies.restored, row(1))
    names = TableNames("test-", swapped({}, SIGNAL_STATE, RESTORED, prefix="test-"))
    tables = RestoredTables(aws.dynamodb, Calls(clock, StoreStats(), 10.0), names=names, clock=clock)
    store = DynamoStore(
        client=aws.dynamodb, streams=aws.streams, names=names, clock=clock, cursors=Cursors(keyring), spill=spill
    )
    before = store.check_tables([SIGNAL_STATE])
    assert any("no stream" in said for said in before)
    assert any("do not expire" in said for said in before)

    assert tables.make_usable(SIGNAL_STATE) == []
    assert tables.make_usable(SIGNAL_STATE) == [], "again, it changes nothing"

    assert store.check_tables([SIGNAL_STATE]) == []
    assert store.get(SIGNAL_STATE, key(1), consistent=True) == row(1)
