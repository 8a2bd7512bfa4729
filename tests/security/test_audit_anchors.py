"""Attacks on the anchors of pruned audit chains: without the keyring, removed entries cannot be covered up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.auth.audit_entry import AuditEntry
from headgate.clock import VirtualClock
from headgate.health.audit.hash_chain import Anchor, Head, anchor_key, anchor_write, chain_of, entry_write, record_of
from headgate.health.audit.log import Audit, Fault
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import AUDIT
from headgate.store.keyring import Keyring
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

THING = "dataset urn:dp:orders:created"
CHAIN = chain_of(THING)
DAY = 86_400.0


class Site:
    """A store whose audit was pruned to entry 4 of 10, and an attacker who can write the store."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store: SqliteStore = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.keyring = Keyring.generate(self.clock)
        audit = self.process()
        for number in range(10):
            self.clock.advance(DAY)
            audit.commit([], AuditEntry("ann", "dataset.update", THING, number, number + 1))
        audit.prune(kept_seconds=5.5 * DAY)

    def process(self) -> Audit:
        return Audit(self.store, self.clock, IdMaker(self.clock), self.keyring)

    def anchor(self) -> Item:
        row = self.store.get(AUDIT, anchor_key(CHAIN))
        assert row is not None
        return row

    def faults(self) -> set[Fault]:
        return {each.fault for each in self.process().verify().problems}

    def remove(self, *places: int) -> None:
        for place in places:
            self.store.delete(AUDIT, Key(f"AUDIT#{CHAIN}", f"{place:012d}"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    with closing(made.store):
        assert made.faults() == set()
        yield made


def test_anchor__moved_past_removed_entries__is_found(site: Site) -> None:
    sixth = site.store.get(AUDIT, Key(f"AUDIT#{CHAIN}", f"{6:012d}"))
    assert sixth is not None
    site.remove(5, 6)
    moved = {"sequence": 6, "version": 6, "hash": sixth["hash"], "at": sixth["at"], "count": 6}
    site.store.put(AUDIT, {**site.anchor(), **moved})

    assert Fault.ANCHOR_ALTERED in site.faults()


def test_anchor__sealed_with_a_key_of_the_attacker__is_found(site: Site) -> None:
    sixth = site.store.get(AUDIT, Key(f"AUDIT#{CHAIN}", f"{6:012d}"))
    assert sixth is not None
    site.remove(5, 6)
    forged = Anchor(CHAIN, 6, sixth["hash"], sixth["at"], 6, sixth["at"])
    own = Keyring.generate(site.clock)
    site.store.put(AUDIT, anchor_write(Anchor(CHAIN), forged, own).item)

    assert {Fault.ANCHOR_ALTERED, Fault.ENTRY_MISSING} <= site.faults()


@pytest.mark.parametrize(
    "change", [{"count": 3}, {"pruned_at": "2020-01-01T00:00:00.000Z"}, {"at": "2020-01-01T00:00:00.000Z"}]
)
def test_anchor__any_field_altered__is_found(site: Site, change: Item) -> None:
    site.store.put(AUDIT, {**site.anchor(), **change})

    assert Fault.ANCHOR_ALTERED in site.faults()


def test_anchor__of_another_chain__is_found(site: Site) -> None:
    other = (CHAIN + 1) % 16
    site.store.put(AUDIT, {**site.anchor(), **AUDIT.key_attributes(anchor_key(other)), "chain": other})

    assert Fault.ANCHOR_ALTERED in site.faults()


def test_anchor__head_seal_used_as_anchor__is_found(site: Site) -> None:
    head = site.store.get(AUDIT, Key(f"AUDIT#{CHAIN}", "HEAD"))
    assert head is not None
    site.remove(*range(5, 11))
    site.store.put(AUDIT, {**head, **AUDIT.key_attributes(anchor_key(CHAIN)), "count": 10, "pruned_at": head["at"]})

    assert Fault.ANCHOR_ALTERED in site.faults()


def test_anchor__removed__missing_entries_show(site: Site) -> None:
    site.store.delete(AUDIT, anchor_key(CHAIN))

    assert site.faults() == {Fault.ENTRY_MISSING}


def test_anchor__rolled_back_to_an_older_one__missing_entries_show(site: Site) -> None:
    older = site.anchor()
    site.process().prune(kept_seconds=3.5 * DAY)
    site.store.put(AUDIT, older)

    assert site.faults() == {Fault.ENTRY_MISSING}


@pytest.mark.parametrize("place", [2, 4])
def test_anchor__forged_entry_put_before_it__is_found(site: Site, place: int) -> None:
    entry = AuditEntry("eve", "dataset.update", THING, 1, 2)
    record = record_of(entry, Head(CHAIN, place - 1), IdMaker(site.clock).make("aud"), 1)
    site.store.put(AUDIT, entry_write(record).item)

    assert site.faults() & {Fault.LINK_BROKEN, Fault.ENTRY_MISSING}
