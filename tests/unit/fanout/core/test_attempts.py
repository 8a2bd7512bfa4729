"""Attempts: what a try makes of a chunk's row, decided from the row, the policy and the time alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError
from headgate.fanout.core.attempts import (
    PRINTED_IN_ROW_MAX,
    AttemptFailure,
    AttemptResult,
    ErrorClass,
    attempts_since_redrive,
    completion_change,
    failure_change,
    item_indexes,
    lease_expiry_change,
    move_change,
    redrive_change,
    release_change,
    retry_delay_seconds,
    slow_lane_chunk,
    start_change,
    with_disposition,
)
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.rows import Chunk, Policy, attempt_of, chunk_of, timestamp
from headgate.fanout.model.states import AttemptOutcome, ChunkStatus, Disposition, is_legal
from headgate.store.model.requests import Put, Update
from tests.unit.fanout.made_rows import T0, made_chunk

NOW = T0 + 5_000
POLICY = Policy(max_attempts=3, backoff_seconds=2.0, backoff_factor=3.0, backoff_seconds_max=100.0)


def running(attempt: int = 1, **changes: Any) -> Chunk:
    return made_chunk(3, Disposition.RUNNING, attempt=attempt, **changes)


def taken(chunk: Chunk, **options: Any) -> ChunkChange:
    return start_change(chunk, worker="w2", token="new", now_ms=NOW, lease_seconds=30.0, **options)


def slow(deferred: str = "[31,35]", **changes: Any) -> Chunk:
    return running(sk="SLOW#slow-0000030", items=2, deferred=deferred, **changes)


def rows_beside(change: ChunkChange) -> list[Any]:
    found: list[Any] = []
    for write in change.extra_writes:
        if isinstance(write, Put):
            item = dict(write.item)
            found.append(attempt_of(item) if item["SK"].startswith("ATT#") else chunk_of(item))
        else:
            found.append(write)
    return found


# Taking.


@pytest.mark.parametrize("disposition", [Disposition.WAITING, Disposition.QUEUED], ids=lambda d: d.value)
def test_begun__a_chunk_that_waits__is_this_workers_for_its_lease(disposition: Disposition) -> None:
    change = taken(made_chunk(3, disposition, token="-"))

    after = change.after
    assert (after.disposition, after.status) == (Disposition.RUNNING, ChunkStatus.IN_PROGRESS)
    assert (after.token, after.worker, after.attempt) == ("new", "w2", 1)
    assert after.started_at == timestamp(NOW)
    assert after.lease_expires_at == timestamp(NOW + 30_000)
    assert (after.queue_pk, after.queue_sk) == (None, None)
    assert change.delta() == {disposition.bucket: -1, "running": 1, "attempts": 1}
    assert change.extra_writes == ()


def test_begun__the_second_time__counts_a_retry_and_keeps_what_the_chunk_is() -> None:
    before = made_chunk(3, Disposition.RETRYING, attempt=1, error="boom", input="[1]", input_key="k")
    change = taken(before)

    assert change.after.attempt == 2
    assert change.delta() == {"retrying": -1, "running": 1, "attempts": 1, "retries": 1}
    kept = ("input", "input_key", "items", "created_at", "start", "shard")
    assert all(getattr(change.after, name) == getattr(before, name) for name in kept)
    assert (change.after.completed_at, change.after.duration_ms) == (None, None)


def test_begun__over_a_lease_that_ran_out__records_the_lost_attempt() -> None:
    # Its worker was noticed dead long after its last heartbeat.
    heartbeat_at = timestamp(NOW - 4_000)
    before = running(attempt=2, worker="w1", lease_expires_at=timestamp(NOW - 1), heartbeat_at=heartbeat_at)
    change = taken(before)

    (attempt,) = rows_beside(change)
    assert (attempt.attempt, attempt.outcome, attempt.worker) == (2, AttemptOutcome.LOST, "w1")
    assert attempt.error_class == "LOST"
    assert "w1" in attempt.error
    assert change.after.attempt == 3
    delta = change.delta()
    assert (delta["attempts"], delta["lost"], delta["wasted_ms"]) == (1, 1, 1_000)
    assert "running" not in delta


def test_begun__a_message_that_came_before__keeps_the_highest_count_and_the_latest_id() -> None:
    before = made_chunk(3, Disposition.QUEUED, receive_count=5, message_id="m1")

    assert taken(before, receive_count=2).after.receive_count == 5
    assert taken(before, receive_count=7, message_id="m2").after.message_id == "m2"
    assert taken(before).after.message_id == "m1"


# Completing.


def test_completed__all_items__is_done_and_counted() -> None:
    change = completion_change(running(), AttemptResult(output_key="o", output="[1]", memory_mb=7), now_ms=NOW, width=7)

    after = change.after
    assert (after.disposition, after.status) == (Disposition.DONE, ChunkStatus.COMPLETED)
    assert (after.output_key, after.output, after.memory_mb, after.duration_ms) == ("o", "[1]", 7, 5_000)
    assert (after.items_ok, after.items_failed, after.items_deferred, after.items_done) == (10, 0, 0, 10)
    assert (after.lease_expires_at, after.attention_pk, after.queue_pk) == (None, None, None)
    assert after.token == "t"
    assert change.delta() == {"running": -1, "done": 1, "items_ok": 10, "busy_ms": 5_000}
    assert change.extra_writes == ()


def test_completed__after_failures__says_so_in_a_row_and_the_error_is_gone() -> None:
    change = completion_change(running(attempt=3, error="boom", error_class="E"), AttemptResult(), now_ms=NOW, width=7)

    (attempt,) = rows_beside(change)
    assert (attempt.attempt, attempt.outcome, attempt.error) == (3, AttemptOutcome.COMPLETED, None)
    assert (change.after.error, change.after.error_class, change.after.error_fingerprint) == (None, None, None)


def test_completed__with_a_short_output__it_is_in_the_row_until_the_next_attempt() -> None:
    done = completion_change(running(), AttemptResult(printed="fine\n"), now_ms=NOW, width=7)

    assert (done.after.printed, done.extra_writes) == ("fine\n", ())
    again = taken(redrive_change(done.after, now_ms=NOW).after)
    (log,) = again.extra_writes
    assert isinstance(log, Put)
    assert (log.item["SK"], log.item["printed"]) == ("LOG#chunk-0000030#0001", "fine\n")
    assert again.after.printed is None


def test_completed__with_a_long_output__it_is_in_a_row_of_its_own() -> None:
    printed = "x" * (PRINTED_IN_ROW_MAX + 1)
    done = completion_change(running(), AttemptResult(printed=printed), now_ms=NOW, width=7)

    (log,) = done.extra_writes
    assert isinstance(log, Put)
    assert (log.item["printed"], done.after.printed, done.after.log_ref) == (printed, None, log.item["SK"])


def test_completed__some_items_failed__the_chunk_is_done_and_they_are_named() -> None:
    change = completion_change(running(), AttemptResult(item_errors={37: "bad", 31: "worse"}), now_ms=NOW, width=7)

    assert change.after.disposition is Disposition.DONE
    assert (change.after.items_ok, change.after.items_failed) == (8, 2)
    assert msgspec.json.decode(change.after.item_errors or "") == {"31": "worse", "37": "bad"}
    assert change.delta()["items_failed"] == 2


def test_completed__some_items_deferred__the_slow_lane_has_them_in_the_same_change() -> None:
    change = completion_change(running(input="[0]", shard=5), AttemptResult(deferred=[35, 31, 35]), now_ms=NOW, width=7)

    assert (change.after.disposition, change.after.status) == (Disposition.DEFERRED, ChunkStatus.COMPLETED)
    assert (change.after.items_ok, change.after.items_deferred) == (8, 2)
    (piece,) = rows_beside(change)
    assert (piece.chunk_id, piece.lane, piece.disposition) == ("slow-0000030", "slow", Disposition.QUEUED)
    assert (piece.items, list(item_indexes(piece)), piece.input, piece.shard) == (2, [31, 35], "[0]", 5)
    assert piece.queue_pk == f"{piece.run_id}#slow"
    delta = change.delta()
    assert (delta["deferred"], delta["slow_total"], delta["slow_queued"], delta["items_deferred"]) == (1, 1, 1, 2)


def test_completed__deferred_with_a_queue_of_its_own__the_piece_waits_for_its_message() -> None:
    change = completion_change(running(), AttemptResult(deferred=[31]), now_ms=NOW, width=7, is_waiting=True)

    (piece,) = rows_beside(change)
    assert (piece.disposition, piece.queue_pk) == (Disposition.WAITING, None)
    assert change.delta()["slow_waiting"] == 1


def test_completed__the_piece_in_the_slow_lane__makes_its_chunk_whole() -> None:
    change = completion_change(slow(), AttemptResult(item_errors={35: "bad"}), now_ms=NOW, width=7)

    assert change.after.disposition is Disposition.DONE
    assert list(item_indexes(change.after)) == [31, 35]
    (parent,) = change.extra_writes
    assert isinstance(parent, Update)
    assert parent.key == (change.after.run_id, "CHUNK#chunk-0000030")
    assert parent.set["disposition"] == "DONE"
    assert parent.set["attention_pk"] == f"{change.after.run_id}#DONE"
    assert (parent.add["items_ok"], parent.add["items_failed"], parent.add["items_deferred"]) == (1, 1, -2)
    delta = change.delta()
    assert (delta["slow_running"], delta["slow_done"], delta["deferred"], delta["done"]) == (-1, 1, -1, 1)
    assert delta["done_listed"] == 1
    assert (delta["items_ok"], delta["items_failed"], delta["items_deferred"]) == (1, 1, -2)


@pytest.mark.parametrize(
    ("chunk", "result"),
    [
        (running(), AttemptResult(deferred=[29])),
        (running(), AttemptResult(deferred=[40])),
        (running(), AttemptResult(item_errors={0: "x"})),
        (running(), AttemptResult(item_errors={31: "x"}, deferred=[31])),
        (slow(), AttemptResult(item_errors={32: "x"})),
        (slow(), AttemptResult(deferred=[31])),
    ],
)
def test_completed__about_items_that_are_not_its_own__is_refused(chunk: Chunk, result: AttemptResult) -> None:
    with pytest.raises(InvalidPayloadError, match=chunk.chunk_id):
        completion_change(chunk, result, now_ms=NOW, width=7)


def test_completed__with_a_duration_of_the_handlers_own__that_is_what_counts() -> None:
    change = completion_change(running(), AttemptResult(duration_ms=12), now_ms=NOW, width=7)

    assert (change.after.duration_ms, change.delta()["busy_ms"]) == (12, 12)


def test_completed__by_a_clock_that_was_set_back__took_no_time_rather_than_less_than_none() -> None:
    change = completion_change(running(begin_ms=NOW + 60_000), AttemptResult(), now_ms=NOW, width=7)

    assert (change.after.duration_ms, change.delta()["busy_ms"]) == (0, 0)


# Failing.


@pytest.mark.parametrize(("attempt", "pause_ms"), [(1, 2_000), (2, 6_000)])
def test_failed__with_tries_left__waits_longer_each_time(attempt: int, pause_ms: int) -> None:
    change = failure_change(
        running(attempt=attempt), AttemptFailure("ValueError", "boom"), POLICY, now_ms=NOW, draw=0.0
    )

    after = change.after
    assert (after.disposition, after.status) == (Disposition.RETRYING, ChunkStatus.PENDING)
    assert after.queue_sk == f"{NOW + pause_ms:013d}#0000030"
    assert (after.error, after.error_class) == ("boom", "ValueError")
    assert len(after.error_fingerprint or "") == 12
    assert after.attempt == attempt
    delta = change.delta()
    assert (delta["running"], delta["retrying"], delta["wasted_ms"]) == (-1, 1, 5_000)
    (row,) = rows_beside(change)
    assert (row.attempt, row.outcome, row.error) == (attempt, AttemptOutcome.FAILED, "boom")


def test_failed__the_last_try__is_dead() -> None:
    change = failure_change(running(attempt=3), AttemptFailure("ValueError", "boom"), POLICY, now_ms=NOW, draw=0.0)

    assert (change.after.disposition, change.after.status) == (Disposition.DEAD, ChunkStatus.FAILED)
    assert (change.after.queue_pk, change.after.attention_pk) == (None, f"{change.after.run_id}#DEAD")


def test_failed__after_it_was_redriven__has_all_its_tries_again() -> None:
    chunk = running(attempt=4, tried=3)

    assert attempts_since_redrive(chunk) == 1
    change = failure_change(chunk, AttemptFailure("ValueError", "boom"), POLICY, now_ms=NOW, draw=0.0)
    assert change.after.disposition is Disposition.RETRYING
    last = failure_change(
        running(attempt=6, tried=3), AttemptFailure("ValueError", "boom"), POLICY, now_ms=NOW, draw=0.0
    )
    assert last.after.disposition is Disposition.DEAD


def test_failed__where_trying_again_will_not_help__is_put_aside_at_once() -> None:
    change = failure_change(running(), AttemptFailure("Bad", "never", is_final=True), POLICY, now_ms=NOW, draw=0.0)

    assert (change.after.disposition, change.after.status) == (Disposition.QUARANTINED, ChunkStatus.FAILED)


def test_lost__is_a_failure_of_its_own_kind() -> None:
    change = lease_expiry_change(running(), POLICY, now_ms=NOW, draw=0.0)

    (row,) = rows_beside(change)
    assert (row.outcome, row.error_class) == (AttemptOutcome.LOST, "LOST")
    assert change.delta()["lost"] == 1
    assert change.after.error_class == ErrorClass.LOST


def test_lost__after_as_many_attempts_as_are_allowed__is_retried_and_counts_apart() -> None:
    change = lease_expiry_change(running(attempt=3), POLICY, now_ms=NOW, draw=0.0)

    assert (change.after.disposition, change.after.lost_attempts) == (Disposition.RETRYING, 1)
    assert attempts_since_redrive(change.after) == 2
    # Not longer each time: the chunk did nothing wrong.
    assert change.after.queue_sk == f"{NOW + 2_000:013d}#0000030"


def test_failed__after_lost_attempts__has_its_own_attempts_left() -> None:
    failure = AttemptFailure("ValueError", "boom")

    retried = failure_change(running(attempt=9, lost_attempts=7), failure, POLICY, now_ms=NOW, draw=0.0)
    dead = failure_change(running(attempt=10, lost_attempts=7), failure, POLICY, now_ms=NOW, draw=0.0)

    assert (retried.after.disposition, dead.after.disposition) == (Disposition.RETRYING, Disposition.DEAD)


def test_lost__too_often__is_dead_and_says_so() -> None:
    policy = replace(POLICY, lost_attempts_max=4)

    third = lease_expiry_change(running(attempt=3, lost_attempts=2), policy, now_ms=NOW, draw=0.0)
    fourth = lease_expiry_change(running(attempt=4, lost_attempts=3), policy, now_ms=NOW, draw=0.0)

    assert (third.after.disposition, fourth.after.disposition) == (Disposition.RETRYING, Disposition.DEAD)
    assert fourth.after.error_class == ErrorClass.LOST
    assert "4 attempts were lost, at most 4" in (fourth.after.error or "")


def test_failed__with_an_error_class_named_like_a_lost_attempt__is_a_failure() -> None:
    change = failure_change(running(attempt=3), AttemptFailure("LOST", "x"), POLICY, now_ms=NOW, draw=0.0)

    assert (change.after.disposition, change.after.lost_attempts) == (Disposition.DEAD, 0)


def test_start__of_a_chunk_whose_worker_vanished__counts_the_lost_attempt() -> None:
    change = start_change(running(attempt=2), worker="w", token="t", now_ms=NOW, lease_seconds=30)

    assert (change.after.attempt, change.after.lost_attempts, change.delta()["lost"]) == (3, 1, 1)


def test_redriven__after_it_was_lost_too_often__has_all_its_lost_attempts_again() -> None:
    dead = lease_expiry_change(running(lost_attempts=19), POLICY, now_ms=NOW, draw=0.0).after

    assert dead.disposition is Disposition.DEAD
    again = redrive_change(dead, now_ms=NOW).after
    assert (again.lost_attempts, attempts_since_redrive(again)) == (0, 0)


@pytest.mark.parametrize("text", ["x" * 10_000, "half a character: caf\udce9", "\x00", "漢" * 2_000])
def test_failed__a_message_of_any_kind__is_cut_to_what_can_be_stored(text: str) -> None:
    change = failure_change(running(), AttemptFailure("E", text, item_errors={31: text}), POLICY, now_ms=NOW, draw=0.0)

    assert 0 < len(change.after.error or "") <= 1024
    assert (change.after.error or "").encode()
    (row,) = rows_beside(change)
    assert len(row.error) <= 1024


def test_failed__thousands_of_bad_items__keeps_some() -> None:
    errors = dict.fromkeys(range(30, 5_030), "bad")
    change = failure_change(
        running(items=5_000), AttemptFailure("E", "x", item_errors=errors), POLICY, now_ms=NOW, draw=0.0
    )

    assert len(msgspec.json.decode(change.after.item_errors or "")) == 1_000


# Pauses.


@given(st.integers(1, 100_000), st.floats(0, 1), st.floats(0, 1e9), st.floats(1, 1e9), st.floats(0, 1e9))
def test_pause_seconds__any_policy__is_a_number_within_its_bounds(
    tried: int, draw: float, first: float, factor: float, most: float
) -> None:
    policy = Policy(max_attempts=1000, backoff_seconds=first, backoff_factor=factor, backoff_seconds_max=most)

    assert 0 <= retry_delay_seconds(policy, tried, draw) <= 1.25 * most


def test_pause_seconds__the_draw__spreads_by_a_quarter() -> None:
    assert retry_delay_seconds(POLICY, 2, 0.0) == 6.0
    assert retry_delay_seconds(POLICY, 2, 1.0) == 7.5
    assert retry_delay_seconds(POLICY, 50, 0.0) == 100.0


# Giving back, moving, redriving.


@pytest.mark.parametrize(
    ("attempt", "delta"), [(1, {"attempts": -1, "retries": 0}), (3, {"attempts": -1, "retries": -1})]
)
def test_released__the_try_does_not_count(attempt: int, delta: dict[str, int]) -> None:
    change = release_change(running(attempt=attempt, items_done=4), now_ms=NOW)

    after = change.after
    assert (after.disposition, after.attempt, after.worker, after.items_done) == (
        Disposition.QUEUED, attempt - 1, None, 0,
    )  # fmt: skip
    assert after.queue_sk == f"{NOW:013d}#0000030"
    assert (after.lease_expires_at, after.started_at) == (None, None)
    assert change.delta() == {"running": -1, "queued": 1, "busy_ms": 5_000, "wasted_ms": 5_000, **delta}


def test_released_and_taken__again_and_again__never_uses_up_tries() -> None:
    chunk = made_chunk(3, Disposition.QUEUED)
    for _ in range(10):
        chunk = release_change(taken(chunk).after, now_ms=NOW).after

    assert (chunk.attempt, attempts_since_redrive(chunk)) == (0, 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Disposition.QUEUED, Disposition.CANCELLED),
        (Disposition.RETRYING, Disposition.SKIPPED),
        (Disposition.DEAD, Disposition.SKIPPED),
        (Disposition.DEAD, Disposition.QUARANTINED),
    ],
)
def test_moved_to__by_a_person__leaves_every_queue(before: Disposition, after: Disposition) -> None:
    change = move_change(made_chunk(3, before), after, now_ms=NOW)

    assert (change.after.disposition, change.after.queue_pk, change.after.queue_sk) == (after, None, None)
    assert change.after.completed_at == timestamp(NOW)
    assert change.delta() == {before.bucket: -1, after.bucket: 1}


def test_moved_to__cancelled_in_the_middle__records_the_attempt() -> None:
    change = move_change(running(attempt=2), Disposition.CANCELLED, now_ms=NOW)

    (row,) = rows_beside(change)
    assert (row.attempt, row.outcome) == (2, AttemptOutcome.CANCELLED)
    assert change.after.lease_expires_at is None


def test_redriven__a_dead_chunk__is_queued_with_its_history_kept() -> None:
    change = redrive_change(made_chunk(3, Disposition.DEAD, attempt=3, error="boom", message="m"), now_ms=NOW)

    after = change.after
    assert (after.disposition, after.attempt, after.tried, after.redrives) == (Disposition.QUEUED, 3, 3, 1)
    assert (after.worker, after.message, after.completed_at) == (None, None, None)
    assert after.error == "boom"
    assert change.delta() == {"dead": -1, "queued": 1, "redriven": 1}


# Indexes.


@pytest.mark.parametrize("disposition", Disposition)
def test_placed__each_disposition__is_where_it_is_looked_for(disposition: Disposition) -> None:
    chunk = with_disposition(running(), disposition, timestamp(NOW), NOW + 1)

    is_queued = disposition in (Disposition.QUEUED, Disposition.RETRYING)
    assert (chunk.queue_pk is not None) is is_queued
    assert (chunk.queue_sk is not None) is is_queued
    in_disposition = {
        Disposition.RUNNING, Disposition.RETRYING, Disposition.DEFERRED, Disposition.DEAD, Disposition.QUARANTINED,
        Disposition.CANCELLED, Disposition.SKIPPED, Disposition.WAITING,
    }  # fmt: skip
    assert chunk.attention_pk == (f"{chunk.run_id}#{disposition.value}" if disposition in in_disposition else None)
    assert (chunk.attention_sk is None) is (chunk.attention_pk is None)
    assert chunk.status is disposition.status


def test_placed__running__is_found_by_the_end_of_its_lease() -> None:
    chunk = with_disposition(running(lease_expires_at=timestamp(NOW)), Disposition.RUNNING, timestamp(T0))

    assert str(chunk.attention_sk).startswith(timestamp(NOW))


def test_slow_piece__of_a_chunk__has_its_own_count_of_tries() -> None:
    piece = slow_lane_chunk(running(attempt=3), [31], NOW, 7, is_waiting=False)

    assert (piece.attempt, piece.tried, piece.worker, piece.token) == (0, 0, None, "-")


# All together.


TOKENS = (f"token-{number}" for number in itertools.count())


def next_changes(chunk: Chunk, event: str) -> list[ChunkChange]:
    """The changes by which something happens to a chunk that has not ended; one that waits is taken first."""
    changes = []
    if chunk.disposition is not Disposition.RUNNING:
        changes.append(start_change(chunk, worker="w", token=next(TOKENS), now_ms=NOW, lease_seconds=1.0))
    held = changes[0].after if changes else chunk
    endings: dict[str, Callable[[], ChunkChange]] = {
        "fail": lambda: failure_change(held, AttemptFailure("E", "x"), POLICY, now_ms=NOW, draw=0.5),
        "lose": lambda: lease_expiry_change(held, POLICY, now_ms=NOW, draw=0.5),
        "take over": lambda: start_change(held, worker="w", token=next(TOKENS), now_ms=NOW, lease_seconds=1.0),
        "release": lambda: release_change(held, now_ms=NOW),
        "complete": lambda: completion_change(held, AttemptResult(), now_ms=NOW, width=7),
    }
    return [*changes, endings[event]()]


@given(st.lists(st.sampled_from(["fail", "lose", "take over", "release", "complete"]), max_size=12))
def test_life__any_course_of_events__is_legal_and_the_buckets_add_up(course: list[str]) -> None:
    chunk = made_chunk(3, Disposition.QUEUED, token="-")
    sums = {"total": 1, "queued": 1}
    recorded: list[str] = []
    for event in course:
        if chunk.status.is_terminal:
            break
        for change in next_changes(chunk, event):
            assert is_legal(chunk.disposition, change.after.disposition)
            recorded += [row.sk for row in rows_beside(change)]
            for name, amount in change.delta().items():
                sums[name] = sums.get(name, 0) + amount
            chunk = change.after
    assert len(set(recorded)) == len(recorded), "an attempt is recorded once"
    assert sum(sums.get(disposition.bucket, 0) for disposition in Disposition) == 1
    assert sums[chunk.disposition.bucket] == 1
    assert sums.get("attempts", 0) == chunk.attempt
    assert sums.get("retries", 0) == max(0, chunk.attempt - 1)
    assert min(sums.values()) >= 0
