"""Changes: many moves in few transactions, each alone in whether it is still right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from headgate.errors import CorruptionError, OutcomeUnknownError, StoreBusyError
from headgate.fanout.core import transitions as module
from headgate.fanout.core.attempts import (
    AttemptFailure,
    AttemptResult,
    completion_change,
    failure_change,
    lease_expiry_change,
    move_change,
    release_change,
    start_change,
)
from headgate.fanout.core.transitions import ChunkChange, TransitionGuard, apply
from headgate.fanout.model.rows import Chunk, Policy, run_key
from headgate.fanout.model.sources import ListSource
from headgate.fanout.model.states import Disposition
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import lacks
from headgate.store.model.requests import Check
from tests.fanout_books import RUN, Shop, places
from tests.simulation.durable_processes import Fault, ProcessStore


@pytest.fixture(params=[1, 4], ids=["one counter", "four counters"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop.open(tmp_path, shards=request.param)
    yield shop
    shop.check()
    shop.store.close()


def all_chunks(shop: Shop) -> list[Chunk]:
    return list(shop.queries.every_chunk(RUN))


def takes(shop: Shop, chunks: Sequence[Chunk], worker: str = "w") -> list[ChunkChange]:
    now_ms = shop.now_ms()
    return [
        start_change(chunk, worker=worker, token=shop.ids.ulid(), now_ms=now_ms, lease_seconds=30.0) for chunk in chunks
    ]


def held(shop: Shop, count: int) -> list[Chunk]:
    """Chunks of a new fan-out that are all running."""
    shop.split(list(range(count)))
    taken = takes(shop, all_chunks(shop))
    assert apply(shop.store, taken) == []
    return [change.after for change in taken]


def test_apply__more_than_a_transaction_holds__all_are_made(shop: Shop) -> None:
    chunks = held(shop, 250)

    done = [completion_change(chunk, AttemptResult(), now_ms=shop.now_ms(), width=7) for chunk in chunks]
    assert apply(shop.store, done) == []
    assert shop.counts().done == 250


def test_apply__nothing__does_nothing(shop: Shop) -> None:
    shop.split([1])

    assert apply(shop.store, []) == []


def test_apply__some_are_too_late__the_others_of_their_transaction_are_made(shop: Shop) -> None:
    shop.split(list(range(60)))
    mine, theirs = takes(shop, all_chunks(shop), "mine"), takes(shop, all_chunks(shop)[::3], "theirs")
    assert apply(shop.store, theirs) == []

    refused = apply(shop.store, mine)

    assert {one.change.after.chunk_id for one in refused} == {change.after.chunk_id for change in theirs}
    assert all(one.current is not None and one.current["worker"] == "theirs" for one in refused)
    assert {chunk.worker for chunk in all_chunks(shop)} == {"mine", "theirs"}
    assert shop.counts().running == 60


def test_apply__all_are_too_late__nothing_is_counted(shop: Shop) -> None:
    chunks = held(shop, 30)
    done = [completion_change(chunk, AttemptResult(output="1"), now_ms=shop.now_ms(), width=7) for chunk in chunks]
    assert apply(shop.store, done) == []
    before = shop.books()

    late = [
        failure_change(chunk, AttemptFailure("E", "x"), Policy(), now_ms=shop.now_ms(), draw=0.0) for chunk in chunks
    ]
    assert len(apply(shop.store, late)) == 30
    assert shop.books() == before


def test_apply__the_same_changes_again__count_as_made_and_change_nothing(shop: Shop) -> None:
    chunks = held(shop, 30)
    done = [completion_change(chunk, AttemptResult(output="1"), now_ms=shop.now_ms(), width=7) for chunk in chunks]
    assert apply(shop.store, done) == []
    before = shop.books()

    assert apply(shop.store, done) == []
    assert shop.books() == before


def test_apply__a_change_to_where_a_chunk_cannot_go__is_refused_aloud(shop: Shop) -> None:
    (chunk,) = held(shop, 1)
    done = completion_change(chunk, AttemptResult(), now_ms=shop.now_ms(), width=7)
    apply(shop.store, [done])

    with pytest.raises(CorruptionError, match=r"DONE cannot become SKIPPED"):
        apply(shop.store, [move_change(done.after, Disposition.SKIPPED, now_ms=shop.now_ms())])


@pytest.mark.parametrize("count", [1, 5, 150])
def test_apply__the_store_is_busy__says_so_and_can_be_asked_again(shop: Shop, count: int) -> None:
    chunks = held(shop, count)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    store.fault = Fault(1, crash=False)
    done = [completion_change(chunk, AttemptResult(), now_ms=shop.now_ms(), width=7) for chunk in chunks]

    with pytest.raises(StoreBusyError):
        apply(store, done)
    assert shop.counts().done == 0
    assert apply(store, done) == []
    assert shop.counts().done == count


@pytest.mark.parametrize("count", [1, 5])
def test_apply__the_answer_is_lost__says_so_and_saying_it_again_counts_once(shop: Shop, count: int) -> None:
    chunks = held(shop, count)
    store = ProcessStore(shop.store)  # type: ignore[arg-type]
    store.fault = Fault(1, crash=False, is_done=True)
    done = [completion_change(chunk, AttemptResult(), now_ms=shop.now_ms(), width=7) for chunk in chunks]

    with pytest.raises((OutcomeUnknownError, StoreBusyError)):
        apply(store, done)
    assert apply(store, done) == []
    assert shop.counts().done == count


def test_apply__a_heartbeat_since_the_lease_was_found_over__wins(shop: Shop) -> None:
    shop.split([1])
    claim = shop.start("chunk-0000000", lease_seconds=10.0)
    shop.clock.advance(11)
    found = claim.chunk
    beaten = shop.tracker.heartbeat(claim, lease_seconds=60.0)

    over = lease_expiry_change(found, Policy(), now_ms=shop.now_ms(), draw=0.0)
    taken = start_change(found, worker="thief", token="t", now_ms=shop.now_ms(), lease_seconds=1.0)
    assert [len(apply(shop.store, [change])) for change in (over, taken)] == [1, 1]
    assert shop.chunk("chunk-0000000").lease_expires_at == beaten.chunk.lease_expires_at
    assert shop.tracker.complete(beaten, AttemptResult()).disposition is Disposition.DONE


def test_apply__a_guard_that_does_not_hold__refuses_all_and_forgets_none(shop: Shop) -> None:
    fanout = shop.split(list(range(200)))
    shop.control.pause(RUN)
    guard = TransitionGuard((Check(FANOUT, run_key(fanout.run_id), lacks("paused_at")),))

    refused = apply(shop.store, takes(shop, all_chunks(shop)), guard=guard)

    assert len(refused) == 200
    assert shop.counts().queued == 200


def test_apply__a_bucket_that_is_full__what_was_not_made_is_reported(tmp_path: Path) -> None:
    """Of several transactions some pass and some do not: the caller must learn which chunks are its own."""
    shop = Shop.open(tmp_path)
    shop.split(list(range(300)))
    changes = takes(shop, all_chunks(shop))

    refused = apply(shop.store, changes, guard=TransitionGuard(bucket="running", count_max=100))

    made = {change.after.chunk_id for change in changes} - {one.change.after.chunk_id for one in refused}
    running = {chunk.chunk_id for chunk in all_chunks(shop) if chunk.disposition is Disposition.RUNNING}
    assert made == running
    assert 0 < len(running) <= 100
    shop.check()
    shop.store.close()


# How much a transaction holds.


@pytest.mark.parametrize("letter", ["x", "\u6f22", "\U0001f600"], ids=["1", "3", "4"])
def test_apply__large_outputs_of_any_script__fit_into_their_transactions(shop: Shop, letter: str) -> None:
    size = len(letter.encode())
    chunks = held(shop, 40)
    outputs = [AttemptResult(output=f'"{letter * (250_000 // size)}"') for _ in chunks]

    done = [
        completion_change(chunk, result, now_ms=shop.now_ms(), width=7)
        for chunk, result in zip(chunks, outputs, strict=True)
    ]
    assert apply(shop.store, done) == []
    assert shop.counts().done == 40


def test_apply__large_inputs__are_taken_given_back_and_failed(shop: Shop) -> None:
    letter, size = "\u6f22", 3
    shop.split(ListSource([letter * (100_000 // size)] * 60))
    taken = takes(shop, all_chunks(shop))
    assert apply(shop.store, taken) == []

    half = [release_change(change.after, now_ms=shop.now_ms()) for change in taken[:30]]
    rest = [
        failure_change(change.after, AttemptFailure("E", letter * 5_000), Policy(), now_ms=shop.now_ms(), draw=0.0)
        for change in taken[30:]
    ]
    assert apply(shop.store, [*half, *rest]) == []
    counts = shop.counts()
    assert (counts.queued, counts.retrying) == (30, 30)
    assert all(chunk.input == f'["{letter * (100_000 // size)}"]' for chunk in all_chunks(shop))


@pytest.mark.parametrize(
    ("chars", "output_chars"),
    [(150_000, 200_000), (195_000, 50_000), (204_000, 10), (204_600, 10), (204_600, 200_000), (230_000, 50_000)],
)
def test_apply__a_row_that_is_nearly_full__still_takes_every_change(
    tmp_path: Path, chars: int, output_chars: int
) -> None:
    """The items fill the row up to its limit of 400 KB: what a worker has to say must fit all the same."""
    shop = Shop.open(tmp_path)
    shop.split(["x" * chars] * 2, size=2, max_attempts=9)
    claim = shop.start("chunk-0000000", worker="w" * 200)
    claim = shop.tracker.heartbeat(claim, items_done=1)
    shop.tracker.fail(claim, AttemptFailure("E" * 1000, "e" * 5_000, item_errors={0: "x" * 1_000}))
    claim = shop.start("chunk-0000000")
    shop.tracker.release(claim)
    claim = shop.start("chunk-0000000")

    chunk = shop.tracker.complete(claim, AttemptResult(output=f'"{"y" * output_chars}"', output_key="k" * 1_000))

    assert chunk.disposition is Disposition.DONE
    stored = shop.chunk("chunk-0000000")
    assert (len(stored.output or ""), len(stored.input or "")) == (output_chars + 2, 2 * chars + 7)
    shop.check()
    shop.store.close()


def test_apply__deferring_items_of_large_chunks__the_pieces_fit_as_well(shop: Shop) -> None:
    shop.split(["x" * 90_000] * 80, size=2)
    taken = takes(shop, all_chunks(shop))
    apply(shop.store, taken)

    done = [
        completion_change(change.after, AttemptResult(deferred=[change.after.start]), now_ms=shop.now_ms(), width=7)
        for change in taken
    ]
    assert apply(shop.store, done) == []
    assert shop.counts().slow_queued == 40


def test_grouped__changes_of_one_counter__fill_transactions_and_never_overfill_them(shop: Shop) -> None:
    chunks = held(shop, 300)
    lasts = [replace(chunk, attempt=2) for chunk in chunks]
    changes = [completion_change(chunk, AttemptResult(), now_ms=shop.now_ms(), width=7) for chunk in lasts]

    groups = module.transaction_groups(changes)

    assert sum(map(len, groups)) == 300
    for group in groups:
        assert len({change.after.shard for change in group}) == 1
        assert sum(1 + len(change.extra_writes) for change in group) <= 96
    assert len(groups) <= 8 + shop.fanout().shards


def test_places__as_the_tests_name_them__are_there(shop: Shop) -> None:
    shop.split([1, 2, 3])

    assert [chunk.chunk_id for chunk in all_chunks(shop)] == places(3)
