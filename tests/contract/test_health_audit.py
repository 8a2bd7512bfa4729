"""The audit on every backend: one chain from several processes, conflicts as the caller numbered them, tampering."""

from __future__ import annotations

import threading

import pytest

from headgate.clock import VirtualClock
from headgate.errors import ConflictError
from headgate.health.audit.hash_chain import chain_of
from headgate.health.audit.log import Audit, AuditEntry, Fault
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import AUDIT, HEALTH_CHECK, STREAM_CHECKPOINTS
from headgate.store.keyring import Keyring
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.port import Store
from tests.contract.conftest import AnyStore, Eventually, OpenStore

TABLES = (AUDIT, HEALTH_CHECK, STREAM_CHECKPOINTS)
THING = "dataset urn:dp:orders:created"
CHAIN = f"AUDIT#{chain_of(THING)}"


def audit_of(store: Store, clock: VirtualClock, keyring: Keyring) -> Audit:
    return Audit(store, clock, IdMaker(clock), keyring)


def said(actor: str = "ann") -> AuditEntry:
    return AuditEntry(actor, "dataset.update", THING, 1, 2, ("tier",), "why", None, "d")


def probe(name: str) -> Put:
    return Put(HEALTH_CHECK, {"PK": name}, absent())


def test_commit__given_conflicts_of_the_caller_and_the_head__raises_the_callers(
    store: AnyStore, clock: VirtualClock, keyring: Keyring
) -> None:
    ours, theirs = audit_of(store, clock, keyring), audit_of(store, clock, keyring)
    ours.commit([probe("a")], said())
    theirs.commit([probe("b")], said())

    with pytest.raises(ConflictError) as caught:
        ours.commit([probe("c"), probe("b")], said())
    ours.commit([probe("c")], said())

    assert caught.value.failures == {1: {"PK": "b"}}
    assert caught.value.write_index == 1
    report = ours.verify()
    assert (report.entries, report.problems) == (3, [])


def test_commit__given_threads_of_two_processes__loses_none(
    open_store: OpenStore, clock: VirtualClock, keyring: Keyring
) -> None:
    audits = [audit_of(open_store(), clock, keyring) for _ in range(2)]
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(3):
                audits[number % 2].commit([probe(f"{number}-{turn}")], said(f"t{number}"))
        except Exception as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    report = audits[0].verify()
    assert (report.entries, report.problems) == (24, [])


def test_verify__given_tampering__names_each(store: AnyStore, clock: VirtualClock, keyring: Keyring) -> None:
    audit = audit_of(store, clock, keyring)
    for _ in range(5):
        audit.commit([], said())
    second = store.get(AUDIT, Key(CHAIN, f"{2:012d}"), consistent=True)
    assert second is not None
    store.put(AUDIT, {**second, "reason": "other"})
    store.delete(AUDIT, Key(CHAIN, f"{4:012d}"))
    store.delete(AUDIT, Key(CHAIN, f"{5:012d}"))

    found = [(each.fault, each.sequence) for each in audit_of(store, clock, keyring).verify().problems]
    assert found == [(Fault.ENTRY_ALTERED, 2), (Fault.CUT_OFF, 4)]


def test_ls__given_entries__finds_them_by_entity_and_by_time(
    store: AnyStore, clock: VirtualClock, keyring: Keyring, eventually: Eventually
) -> None:
    audit = audit_of(store, clock, keyring)
    for number in range(6):
        audit.commit([], AuditEntry("ann", "a.b", f"thing {number % 3}", None, number))
        clock.advance(1)

    by_entity = eventually(lambda: audit.ls("thing 1").entries, lambda found: len(found) == 2)
    assert [entry.after_version for entry in by_entity] == [4, 1]
    pages = [audit.ls(limit=4)]
    pages.append(audit.ls(limit=4, cursor=pages[0].cursor))
    assert [entry.after_version for page in pages for entry in page.entries] == [5, 4, 3, 2, 1, 0]
    assert pages[1].cursor is None
    between = audit.ls(since=by_entity[1].at, until=by_entity[0].at).entries
    assert [entry.after_version for entry in between] == [4, 3, 2, 1]


def test_prune__entries_past_their_retention__the_rest_verifies_from_the_anchor(
    store: AnyStore, clock: VirtualClock, keyring: Keyring
) -> None:
    audit = audit_of(store, clock, keyring)
    for _ in range(5):
        clock.advance(10)
        audit.commit([], said())

    assert audit.prune(kept_seconds=25) == 2

    report = audit_of(store, clock, keyring).verify()
    assert (report.entries, report.problems) == (3, [])
    assert [(anchor.sequence, anchor.count) for anchor in report.anchors] == [(2, 2)]
