"""The archive of evidence: found by id alone, whatever crashes on the way, and damage is reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.errors import CorruptionError, StoreIOError
from headgate.health.evidence import archive as evidence_archive
from headgate.health.evidence.archive import DAMAGED, SPOOL, SPOOL_SHARDS, Line, spool_put
from headgate.health.evidence.rows import Result
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from tests.integration.health.evidence_rig import DAY, URN, Rig

EXAMPLE = "evd-01HQXY8MNP4QR7ST9VW2XYZ456"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.sqlite.close()


def spooled(rig: Rig) -> list[Item]:
    queries = [Query(table=CONTROL, partition=f"{SPOOL}#{shard}", limit=1000) for shard in range(SPOOL_SHARDS)]
    return [item for query in queries for item in rig.sqlite.query(query).items]


def names(rig: Rig) -> list[str]:
    return list(rig.blobs.list("evidence/"))


def test_archive__given_the_row_is_gone__then_the_id_alone_finds_it(rig: Rig) -> None:
    put = [rig.put() for _ in range(20)]
    assert rig.archive_all() == 20
    rig.clock.advance(DAY)
    rig.sqlite.sweep()

    for evidence in put:
        assert rig.raw(evidence.evidence_id) is None
        assert rig.cache.get(evidence.evidence_id) == replace(evidence, archived=True)
        assert rig.cache.get(evidence.evidence_id, include_archived=False) is None
    assert rig.cache.get(rig.cache.new_id()) is None
    assert len(names(rig)) == 1


def test_spool__given_many_batches__then_every_shard_takes_its_turn(rig: Rig) -> None:
    for _ in range(2 * SPOOL_SHARDS):
        rig.put()

    taken = Counter(row[CONTROL.partition.name] for row in spooled(rig))

    assert taken == {f"{SPOOL}#{shard}": 2 for shard in range(SPOOL_SHARDS)}


def test_archive__given_rows_of_the_eight_shards_before__then_they_are_archived(rig: Rig) -> None:
    ids = [rig.cache.new_id() for _ in range(8)]
    for shard, evidence_id in enumerate(ids):
        line = Line(evidence_id, msgspec.json.encode({"evidence_id": evidence_id}))
        row = spool_put(shard, rig.ids.ulid(), [line], rig.now_ms()).item
        assert row[CONTROL.partition.name] == f"EVIDENCE-SPOOL#{shard}"
        rig.sqlite.put(CONTROL, row)

    assert rig.archive_all() == 8

    assert spooled(rig) == []


def test_archive__given_ids_whose_dates_are_not_true__then_they_are_found_alike(rig: Rig) -> None:
    ids = [EXAMPLE, "evd-00000000000000000000000000", "evd-7ZZZZZZZZZZZZZZZZZZZZZZZZZ", rig.cache.new_id()]
    put = [rig.put(evidence_id=each) for each in ids]
    rig.archive_all()
    rig.clock.advance(DAY)

    assert [rig.cache.get(each) for each in ids] == [replace(evidence, archived=True) for evidence in put]
    assert names(rig)[1].startswith("evidence/2024/03/01/")


def test_archive__given_no_one_came_for_a_week__then_nothing_is_lost(rig: Rig) -> None:
    evidence = rig.put()
    # The archiver did not run for a week. What is in the spool does not expire.
    rig.clock.advance(7 * DAY)
    rig.sqlite.sweep()
    assert rig.cache.oldest_waits_seconds() == pytest.approx(7 * DAY, abs=1)
    assert rig.cache.get(evidence.evidence_id) is None

    assert rig.cache.archive() == 1

    assert rig.cache.get(evidence.evidence_id) == replace(evidence, archived=True)
    assert rig.cache.oldest_waits_seconds() == -1


def test_archive__given_little_and_new__then_it_waits_until_it_is_worth_a_blob(rig: Rig) -> None:
    rig.put()
    assert rig.cache.archive() == 0
    rig.clock.advance(599)
    assert rig.cache.archive() == 0
    rig.put()
    rig.clock.advance(1)
    assert rig.cache.archive() == 2
    assert len(names(rig)) == 1


def test_archive__given_small_rounds_and_blobs__then_nothing_is_left_out(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_archive, "ROUND_LINES_MAX", 7)
    monkeypatch.setattr(evidence_archive, "BLOB_LINES_MAX", 3)
    put = [rig.put() for _ in range(30)]
    assert rig.archive_all() == 30
    assert spooled(rig) == []
    rig.clock.advance(DAY)
    assert rig.cache.get_many([each.evidence_id for each in put]).missing == ()


def test_archive__given_it_is_asked_to_stop__then_the_rest_goes_next_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence_archive, "ROUND_LINES_MAX", 4)
    for _ in range(10):
        rig.put()
    assert 0 < rig.cache.archive(wait_seconds=0, stop=lambda: True) < 10
    rig.archive_all()
    assert rig.cache.stats.archived == 10


def test_archive__given_a_crash_after_the_blob__then_the_next_run_says_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = [rig.put() for _ in range(5)]
    with monkeypatch.context() as broken:
        broken.setattr(rig.broken, "batch_write", _raise, raising=False)
        with pytest.raises(StoreIOError):
            rig.archive_all()
    assert len(spooled(rig)) == 5
    put.append(rig.put())

    assert rig.archive_all() == 6

    assert spooled(rig) == []
    assert len(names(rig)) == 2
    rig.clock.advance(DAY)
    found = rig.cache.get_many([each.evidence_id for each in put])
    assert list(found.evidence.values()) == [replace(each, archived=True) for each in put]


def test_archive__given_the_blob_cannot_be_written__then_the_spool_keeps_everything(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put()
    with monkeypatch.context() as broken:
        broken.setattr(rig.blobs, "put", _raise)
        with pytest.raises(StoreIOError):
            rig.archive_all()
    assert len(spooled(rig)) == 1
    assert rig.archive_all() == 1


def test_archive__given_two_at_once__then_evidence_is_found_once(rig: Rig, tmp_path: Path) -> None:
    put = [rig.put() for _ in range(5)]
    other = Rig(tmp_path, clock=rig.clock)
    rows = spooled(rig)
    rig.archive_all()
    # The other had read the spool before it was emptied.
    for row in rows:
        rig.sqlite.put(CONTROL, row)
    assert other.archive_all() == 5

    assert len(names(rig)) == 1
    rig.clock.advance(DAY)
    assert other.cache.get(put[0].evidence_id) == replace(put[0], archived=True)
    other.sqlite.close()


def test_archive__given_a_damaged_blob__then_it_is_flagged_and_others_are_found(rig: Rig) -> None:
    damaged = rig.put()
    rig.archive_all()
    [name] = names(rig)
    whole = rig.put()
    rig.archive_all()
    rig.clock.advance(DAY)
    path = rig.archived / name
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)

    found = rig.cache.get_many([damaged.evidence_id, whole.evidence_id])

    assert list(found.evidence) == [whole.evidence_id]
    assert found.missing == ()
    assert "digest" in found.unreadable[damaged.evidence_id]
    with pytest.raises(CorruptionError, match=damaged.evidence_id):
        rig.cache.get(damaged.evidence_id)


def test_archive__given_it_cannot_be_listed__then_it_is_flagged(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = rig.put()
    rig.archive_all()
    rig.clock.advance(DAY)
    monkeypatch.setattr(rig.blobs, "list", _raise)

    assert rig.cache.get_many([evidence.evidence_id]).unreadable.keys() == {evidence.evidence_id}


def test_archive__given_a_damaged_row_in_the_spool__then_it_is_put_aside_and_the_others_go_on(rig: Rig) -> None:
    rig.put()
    [row] = spooled(rig)
    rig.sqlite.put(CONTROL, {**row, "body": b"nonsense"})
    whole = rig.put()

    assert rig.archive_all() == 1

    assert spooled(rig) == []
    aside = rig.sqlite.get(CONTROL, Key(DAMAGED, row["SK"]))
    assert aside is not None
    assert aside["body"] == b"nonsense"
    rig.clock.advance(DAY)
    assert rig.cache.get(whole.evidence_id) is not None


def test_archive__given_strangers_on_a_shelf__then_they_are_passed_over(rig: Rig) -> None:
    evidence = rig.put()
    rig.archive_all()
    shelf = names(rig)[0].rpartition("/")[0]
    rig.blobs.put(f"{shelf}/0-note", b"")
    rig.clock.advance(DAY)

    assert rig.cache.get(evidence.evidence_id) is not None


def test_archive__given_an_id_inside_another_s_text__then_it_is_not_taken_for_it(rig: Rig) -> None:
    wanted = rig.put(Result.PASS)
    rig.put(payload_ref=f"s3://bucket/{wanted.evidence_id}.json.gz")
    rig.archive_all()
    rig.clock.advance(DAY)

    assert rig.cache.get(wanted.evidence_id) == replace(wanted, archived=True)


def test_purge__given_what_is_kept_long_enough__then_it_goes_and_the_rest_stays(rig: Rig) -> None:
    old, old_by_its_id = rig.put(), rig.put(evidence_id=EXAMPLE)
    rig.archive_all()
    rig.clock.advance(10 * DAY)
    new = rig.put()
    new_with_old_id = rig.put(evidence_id="evd-01HQXY8MNP4QR7ST9VW2XYZ457")
    rig.archive_all()
    rig.clock.advance(2 * DAY)

    assert rig.cache.purge_archive(kept_seconds=5 * DAY, limit=1) == 1
    assert rig.cache.purge_archive(kept_seconds=5 * DAY) == 1
    assert rig.cache.purge_archive(kept_seconds=5 * DAY) == 0

    ids = [each.evidence_id for each in (old, old_by_its_id, new, new_with_old_id)]
    assert rig.cache.get_many(ids).missing == tuple(ids[:2])


def test_archive__given_a_duplicate_and_what_was_sampled_out__then_only_what_was_stored_is_in_it(rig: Rig) -> None:
    evidence = rig.put()
    rig.cache.put(evidence)
    rig.cache.put_many([evidence, rig.evidence()])
    assert rig.archive_all() == 2
    assert rig.cache.of_dataset(URN).evidence[-1] == evidence


def _raise(*_args: Any) -> Any:
    raise StoreIOError("the test says so")
