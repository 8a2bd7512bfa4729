"""Pins: what an incident holds on to is there as long as it needs it, whichever others let go meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.errors import ConflictError
from headgate.health.evidence.rows import TTL
from headgate.health.model.timestamps import instant
from headgate.store.catalogue.tables import CONTROL, EVIDENCE_CACHE
from headgate.store.model.requests import Put, Update
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from tests.integration.health.evidence_rig import DAY, Rig

INC, OTHER = "INC-01J0000000000000000000000A", "INC-01J0000000000000000000000B"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.sqlite.close()


def row_of(rig: Rig, evidence_id: str) -> Item:
    row = rig.raw(evidence_id)
    assert row is not None
    return row


def pins_of(rig: Rig, evidence_id: str) -> tuple[str, ...]:
    found = rig.cache.get(evidence_id)
    assert found is not None
    return found.pinned_by


def test_pin__given_a_year_passes__then_the_evidence_is_still_there(rig: Rig) -> None:
    pinned, other = rig.put(), rig.put()

    assert rig.pin([pinned.evidence_id], INC) == 1
    rig.clock.advance(365 * DAY)
    rig.sqlite.sweep()

    assert rig.cache.get(pinned.evidence_id) == replace(pinned, pinned_by=(INC,))
    assert rig.cache.get(other.evidence_id) is None


def test_pin__given_ids_that_do_not_exist__then_the_transaction_passes_without_them(rig: Rig) -> None:
    there = rig.put()
    ids = [rig.cache.new_id(), there.evidence_id, "evd-nonsense", "", there.evidence_id]

    writes = rig.cache.pin_writes(ids, INC, rig.now_ms())
    rig.sqlite.transact([*writes, Put(CONTROL, {"PK": "INC", "SK": "META"})])

    assert len(writes) == 1
    assert pins_of(rig, there.evidence_id) == (INC,)
    assert rig.cache.pin_writes([], INC, rig.now_ms()) == []


def test_pin__given_the_row_is_gone__then_it_comes_back_from_the_archive(rig: Rig) -> None:
    evidence = rig.put()
    rig.archive_all()
    rig.clock.advance(2 * DAY)
    rig.sqlite.sweep()

    rig.pin([evidence.evidence_id], INC)
    rig.clock.advance(100 * DAY)

    assert rig.cache.get(evidence.evidence_id) == replace(evidence, pinned_by=(INC,))
    assert row_of(rig, evidence.evidence_id).get(TTL) is None


def test_pin__given_the_row_has_expired_and_is_still_there__then_it_comes_back_too(rig: Rig) -> None:
    evidence = rig.put()
    rig.archive_all()
    rig.clock.advance(DAY + 1)

    rig.pin([evidence.evidence_id], INC)

    assert pins_of(rig, evidence.evidence_id) == (INC,)


def test_pin__given_the_archive_is_damaged__then_the_transaction_passes_without_it(rig: Rig) -> None:
    evidence = rig.put()
    rig.archive_all()
    [name] = rig.blobs.list("evidence/")
    (rig.archived / name).write_bytes(b"")
    rig.clock.advance(DAY)

    assert rig.cache.pin_writes([evidence.evidence_id], INC, rig.now_ms()) == []


def test_pin__given_the_row_expires_before_the_commit__then_it_is_pinned_all_the_same(rig: Rig) -> None:
    evidence = rig.put()
    rig.clock.advance(DAY - 60)
    writes = rig.cache.pin_writes([evidence.evidence_id], INC, rig.now_ms())
    rig.clock.advance(120)
    rig.sqlite.sweep()
    assert rig.raw(evidence.evidence_id) is None

    rig.sqlite.transact(writes)

    assert pins_of(rig, evidence.evidence_id) == (INC,)


def test_pin__given_two_incidents_at_once__then_both_hold_on(rig: Rig) -> None:
    evidence = rig.put()
    first = rig.cache.pin_writes([evidence.evidence_id], INC, rig.now_ms())
    second = rig.cache.pin_writes([evidence.evidence_id], OTHER, rig.now_ms())

    rig.sqlite.transact(first)
    rig.sqlite.transact(second)

    assert pins_of(rig, evidence.evidence_id) == (INC, OTHER)


@pytest.mark.parametrize("age_seconds", [DAY - 60, 2 * DAY])
def test_pin__given_two_at_once_at_the_end_of_a_row__then_the_second_conflicts_and_asks_again(
    rig: Rig, age_seconds: int
) -> None:
    evidence = rig.put()
    rig.archive_all()
    rig.clock.advance(age_seconds)
    first = rig.cache.pin_writes([evidence.evidence_id], INC, rig.now_ms())
    second = rig.cache.pin_writes([evidence.evidence_id], OTHER, rig.now_ms())

    rig.sqlite.transact(first)
    with pytest.raises(ConflictError):
        rig.sqlite.transact(second)
    rig.pin([evidence.evidence_id], OTHER)

    assert pins_of(rig, evidence.evidence_id) == (INC, OTHER)


def test_pin__given_it_is_pinned_already__then_the_caller_that_lets_go_for_an_earlier_end_leaves_it(rig: Rig) -> None:
    evidence = rig.put()
    rig.pin([evidence.evidence_id], INC)
    ended_at = instant(int(rig.clock.seconds() * 1000))
    rig.clock.advance(1)
    assert rig.pin([evidence.evidence_id], INC) == 1

    rig.cache.unpin([evidence.evidence_id], INC, taken_until=ended_at)

    found = rig.cache.get(evidence.evidence_id)
    assert found is not None
    assert found.pinned_by == (INC,)


def test_unpin__given_the_last_pin_goes__then_it_expires_a_month_later_and_once_more_changes_nothing(rig: Rig) -> None:
    evidence = rig.put()
    rig.pin([evidence.evidence_id], INC)
    rig.clock.advance(90 * DAY)

    rig.cache.unpin([evidence.evidence_id, rig.cache.new_id(), "nonsense"], INC)
    let_go = row_of(rig, evidence.evidence_id)
    rig.clock.advance(DAY)
    rig.cache.unpin([evidence.evidence_id], INC)

    assert row_of(rig, evidence.evidence_id) == let_go
    assert pins_of(rig, evidence.evidence_id) == ()
    rig.clock.advance(29 * DAY - 1)
    assert rig.cache.get(evidence.evidence_id) is not None
    rig.clock.advance(1)
    assert rig.cache.get(evidence.evidence_id) is None


def test_unpin__given_another_holds_on__then_it_stays(rig: Rig) -> None:
    evidence = rig.put()
    rig.pin([evidence.evidence_id], INC)
    rig.pin([evidence.evidence_id], OTHER)

    rig.cache.unpin([evidence.evidence_id], INC)

    assert row_of(rig, evidence.evidence_id).get(TTL) is None
    assert pins_of(rig, evidence.evidence_id) == (OTHER,)
    rig.cache.unpin([evidence.evidence_id], OTHER, keep_seconds=60)
    rig.clock.advance(60)
    assert rig.cache.get(evidence.evidence_id) is None


@pytest.mark.parametrize("does_pin", [True, False])
def test_unpin__given_another_takes_hold_or_lets_go_meanwhile__then_both_count(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, does_pin: bool
) -> None:
    evidence = rig.put()
    ids = [evidence.evidence_id]
    rig.pin(ids, INC)
    if not does_pin:
        rig.pin(ids, OTHER)
    interferes = [lambda: rig.pin(ids, OTHER)] if does_pin else [lambda: rig.cache.unpin(ids, OTHER, 60)]

    def update(*args: object, **options: object) -> Item:
        if interferes:
            interferes.pop()()
        return rig.sqlite.update(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(rig.broken, "update", update, raising=False)
    rig.cache.unpin(ids, INC, keep_seconds=60)

    assert pins_of(rig, evidence.evidence_id) == ((OTHER,) if does_pin else ())
    assert (row_of(rig, evidence.evidence_id).get(TTL) is None) == does_pin


def test_pin__given_it_was_let_go_and_the_incident_opens_again__then_it_holds_on_again(rig: Rig) -> None:
    evidence = rig.put()
    rig.pin([evidence.evidence_id], INC)
    rig.cache.unpin([evidence.evidence_id], INC)

    rig.pin([evidence.evidence_id], INC)

    rig.clock.advance(365 * DAY)
    assert pins_of(rig, evidence.evidence_id) == (INC,)


def test_pin_writes__given_a_fresh_row__then_it_is_an_update_that_no_other_pin_can_refuse(rig: Rig) -> None:
    evidence = rig.put()
    [write] = rig.cache.pin_writes([evidence.evidence_id], INC, rig.now_ms())
    assert isinstance(write, Update)
    assert write.table is EVIDENCE_CACHE
    assert write.key == Key(evidence.evidence_id)
    assert write.condition is None
    assert write.remove == (TTL,)
