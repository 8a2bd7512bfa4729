"""The audit: committed with the change it records, and tampering shows."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.auth.audit_entry import change_digest, changed_fields
from headgate.clock import VirtualClock
from headgate.errors import (
    ConflictError,
    CorruptionError,
    CursorError,
    InvalidPayloadError,
    NotFoundError,
    StoreBusyError,
    TransactionLimitError,
)
from headgate.health.audit.hash_chain import CHAINS, chain_of, entry_write, hash_of, read_record, record_of
from headgate.health.audit.log import Audit, AuditEntry, Fault
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import AUDIT, HEALTH_CHECK
from headgate.store.keyring import Keyring, Purpose
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite

THING = "dataset urn:dp:orders:created"
CHAIN = chain_of(THING)
HEAD = Key(f"AUDIT#{CHAIN}", "HEAD")


class Rig:
    """A store, and audits on it as so many processes have them."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.store: SqliteStore = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.keyring = Keyring.generate(self.clock)
        self.audit = self.process()

    def process(self, store: Store | None = None, keyring: Keyring | None = None) -> Audit:
        return Audit(store or self.store, self.clock, IdMaker(self.clock), keyring or self.keyring)

    def add(self, count: int, entity: str = THING, audit: Audit | None = None, actor: str = "ann") -> None:
        for number in range(count):
            self.clock.advance(1)
            (audit or self.audit).commit([], said(entity, after=number + 1, actor=actor))

    def rows(self, chain: int = CHAIN) -> list[Item]:
        return self.store.query(Query(table=AUDIT, partition=f"AUDIT#{chain}", limit=1000, consistent=True)).items

    def row(self, sequence: int) -> Item:
        found = self.store.get(AUDIT, at(sequence), consistent=True)
        assert found is not None
        return found

    def faults(self, audit: Audit | None = None) -> list[tuple[Fault, int]]:
        """What a process that has just started finds wrong."""
        return [(each.fault, each.sequence) for each in (audit or self.process()).verify().problems]


class RacingStore:
    """A store on which others are faster: `before_write` is what they do just before each write of ours."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.transactions = 0
        self.rivals: list[Any] = []
        self.after: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        self.transactions += 1
        if self.rivals:
            self.rivals.pop(0)()
        self._store.transact(writes, token=token)
        if self.after is not None:
            raise self.after


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    with closing(made.store):
        yield made


def said(entity: str = THING, *, after: int = 1, actor: str = "ann") -> AuditEntry:
    return AuditEntry(actor, "dataset.update", entity, after - 1, after, ("tier",), "why", "CHG-7", "d1")


def at(sequence: int) -> Key:
    return Key(f"AUDIT#{CHAIN}", f"{sequence:012d}")


def probe(name: str) -> Put:
    return Put(HEALTH_CHECK, {"PK": name}, absent())


def test_commit__given_writes__keeps_them_with_an_entry_that_says_all(rig: Rig) -> None:
    rig.audit.commit([probe("a"), probe("b")], said())

    assert rig.store.get(HEALTH_CHECK, Key("a")) is not None
    (entry,) = rig.audit.ls(THING).entries
    assert (entry.sequence, entry.actor, entry.action, entry.entity) == (1, "ann", "dataset.update", THING)
    assert (entry.before_version, entry.after_version, entry.changed) == (0, 1, ("tier",))
    assert (entry.reason, entry.ticket, entry.digest, entry.at) == ("why", "CHG-7", "d1", "2025-06-15T15:06:40.000Z")
    report = rig.audit.verify()
    assert (report.chains, report.entries, report.problems) == (1, 1, [])
    assert report.is_whole


def test_commit__given_conflict_of_the_caller__raises_it_as_it_was_numbered(rig: Rig) -> None:
    rig.audit.commit([probe("b")], said())

    with pytest.raises(ConflictError) as caught:
        rig.audit.commit([probe("a"), probe("b"), probe("c")], said())

    assert caught.value.write_index == 1
    assert caught.value.failures == {1: {"PK": "b"}}
    assert caught.value.current == {"PK": "b"}
    assert rig.store.get(HEALTH_CHECK, Key("a")) is None
    assert rig.audit.verify().entries == 1


def test_commit__given_conflict_of_the_caller_and_of_the_head__raises_the_callers_alone(rig: Rig) -> None:
    other = rig.process()
    rig.add(1)
    rig.add(1, audit=other)
    other.commit([probe("b")], said())

    with pytest.raises(ConflictError) as caught:
        rig.audit.commit([probe("a"), probe("b")], said())

    assert caught.value.failures == {1: {"PK": "b"}}
    assert rig.faults() == []


def test_commit__given_error_of_the_callers_own_kind__is_the_store_s_error_itself(rig: Rig) -> None:
    rig.store.put(HEALTH_CHECK, {"PK": "v", "version": 3})

    with pytest.raises(ConflictError, match=r"version = 2 does not hold") as caught:
        rig.audit.commit([Put(HEALTH_CHECK, {"PK": "v", "version": 3}, version_is(2))], said())

    assert caught.value.__cause__ is None
    assert caught.value.failures == {0: {"PK": "v", "version": 3}}


def test_commit__given_heads_that_others_moved__tries_again_and_loses_nothing(rig: Rig) -> None:
    mine = RacingStore(rig.store)
    audit = rig.process(mine)
    mine.rivals = [lambda: rig.add(1), lambda: rig.add(2)]

    audit.commit([probe("a")], said())

    assert mine.transactions == 3
    assert rig.faults() == []
    assert rig.audit.verify().entries == 4
    assert rig.store.get(HEALTH_CHECK, Key("a")) is not None


def test_commit__given_others_who_are_always_faster__gives_up_and_has_written_nothing(rig: Rig) -> None:
    mine = RacingStore(rig.store)
    mine.rivals = [lambda: rig.add(1)] * 100

    with pytest.raises(StoreBusyError, match="was not done, try again"):
        rig.process(mine).commit([probe("a")], said())

    assert mine.transactions == 32
    assert rig.store.get(HEALTH_CHECK, Key("a")) is None
    assert rig.faults() == []


def test_commit__given_answer_that_came_after_it_was_refused__knows_its_own_entry(rig: Rig) -> None:
    """The store applied it, the answer was lost, and the store's own second try is refused by what the first wrote."""

    class Repeating(RacingStore):
        def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
            super().transact(writes, token=token)
            super().transact(writes, token=token)

    rig.process(Repeating(rig.store)).commit([probe("a")], said())

    assert rig.process().verify().entries == 1
    assert rig.faults() == []


@pytest.mark.parametrize("is_applied", [False, True])
def test_commit__given_crash__change_and_entry_are_both_there_or_both_not(rig: Rig, is_applied: bool) -> None:
    class DyingError(Exception):
        pass

    def die() -> None:
        raise DyingError

    mine = RacingStore(rig.store)
    mine.after = DyingError() if is_applied else None
    mine.rivals = [] if is_applied else [die]
    with pytest.raises(DyingError):
        rig.process(mine).commit([probe("a")], said())

    assert (rig.store.get(HEALTH_CHECK, Key("a")) is not None) == is_applied
    assert rig.process().verify().entries == int(is_applied)
    rig.add(2, audit=rig.process())
    assert rig.faults() == []


def test_commit__given_same_audit_after_a_lost_answer__goes_on(rig: Rig) -> None:
    mine = RacingStore(rig.store)
    audit = rig.process(mine)
    mine.after = TimeoutError()
    with pytest.raises(TimeoutError):
        audit.commit([], said())
    mine.after = None

    audit.commit([], said())

    assert rig.process().verify().entries == 2
    assert rig.faults() == []


@pytest.mark.parametrize("spread", [1, 40])
def test_commit__given_32_threads_and_3_processes__leaves_whole_chains(rig: Rig, spread: int) -> None:
    audits = [rig.process() for _ in range(3)]
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                audits[number % 3].commit(
                    [probe(f"{number}-{turn}")], said(f"thing {(number * 5 + turn) % spread}", actor=f"t{number}")
                )
        except Exception as exc:
            errors.append(exc)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    report = rig.process().verify()
    assert (report.entries, report.problems) == (160, [])


def test_commit__given_99_writes__is_refused_and_98_are_not(rig: Rig) -> None:
    rig.audit.commit([probe(f"a{number}") for number in range(98)], said())

    with pytest.raises(TransactionLimitError):
        rig.audit.commit([probe(f"b{number}") for number in range(99)], said())


@pytest.mark.parametrize(
    "change",
    [
        {"actor": ""}, {"action": ""}, {"entity": ""}, {"entity": "ü" * 513}, {"reason": "x" * 2001},
        {"ticket": "x" * 2001}, {"changed": tuple(map(str, range(201)))},
    ],
)  # fmt: skip
def test_commit__given_entry_that_cannot_be_kept__is_refused(rig: Rig, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayloadError):
        rig.audit.commit([probe("a")], msgspec.structs.replace(said(), **change))

    assert rig.store.get(HEALTH_CHECK, Key("a")) is None


def test_commit__given_clock_that_was_set_back__never_writes_an_earlier_moment(rig: Rig) -> None:
    rig.add(1)
    rig.clock.step(-3600)
    rig.add(1)

    newest, oldest = rig.audit.ls(THING).entries[:2]
    assert newest.at == oldest.at
    assert rig.faults() == []


# Tampering. Each is done behind the audit's back, to rows as they lie in the store.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("actor", "bob"), ("reason", ""), ("at", "2025-06-15T15:06:42.500Z"), ("after_version", 99), ("ticket", None),
        ("changed", []), ("entity", "dataset urn:dp:other"), ("id", "aud_x"), ("digest", "d2"),
    ],
)  # fmt: skip
def test_verify__given_altered_entry__names_it(rig: Rig, field: str, value: object) -> None:
    rig.add(4)
    rig.store.put(AUDIT, {**rig.row(2), field: value})

    assert rig.faults() == [(Fault.ENTRY_ALTERED, 2)]


def test_verify__given_altered_entry_with_a_hash_to_match__finds_the_broken_link(rig: Rig) -> None:
    rig.add(4)
    forged = rehashed(rig.row(2), actor="bob")
    rig.store.put(AUDIT, forged)

    assert rig.faults() == [(Fault.LINK_BROKEN, 3)]


def test_verify__given_chain_rewritten_to_its_end__finds_that_the_head_was_sealed_otherwise(rig: Rig) -> None:
    rig.add(4)
    previous = ""
    for sequence in (2, 3, 4):
        changes = {"actor": "bob"} if sequence == 2 else {"previous": previous}
        forged = rehashed(rig.row(sequence), **changes)
        previous = forged["hash"]
        rig.store.put(AUDIT, forged)

    assert rig.faults() == [(Fault.LINK_BROKEN, 4)]


def test_verify__given_last_entry_rewritten__finds_that_the_head_was_sealed_otherwise(rig: Rig) -> None:
    rig.add(3)
    rig.store.put(AUDIT, rehashed(rig.row(3), actor="bob"))

    assert rig.faults() == [(Fault.LINK_BROKEN, 3)]


@pytest.mark.parametrize("extra", [{"note": "x"}, {"sequence": "two"}])
def test_verify__given_entry_that_is_none__names_it(rig: Rig, extra: dict[str, Any]) -> None:
    rig.add(4)
    rig.store.put(AUDIT, {**rig.row(2), **extra})

    assert rig.faults() == [(Fault.ENTRY_ALTERED, 2)]


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_verify__given_entry_removed__names_it(rig: Rig, gone: int) -> None:
    rig.add(4)
    rig.store.delete(AUDIT, at(gone))

    assert rig.faults() == [(Fault.ENTRY_MISSING, gone)]


def test_verify__given_entry_removed_and_the_rest_moved_up__shows(rig: Rig) -> None:
    rig.add(4)
    rows = [rig.row(sequence) for sequence in (3, 4)]
    rig.store.put(AUDIT, {**rows[0], "SK": f"{2:012d}", "sequence": 2})
    rig.store.put(AUDIT, {**rows[1], "SK": f"{3:012d}", "sequence": 3})
    rig.store.delete(AUDIT, at(4))

    assert {fault for fault, _ in rig.faults()} == {Fault.ENTRY_ALTERED, Fault.LINK_BROKEN, Fault.CUT_OFF}


def test_verify__given_chain_cut_off__says_where(rig: Rig) -> None:
    rig.add(4)
    rig.store.delete(AUDIT, at(4))
    rig.store.delete(AUDIT, at(3))

    assert rig.faults() == [(Fault.CUT_OFF, 3)]


def test_verify__given_all_entries_removed_but_the_head__shows(rig: Rig) -> None:
    rig.add(2)
    rig.store.delete(AUDIT, at(1))
    rig.store.delete(AUDIT, at(2))

    assert rig.faults() == [(Fault.CUT_OFF, 1)]


def test_verify__given_swapped_entries__names_both(rig: Rig) -> None:
    rig.add(4)
    second, third = rig.row(2), rig.row(3)
    rig.store.put(AUDIT, {**third, "SK": second["SK"]})
    rig.store.put(AUDIT, {**second, "SK": third["SK"]})

    found = rig.faults()
    assert (Fault.ENTRY_ALTERED, 2) in found
    assert (Fault.ENTRY_ALTERED, 3) in found


def test_verify__given_entry_of_another_chain_put_in_place__names_it(rig: Rig) -> None:
    other = next(f"thing {number}" for number in range(100) if chain_of(f"thing {number}") != CHAIN)
    rig.add(3)
    rig.add(3, other)
    foreign = rig.rows(chain_of(other))[1]
    rig.store.put(AUDIT, {**foreign, "PK": f"AUDIT#{CHAIN}"})

    assert (Fault.ENTRY_ALTERED, 2) in rig.faults()


@pytest.mark.parametrize("sort", ["1", "00000000000A", "!"])
def test_verify__given_row_where_no_entry_can_lie__shows(rig: Rig, sort: str) -> None:
    rig.add(3)
    rig.store.put(AUDIT, {**rig.row(1), "SK": sort})

    assert (Fault.ENTRY_ALTERED, 0) in rig.faults()


@pytest.mark.parametrize(
    "change",
    [{"sequence": 2}, {"hash": "0" * 64}, {"seal": "x"}, {"seal": None}, {"version": 2}, {"at": "2020"}],
)
def test_verify__given_altered_head__shows_and_nothing_more_is_committed(rig: Rig, change: dict[str, Any]) -> None:
    rig.add(3)
    head = rig.store.get(AUDIT, HEAD)
    assert head is not None
    rig.store.put(AUDIT, {**head, **change})

    assert (Fault.HEAD_ALTERED, 0) in rig.faults()
    with pytest.raises(CorruptionError):
        rig.process().commit([probe("a")], said())
    assert rig.store.get(HEALTH_CHECK, Key("a")) is None


def test_verify__given_head_of_another_chain__shows(rig: Rig) -> None:
    other = next(f"thing {number}" for number in range(100) if chain_of(f"thing {number}") != CHAIN)
    rig.add(3)
    rig.add(3, other)
    foreign = rig.store.get(AUDIT, Key(f"AUDIT#{chain_of(other)}", "HEAD"))
    assert foreign is not None
    rig.store.put(AUDIT, {**foreign, "PK": f"AUDIT#{CHAIN}", "chain": CHAIN})

    assert (Fault.HEAD_ALTERED, 0) in rig.faults()


def test_verify__given_removed_head__shows_and_nothing_more_is_committed(rig: Rig) -> None:
    rig.add(3)
    rig.store.delete(AUDIT, HEAD)

    assert rig.faults() == [(Fault.HEAD_MISSING, 0)]
    with pytest.raises(CorruptionError, match="rolled back"):
        rig.process().commit([], said())


def test_verify__given_head_set_back_and_entries_kept__shows_and_nothing_more_is_committed(rig: Rig) -> None:
    rig.add(2)
    past = rig.store.get(AUDIT, HEAD)
    assert past is not None
    rig.add(2)
    rig.store.put(AUDIT, past)

    assert rig.faults() == [(Fault.AFTER_HEAD, 3)]
    with pytest.raises(CorruptionError, match="rolled back"):
        rig.process().commit([], said())


def test_verify__given_head_and_entries_set_back__shows_only_to_those_who_know_the_later_head(rig: Rig) -> None:
    """The limit of what one store can prove: an earlier state that was good is good, unless someone knows better."""
    rig.add(2)
    past = rig.store.get(AUDIT, HEAD)
    assert past is not None
    rig.add(2)
    anchors = rig.process().heads()
    rig.store.put(AUDIT, past)
    rig.store.delete(AUDIT, at(3))
    rig.store.delete(AUDIT, at(4))

    assert rig.faults() == []
    report = rig.process().verify(anchors).problems
    assert [(each.fault, each.sequence) for each in report] == [(Fault.SET_BACK, 4)]
    # The process that added those entries knows it as well, and does not go on.
    assert rig.faults(rig.audit) == [(Fault.SET_BACK, 4)]
    with pytest.raises(CorruptionError, match="it had 4 entries and now has 2"):
        rig.audit.commit([], said())


def test_verify__given_chain_set_back_and_added_to_again__shows_against_an_anchor(rig: Rig) -> None:
    rig.add(2)
    past = rig.store.get(AUDIT, HEAD)
    assert past is not None
    rig.add(1)
    anchors = rig.process().heads()
    rig.store.put(AUDIT, past)
    rig.store.delete(AUDIT, at(3))
    rig.add(5, audit=rig.process())

    assert rig.faults() == []
    assert [each.fault for each in rig.process().verify(anchors).problems] == [Fault.SET_BACK]


def test_verify__given_all_gone__shows_only_against_an_anchor(rig: Rig) -> None:
    rig.add(2)
    anchors = rig.process().heads()
    for row in rig.rows():
        rig.store.delete(AUDIT, AUDIT.key_of(row))

    assert rig.faults() == []
    assert [each.fault for each in rig.process().verify(anchors).problems] == [Fault.SET_BACK]


def test_verify__given_entries_added_meanwhile__finds_nothing_wrong(rig: Rig) -> None:
    rig.add(3)

    class Busy(RacingStore):
        def query(self, query: Query) -> Any:
            rig.add(1)
            return self._store.query(query)

    assert rig.process(Busy(rig.store)).verify(rig.process().heads()).problems == []


def test_verify__given_last_entry_added_and_rewritten_meanwhile__shows(rig: Rig) -> None:
    rig.add(3)

    class Busy(RacingStore):
        def query(self, query: Query) -> Any:
            if query.partition == f"AUDIT#{CHAIN}" and len(rig.rows()) == 4:
                rig.add(1)
                rig.store.put(AUDIT, rehashed(rig.row(4), actor="bob"))
            return self._store.query(query)

    assert rig.faults(rig.process(Busy(rig.store))) == [(Fault.LINK_BROKEN, 4)]


def test_verify__given_keys_rotated_often__still_reads_old_heads(rig: Rig) -> None:
    rig.add(3)
    keyring = rig.keyring
    for _ in range(12):
        keyring = keyring.rotated(Purpose.FIELD, rig.clock).rotated(Purpose.TOKEN, rig.clock)

    audit = rig.process(keyring=keyring)
    audit.commit([], said())

    assert audit.verify().problems == []


def test_verify__given_another_keyring__trusts_nothing(rig: Rig) -> None:
    rig.add(1)

    stranger = rig.process(keyring=Keyring.generate(rig.clock))
    assert rig.faults(stranger) == [(Fault.HEAD_ALTERED, 0)]
    with pytest.raises(CorruptionError):
        stranger.commit([], said())


def test_verify__given_random_tampering__is_never_silent(rig: Rig) -> None:
    chance = random.Random(19)
    rig.add(8)
    whole = rig.rows()
    for _ in range(150):
        row = dict(chance.choice(whole))
        if chance.random() < 0.3:
            rig.store.delete(AUDIT, AUDIT.key_of(row))
        else:
            field = chance.choice([name for name in row if name not in ("PK", "SK")])
            row[field] = chance.choice([None, 0, 7, "x", row[field] and 1, "2025-06-15T15:06:41.001Z"])
            # What no index takes cannot lie in the table either.
            if not isinstance(row["at"], str) or not isinstance(row.get("entity", "-"), str):
                continue
            if row in whole:
                continue
            rig.store.put(AUDIT, row)
        assert rig.faults() != [], row
        for result in whole:
            rig.store.put(AUDIT, result)
    assert rig.faults() == []


@pytest.mark.parametrize("harm", ["head altered", "head missing", "head set back", "last entry unreadable"])
def test_reopen__given_chain_that_was_tampered_with__takes_entries_again_and_the_harm_stays_seen(
    rig: Rig, harm: str
) -> None:
    rig.add(2)
    past = rig.store.get(AUDIT, HEAD)
    assert past is not None
    rig.add(2)
    if harm == "head missing":
        rig.store.delete(AUDIT, HEAD)
    elif harm == "last entry unreadable":
        rig.store.put(AUDIT, {**rig.row(4), "changed": "x"})
        rig.store.delete(AUDIT, HEAD)
    else:
        rig.store.put(AUDIT, {**past, "sequence": 9} if harm == "head altered" else past)
    audit = rig.process()
    with pytest.raises(CorruptionError):
        audit.commit([], said())

    audit.reopen(CHAIN, actor="ann", reason="restored by hand")
    audit.commit([probe("a")], said())

    assert [row["sequence"] for row in rig.rows()][-3:-1] == [5, 6]
    assert rig.row(5)["reason"] == "restored by hand"
    remaining = [(Fault.ENTRY_ALTERED, 4)] if harm == "last entry unreadable" else []
    assert rig.faults() == remaining


def test_reopen__given_chain_cut_off_in_the_sight_of_this_process__leaves_the_gap(rig: Rig) -> None:
    rig.add(2)
    past = rig.store.get(AUDIT, HEAD)
    assert past is not None
    rig.add(2)
    rig.store.put(AUDIT, past)
    rig.store.delete(AUDIT, at(3))
    rig.store.delete(AUDIT, at(4))

    rig.audit.reopen(CHAIN, actor="ann", reason="seen")

    assert rig.faults() == [(Fault.ENTRY_MISSING, 3)]


def test_reopen__given_no_such_chain__says_so(rig: Rig) -> None:
    with pytest.raises(NotFoundError):
        rig.audit.reopen(CHAINS, actor="ann", reason="x")


# Listing.


def test_ls__given_many_chains__pages_through_all_in_order_once(rig: Rig) -> None:
    for number in range(60):
        rig.add(1, f"thing {number % 25}", actor="ann" if number % 3 else "bob")
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = rig.audit.ls(limit=7, cursor=cursor)
        seen += [entry.at for entry in page.entries]
        rig.add(1, "thing 3")  # What is added meanwhile is newer than every page to come.
        cursor = page.cursor
        if cursor is None:
            break

    assert len(seen) == 60
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == 60


def test_ls__given_times__includes_both_ends(rig: Rig) -> None:
    for number in range(50):
        rig.add(1, f"thing {number % 20}")
    moments = sorted(entry.at for entry in rig.audit.ls(limit=100).entries)

    for low, high in [(0, 49), (10, 20), (0, 0), (49, 49), (33, 34)]:
        found = rig.audit.ls(since=moments[low], until=moments[high], limit=100).entries
        assert sorted(entry.at for entry in found) == moments[low : high + 1]
    assert rig.audit.ls(until="2001-01-01T00:00:00Z").entries == []
    assert rig.audit.ls(since="2101-01-01T00:00:00Z").entries == []
    assert rig.audit.ls(since=moments[5], until=moments[4]).entries == []


def test_ls__given_entity_actor_and_time__returns_those_alone(rig: Rig) -> None:
    rig.add(3, actor="ann")
    rig.add(3, actor="bob")
    rig.add(3, "dataset urn:dp:other", actor="bob")
    moments = [row["at"] for row in rig.rows() if row["SK"] != "HEAD" and row["entity"] == THING]

    assert [entry.at for entry in rig.audit.ls(THING, actor="bob").entries] == moments[:2:-1]
    assert [entry.at for entry in rig.audit.ls(THING, since=moments[1], until=moments[4]).entries] == moments[4:0:-1]
    assert [entry.at for entry in rig.audit.ls(THING, since=moments[4]).entries] == moments[:3:-1]
    assert [entry.at for entry in rig.audit.ls(THING, until=moments[1]).entries] == moments[1::-1]
    assert len(rig.audit.ls(actor="bob").entries) == 6
    first = rig.audit.ls(THING, limit=4)
    assert len(first.entries) == 4
    assert len(rig.audit.ls(THING, limit=4, cursor=first.cursor).entries) == 2


def test_ls__given_cursor_of_another_question_or_altered__is_refused(rig: Rig) -> None:
    rig.add(5)
    cursor = rig.audit.ls(limit=2).cursor
    assert cursor is not None

    for question in ({"since": "2020-01-01T00:00:00Z"}, {"until": "2090-01-01T00:00:00Z"}):
        with pytest.raises(CursorError):
            rig.audit.ls(limit=2, cursor=cursor, **question)
    with pytest.raises(CursorError):
        rig.audit.ls(limit=2, cursor=f"{cursor}x")


@pytest.mark.parametrize("limit", [0, 1001])
def test_ls__given_limit_out_of_range__is_refused(rig: Rig, limit: int) -> None:
    with pytest.raises(InvalidPayloadError):
        rig.audit.ls(limit=limit)
    with pytest.raises(InvalidPayloadError):
        rig.audit.ls(THING, limit=limit)


# What is said of a change.


def test_changed_fields__given_two_rows__names_those_that_differ() -> None:
    assert changed_fields({"a": 1, "b": 2, "c": (1, 2)}, {"a": 1, "b": 3, "c": [1, 2], "d": None}) == ("b", "d")
    assert changed_fields(None, {"a": 1}) == ("a",)
    assert changed_fields({"a": True}, {"a": 1}) == ("a",)
    assert changed_fields({"a": None}, {}) == ("a",)


def test_change_digest__given_rows__depends_on_all_but_the_secret_fields() -> None:
    before, after = {"a": 1, "oncall_user": "ann"}, {"a": 2, "oncall_user": "bob"}
    digest = change_digest(before, after, secret=("oncall_user",))

    assert digest == change_digest({"a": 1, "oncall_user": "eve"}, after, secret=("oncall_user",))
    assert digest != change_digest(before, after)
    assert digest != change_digest(after, before, secret=("oncall_user",))
    assert change_digest(None, {}) != change_digest({}, None)
    assert change_digest(None, {}) != change_digest({}, {})


def test_chain_of__given_entities__spreads_them_and_never_changes() -> None:
    assert {chain_of(f"thing {number}") for number in range(500)} == set(range(CHAINS))
    # Written out: entries are found by it for as long as they are kept.
    assert [chain_of(entity) for entity in ("a", "dataset urn:dp:orders:created", "ü")] == [2, 12, 10]


def rehashed(row: Item, **changes: object) -> Item:
    """Return a row altered by someone who knows how hashes are made."""
    record = msgspec.structs.replace(read_record(row), **changes)
    return {**row, **changes, "hash": hash_of(record)}


def test_rows__given_entry__hold_no_values_of_what_was_changed(rig: Rig) -> None:
    record = record_of(said(), rig.audit._head(CHAIN), "aud_1", 0)

    assert set(entry_write(record).item) == {
        "PK", "SK", "id", "chain", "sequence", "at", "actor", "action", "entity", "before_version", "after_version",
        "changed", "reason", "ticket", "digest", "previous", "hash", "outcome",
    }  # fmt: skip
