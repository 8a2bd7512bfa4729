"""Maintenance: any process brings fan-outs to their end, once, whichever others are gone or at it as well."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.durable.engine.membership import this_host
from headgate.errors import OutcomeUnknownError, StoreBusyError
from headgate.fanout.core import maintenance as tending
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.maintenance import FanoutMaintenance, is_worker_process_gone, with_counts, worker_name
from headgate.fanout.core.splitter import Order
from headgate.fanout.model.counts import Counts, counter_add
from headgate.fanout.model.rows import counter_key, run_key
from headgate.fanout.model.sources import ListSource
from headgate.fanout.model.states import AttemptOutcome, Disposition, FanoutStatus
from headgate.store.catalogue.tables import FANOUT, INBOXES
from headgate.store.model.requests import Query
from tests.fanout_books import RUN, Shop, places
from tests.integration.fanout import worlds
from tests.iterable_source import IterableSource
from tests.simulation.durable_processes import Crash, Fault, ProcessStore
from tests.unit.fanout.made_rows import made_chunk, made_fanout

BOOM = AttemptFailure("ValueError", "boom")
FIRST = "chunk-0000000"


@pytest.fixture(params=[1, 4], ids=["one counter", "four counters"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop.open(tmp_path, shards=request.param)
    yield shop
    shop.store.close()


def complete_all(shop: Shop) -> None:
    for claim in shop.claims().take(1_000, {}):
        shop.tracker.complete(claim, AttemptResult())


def ends(shop: Shop) -> list[str]:
    return [event["kind"] for event in shop.books().events if event["kind"].startswith("ended")]


# Closing.


def test_tend__all_chunks_have_ended__closes_it_once(shop: Shop) -> None:
    shop.split(list(range(10)))
    complete_all(shop)

    assert shop.maintenance.run_once() == 1
    assert shop.maintenance.run_once() == 0

    books = shop.check()
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert shop.observer.closed == [(RUN, FanoutStatus.SUCCEEDED)]
    assert ends(shop) == ["ended as SUCCEEDED"]


def test_tend__several_tenders_in_each_others_way__it_is_closed_once(shop: Shop) -> None:
    shop.split([1, 2])
    complete_all(shop)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    first = FanoutMaintenance(store, shop.clock, shop.ids, observer=shop.observer)
    second = FanoutMaintenance(shop.store, shop.clock, shop.ids, observer=shop.observer)
    # Just before the first one writes.
    store.meanwhile = (store.calls + 5, lambda: assert_tends(second))

    first.run_once()

    assert shop.observer.closed == [(RUN, FanoutStatus.SUCCEEDED)]
    assert ends(shop) == ["ended as SUCCEEDED"]
    shop.check()


def assert_tends(maintenance: FanoutMaintenance) -> None:
    assert maintenance.run_once() >= 0


def test_tend__someone_waits_for_the_end__is_reported_once_with_the_numbers(shop: Shop) -> None:
    order = Order("g", 1, waiter="exec-1", waiter_signal="ended")
    shop.splitter.split(order, ListSource([1, 2]), run_id=RUN)
    complete_all(shop)
    for _ in range(3):
        shop.maintenance.run_once()

    (mail,) = shop.store.query(Query(table=INBOXES, partition="exec-1", consistent=True)).items
    assert "SUCCEEDED" in str(mail)
    assert "ended" in str(mail)


def test_tend__what_is_announced__is_in_the_transaction_that_closes(shop: Shop) -> None:
    shop.split([1, 2, 3])
    complete_all(shop)
    shop.maintenance.run_once()

    assert [counts.done for counts in shop.observer.counts] == [3]


def test_ended__a_chunk_that_is_not_the_last__folds_at_most_once_a_second(shop: Shop) -> None:
    shop.close_with_last_chunk()
    shop.split(list(range(20)))
    versions = set()
    for claim in shop.claims().take(10, {}):
        shop.tracker.complete(claim, AttemptResult())
        versions.add(shop.fanout().version)
    assert len(versions) <= 2

    shop.clock.advance(1.0)
    shop.tracker.complete(shop.claims().take(1, {})[0], AttemptResult())
    assert shop.fanout().chunks_completed == 11
    for claim in shop.claims().take(10, {}):
        shop.tracker.complete(claim, AttemptResult())
    # And exactly at the end, however short the time.
    fanout = shop.fanout()
    assert (fanout.chunks_completed, fanout.status) == (20, FanoutStatus.SUCCEEDED)
    shop.check()


def test_tend__nothing_has_changed__writes_nothing(shop: Shop) -> None:
    shop.split([1, 2])
    shop.maintenance.run_once()
    version = shop.fanout().version
    for _ in range(5):
        shop.clock.advance(2)
        shop.maintenance.run_once()

    assert shop.fanout().version == version


def test_tend__many_fan_outs_that_come_and_go__nothing_is_kept_of_them(shop: Shop) -> None:
    shop.close_with_last_chunk()
    for number in range(20):
        shop.split([1], run_id=f"run-{number}")
        shop.tracker.complete(shop.start(FIRST, run_id=f"run-{number}"), AttemptResult())
        shop.maintenance.run_once()

    assert shop.maintenance._folded_at == {}


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
def test_tend__dies_in_the_middle__the_next_one_closes_it_once(shop: Shop, at: int, is_done: bool) -> None:
    order = Order("g", 1, waiter="exec-1", waiter_signal="ended")
    shop.splitter.split(order, ListSource([1, 2]), run_id=RUN)
    complete_all(shop)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    store.fault = Fault(at, is_done=is_done)
    try:
        FanoutMaintenance(store, shop.clock, shop.ids).run_once()
    except Crash:
        shop.check()
    shop.maintenance.run_once()

    assert shop.check().fanout.is_finished
    assert ends(shop) == ["ended as SUCCEEDED"]
    assert len(shop.store.query(Query(table=INBOXES, partition="exec-1", consistent=True)).items) == 1


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "unknown"])
@pytest.mark.parametrize("at", range(1, 9))
def test_tend__the_store_is_busy__says_so_or_goes_on_and_nothing_happens_twice(
    shop: Shop, at: int, is_done: bool
) -> None:
    shop.split([1, 2])
    complete_all(shop)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    store.fault = Fault(at, crash=False, is_done=is_done)
    maintenance = FanoutMaintenance(store, shop.clock, shop.ids)
    for _ in range(3):
        try:
            maintenance.run_once()
        except (StoreBusyError, OutcomeUnknownError):
            continue
    assert shop.check().fanout.is_finished
    assert ends(shop) == ["ended as SUCCEEDED"]


def test_tend__one_that_cannot_be_read__does_not_keep_the_others_waiting(shop: Shop) -> None:
    shop.split([1], run_id="broken")
    shop.clock.advance(1)
    shop.split([1], run_id=RUN)
    complete_all(shop)
    shop.store.update(FANOUT, run_key("broken"), set={"policy": '{"max_attempts": null}'})

    shop.maintenance.run_once()

    assert shop.fanout(RUN).status is FanoutStatus.SUCCEEDED


# Workers that are gone.


def test_tend__a_worker_that_is_not_known__its_chunk_is_tried_again_and_then_given_up(shop: Shop) -> None:
    shop.split([1, 2], lost_attempts_max=2, timeout_seconds=10, backoff_seconds=1)
    shop.tracker.heartbeat(shop.start("chunk-0000001", worker="alive"), lease_seconds=1_000)
    shop.start(FIRST, worker="gone")
    shop.clock.advance(9.999)
    shop.maintenance.run_once()
    assert shop.chunk(FIRST).disposition is Disposition.RUNNING
    shop.clock.advance(0.002)
    shop.maintenance.run_once()
    chunk = shop.chunk(FIRST)
    assert (chunk.disposition, chunk.error_class) == (Disposition.RETRYING, "LOST")
    assert "gone" in (chunk.error or "")
    shop.check()

    shop.clock.advance(5)
    shop.start(FIRST, worker="gone too")
    shop.clock.advance(11)
    shop.maintenance.run_once()

    assert shop.chunk(FIRST).disposition is Disposition.DEAD
    assert shop.chunk("chunk-0000001").worker == "alive"
    assert [attempt.outcome for attempt in shop.queries.attempts(shop.chunk(FIRST))] == [AttemptOutcome.LOST] * 2
    counts = shop.check().fanout.counts
    assert (counts["lost"], counts["dead"], counts["running"]) == (2, 1, 1)


def test_tend__three_time_outs__the_run_is_partial_and_says_why(shop: Shop) -> None:
    shop.split([1, 2], lost_attempts_max=3, timeout_seconds=10, backoff_seconds=0)
    shop.tracker.complete(shop.start("chunk-0000001"), AttemptResult())
    for _ in range(3):
        shop.start(FIRST)
        shop.clock.advance(11)
        shop.maintenance.run_once()

    books = shop.check()
    assert (books.fanout.status, books.fanout.chunks_failed) == (FanoutStatus.PARTIAL, 1)
    assert books.chunks[FIRST].error_class == "LOST"


def test_tend__a_heartbeat_after_the_tender_looked__keeps_the_chunk(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    claim = shop.start(FIRST)
    shop.clock.advance(11)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    beaten: list[object] = []
    # Between what the tender reads and what it writes.
    for at in range(2, 7):
        store.meanwhile = (store.calls + at, lambda: beaten.append(shop.tracker.heartbeat(claim)))
        FanoutMaintenance(store, shop.clock, shop.ids).run_once()
        if beaten:
            break
    assert beaten
    assert shop.chunk(FIRST).disposition is Disposition.RUNNING
    assert shop.tracker.complete(claim, AttemptResult()).disposition is Disposition.DONE


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def test_tend__a_process_of_this_machine_that_is_gone__its_chunks_need_not_wait_for_their_lease(shop: Shop) -> None:
    shop.split(list(range(3)), timeout_seconds=3_600)
    shop.start(places(3)[0], worker=worker_name(dead_process(), "a"))
    shop.start(places(3)[1], worker=worker_name(os.getpid(), "b"))
    shop.start(places(3)[2], worker=f"elsewhere|{dead_process()}|c")

    shop.maintenance.run_once()

    found = [shop.chunk(name).disposition for name in places(3)]
    assert found == [Disposition.RETRYING, Disposition.RUNNING, Disposition.RUNNING]
    shop.check()


@pytest.mark.parametrize("worker", [None, "", "w1", "|", "a|b|c", "lambda|$LATEST", f"{this_host()}", "x|12 3|"])
def test_is_gone__names_of_any_form__are_not_taken_for_a_dead_process(worker: str | None) -> None:
    assert not is_worker_process_gone(made_chunk(1, Disposition.RUNNING, worker=worker))


def test_tend__more_lost_chunks_than_a_batch__all_in_the_end(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tending, "BATCH", 7)
    shop.split(list(range(30)), timeout_seconds=10, lost_attempts_max=1)
    assert len(shop.claims("gone").take(30, {})) == 30
    shop.clock.advance(11)
    for _ in range(5):
        shop.maintenance.run_once()

    assert shop.check().fanout.status is FanoutStatus.FAILED


# Cancelling.


def test_tend__cancelled__what_waits_is_cancelled_and_what_runs_may_end(shop: Shop) -> None:
    shop.split(list(range(2_000)))
    running, done = shop.claims().take(2, {})
    shop.tracker.complete(done, AttemptResult())
    shop.control.cancel(RUN)
    for _ in range(3):
        shop.maintenance.run_once()
    counts = shop.counts()
    assert (counts.cancelled, counts.running, counts.done, counts.queued) == (1_998, 1, 1, 0)
    assert not shop.fanout().is_finished
    shop.check()

    shop.tracker.complete(running, AttemptResult())
    shop.maintenance.run_once()
    assert shop.check().fanout.status is FanoutStatus.CANCELLED


def test_tend__cancelled_and_the_worker_is_gone__comes_to_its_end(shop: Shop) -> None:
    shop.split([1, 2, 3], timeout_seconds=10, max_attempts=5)
    shop.claims("gone").take(1, {})
    shop.control.cancel(RUN)
    shop.clock.advance(11)
    for _ in range(2):
        shop.maintenance.run_once()

    books = shop.check()
    assert books.fanout.status is FanoutStatus.CANCELLED
    assert {chunk.disposition for chunk in books.main} == {Disposition.CANCELLED}


def test_tend__cancelled_with_pieces_in_the_slow_lane__those_too(shop: Shop) -> None:
    shop.split(list(range(4)), size=2)
    for claim in shop.claims().take(2, {}):
        shop.tracker.complete(claim, AttemptResult(deferred=[claim.chunk.start]))
    shop.control.cancel(RUN)
    for _ in range(2):
        shop.maintenance.run_once()

    books = shop.check()
    assert books.fanout.status is FanoutStatus.CANCELLED
    assert {piece.disposition for piece in books.slow} == {Disposition.CANCELLED}


def test_tend__cancelled_with_unsent_pieces_in_the_slow_lane__those_too(tmp_path: Path) -> None:
    with closing(worlds.World(tmp_path)) as world:
        world.split(2, size=2, queue_url="https://sqs/q")
        world.complete(FIRST, deferred=[1])
        assert world.row("slow-0000000").disposition is Disposition.WAITING
        world.control.cancel(worlds.RUN)
        for _ in range(2):
            world.maintenance.maintain(worlds.RUN)

        assert world.row("slow-0000000").disposition is Disposition.CANCELLED
        assert world.fanout().is_finished
        world.check()


def test_tend__paused__lost_chunks_are_seen_to_and_nothing_starts(shop: Shop) -> None:
    shop.split([1], timeout_seconds=10)
    shop.start(FIRST)
    shop.control.pause(RUN)
    shop.clock.advance(11)
    shop.maintenance.run_once()

    assert shop.chunk(FIRST).disposition is Disposition.RETRYING
    shop.clock.advance(1_000)
    assert shop.claims().take(1, {}) == []
    assert not shop.fanout().is_finished


def test_tend__still_being_split__is_never_closed(shop: Shop) -> None:
    def make() -> Iterator[int]:
        yield from range(100)
        raise OSError("gone")

    with pytest.raises(Exception, match="gone"):
        shop.split(IterableSource(make, name="torn"), size=100)
    complete_all(shop)
    for _ in range(3):
        shop.maintenance.run_once()
    fanout = shop.fanout()
    assert (fanout.status, fanout.is_finished) == (FanoutStatus.SPLITTING, False)


# Someone was at the counters.


def test_tend__counters_that_contradict_each_other__are_not_fought_over_for_ever(tmp_path: Path) -> None:
    shop = Shop.open(tmp_path, shards=2)
    shop.split(list(range(10)))
    complete_all(shop)
    for shard, amount in ((0, 1), (1, -1)):
        shop.store.transact([counter_add(RUN, shard, {"queued": amount})], token=f"t{shard}")

    shop.maintenance.run_once()

    assert not shop.fanout().is_finished
    shop.store.close()


def test_tend__a_counter_row_is_missing__nothing_is_closed_by_mistake(shop: Shop) -> None:
    shop.split(list(range(10)))
    shop.store.delete(FANOUT, counter_key(RUN, 0))

    shop.maintenance.run_once()

    assert not shop.fanout().is_finished


# Folding, decided.

NOW = 1_750_000_100_000


def test_folded_onto__the_same_counts_again__none() -> None:
    counts = Counts(total=3, queued=2, done=1, attempts=1)
    first = with_counts(made_fanout(), counts, NOW)
    assert first is not None

    assert with_counts(first, counts, NOW + 60_000) is None


def test_folded_onto__progress__is_reported_with_its_moment() -> None:
    fanout = made_fanout(version=4)
    begun = with_counts(fanout, Counts(total=3, queued=2, running=1, attempts=1), NOW)
    assert begun is not None
    assert (begun.started_at is not None, begun.progressed_at, begun.version) == (True, None, 5)

    ended = with_counts(begun, Counts(total=3, queued=2, done=1, attempts=1), NOW + 5_000)
    assert ended is not None
    assert ended.progressed_at is not None
    assert ended.started_at == begun.started_at
    assert (ended.chunks_completed, ended.chunks_total, ended.finished_at) == (1, 3, None)


def test_folded_onto__the_slow_lane_goes_on__partial_and_not_finished() -> None:
    counts = Counts(total=2, done=1, deferred=1, slow_total=1, slow_running=1)
    after = with_counts(made_fanout(), counts, NOW)

    assert after is not None
    assert (after.status, after.finished_at) == (FanoutStatus.PARTIAL, None)
    closed = with_counts(after, Counts(total=2, done=2, slow_total=1, slow_done=1), NOW)
    assert closed is not None
    assert (closed.status, closed.is_finished) == (FanoutStatus.SUCCEEDED, True)
    assert closed.attention_pk == "EXPIRING"
    assert replace(closed, version=0).attention_sk is not None
