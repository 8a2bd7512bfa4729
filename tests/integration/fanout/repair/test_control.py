"""Steering: people pause, resume, cancel, tune and skip, at any moment and more than once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConflictError, DefinitionError, InvalidIdError, NotFoundError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.tracking import Tracker
from headgate.fanout.model.rows import Fanout
from headgate.fanout.model.states import Admission, Disposition, FanoutStatus
from headgate.fanout.repair.control import FanoutControl
from tests.fanout_books import RUN, Shop, places
from tests.simulation.durable_processes import Crash, Fault, ProcessStore

FIRST, SECOND, THIRD = places(3)
BOOM = AttemptFailure("ValueError", "boom")


@pytest.fixture(params=[1, 4], ids=["one counter", "four counters"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop.open(tmp_path, shards=request.param)
    shop.close_with_last_chunk()
    yield shop
    if shop.queries.find(RUN) is not None:
        shop.check()
    shop.store.close()


def kinds(shop: Shop) -> list[str]:
    return [event["kind"] for event in shop.books().events]


def three_of(shop: Shop) -> None:
    """A fan-out of three chunks: one is done, one is dead, one waits."""
    shop.split([1, 2, 3], max_attempts=1)
    shop.tracker.complete(shop.start(FIRST), AttemptResult(output="1"))
    shop.tracker.fail(shop.start(SECOND), BOOM)


# Pausing.


def test_pause__what_runs_may_end_and_nothing_starts__until_it_is_resumed(shop: Shop) -> None:
    shop.split([1, 2])
    running = shop.start(FIRST)

    paused = shop.control.pause(RUN, by="ann", reason="to look")

    assert paused.paused_at is not None
    assert shop.tracker.start(RUN, SECOND, worker="w").admission is Admission.PAUSED
    assert shop.claims().take(5, {}) == []
    assert shop.tracker.heartbeat(running).fanout.paused_at is not None
    shop.tracker.complete(running, AttemptResult())
    resumed = shop.control.resume(RUN)
    assert resumed.paused_at is None
    assert len(shop.claims().take(5, {})) == 1
    assert kinds(shop) == ["paused", "resumed"]


def test_pause__what_was_done_by_whom__is_kept(shop: Shop) -> None:
    shop.split([1])
    shop.control.pause(RUN, by="ann", reason="to look")

    (event,) = shop.books().events
    assert (event["kind"], event["by"], event["reason"]) == ("paused", "ann", "to look")


def test_each__said_twice__changes_nothing_the_second_time(shop: Shop) -> None:
    shop.split([1, 2])
    acts: list[Callable[[], Fanout]] = [
        lambda: shop.control.pause(RUN, reason="r"),
        lambda: shop.control.resume(RUN),
        lambda: shop.control.tune(RUN, priority=9),
        lambda: shop.control.cancel(RUN, reason="r"),
    ]
    for act in acts:
        act()
        before = shop.books()
        shop.clock.advance(5)
        act()
        assert shop.books() == before


@pytest.mark.parametrize("name", ["pause", "resume", "cancel"])
def test_each__of_what_is_not_there__not_found(shop: Shop, name: str) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        getattr(shop.control, name)("nowhere")


@pytest.mark.parametrize("name", ["pause", "resume", "cancel"])
def test_each__of_what_has_ended__is_refused(shop: Shop, name: str) -> None:
    shop.split([1])
    shop.tracker.complete(shop.start(FIRST), AttemptResult())
    before = shop.books()

    with pytest.raises(ConflictError, match="SUCCEEDED"):
        getattr(shop.control, name)(RUN)
    assert shop.books() == before


@pytest.mark.parametrize("name", ["pause", "cancel"])
def test_each__while_others_change_the_row__is_not_lost(shop: Shop, name: str) -> None:
    shop.split([1, 2, 3])
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    control = FanoutControl(store, shop.clock, shop.ids)
    shop.start(FIRST)
    store.meanwhile = (2, lambda: shop.maintenance.maintain(RUN))

    getattr(control, name)(RUN)

    fanout = shop.fanout()
    assert (fanout.paused_at if name == "pause" else fanout.cancelled_at) is not None
    assert fanout.counts["running"] == 1


# Cancelling.


def test_cancel__returns_at_once__and_the_caller_that_tends_ends_it(shop: Shop) -> None:
    shop.split(list(range(50)))
    running = shop.start(FIRST)
    fanout = shop.control.cancel(RUN, by="ann", reason="no longer wanted")
    assert (fanout.reason, fanout.is_finished) == ("no longer wanted", False)

    shop.maintenance.run_once()
    shop.tracker.fail(running, BOOM)
    shop.maintenance.run_once()

    books = shop.check()
    assert books.fanout.status is FanoutStatus.CANCELLED
    assert {chunk.disposition for chunk in books.main} == {Disposition.CANCELLED}
    assert books.fanout.reason == "no longer wanted"


def test_cancel__when_all_has_just_ended__what_is_done_is_done(shop: Shop) -> None:
    shop.split([1])
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    control = FanoutControl(store, shop.clock, shop.ids)
    claim = shop.start(FIRST)
    store.meanwhile = (2, lambda: assert_done(shop, claim))

    with pytest.raises(ConflictError):
        control.cancel(RUN)
    assert shop.fanout().status is FanoutStatus.SUCCEEDED


def assert_done(shop: Shop, claim: object) -> None:
    shop.tracker.complete(claim, AttemptResult())  # type: ignore[arg-type]


def test_cancel__a_paused_one__ends_all_the_same(shop: Shop) -> None:
    shop.split([1, 2])
    shop.control.pause(RUN)
    shop.control.cancel(RUN)
    shop.maintenance.run_once()

    assert shop.fanout().status is FanoutStatus.CANCELLED


# Tuning.


def test_tune__numbers_of_the_policy__hold_from_now_on(shop: Shop) -> None:
    shop.split(list(range(10)), concurrency=1)
    assert len(shop.claims().take(5, {})) == 1

    shop.control.tune(RUN, concurrency=4)

    assert len(shop.claims().take(9, {})) == 3
    assert shop.fanout().rules().concurrency == 4


@pytest.mark.parametrize(
    "changes", [{"priority": 0}, {"max_attempts": 0}, {"timeout_seconds": float("inf")}, {"concurrency": -1}]
)
def test_tune__to_what_makes_no_sense__is_refused_and_nothing_changes(shop: Shop, changes: dict[str, Any]) -> None:
    shop.split([1])
    before = shop.books()

    with pytest.raises(DefinitionError):
        shop.control.tune(RUN, **changes)
    assert shop.books() == before


def test_tune__a_number_that_there_is_not__is_refused_as_what_it_is(shop: Shop) -> None:
    shop.split([1])

    with pytest.raises(DefinitionError, match="colour"):
        shop.control.tune(RUN, colour=5)


# Skipping.


def test_skip__what_waits_and_what_failed__and_the_fan_out_has_succeeded(shop: Shop) -> None:
    three_of(shop)

    assert shop.control.skip(RUN, [SECOND, THIRD], by="ann", reason="bad input") == [SECOND, THIRD]

    shop.maintenance.run_once()
    books = shop.check()
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert (books.fanout.chunks_completed, books.fanout.chunks_failed) == (1, 0)
    assert shop.counts().skipped == 2
    notes = [event for event in books.events if event["kind"] == "skipped"]
    assert {(note["by"], note["reason"]) for note in notes} == {("ann", "bad input")}
    assert sum(note["count"] for note in notes) == 2


def test_skip__what_runs_or_is_done__is_left_as_it_is(shop: Shop) -> None:
    shop.split([1, 2, 3])
    shop.tracker.complete(shop.start(FIRST), AttemptResult(output="1"))
    running = shop.start(SECOND)

    assert shop.control.skip(RUN, [FIRST, SECOND]) == []

    assert shop.chunk(FIRST).output == "1"
    assert shop.tracker.complete(running, AttemptResult()).disposition is Disposition.DONE


def test_skip__the_same_chunk_named_twice__once(shop: Shop) -> None:
    shop.split([1, 2])

    assert shop.control.skip(RUN, [FIRST, FIRST]) == [FIRST]
    assert shop.control.skip(RUN, [FIRST]) == []
    assert shop.counts().skipped == 1


def test_skip__one_of_them_is_not_there__skips_none(shop: Shop) -> None:
    shop.split([1, 2])

    with pytest.raises(NotFoundError):
        shop.control.skip(RUN, [FIRST, "chunk-0000009"])
    with pytest.raises(InvalidIdError):
        shop.control.skip(RUN, [FIRST, "nonsense"])
    assert shop.counts().queued == 2


def test_skip__nothing__does_nothing(shop: Shop) -> None:
    shop.split([1])

    assert shop.control.skip(RUN, []) == []
    assert shop.books().events == []


def test_skip__a_message_that_comes_later__is_informed_that_it_has_ended(shop: Shop) -> None:
    shop.split([1, 2])
    shop.control.skip(RUN, [FIRST])

    assert shop.tracker.start(RUN, FIRST, worker="w").admission is Admission.DUPLICATE
    assert shop.claims().take(5, {})[0].chunk.chunk_id == SECOND


def test_skip__more_than_a_transaction_holds__all(shop: Shop) -> None:
    shop.split(list(range(300)))

    assert sorted(shop.control.skip(RUN, places(300))) == places(300)
    shop.maintenance.run_once()
    assert shop.fanout().status is FanoutStatus.SUCCEEDED


def test_skip__someone_takes_it_at_that_moment__is_not_skipped(shop: Shop) -> None:
    shop.split([1, 2])
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    control = FanoutControl(store, shop.clock, shop.ids)
    store.meanwhile = (3, lambda: assert_starts(shop, FIRST))

    assert control.skip(RUN, [FIRST, SECOND]) == [SECOND]
    assert shop.chunk(FIRST).disposition is Disposition.RUNNING


def assert_starts(shop: Shop, chunk_id: str) -> None:
    assert shop.tracker.start(RUN, chunk_id, worker="w").claim is not None


def finished_with_a_dead_chunk(shop: Shop) -> None:
    three_of(shop)
    shop.tracker.complete(shop.start(THIRD), AttemptResult())
    fanout = shop.fanout()
    assert (fanout.status, fanout.is_finished, fanout.chunks_failed) == (FanoutStatus.PARTIAL, True, 1)


def test_skip__the_dead_of_a_fan_out_that_has_ended__makes_it_succeed(shop: Shop) -> None:
    finished_with_a_dead_chunk(shop)

    assert shop.control.skip(RUN, [SECOND]) == [SECOND]

    shop.maintenance.run_once()
    books = shop.check()
    assert (books.fanout.status, books.fanout.chunks_failed) == (FanoutStatus.SUCCEEDED, 0)
    assert books.fanout.is_finished


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 12))
def test_skip__dies_in_the_middle_of_that__the_books_are_right_in_the_end(shop: Shop, at: int, is_done: bool) -> None:
    finished_with_a_dead_chunk(shop)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    store.fault = Fault(at, is_done=is_done)
    try:
        FanoutControl(store, shop.clock, shop.ids).skip(RUN, [SECOND])
    except Crash:
        shop.maintenance.run_once()
    books = shop.check()
    assert books.fanout.is_finished


@pytest.mark.parametrize("at", range(1, 12))
def test_skip__someone_tends_in_the_middle_of_that__the_books_are_right_in_the_end(shop: Shop, at: int) -> None:
    finished_with_a_dead_chunk(shop)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    store.meanwhile = (at, lambda: assert_tends(shop))

    FanoutControl(store, shop.clock, shop.ids).skip(RUN, [SECOND])

    shop.maintenance.run_once()
    books = shop.check()
    assert books.fanout.status is FanoutStatus.SUCCEEDED


@pytest.mark.parametrize("dies_at", [None, 4, 5, 6])
@pytest.mark.parametrize("at", range(3, 8))
def test_skip__in_the_middle_of_closing__the_books_are_right_in_the_end(
    shop: Shop, at: int, dies_at: int | None
) -> None:
    """The tender has read the counts with a dead chunk; that is skipped, by one who may die; the tender closes."""
    shop.tracker = Tracker(shop.store, shop.clock, shop.ids)
    shop.split([1, 2], max_attempts=1)
    shop.tracker.complete(shop.start(FIRST), AttemptResult())
    shop.tracker.fail(shop.start(SECOND), BOOM)
    store, other = (ProcessStore(shop.store) for _ in range(2))  # type: ignore[arg-type]
    other.fault = None if dies_at is None else Fault(dies_at, is_done=True)

    def skip() -> None:
        try:
            FanoutControl(other, shop.clock, shop.ids).skip(RUN, [SECOND])
        except Crash:
            return

    store.meanwhile = (at, skip)
    FanoutMaintenance(store, shop.clock, shop.ids).run_once()
    shop.maintenance.run_once()

    assert shop.check().fanout.is_finished


def assert_tends(shop: Shop) -> None:
    shop.maintenance.run_once()
