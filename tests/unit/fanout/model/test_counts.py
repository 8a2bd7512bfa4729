"""Counts: what counter rows add up to, and what that makes of a fan-out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fanout.model.counts import (
    NAMES,
    Counts,
    all_ended,
    counter_add,
    counter_delta,
    counter_puts,
    counts_dict,
    counts_of,
    final_status,
    no_open_chunks_check,
)
from headgate.fanout.model.states import LEGAL, ChunkStatus, Disposition, FanoutStatus
from headgate.store.model.conditions import holds
from tests.unit.fanout.made_rows import made_chunk, made_fanout

OPEN = ("waiting", "queued", "retrying", "running")
BUCKETS = [disposition.bucket for disposition in Disposition]
MOVES = [(before, after) for before, afters in LEGAL.items() for after in sorted(afters)]


def counts(**numbers: int) -> Counts:
    """Counts whose total is what the buckets add up to."""
    main = sum(numbers.get(bucket, 0) for bucket in BUCKETS)
    return Counts(**{"total": main, **numbers})


# Sums.


@given(st.lists(st.dictionaries(st.sampled_from(sorted(NAMES)), st.integers(-5, 1000)), max_size=16))
def test_counts_of__any_counter_rows__adds_each_number_up(rows: list[dict[str, int]]) -> None:
    found = counts_of(rows)

    for name in NAMES:
        assert getattr(found, name) == sum(row.get(name, 0) for row in rows)


def test_counts_of__keys_foreign_numbers_and_missing_rows__are_left_out() -> None:
    row: dict[str, Any] = {"PK": "r", "SK": "CTR#00", "total": 2, "colour": 7, "version": 3}

    assert counts_of([row, None, {}]) == Counts(total=2)


@given(st.dictionaries(st.sampled_from(sorted(NAMES)), st.integers(0, 1000)))
def test_folded__any_counts__reads_back(numbers: dict[str, int]) -> None:
    made = Counts(**numbers)

    assert Counts(**counts_dict(made)) == made


@given(st.fixed_dictionaries({bucket: st.integers(0, 50) for bucket in BUCKETS}))
def test_by_status__any_counts__adds_up_to_the_total(numbers: dict[str, int]) -> None:
    made = counts(**numbers)

    assert sum(made.by_status().values()) == made.total
    assert set(made.by_status()) == {status.value for status in ChunkStatus}
    assert made.drift() == 0
    assert made.pending + made.running == made.open
    assert made.open + made.completed + made.failed + made.cancelled + made.skipped == made.total


def test_drift__a_number_that_someone_has_changed__is_reported() -> None:
    assert Counts(total=5, done=7).drift() == 2
    assert Counts(total=5, done=3).drift() == -2


# Moves.


@pytest.mark.parametrize(("before", "after"), MOVES)
@pytest.mark.parametrize("lane", ["CHUNK#chunk", "SLOW#slow"])
def test_moved__every_legal_move__keeps_the_total_and_moves_one(
    before: Disposition, after: Disposition, lane: str
) -> None:
    sk, prefix = f"{lane}-0000010", "slow_" if lane.startswith("SLOW") else ""
    delta = counter_delta(made_chunk(1, before, sk=sk), made_chunk(1, after, sk=sk))

    expected = {} if before is after else {prefix + before.bucket: -1, prefix + after.bucket: 1}
    assert delta == expected


def test_moved__a_new_chunk__adds_to_the_total_and_its_items() -> None:
    delta = counter_delta(None, made_chunk(1, Disposition.QUEUED, items=7))

    assert delta == {"total": 1, "queued": 1, "items_total": 7}


def test_moved__a_new_piece_of_the_slow_lane__adds_no_items() -> None:
    delta = counter_delta(None, made_chunk(1, Disposition.QUEUED, sk="SLOW#slow-0000010", items=2))

    assert delta == {"slow_total": 1, "slow_queued": 1}


def test_added__nothing_that_changes__writes_no_zeros() -> None:
    assert counter_add("r", 0, {"done": 1, "running": -1, "lost": 0}).add == {"done": 1, "running": -1}


# Closing.


@pytest.mark.parametrize("bucket", [prefix + name for prefix in ("", "slow_") for name in OPEN])
def test_nothing_open__one_open_chunk_of_either_lane__does_not_hold(bucket: str) -> None:
    check = no_open_chunks_check("r", 3)

    assert check.key == ("r", "CTR#03")
    assert not holds(check.condition, {"PK": "r", bucket: 1})
    assert holds(check.condition, {"PK": "r", bucket: 0})


def test_nothing_open__a_counter_that_never_counted_anything__holds_but_not_one_that_is_gone() -> None:
    check = no_open_chunks_check("r", 0)

    assert holds(check.condition, {"PK": "r", "SK": "CTR#00"})
    assert holds(check.condition, {"PK": "r", "done": 5, "slow_done": 1, "dead": 2})
    assert not holds(check.condition, None)


@pytest.mark.parametrize("shards", [1, 16])
def test_first_counters__so_many__one_row_each(shards: int) -> None:
    assert [put.item["SK"] for put in counter_puts("r", shards)] == [f"CTR#{shard:02d}" for shard in range(shards)]


# Verdicts.

RUNNING = made_fanout()
CANCELLED = made_fanout(cancelled_at="2026-01-01T00:00:00.000Z")


@pytest.mark.parametrize("bucket", OPEN)
def test_verdict__a_chunk_is_open__none_yet(bucket: str) -> None:
    assert final_status(RUNNING, counts(done=5, **{bucket: 1})) is None
    assert final_status(CANCELLED, counts(cancelled=5, **{bucket: 1})) is None


def test_verdict__still_being_split__none_yet_whatever_has_ended() -> None:
    assert final_status(made_fanout(status=FanoutStatus.SPLITTING), counts(done=5)) is None
    assert final_status(made_fanout(status=FanoutStatus.SPLITTING), counts()) is None


def test_verdict__cancelled_while_it_was_being_split__cancelled() -> None:
    cut = made_fanout(status=FanoutStatus.SPLITTING, cancelled_at="2026-01-01T00:00:00.000Z")

    assert final_status(cut, counts(cancelled=3)) is FanoutStatus.CANCELLED
    assert final_status(cut, counts()) is FanoutStatus.CANCELLED
    assert final_status(cut, counts(running=1)) is None


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ({}, FanoutStatus.SUCCEEDED),
        ({"done": 3}, FanoutStatus.SUCCEEDED),
        ({"done": 3, "skipped": 1}, FanoutStatus.SUCCEEDED),
        ({"skipped": 3}, FanoutStatus.SUCCEEDED),
        ({"done": 3, "items_failed": 1}, FanoutStatus.PARTIAL),
        ({"done": 3, "dead": 1}, FanoutStatus.PARTIAL),
        ({"done": 3, "quarantined": 1}, FanoutStatus.PARTIAL),
        ({"done": 3, "deferred": 1, "slow_total": 1, "slow_queued": 1}, FanoutStatus.PARTIAL),
        ({"done": 3, "deferred": 1, "slow_total": 1, "slow_dead": 1}, FanoutStatus.PARTIAL),
        ({"deferred": 1, "dead": 1}, FanoutStatus.PARTIAL),
        ({"dead": 3}, FanoutStatus.FAILED),
        ({"dead": 1, "quarantined": 1}, FanoutStatus.FAILED),
        ({"dead": 1, "skipped": 2}, FanoutStatus.FAILED),
        # Cancelled before, and some of it done without since.
        ({"done": 3, "cancelled": 1}, FanoutStatus.PARTIAL),
    ],
)
def test_verdict__nothing_is_open__what_it_has_come_to(numbers: dict[str, int], status: FanoutStatus) -> None:
    assert final_status(RUNNING, counts(**numbers)) is status


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ({"cancelled": 3}, FanoutStatus.CANCELLED),
        ({"done": 3, "cancelled": 1}, FanoutStatus.CANCELLED),
        ({"dead": 3, "cancelled": 1}, FanoutStatus.CANCELLED),
        ({"deferred": 1, "slow_cancelled": 1, "slow_total": 1}, FanoutStatus.CANCELLED),
        # It came too late: all that there was had ended.
        ({"done": 3}, FanoutStatus.SUCCEEDED),
        ({"done": 3, "dead": 1}, FanoutStatus.PARTIAL),
    ],
)
def test_verdict__it_was_cancelled__only_if_that_cut_something_short(
    numbers: dict[str, int], status: FanoutStatus
) -> None:
    assert final_status(CANCELLED, counts(**numbers)) is status


@pytest.mark.parametrize(
    ("numbers", "over"),
    [
        ({}, True),
        ({"done": 3, "dead": 1}, True),
        ({"done": 3, "queued": 1}, False),
        ({"deferred": 1, "slow_queued": 1}, False),
        ({"deferred": 1, "slow_running": 1}, False),
        ({"deferred": 1, "slow_waiting": 1}, False),
        ({"deferred": 1, "slow_dead": 1}, True),
    ],
)
def test_is_over__both_lanes_count(numbers: dict[str, int], over: bool) -> None:
    assert all_ended(counts(**numbers)) is over
