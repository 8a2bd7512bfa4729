"""Dead letters: a message that a queue has given up marks its chunk, and none is lost without a word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate.fanout.core.tracking import Claim
from headgate.fanout.model.messages import message_about
from headgate.fanout.model.rows import timestamp
from headgate.fanout.model.states import AttemptOutcome, Disposition, FanoutStatus
from headgate.fanout.remote.dead_letters import Address, DeadLetters, Recorded, Ruling, address_of
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.store.catalogue.tables import FANOUT
from tests.integration.fanout.worlds import RUN, World, crash_everywhere, once

FIRST = "chunk-0000000"


class Rig(World):
    """A fan-out with a queue of its own, whose messages were sent."""

    def __init__(self, folder: Path, *, shards: int = 1) -> None:
        super().__init__(folder, shards=shards)
        self.letters = DeadLetters(self.store, self.clock)
        self.redriver = Redriver(self.sqlite, self.clock, self.ids, send=lambda fanout: fanout)

    def record(self, chunk_id: str = FIRST, *, receive_count: int = 3, at: str | None = None) -> Recorded:
        return self.letters.record(
            self.body(chunk_id), receive_count=receive_count, first_received_at=at or self.queries.now()
        )

    def body(self, chunk_id: str) -> str:
        return message_about(self.fanout(), self.row(chunk_id))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with closing(Rig(tmp_path)) as rig:
        yield rig
        rig.check()


# What a letter makes of its chunk.


def test_record__a_chunk_that_never_started__is_dead_of_its_letter(rig: Rig) -> None:
    rig.split(3, queue_url="https://sqs/q")
    rig.letters = DeadLetters(rig.store, rig.clock, maintenance=rig.maintenance)

    recorded = rig.record()

    chunk = rig.row(FIRST)
    assert (recorded.ruling, recorded.address) == (Ruling.DEAD, Address(RUN, FIRST))
    assert recorded.reason == "chunk-0000000 was WAITING, and is dead now"
    assert (chunk.disposition, chunk.error_class, chunk.receive_count) == (Disposition.DEAD, "DEAD_LETTER", 3)
    assert chunk.error == "its message was received 3 times and never completed"
    assert chunk.error_fingerprint is not None
    assert chunk.message == rig.body(FIRST)
    assert rig.fanout().chunks_failed == 1
    assert rig.counts().dead == 1


def test_record__a_chunk_that_failed_before__keeps_its_own_error(rig: Rig) -> None:
    rig.split(3)
    rig.fail(FIRST, "OOM", "killed")
    assert rig.row(FIRST).disposition is Disposition.RETRYING

    assert rig.record(receive_count=2).ruling is Ruling.DEAD

    chunk = rig.row(FIRST)
    assert (chunk.disposition, chunk.error_class, chunk.error) == (Disposition.DEAD, "OOM", "killed")
    assert (chunk.message, chunk.receive_count) == (rig.body(FIRST), 2)


def test_record__a_chunk_whose_worker_is_gone__is_lost(rig: Rig) -> None:
    rig.split(3, timeout_seconds=60.0)
    rig.claim(FIRST)
    rig.clock.advance(61)

    assert rig.record().ruling is Ruling.DEAD

    chunk = rig.row(FIRST)
    assert (chunk.disposition, chunk.error_class) == (Disposition.DEAD, "LOST")
    assert [(one.attempt, one.outcome) for one in rig.queries.attempts(chunk)] == [(1, AttemptOutcome.LOST)]
    assert rig.counts().lost == 1


def test_record__a_chunk_that_someone_runs__is_left_to_them(rig: Rig) -> None:
    rig.split(3, timeout_seconds=60.0)
    claim: Claim = rig.claim(FIRST)
    before = rig.snapshot()

    recorded = rig.record()

    assert (recorded.ruling, rig.snapshot()) == (Ruling.BUSY, before)
    assert recorded.reason.startswith("chunk-0000000 is run by w until ")
    rig.tracker.release(claim)


def test_record__a_chunk_of_a_paused_fanout__is_left_until_it_goes_on(rig: Rig) -> None:
    rig.split(3)
    rig.control.pause(RUN)
    before = rig.snapshot()

    assert rig.record().ruling is Ruling.BUSY
    assert rig.snapshot() == before
    rig.control.resume(RUN)
    assert rig.record().ruling is Ruling.DEAD


@pytest.mark.parametrize("state", ["DONE", "DEFERRED", "SKIPPED", "CANCELLED"])
def test_record__a_chunk_that_has_ended_meanwhile__changes_nothing(rig: Rig, state: str) -> None:
    rig.split(4, size=2)
    match state:
        case "DONE":
            rig.complete(FIRST)
        case "DEFERRED":
            rig.complete(FIRST, deferred=[1])
        case "SKIPPED":
            rig.control.skip(RUN, [FIRST])
        case "CANCELLED":
            rig.control.cancel(RUN)
            rig.tend()
    before = rig.snapshot()

    recorded = rig.record()

    assert recorded.ruling is Ruling.DUPLICATE
    assert recorded.reason == f"chunk-0000000 has ended meanwhile: it is {state}"
    assert rig.snapshot() == before


@pytest.mark.parametrize("final", [False, True])
def test_record__a_chunk_that_was_given_up_already__keeps_the_letter(rig: Rig, final: bool) -> None:
    rig.split(2, max_attempts=1)
    rig.fail(FIRST, "OOM", "killed", is_final=final)
    counts = rig.counts()

    recorded = rig.record(receive_count=5)

    chunk = rig.row(FIRST)
    assert recorded.ruling is Ruling.DEAD
    assert (chunk.error_class, chunk.receive_count, chunk.message) == ("OOM", 5, rig.body(FIRST))
    assert rig.counts() == counts


def test_record__the_same_letter_twice__is_as_once(rig: Rig) -> None:
    rig.split(2)
    rig.record()
    before = rig.snapshot()

    assert rig.record().ruling is Ruling.DEAD
    assert rig.snapshot() == before


def test_record__221_letters__are_221_dead_chunks_that_can_be_redriven(rig: Rig) -> None:
    rig.split(221, queue_url="https://sqs/q")
    for chunk in rig.rows():
        rig.record(chunk.chunk_id)
    assert rig.counts().dead == 221
    assert rig.tend().status is FanoutStatus.FAILED

    assert rig.redriver.redrive(RUN, ChunkSelection(error_class="DEAD_LETTER")).redriven == 221

    for chunk in rig.rows():
        rig.complete(chunk.chunk_id)
    assert rig.tend().status is FanoutStatus.SUCCEEDED


def test_record__completed_just_before_the_write__is_a_duplicate(rig: Rig) -> None:
    rig.split(2)
    rig.crashing.before_write = once(lambda: rig.complete(FIRST))

    assert rig.record().ruling is Ruling.DUPLICATE
    assert rig.row(FIRST).disposition is Disposition.DONE


def test_record__redriven_just_before_the_letter_is_kept__is_looked_at_again(rig: Rig) -> None:
    rig.split(2, max_attempts=1)
    rig.kill(FIRST)
    at = rig.queries.now()
    rig.clock.advance(1)
    rig.crashing.before_write = once(lambda: rig.redriver.redrive(RUN, ChunkSelection(chunk_ids=(FIRST,))))

    assert rig.record(at=at).ruling is Ruling.DUPLICATE
    assert rig.row(FIRST).message is None


# Letters of an earlier life.


@pytest.mark.parametrize("now", ["QUEUED", "RETRYING", "RUNNING"])
def test_record__a_letter_from_before_the_redrive__does_not_kill_the_new_life(rig: Rig, now: str) -> None:
    rig.split(2, max_attempts=2, timeout_seconds=60.0)
    received_at = rig.queries.now()
    rig.clock.advance(1)
    rig.kill(FIRST)
    rig.clock.advance(60)
    rig.redriver.redrive(RUN, ChunkSelection(all=True))
    rig.clock.advance(5)
    first_of_new_life = rig.queries.now()
    if now == "RETRYING":
        rig.fail(FIRST)
    elif now == "RUNNING":
        rig.claim(FIRST)
        rig.clock.advance(61)

    old = rig.record(at=received_at)
    assert old.ruling is Ruling.DUPLICATE
    assert old.reason == "chunk-0000000 was redriven after this message was first received"
    assert rig.row(FIRST).disposition.value == now
    new = rig.record(at=first_of_new_life)

    assert new.ruling is Ruling.DEAD
    assert rig.row(FIRST).disposition is Disposition.DEAD


def test_record__a_letter_while_the_new_message_is_still_to_be_sent__does_not_kill(rig: Rig) -> None:
    rig.split(2, queue_url="https://sqs/q")
    rig.record()
    rig.redriver.redrive(RUN, ChunkSelection(all=True))

    assert rig.record().ruling is Ruling.DUPLICATE
    assert rig.row(FIRST).disposition is Disposition.WAITING


def test_record__a_letter_of_which_is_unknown_when_it_came__counts(rig: Rig) -> None:
    rig.split(2, max_attempts=1)
    rig.kill(FIRST)
    rig.redriver.redrive(RUN, ChunkSelection(all=True))

    assert rig.letters.record(rig.body(FIRST)).ruling is Ruling.DEAD


# Letters that say nothing.


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("not json", "it is not a chunk message"),
        ("[1]", "it is not a chunk message"),
        ('{"run_id": "run"}', "it names no chunk"),
        ('{"run_id": 7, "chunk_id": "chunk-0000000"}', "it is not a chunk message"),
        ('{"run_id": "run", "chunk_id": "chunk-7"}', "an id looks like chunk-0000500"),
        ('{"run_id": "run", "chunk_id": "chunk-0000099"}', "fan-out run has no chunk-0000099"),
        ('{"run_id": "other", "chunk_id": "chunk-0000000"}', "there is no fan-out other"),
        ('{"run_id": "' + "r" * 3000 + '", "chunk_id": "chunk-0000000"}', "1 to 200 printable characters"),
        ('{"run_id": "run", "chunk_id": "chunk-' + "0" * 3000 + '"}', "no chunk has an id of 3006 characters"),
        ("\ud800", "not Unicode text"),
    ],
)
def test_record__a_letter_that_names_no_chunk__is_reported_back(rig: Rig, body: str, said: str) -> None:
    rig.split(2)
    before = rig.snapshot()

    recorded = rig.letters.record(body, receive_count=3)

    assert recorded.ruling is Ruling.UNKNOWN
    assert said in recorded.reason
    assert rig.snapshot() == before


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.one_of(st.text(), st.binary().map(lambda raw: raw.decode("latin-1"))))
@example(body='{"run_id":"","chunk_id":"chunk-0000000"}')
@example(body='{"run_id":"run","chunk_id":"","chunk_key":"chunks/run/slow-1.npz"}')
@example(body='{"run_id":"a\\u0000b","chunk_id":"chunk-0000000"}')
@example(body='{"run_id":"run","chunk_id":"chunk-\u0660\u0660\u0660\u0660\u0660\u0660\u0660"}')
def test_record__whatever_a_letter_says__nothing_is_raised(rig: Rig, body: str) -> None:
    rig.split(1)

    assert rig.letters.record(body).ruling is Ruling.UNKNOWN


def test_record__a_letter_of_another_programs_fanout__is_reported_back(rig: Rig) -> None:
    rig.split(1)
    rig.sqlite.put(FANOUT, {"PK": "theirs", "SK": "RUN", "survey": "grs", "created_at": "2026-01-01"})
    rig.sqlite.put(FANOUT, {"PK": "theirs", "SK": "CHUNK#chunk-0000500", "status": "IN_PROGRESS"})

    recorded = rig.letters.record("{}", run_id="theirs", chunk_id="chunk-0000500")

    assert recorded.ruling is Ruling.UNKNOWN
    assert "created by another program" in recorded.reason


def test_addressed__by_its_receiver_or_by_itself__is_found() -> None:
    assert address_of("garbage", RUN, FIRST) == Address(RUN, FIRST)
    assert address_of('{"run_id":"a","chunk_key":"chunks/a/chunk-0000500.npz"}', None, None) == Address(
        "a", "chunk-0000500"
    )
    assert address_of('{"run_id":"a","chunk_id":"chunk-0000500"}', "b", None) == Address("b", "chunk-0000500")


# The list.


def test_letters__dead_chunks__are_those_with_a_message_in_pages(rig: Rig) -> None:
    rig.split(6, max_attempts=1)
    rig.kill("chunk-0000001")
    for number in (0, 2, 3, 5):
        rig.clock.advance(1)
        rig.record(f"chunk-{number:07d}", at=timestamp(rig.queries.now_ms()))

    first = rig.letters.letters(RUN, limit=3)
    second = rig.letters.letters(RUN, limit=3, cursor=first.cursor)

    assert [chunk.chunk_id for chunk in first.chunks] == [FIRST, "chunk-0000002"]
    assert [chunk.chunk_id for chunk in second.chunks] == ["chunk-0000003", "chunk-0000005"]
    assert second.cursor is None
    assert all(chunk.message for chunk in (*first.chunks, *second.chunks))


# Crashes.


@pytest.mark.parametrize("state", ["QUEUED", "RUNNING", "DEAD"])
def test_record__a_crash_at_any_write__reported_again_it_is_the_same(tmp_path: Path, state: str) -> None:
    def build(folder: Path) -> World:
        rig = Rig(folder)
        rig.split(2, max_attempts=1, timeout_seconds=60.0)
        if state == "DEAD":
            rig.kill(FIRST)
        elif state == "RUNNING":
            rig.claim(FIRST)
            rig.clock.advance(61)
        return rig

    def act(world: World) -> None:
        assert isinstance(world, Rig)
        assert world.record().ruling is Ruling.DEAD

    assert crash_everywhere(tmp_path, build, act) == 1
