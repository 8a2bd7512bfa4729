"""Rows: keys, moments and codecs, with the attribute names that other programs go by."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import CorruptionError, DefinitionError, InvalidIdError
from headgate.fanout.core.splitter import Order, check_order
from headgate.fanout.model.rows import (
    Chunk,
    Policy,
    attempt_key,
    attempt_of,
    chunk_id_at,
    chunk_key,
    chunk_of,
    counter_key,
    dump_policy,
    fanout_of,
    load_policy,
    queue_position,
    run_key,
    shard_of,
    sort_key,
    start_of,
    timestamp,
    timestamp_ms,
)
from headgate.fanout.model.states import AttemptOutcome, ChunkStatus, Disposition, FanoutStatus
from headgate.store.model.conditions import holds
from headgate.store.model.values import TrustedItem, dump
from tests.unit.fanout.made_rows import RUN, made_attempt, made_chunk, made_fanout

YEAR_9999_MS = 253_402_300_799_999
YEAR_2286_MS = 9_999_999_999_999


# Keys.


def test_keys__of_every_kind__as_other_programs_ask_for_them() -> None:
    assert run_key("r") == ("r", "RUN")
    assert chunk_key("r", "chunk-0000500") == ("r", "CHUNK#chunk-0000500")
    assert chunk_key("r", "slow-0000500") == ("r", "SLOW#slow-0000500")
    assert attempt_key("r", "chunk-0000500", 3) == ("r", "ATT#chunk-0000500#0003")
    assert counter_key("r", 7) == ("r", "CTR#07")


@pytest.mark.parametrize(
    "text",
    ["", "chunk", "chunk-", "chunk-1", "chunk-000000x", "chunk-0000500 ", "Chunk-0000500", "CHUNK#chunk-0000500",
     "slow-12", "chunk--000500", "chunk-" + 7 * "\u0660", "run-0000500", "chunk-0000500\n", "chunk-0000500#0001"],
)  # fmt: skip
def test_sort_key__what_is_no_chunk_id__is_refused(text: str) -> None:
    with pytest.raises(InvalidIdError):
        sort_key(text)


@given(st.integers(0, 10**12 - 1), st.integers(7, 12), st.booleans())
def test_chunk_id__any_place_and_width__reads_back(start: int, width: int, slow: bool) -> None:
    chunk_id = chunk_id_at(start, width, slow=slow)

    assert start_of(sort_key(chunk_id)) == start


@given(st.integers(0, 10**12 - 1), st.integers(0, 10**12 - 1))
def test_chunk_id__of_one_width__sorts_by_place(one: int, other: int) -> None:
    assert (chunk_id_at(one, 12) < chunk_id_at(other, 12)) is (one < other)


@given(st.integers(0, YEAR_2286_MS), st.integers(0, YEAR_2286_MS), st.integers(0, 9_999_999))
def test_queue_place__of_any_two_moments__sorts_by_time_first(one_ms: int, other_ms: int, place: int) -> None:
    one, other = queue_position(one_ms, f"CHUNK#chunk-{place:07d}"), queue_position(other_ms, "CHUNK#chunk-0000000")

    if one_ms != other_ms:
        assert (one < other) is (one_ms < other_ms)


def test_queue_place__later_than_its_digits_reach__is_last_in_line() -> None:
    latest = queue_position(YEAR_2286_MS, "CHUNK#chunk-0000000")

    assert queue_position(YEAR_9999_MS, "CHUNK#chunk-0000001") > latest > queue_position(0, "CHUNK#chunk-9999999")


@pytest.mark.parametrize("shards", [1, 4, 16])
def test_shard_of__many_chunks__is_stable_within_bounds_and_spread(shards: int) -> None:
    counts = [0] * shards
    for start in range(0, 500 * 1000, 500):
        counts[shard_of(start, shards)] += 1

    assert sum(counts) == 1000
    assert min(counts) > 1000 / shards / 2
    # Stored rows depend on it: it must never change.
    assert [shard_of(start, 16) for start in (0, 500, 1000, 123_456)] == [1, 6, 7, 1]


# Moments.


@given(st.integers(0, YEAR_9999_MS))
def test_moment__any_millisecond__reads_back_and_has_one_length(ms: int) -> None:
    text = timestamp(ms)

    assert timestamp_ms(text) == ms
    assert len(text) == len("2026-01-01T00:00:00.000Z")


@given(st.integers(0, YEAR_9999_MS), st.integers(0, YEAR_9999_MS))
def test_moment__any_two__sort_as_text_as_they_do_in_time(one: int, other: int) -> None:
    assert (timestamp(one) < timestamp(other)) is (one < other)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-03-01T12:00:00Z", 1_772_366_400_000),
        ("2026-03-01T12:00:00.5+00:00", 1_772_366_400_500),
        ("2026-03-01T13:00:00.123456+01:00", 1_772_366_400_123),
        ("2026-03-01T12:00:00", 1_772_366_400_000),
    ],
)
def test_moment_ms__as_other_programs_write_it__is_read(text: str, ms: int) -> None:
    assert timestamp_ms(text) == ms


# Codecs.


def test_chunk__stored_and_read__is_the_same_under_the_names_that_others_use() -> None:
    chunk = made_chunk(3, Disposition.DONE, input_key="k", output_key="o", items_ok=10)
    item = msgspec.to_builtins(chunk)

    assert chunk_of(item) == chunk
    assert {name: item[name] for name in ("PK", "SK", "status", "chunk_key", "n_spectra")} == {
        "PK": RUN, "SK": "CHUNK#chunk-0000030", "status": "COMPLETED", "chunk_key": "k", "n_spectra": 10,
    }  # fmt: skip
    assert {"created_at", "started_at", "completed_at", "duration_ms", "output_key"} <= item.keys()


def test_fanout__stored_and_read__is_the_same_under_the_names_that_others_use() -> None:
    fanout = made_fanout(chunks_total=9, chunks=9, chunks_completed=7, chunks_failed=1, items_total=4200, params="{}")
    item = msgspec.to_builtins(fanout)

    assert fanout_of(item) == fanout
    assert {name: item[name] for name in ("SK", "survey", "jobs_total", "jobs_completed", "jobs_failed")} == {
        "SK": "RUN", "survey": "grs-15", "jobs_total": 9, "jobs_completed": 7, "jobs_failed": 1,
    }  # fmt: skip
    assert (item["GSI1_PK"], item["n_spectra"], item["n_chunks"]) == ("grs-15", 4200, 9)


def test_attempt__stored_and_read__is_the_same() -> None:
    attempt = made_attempt(3, 2, AttemptOutcome.FAILED, error="x", error_class="ValueError")

    assert attempt_of(msgspec.to_builtins(attempt)) == attempt


def foreign(**values: Any) -> dict[str, Any]:
    return {"PK": "r", "SK": "CHUNK#chunk-0000500", **values}


@pytest.mark.parametrize(
    ("status", "disposition"),
    [
        ("PENDING", Disposition.QUEUED),
        ("IN_PROGRESS", Disposition.RUNNING),
        ("COMPLETED", Disposition.DONE),
        ("FAILED", Disposition.DEAD),
    ],
)
def test_chunk_of__a_row_of_another_program__is_understood(status: str, disposition: Disposition) -> None:
    chunk = chunk_of(foreign(status=status, started_at="2026-03-01T12:00:00+00:00"))

    assert (chunk.status, chunk.disposition) == (ChunkStatus(status), disposition)
    assert (chunk.start, chunk.chunk_id, chunk.items) == (500, "chunk-0000500", 0)


def test_chunk_of__a_foreign_row_that_lost_its_attributes_in_progress__is_understood() -> None:
    assert chunk_of(foreign(status="IN_PROGRESS")).disposition is Disposition.RUNNING


def test_fanout_of__a_row_of_another_program__is_understood() -> None:
    fanout = fanout_of(
        {"PK": "r", "SK": "RUN", "GSI1_PK": "grs", "GSI1_SK": "2026-03-01", "survey": "grs", "jobs_total": 9,
         "created_at": "2026-03-01", "jobs_completed": 8, "jobs_failed": 1, "n_spectra": 4200, "n_chunks": 9}
    )  # fmt: skip

    assert (fanout.chunks_total, fanout.chunks_completed, fanout.chunks_failed) == (9, 8, 1)
    assert (fanout.group, fanout.shards, fanout.is_finished) == ("grs", 0, False)
    assert fanout.rules() == Policy()


@pytest.mark.parametrize(
    "bad",
    [{"status": "LOST"}, {"n_spectra": "many"}, {"disposition": "RUNNING", "status": 5}, {"disposition": "NOWHERE"}],
)
def test_chunk_of__a_damaged_row__says_which(bad: dict[str, Any]) -> None:
    with pytest.raises(CorruptionError, match=r"chunk-0000500"):
        chunk_of(foreign(**bad))


def test_fanout_of__a_damaged_row__says_which() -> None:
    with pytest.raises(CorruptionError, match=r"fan-out r"):
        fanout_of({"PK": "r", "SK": "RUN", "jobs_total": "nine"})


def test_chunk_of__attributes_that_a_newer_build_wrote__are_ignored() -> None:
    item = {**msgspec.to_builtins(made_chunk(1)), "colour": "red"}

    assert chunk_of(item) == made_chunk(1)


def test_lane__of_both_kinds_of_rows__from_the_key() -> None:
    assert made_chunk(1).lane == "main"
    assert made_chunk(1, sk="SLOW#slow-0000010").lane == "slow"


# Policies.


def test_policy__stored_and_read__is_the_same() -> None:
    policy = Policy(max_attempts=5, timeout_seconds=1.5, heartbeat_seconds=3.0, concurrency=7, heal_on=("OOM",))

    assert load_policy(dump_policy(policy)) == policy
    assert dump_policy(Policy()) == "{}"


def test_policy__a_number_that_json_has_no_word_for__is_never_stored_as_nothing() -> None:
    """What cannot be read back must be refused when it is written, or every reader fails on it for ever."""
    names = [
        name for name in Policy.__struct_fields__ if isinstance(getattr(Policy(), name), float) or name == "budget"
    ]
    assert len(names) >= 6
    for name in names:
        for value in (float("inf"), float("-inf"), float("nan")):
            with pytest.raises(DefinitionError, match=name):
                check_order(Order("g", 1, policy=msgspec.structs.replace(Policy(), **{name: value})))


def test_fence__of_a_row__is_broken_by_another_token_and_by_another_disposition() -> None:
    chunk = made_chunk(1, Disposition.RUNNING, token="mine")
    item = msgspec.to_builtins(chunk)

    assert holds(chunk.fence(), item)
    assert not holds(chunk.fence(), {**item, "token": "other"})
    assert not holds(chunk.fence(), {**item, "disposition": "RETRYING"})
    assert not holds(chunk.fence(), None)


def test_put__of_a_row__is_stored_under_its_key() -> None:
    chunk: Chunk = made_chunk(1)
    put = chunk.put(None)

    assert (put.item["PK"], put.item["SK"]) == chunk.key
    assert made_fanout(status=FanoutStatus.RUNNING).replacing(4).condition is not None


# Rows that the store need not check.


def test_put__plain_row__is_not_checked_again_and_its_text_is_that_of_the_item() -> None:
    row = made_chunk(1, Disposition.RUNNING, output='{"a": "\\u00e9"}').put(None).item

    assert type(row) is TrustedItem
    assert dump(row, special=False) == msgspec.json.encode(dict(row)).decode()


@pytest.mark.parametrize(
    "changes", [{"output": '"\u00e9"'}, {"worker": "\ud800"}, {"start": 1 << 63}, {"items": 1 << 64}]
)
def test_put__row_beyond_plain_json__is_left_to_the_check_of_the_store(changes: dict[str, Any]) -> None:
    assert type(made_chunk(1, Disposition.RUNNING, **changes).put(None).item) is dict
