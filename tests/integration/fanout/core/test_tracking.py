"""Tracking: what a worker says of a chunk, said once, twice, late, or by the wrong one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.errors import (
    InvalidIdError,
    InvalidPayloadError,
    NotFoundError,
    OutcomeUnknownError,
    StaleClaimError,
    StoreBusyError,
)
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.splitter import Splitter
from headgate.fanout.core.tracking import Claim, Tracker, admission_for, lease_of
from headgate.fanout.model.rows import Policy, timestamp_ms
from headgate.fanout.model.states import Admission, AttemptOutcome, Disposition, FanoutStatus
from headgate.store.catalogue.tables import FANOUT
from tests.fanout_books import RUN, Shop, places
from tests.simulation.durable_processes import Fault, ProcessStore
from tests.unit.fanout.made_rows import T0, made_chunk, made_fanout

FIRST = "chunk-0000000"
BOOM = AttemptFailure("ValueError", "boom")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop.open(tmp_path)
    shop.close_with_last_chunk()
    yield shop
    if shop.queries.find(RUN) is not None:
        shop.check()
    shop.store.close()


def admission(shop: Shop, chunk_id: str = FIRST, worker: str = "other") -> Admission:
    return shop.tracker.start(RUN, chunk_id, worker=worker).admission


# Once.


def test_start__the_same_message_five_times__runs_once_and_is_counted_once(shop: Shop) -> None:
    shop.split([1, 2])
    answers = [shop.tracker.start(RUN, FIRST, worker=f"w{number}") for number in range(5)]
    assert [answer.admission for answer in answers] == [Admission.RUN, *[Admission.BUSY] * 4]
    assert [answer.claim is None for answer in answers] == [False, *[True] * 4]

    assert answers[0].claim is not None
    shop.tracker.complete(answers[0].claim, AttemptResult())

    assert [admission(shop) for _ in range(5)] == [Admission.DUPLICATE] * 5
    counts = shop.counts()
    assert (counts.done, counts.attempts, counts.duplicates, counts.total) == (1, 1, 5, 2)


def test_fail_fail_succeed__three_attempts__completed_once_and_failed_never(shop: Shop) -> None:
    shop.split([1], max_attempts=3)
    for _ in range(2):
        assert shop.tracker.fail(shop.start(FIRST), BOOM).disposition is Disposition.RETRYING
        shop.clock.advance(60)
    shop.tracker.complete(shop.start(FIRST), AttemptResult())

    counts = shop.counts()
    assert (counts.completed, counts.failed, counts.attempts, counts.retries) == (1, 0, 3, 2)
    fanout = shop.fanout()
    assert (fanout.chunks_completed, fanout.chunks_failed, fanout.status) == (1, 0, FanoutStatus.SUCCEEDED)
    outcomes = [attempt.outcome for attempt in shop.queries.attempts(shop.chunk(FIRST))]
    assert outcomes == [AttemptOutcome.FAILED, AttemptOutcome.FAILED, AttemptOutcome.COMPLETED]


def test_fail__as_often_as_it_may__is_counted_failed_once(shop: Shop) -> None:
    shop.split([1, 2], max_attempts=3)
    for _ in range(3):
        chunk = shop.tracker.fail(shop.start(FIRST), BOOM)
        shop.clock.advance(60)

    assert chunk.disposition is Disposition.DEAD
    assert admission(shop) is Admission.DUPLICATE
    counts = shop.counts()
    assert (counts.dead, counts.failed, counts.queued, counts.total) == (1, 1, 1, 2)
    assert not shop.fanout().is_finished


def test_complete__said_twice__is_harmless(shop: Shop) -> None:
    shop.split([1, 2])
    claim = shop.start(FIRST)
    first = shop.tracker.complete(claim, AttemptResult(output="1"))
    shop.clock.advance(5)

    again = shop.tracker.complete(claim, AttemptResult(output="1"))

    assert (first.disposition, again.disposition) == (Disposition.DONE, Disposition.DONE)
    assert shop.chunk(FIRST).completed_at == first.completed_at
    assert shop.counts().done == 1


def test_complete__said_twice_with_deferred_items__is_harmless_also_after_the_slow_lane(shop: Shop) -> None:
    shop.split([1, 2, 3], size=3)
    claim = shop.start(FIRST)
    result = AttemptResult(deferred=[2])
    shop.tracker.complete(claim, result)
    shop.tracker.complete(claim, result)
    shop.tracker.complete(shop.start("slow-0000000"), AttemptResult())

    shop.tracker.complete(claim, result)

    assert shop.chunk(FIRST).disposition is Disposition.DONE
    counts = shop.counts()
    assert (counts.done, counts.deferred, counts.slow_done, counts.items_ok) == (1, 0, 1, 3)


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "unknown"])
@pytest.mark.parametrize("how", ["complete", "fail", "release", "heartbeat"])
def test_any_ending__the_answer_is_lost__saying_it_again_counts_once(shop: Shop, how: str, is_done: bool) -> None:
    shop.split([1])
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    tracker = Tracker(store, shop.clock, shop.ids, draw=lambda: 0.0)
    claim = tracker.start(RUN, FIRST, worker="w").claim
    assert claim is not None
    calls = store.calls + (2 if how == "heartbeat" else 1)
    store.fault = Fault(calls, crash=False, is_done=is_done)

    def say(claim: Claim) -> None:
        match how:
            case "complete":
                tracker.complete(claim, AttemptResult())
            case "fail":
                tracker.fail(claim, BOOM)
            case "release":
                tracker.release(claim)
            case _:
                tracker.heartbeat(claim)

    with pytest.raises((OutcomeUnknownError, StoreBusyError)):
        say(claim)
    shop.check()
    say(claim)
    expected = {
        "complete": Disposition.DONE,
        "fail": Disposition.RETRYING,
        "release": Disposition.QUEUED,
        "heartbeat": Disposition.RUNNING,
    }
    assert shop.chunk(FIRST).disposition is expected[how]
    assert shop.counts().attempts == (0 if how == "release" else 1)


# Leases and fences.


def test_zombie__finishes_after_someone_took_over__is_refused_and_changes_nothing(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    zombie = shop.start(FIRST, worker="zombie")
    shop.clock.advance(11)
    heir = shop.start(FIRST, worker="heir")
    before = shop.books()

    for late in (
        lambda: shop.tracker.complete(zombie, AttemptResult(output="0")),
        lambda: shop.tracker.fail(zombie, BOOM),
        lambda: shop.tracker.release(zombie),
        lambda: shop.tracker.heartbeat(zombie),
    ):
        with pytest.raises(StaleClaimError, match=FIRST):
            late()
    assert shop.books() == before

    shop.tracker.complete(heir, AttemptResult(output="1"))
    with pytest.raises(StaleClaimError):
        shop.tracker.complete(zombie, AttemptResult(output="0"))
    chunk = shop.chunk(FIRST)
    assert (chunk.output, chunk.attempt, chunk.worker) == ("1", 2, "heir")
    assert [a.outcome for a in shop.queries.attempts(chunk)] == [AttemptOutcome.LOST, AttemptOutcome.COMPLETED]


def test_zombie__finishes_after_its_lease_and_no_one_took_over__is_welcome(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    claim = shop.start(FIRST)
    shop.clock.advance(100)

    assert shop.tracker.complete(claim, AttemptResult()).disposition is Disposition.DONE


def test_start__while_another_is_at_it__busy_until_the_very_end_of_the_lease(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    shop.start(FIRST)

    shop.clock.advance(9.999)
    assert admission(shop) is Admission.BUSY
    shop.clock.advance(0.001)
    assert admission(shop) is Admission.RUN


def test_heartbeat__each__moves_the_end_of_the_lease_and_is_seen(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    claim = shop.start(FIRST)
    for done in range(1, 5):
        shop.clock.advance(9)
        claim = shop.tracker.heartbeat(claim, items_done=done)
        assert admission(shop) is Admission.BUSY

    chunk = shop.chunk(FIRST)
    assert (chunk.items_done, chunk.attempt) == (4, 1)
    assert timestamp_ms(chunk.lease_expires_at or "") == shop.now_ms() + 10_000
    assert timestamp_ms(chunk.heartbeat_at or "") == shop.now_ms()


def test_heartbeat__without_progress__keeps_what_was_said_before(shop: Shop) -> None:
    shop.split([1])
    claim = shop.tracker.heartbeat(shop.start(FIRST), items_done=7)

    assert shop.tracker.heartbeat(claim).chunk.items_done == 7


def test_heartbeat__an_older_claim_of_the_same_worker__is_good_as_well(shop: Shop) -> None:
    """Two threads of one worker hold the same claim: one shows signs of life, the other ends the chunk."""
    shop.split([1])
    claim = shop.start(FIRST)
    shop.tracker.heartbeat(claim, items_done=1)

    assert shop.tracker.complete(claim, AttemptResult()).disposition is Disposition.DONE


def test_start__a_clock_that_was_set_forward__takes_over_and_the_first_is_refused(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    claim = shop.start(FIRST)
    shop.clock.step(3600)
    heir = shop.start(FIRST, worker="heir")

    with pytest.raises(StaleClaimError):
        shop.tracker.complete(claim, AttemptResult())
    shop.clock.step(-3600)
    shop.tracker.complete(heir, AttemptResult())
    assert shop.chunk(FIRST).duration_ms == 0


def test_take_over__of_a_chunk_that_kills_its_workers__not_more_often_than_the_policy_says(shop: Shop) -> None:
    shop.split([1, 2], lost_attempts_max=2, timeout_seconds=10)
    answers = []
    for _ in range(5):
        answers.append(admission(shop))
        shop.clock.advance(11)

    assert answers == [Admission.RUN, Admission.RUN, *[Admission.DUPLICATE] * 3]
    chunk = shop.chunk(FIRST)
    assert (chunk.disposition, chunk.attempt, chunk.error_class) == (Disposition.DEAD, 2, "LOST")
    assert shop.counts().dead == 1


@pytest.mark.parametrize(
    ("heartbeat", "timeout", "lease"), [(None, 900.0, 900.0), (10.0, 900.0, 30.0), (10.0, 20.0, 20.0)]
)
def test_lease_of__a_policy__three_heartbeats_or_the_time_out(
    heartbeat: float | None, timeout: float, lease: float
) -> None:
    assert lease_of(made_fanout(Policy(heartbeat_seconds=heartbeat, timeout_seconds=timeout))) == lease


# Races.


def test_start__from_many_threads_at_once__one_runs(shop: Shop) -> None:
    shop.split(list(range(5)))
    answers: list[tuple[str, Admission]] = []
    ready = threading.Barrier(8)

    def deliver(number: int) -> None:
        ready.wait(10)
        answers.extend((chunk_id, admission(shop, chunk_id, f"w{number}")) for chunk_id in places(5))

    threads = [threading.Thread(target=deliver, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    runs = [chunk_id for chunk_id, found in answers if found is Admission.RUN]
    assert sorted(runs) == places(5)
    assert len(answers) == 40
    assert shop.counts().attempts == 5


def test_start__another_takes_it_between_look_and_claim__is_reported_busy(shop: Shop) -> None:
    shop.split([1])
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    tracker = Tracker(store, shop.clock, shop.ids)
    store.meanwhile = (3, lambda: assert_runs(shop))

    assert tracker.start(RUN, FIRST, worker="late").admission is Admission.BUSY
    assert shop.chunk(FIRST).worker == "other"


def assert_runs(shop: Shop) -> None:
    assert admission(shop) is Admission.RUN


def test_complete__a_worker_that_overtakes_the_splitter__is_counted(shop: Shop) -> None:
    """Rows come before messages, so that a quick worker finds what it needs, and nothing is reset later."""
    source = [1] * 200
    store = ProcessStore(shop.store)  # type: ignore[arg-type]

    def work() -> None:
        for chunk in list(shop.queries.every_chunk(RUN))[:50]:
            claim = shop.tracker.start(RUN, chunk.chunk_id, worker="quick").claim
            if claim is not None:
                shop.tracker.complete(claim, AttemptResult())

    splitter, shop.splitter = shop.splitter, Splitter(store, shop.clock, shop.ids)
    store.meanwhile = (5, work)
    fanout = shop.split(source)
    shop.splitter = splitter

    assert fanout.status is FanoutStatus.RUNNING
    counts = shop.counts()
    assert (counts.total, counts.done, counts.queued) == (200, 50, 150)


# Notifications.


def test_start__what_is_not_there__not_found(shop: Shop) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        shop.tracker.start("nowhere", FIRST, worker="w")
    shop.split([1])
    with pytest.raises(NotFoundError, match="chunk-0000007"):
        admission(shop, "chunk-0000007")
    with pytest.raises(InvalidIdError):
        admission(shop, "chunk-7")
    # No phantom row came of it.
    assert set(shop.books().chunks) == {FIRST}


def test_start__paused__is_reported_and_nothing_changes(shop: Shop) -> None:
    shop.split([1, 2])
    running = shop.start("chunk-0000001")
    shop.control.pause(RUN)

    assert admission(shop) is Admission.PAUSED
    assert admission(shop, "chunk-0000001") is Admission.BUSY
    assert shop.chunk(FIRST).attempt == 0
    shop.tracker.complete(running, AttemptResult())
    assert admission(shop, "chunk-0000001") is Admission.DUPLICATE


def test_start__cancelled__is_reported_and_the_chunk_comes_to_its_end(shop: Shop) -> None:
    shop.split([1, 2, 3])
    done = shop.tracker.complete(shop.start("chunk-0000001"), AttemptResult())
    shop.control.cancel(RUN)

    assert admission(shop) is Admission.CANCELLED
    assert admission(shop, done.chunk_id) is Admission.DUPLICATE
    assert shop.chunk(FIRST).disposition is Disposition.CANCELLED
    assert admission(shop) is Admission.CANCELLED
    assert shop.chunk("chunk-0000001").disposition is Disposition.DONE


def test_start__cancelled_while_the_worker_is_gone__the_redelivery_ends_it(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    shop.start(FIRST)
    shop.control.cancel(RUN)
    assert admission(shop) is Admission.CANCELLED
    assert shop.chunk(FIRST).disposition is Disposition.RUNNING
    shop.clock.advance(11)

    assert admission(shop) is Admission.CANCELLED
    assert shop.chunk(FIRST).disposition is Disposition.CANCELLED
    assert shop.fanout().status is FanoutStatus.CANCELLED


def test_complete__after_cancellation__what_is_done_is_done(shop: Shop) -> None:
    shop.split([1, 2])
    claim = shop.start(FIRST)
    shop.control.cancel(RUN)

    assert shop.tracker.heartbeat(claim).fanout.cancelled_at is not None
    assert shop.tracker.complete(claim, AttemptResult()).disposition is Disposition.DONE


def test_complete__of_the_last_chunk__closes_the_fan_out_at_once(shop: Shop) -> None:
    shop.split([1, 2])
    for chunk_id in places(2):
        shop.tracker.complete(shop.start(chunk_id), AttemptResult())

    assert shop.fanout().status is FanoutStatus.SUCCEEDED
    assert shop.fanout().finished_at is not None


def test_complete__about_items_of_another_chunk__is_refused_and_the_claim_is_still_good(shop: Shop) -> None:
    shop.split(list(range(20)), size=10)
    claim = shop.start("chunk-0000010")

    with pytest.raises(InvalidPayloadError):
        shop.tracker.complete(claim, AttemptResult(deferred=[3]))
    assert shop.tracker.complete(claim, AttemptResult(deferred=[13])).disposition is Disposition.DEFERRED


def test_complete__a_chunk_whose_fan_out_was_deleted__is_refused_as_stale(shop: Shop) -> None:
    shop.split([1])
    claim = shop.start(FIRST)
    for sk in ("RUN", "CTR#00", f"CHUNK#{FIRST}"):
        shop.store.delete(FANOUT, type(claim.chunk.key)(RUN, sk))

    with pytest.raises((StaleClaimError, NotFoundError)):
        shop.tracker.complete(claim, AttemptResult())
    # And no phantom row came of it.
    assert shop.queries.find(RUN) is None


# The slow lane.


def test_deferred_items__keep_the_fan_out_partial_until_the_slow_lane_has_ended(shop: Shop) -> None:
    shop.split(list(range(4)), size=2)
    shop.tracker.complete(shop.start(FIRST), AttemptResult(deferred=[1]))
    shop.tracker.complete(shop.start("chunk-0000002"), AttemptResult())
    fanout = shop.fanout()
    assert (fanout.status, fanout.is_finished) == (FanoutStatus.PARTIAL, False)

    slow = shop.start("slow-0000000")
    assert (slow.chunk.items, slow.chunk.deferred) == (1, "[1]")
    shop.tracker.complete(slow, AttemptResult())

    fanout = shop.fanout()
    assert (fanout.status, fanout.is_finished) == (FanoutStatus.SUCCEEDED, True)
    counts = shop.counts()
    assert (counts.items_ok, counts.items_deferred, counts.items_total) == (4, 0, 4)


def test_deferred_items__whose_piece_dies__leave_the_fan_out_partial_and_finished(shop: Shop) -> None:
    shop.split(list(range(2)), size=2, max_attempts=1)
    shop.tracker.complete(shop.start(FIRST), AttemptResult(deferred=[1]))
    shop.tracker.fail(shop.start("slow-0000000"), BOOM)

    fanout = shop.fanout()
    assert (fanout.status, fanout.is_finished) == (FanoutStatus.PARTIAL, True)
    counts = shop.counts()
    assert (counts.slow_dead, counts.deferred) == (1, 1)
    assert (counts.items_ok, counts.items_failed, counts.items_deferred, counts.items_open) == (1, 1, 0, 0)


# Admission, decided.


@pytest.mark.parametrize("disposition", Disposition)
@pytest.mark.parametrize("course", ["", "paused", "cancelled"])
def test_admitted__every_state__run_only_what_is_open_and_free(disposition: Disposition, course: str) -> None:
    fanout = made_fanout(None, **{f"{course}_at": "2026-01-01T00:00:00.000Z"}) if course else made_fanout()
    chunk = made_chunk(1, disposition)
    found = admission_for(fanout, chunk, T0)

    is_open = not disposition.status.is_terminal
    may_run = is_open and disposition is not Disposition.RUNNING and not course
    assert (found is Admission.RUN) is may_run
    if disposition in (Disposition.DONE, Disposition.DEFERRED, Disposition.DEAD, Disposition.SKIPPED):
        assert found is Admission.DUPLICATE
    if disposition is Disposition.RUNNING and course != "cancelled":
        assert found is Admission.BUSY
