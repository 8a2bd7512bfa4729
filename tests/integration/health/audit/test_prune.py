"""Audit pruning: old entries go, a sealed anchor stays, and the rest of the chain verifies from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.health.audit.hash_chain import CHAINS, anchor_key, chain_of
from headgate.health.audit.log import Audit, AuditEntry, Fault
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import AUDIT
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.requests import Delete, Query
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

THING = "dataset urn:dp:orders:created"
CHAIN = chain_of(THING)
DAY = 86_400.0


class Rig:
    """An audit on a store, with one entry a day."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store: SqliteStore = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.keyring = Keyring.generate(self.clock)
        self.audit = self.process()

    def process(self, keyring: Keyring | None = None) -> Audit:
        return Audit(self.store, self.clock, IdMaker(self.clock), keyring or self.keyring)

    def add(self, days: int) -> None:
        for number in range(days):
            self.clock.advance(DAY)
            self.audit.commit([], AuditEntry("ann", "dataset.update", THING, number, number + 1))

    def places(self) -> list[int]:
        rows = self.store.query(Query(table=AUDIT, partition=f"AUDIT#{CHAIN}", limit=1000, consistent=True)).items
        return [int(row["SK"]) for row in rows if row["SK"].isdigit()]

    def faults(self) -> list[tuple[Fault, int]]:
        """Return what a process that has just started finds."""
        return [(each.fault, each.sequence) for each in self.process().verify().problems]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with closing(made.store):
        yield made


def at(sequence: int) -> Key:
    return Key(f"AUDIT#{CHAIN}", f"{sequence:012d}")


def test_prune__entries_past_their_retention__go_and_the_rest_verifies_from_the_anchor(rig: Rig) -> None:
    rig.add(20)
    sixth = rig.audit.ls(THING).entries[-6]

    assert rig.audit.prune(kept_seconds=13.5 * DAY) == 6

    report = rig.process().verify()
    assert report.problems == []
    assert rig.places() == list(range(7, 21))
    (anchor,) = report.anchors
    assert (anchor.chain, anchor.sequence, anchor.hash, anchor.count) == (CHAIN, 6, sixth.hash, 6)
    assert report.entries == 14


def test_prune__again_and_again_with_new_entries__counts_all_and_stays_whole(rig: Rig) -> None:
    for _ in range(5):
        rig.add(10)
        rig.audit.prune(kept_seconds=5.5 * DAY)

    report = rig.process().verify()
    assert (report.problems, len(rig.places())) == ([], 6)
    assert (report.anchors[0].sequence, report.anchors[0].count) == (44, 44)


def test_prune__everything_is_old__keeps_the_last_entry_and_the_chain_goes_on(rig: Rig) -> None:
    rig.add(3)
    rig.clock.advance(1000 * DAY)

    assert rig.audit.prune(kept_seconds=DAY) == 2
    rig.process().commit([], AuditEntry("ann", "dataset.update", THING, 3, 4))

    assert rig.places() == [3, 4]
    assert rig.faults() == []


def test_prune__more_than_the_limit__in_several_calls(rig: Rig) -> None:
    rig.add(20)

    counts = [rig.audit.prune(kept_seconds=0, limit=8) for _ in range(4)]

    assert counts == [8, 8, 3, 0]
    assert (rig.faults(), rig.places()) == ([], [20])


def test_prune__cut_off_after_the_anchor__verifies_and_the_next_call_goes_on(rig: Rig) -> None:
    rig.add(10)
    before = [rig.store.get(AUDIT, at(number)) for number in (4, 5, 6)]
    rig.audit.prune(kept_seconds=3.5 * DAY)
    # As if the process had died before the last of the entries were deleted.
    for row in before:
        assert row is not None
        rig.store.put(AUDIT, row)

    assert rig.faults() == []
    assert rig.audit.prune(kept_seconds=3.5 * DAY) == 3
    assert (rig.faults(), rig.places()) == ([], [7, 8, 9, 10])


def test_prune__chain_was_tampered_with__is_not_pruned_and_the_fault_stays(rig: Rig) -> None:
    rig.add(10)
    row = rig.store.get(AUDIT, at(3))
    assert row is not None
    rig.store.put(AUDIT, {**row, "actor": "eve"})

    assert rig.audit.prune(kept_seconds=5.5 * DAY) == 0

    assert rig.places() == list(range(1, 11))
    assert rig.faults() == [(Fault.ENTRY_ALTERED, 3)]


def test_prune__entry_removed_by_hand_first__is_not_pruned(rig: Rig) -> None:
    rig.add(10)
    rig.store.delete(AUDIT, at(1))

    assert rig.audit.prune(kept_seconds=5.5 * DAY) == 0
    assert rig.faults() == [(Fault.ENTRY_MISSING, 1)]


def test_verify__entries_after_the_anchor_removed_by_hand__are_reported(rig: Rig) -> None:
    rig.add(10)
    rig.audit.prune(kept_seconds=5.5 * DAY)
    rig.store.batch_write([Delete(AUDIT, at(5)), Delete(AUDIT, at(6))])

    assert rig.faults() == [(Fault.ENTRY_MISSING, 5)]


def test_verify__earlier_heads__those_after_the_anchor_are_compared(rig: Rig) -> None:
    rig.add(5)
    early = rig.audit.heads()
    rig.add(5)
    late = rig.audit.heads()
    rig.add(5)
    rig.audit.prune(kept_seconds=8.5 * DAY)

    assert rig.process().verify([*early, *late]).problems == []
    forged = [replace(each, hash="0" * 64) for each in late]
    assert [each.fault for each in rig.process().verify(forged).problems] == [Fault.SET_BACK]


def test_verify__field_key_rotated_after_pruning__anchor_still_verifies(rig: Rig) -> None:
    rig.add(10)
    rig.audit.prune(kept_seconds=5.5 * DAY)
    rotated = rig.keyring
    for _ in range(8):
        rotated = rotated.rotated(Purpose.FIELD, rig.clock)

    assert rig.process(rotated).verify().problems == []


def test_ls__pruned_chain__has_the_rest_in_order(rig: Rig) -> None:
    rig.add(10)
    middle = rig.audit.ls(THING).entries[4].at
    rig.audit.prune(kept_seconds=7.5 * DAY)

    assert [each.sequence for each in rig.audit.ls(until=middle).entries] == [6, 5, 4, 3]
    assert anchor_key(CHAIN).sort == "ANCHOR"
    assert CHAINS > CHAIN


def test_prune__one_busy_chain__goes_on_up_to_the_limit(rig: Rig) -> None:
    rig.add(1102)
    rig.clock.advance(100 * DAY)

    # A sweep that reaches its limit is repeated at once, any other hours later.
    assert [rig.audit.prune(kept_seconds=DAY, limit=1000) for _ in range(3)] == [1000, 101, 0]

    assert rig.places() == [1102]
    assert rig.faults() == []
