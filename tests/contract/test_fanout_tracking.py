"""Chunks are counted once and none is lost, on every backend, with one counter and with many, and if indexes lag."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from headgate.clock import VirtualClock
from headgate.errors import AlreadyStartedError, StaleClaimError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.tracking import Claim, Tracker
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.rows import Fanout
from headgate.fanout.model.sources import RangeSource
from headgate.fanout.model.states import Admission, AttemptOutcome, Disposition, FanoutStatus
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT, IDEMPOTENCY, INBOXES
from tests.contract.conftest import DYNAMODB_BACKENDS, AnyStore, Eventually
from tests.fanout_books import RUN, Books, Shop, check_books, check_found, places, read_books

TABLES = (FANOUT, INBOXES, IDEMPOTENCY)
FIRST = "chunk-0000000"
BOOM = AttemptFailure("ValueError", "boom")


@pytest.fixture
def shards(backend: str) -> int:
    """As many counters as the backend has by default; a test may ask for others."""
    return 16 if backend in DYNAMODB_BACKENDS else 1


ANY_SHARDS = pytest.mark.parametrize("shards", [1, 16], ids=["one counter", "sixteen counters"])


@pytest.fixture
def shop(store: AnyStore, clock: VirtualClock, eventually: Eventually, shards: int) -> Iterator[Shop]:
    shop = Shop(store, clock, shards=shards)
    shop.close_with_last_chunk()
    yield shop
    check(shop, eventually)


def check(shop: Shop, eventually: Eventually) -> Books:
    """The rows agree with the counters at once, and the indexes with the rows as soon as they have caught up."""
    books = read_books(shop.store, RUN)
    check_books(books)

    def is_found() -> bool:
        try:
            check_found(shop.store, books)
        except AssertionError:
            return False
        return True

    eventually(is_found, bool)
    return books


def work_off(
    shop: Shop, eventually: Eventually, end: Callable[[Claim], object], *, lanes: tuple[str, ...] = ("main",)
) -> int:
    """Take chunks and end them until the fan-out is over or nothing is left, going by indexes that may lag."""
    workers = [shop.claims(f"w-{lane}", lane=lane) for lane in lanes]
    count = 0

    def turn() -> bool:
        nonlocal count
        for worker in workers:
            worker.refresh()
            for claim in worker.take(25, {}):
                end(claim)
                count += 1
        shop.maintenance.run_once()
        return shop.fanout().is_finished

    eventually(turn, bool)
    return count


def complete(shop: Shop) -> Callable[[Claim], object]:
    return lambda claim: shop.tracker.complete(claim, AttemptResult(output=f'"{claim.chunk.start}"'))


def tended(shop: Shop) -> Fanout:
    shop.maintenance.run_once()
    return shop.fanout()


# The story of every day.


@ANY_SHARDS
def test_life__split_worked_off_and_closed__every_chunk_once(shop: Shop, eventually: Eventually) -> None:
    fanout = shop.split(RangeSource(0, 105), size=5)
    assert fanout.status is FanoutStatus.RUNNING

    assert work_off(shop, eventually, complete(shop)) == 21

    books = check(shop, eventually)
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert [chunk.output for chunk in books.main] == [f'"{start}"' for start in range(0, 105, 5)]
    counts = shop.counts()
    assert (counts.items_ok, counts.attempts, counts.retries) == (105, 21, 0)
    active = eventually(lambda: FanoutQueries(shop.store, shop.clock).active().fanouts, lambda found: not found)
    assert active == []


@ANY_SHARDS
def test_life__some_fail_some_defer_some_die__the_books_say_so(shop: Shop, eventually: Eventually) -> None:
    shop.split(RangeSource(0, 20), size=2, max_attempts=2, backoff_seconds=0)

    def end(claim: Claim) -> None:
        chunk = claim.chunk
        if chunk.lane == "slow":
            shop.tracker.complete(claim, AttemptResult(item_errors={5: "bad"}))
        elif chunk.start == 2 or (chunk.start == 6 and chunk.attempt == 1):
            shop.tracker.fail(claim, BOOM)
        elif chunk.start == 4:
            shop.tracker.complete(claim, AttemptResult(deferred=[5]))
        elif chunk.start == 8:
            shop.tracker.fail(claim, AttemptFailure("Bad", "never", is_final=True))
        else:
            shop.tracker.complete(claim, AttemptResult())

    work_off(shop, eventually, end, lanes=("main", "slow"))

    books = check(shop, eventually)
    assert books.fanout.status is FanoutStatus.PARTIAL
    found = {chunk.start: chunk.disposition for chunk in books.main}
    assert (found[2], found[4], found[6], found[8]) == (
        Disposition.DEAD, Disposition.DONE, Disposition.DONE, Disposition.QUARANTINED,
    )  # fmt: skip
    counts = shop.counts()
    assert (counts.done, counts.dead, counts.quarantined, counts.slow_done) == (8, 1, 1, 1)
    assert (counts.items_ok, counts.items_failed, counts.items_deferred) == (15, 5, 0)
    failures = eventually(lambda: {c.chunk_id for c in shop.queries.failures(RUN)}, lambda names: len(names) == 2)
    assert failures == {"chunk-0000002", "chunk-0000008"}


# Messages, once and again.


@ANY_SHARDS
def test_start__the_same_message_five_times__counted_once(shop: Shop) -> None:
    shop.split([1, 2])
    answers = [shop.tracker.start(RUN, FIRST, worker=f"w{number}") for number in range(5)]
    assert [answer.admission for answer in answers] == [Admission.RUN, *[Admission.BUSY] * 4]
    assert answers[0].claim is not None
    shop.tracker.complete(answers[0].claim, AttemptResult())
    shop.tracker.complete(answers[0].claim, AttemptResult())

    again = [shop.tracker.start(RUN, FIRST, worker="w").admission for _ in range(5)]
    assert again == [Admission.DUPLICATE] * 5
    counts = shop.counts()
    assert (counts.done, counts.attempts, counts.duplicates) == (1, 1, 5)


def test_fail_fail_succeed__completed_once_and_failed_never(shop: Shop) -> None:
    shop.split([1], max_attempts=3, backoff_seconds=0)
    for _ in range(2):
        shop.tracker.fail(shop.start(FIRST), BOOM)
    shop.tracker.complete(shop.start(FIRST), AttemptResult())

    fanout = shop.fanout()
    assert (fanout.chunks_completed, fanout.chunks_failed, fanout.status) == (1, 0, FanoutStatus.SUCCEEDED)
    outcomes = [attempt.outcome for attempt in shop.queries.attempts(shop.chunk(FIRST))]
    assert outcomes == [AttemptOutcome.FAILED, AttemptOutcome.FAILED, AttemptOutcome.COMPLETED]


@ANY_SHARDS
def test_zombie__completes_after_a_newer_attempt__is_refused(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    zombie = shop.start(FIRST, worker="zombie")
    shop.clock.advance(11)
    heir = shop.start(FIRST, worker="heir")
    before = read_books(shop.store, RUN)

    with pytest.raises(StaleClaimError):
        shop.tracker.complete(zombie, AttemptResult(output="0"))
    with pytest.raises(StaleClaimError):
        shop.tracker.heartbeat(zombie)
    assert read_books(shop.store, RUN) == before
    shop.tracker.complete(heir, AttemptResult(output="1"))
    assert shop.chunk(FIRST).output == "1"


@ANY_SHARDS
def test_start__from_many_threads__each_chunk_runs_once(shop: Shop) -> None:
    shop.split([1, 2, 3])
    runs: list[str] = []
    ready = threading.Barrier(4)

    def deliver(number: int) -> None:
        tracker = Tracker(shop.store, shop.clock, IdMaker(shop.clock))
        ready.wait(10)
        for chunk_id in places(3):
            start = tracker.start(RUN, chunk_id, worker=f"w{number}")
            if start.claim is not None:
                tracker.complete(start.claim, AttemptResult())
                runs.append(chunk_id)

    threads = [threading.Thread(target=deliver, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert sorted(runs) == places(3)
    counts = shop.counts()
    assert (counts.done, counts.attempts) == (3, 3)
    shop.maintenance.maintain(RUN)


# Splitting.


@ANY_SHARDS
def test_split__asked_for_again_by_others_at_once__no_chunk_twice(shop: Shop) -> None:
    ready = threading.Barrier(3)
    found: list[FanoutStatus] = []

    def split() -> None:
        other = Shop(shop.store, shop.clock, shards=shop.splitter._shards)
        ready.wait(10)
        found.append(other.split(RangeSource(0, 200)).status)

    threads = [threading.Thread(target=split) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert found == [FanoutStatus.RUNNING] * 3
    assert [chunk.start for chunk in read_books(shop.store, RUN).main] == list(range(200))
    with pytest.raises(AlreadyStartedError):
        shop.split(RangeSource(0, 201))


def test_split__no_items__has_succeeded_at_once(shop: Shop) -> None:
    assert shop.split([]).status is FanoutStatus.SUCCEEDED
    assert shop.fanout().is_finished


def test_split__two_fan_outs_of_one_group__do_not_mix(shop: Shop, eventually: Eventually) -> None:
    shop.split([1, 2, 3], group="grs")
    shop.split([1, 2], group="grs", run_id="run-2")
    shop.tracker.complete(shop.start(FIRST, run_id="run-2"), AttemptResult(output="2"))

    assert (shop.counts().done, shop.counts("run-2").done) == (0, 1)
    assert shop.chunk(FIRST).output is None
    found = eventually(lambda: shop.queries.by_group("grs").fanouts, lambda fanouts: len(fanouts) == 2)
    assert {fanout.run_id for fanout in found} == {RUN, "run-2"}


# Workers that are gone, and people.


@ANY_SHARDS
def test_tend__a_worker_is_gone__its_chunk_is_tried_again_and_given_up_in_the_end(
    shop: Shop, eventually: Eventually
) -> None:
    shop.split([1, 2], timeout_seconds=10, lost_attempts_max=2, backoff_seconds=0)
    shop.tracker.complete(shop.start("chunk-0000001"), AttemptResult())
    for expected in (Disposition.RETRYING, Disposition.DEAD):
        shop.start(FIRST, worker="gone")
        shop.clock.advance(11)

        def now() -> Disposition:
            shop.maintenance.run_once()
            return shop.chunk(FIRST).disposition

        assert eventually(now, lambda found: found is not Disposition.RUNNING) is expected
    fanout = eventually(lambda: tended(shop), lambda found: found.is_finished)
    assert (fanout.status, fanout.counts["lost"]) == (FanoutStatus.PARTIAL, 2)


def test_tend__an_index_that_still_shows_the_old_lease__does_not_take_the_chunk_away(shop: Shop) -> None:
    """The worker has just shown a sign of life; only the index does not know it yet."""
    shop.split([1], timeout_seconds=10)
    claim = shop.start(FIRST)
    shop.clock.advance(9.99)
    shop.maintenance.run_once()
    claim = shop.tracker.heartbeat(claim)
    shop.clock.advance(0.02)

    shop.maintenance.run_once()

    assert shop.chunk(FIRST).disposition is Disposition.RUNNING
    assert shop.tracker.complete(claim, AttemptResult()).disposition is Disposition.DONE


def test_pause__whatever_the_index_says__nothing_starts(shop: Shop, eventually: Eventually) -> None:
    shop.split([1, 2, 3])
    claims = shop.claims()
    eventually(lambda: claims.take(1, {}), bool)
    shop.control.pause(RUN)

    assert claims.take(5, {}) == []
    claims.refresh()
    assert claims.take(5, {}) == []
    assert shop.tracker.start(RUN, "chunk-0000002", worker="w").admission is Admission.PAUSED
    shop.control.resume(RUN)


@ANY_SHARDS
def test_cancel__some_run_and_some_wait__all_come_to_their_end(shop: Shop, eventually: Eventually) -> None:
    shop.split(RangeSource(0, 30))
    running, done = (shop.start(chunk_id) for chunk_id in places(2))
    shop.tracker.complete(done, AttemptResult())
    shop.control.cancel(RUN, reason="no longer wanted")
    shop.tracker.fail(running, BOOM)

    fanout = eventually(lambda: tended(shop), lambda found: found.is_finished)

    assert fanout.status is FanoutStatus.CANCELLED
    counts = shop.counts()
    assert (counts.cancelled, counts.done, counts.open) == (29, 1, 0)


def test_skip__what_waits_and_what_failed__the_rest_succeeds(shop: Shop, eventually: Eventually) -> None:
    shop.split([1, 2, 3], max_attempts=1)
    shop.tracker.fail(shop.start(FIRST), BOOM)
    shop.tracker.complete(shop.start("chunk-0000001"), AttemptResult())

    assert shop.control.skip(RUN, [FIRST, "chunk-0000001", "chunk-0000002"]) == [FIRST, "chunk-0000002"]

    fanout = eventually(lambda: tended(shop), lambda found: found.is_finished)
    assert fanout.status is FanoutStatus.SUCCEEDED


# Sizes.


def test_sizes__large_inputs_and_outputs__are_taken_and_completed_many_at_once(
    shop: Shop, eventually: Eventually
) -> None:
    text = 30_000 * "\u6f22"
    shop.split([text] * 16)

    def end(claim: Claim) -> None:
        assert claim.chunk.input == f'["{text}"]'
        shop.tracker.complete(claim, AttemptResult(output=f'"{text}{text}"'))

    work_off(shop, eventually, end)

    books = read_books(shop.store, RUN)
    assert all(chunk.output == f'"{text}{text}"' and chunk.input == f'["{text}"]' for chunk in books.main)


def test_sizes__a_row_filled_to_the_brim__still_takes_what_its_worker_has_to_say(shop: Shop) -> None:
    shop.split(["x" * 204_000] * 2, size=2, max_attempts=3, backoff_seconds=0)
    claim = shop.tracker.heartbeat(shop.start(FIRST, worker="w" * 200), items_done=1)
    shop.tracker.fail(claim, AttemptFailure("E", "e" * 5_000))

    shop.tracker.complete(shop.start(FIRST), AttemptResult(output=f'"{"y" * 50_000}"'))

    chunk = shop.chunk(FIRST)
    assert (chunk.disposition, len(chunk.output or ""), len(chunk.input or "")) == (Disposition.DONE, 50_002, 408_007)


@ANY_SHARDS
def test_limit__never_more_at_once_than_it_allows__whatever_lags(shop: Shop, eventually: Eventually) -> None:
    shop.split(RangeSource(0, 8), concurrency=3)
    workers = [Claims(shop.store, shop.clock, shop.ids, worker=f"w{number}") for number in range(3)]
    held: list[Claim] = []

    def turn() -> bool:
        for worker in workers:
            worker.refresh()
            held.extend(worker.take(5, {}))
            assert shop.counts().running <= 3
        if held:
            shop.tracker.complete(held.pop(), AttemptResult())
        shop.maintenance.run_once()
        return shop.fanout().is_finished

    eventually(turn, bool)
    assert shop.counts().done == 8
