"""How far a fan-out is: derived from facts, the same for a single read and for a watch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from headgate.clock import VirtualClock
from headgate.errors import NotFoundError
from headgate.fanout.insight.eta import Point, spread_of
from headgate.fanout.insight.progress import (
    Facts,
    Follower,
    Progress,
    attempts_histogram,
    patience_seconds,
    progress_of,
    stragglers,
)
from headgate.fanout.insight.samples import Sample
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Chunk, Policy, timestamp
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite
from tests.unit.fanout.made_rows import RUN, T0, Stage, made_chunk, made_fanout

PATIENCE = patience_seconds(Policy())


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(T0 / 1000)


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)
    yield opened
    opened.close()


def _progress(
    counts: Counts,
    *,
    after_seconds: float,
    chunks: Sequence[Chunk] = (),
    running: Sequence[Chunk] = (),
    points: Sequence[Point] = (),
    **fanout: Any,
) -> Progress:
    now_ms = T0 + round(1000 * after_seconds)
    return progress_of(made_fanout(**fanout), counts, Facts(Sample(list(chunks), False), running, points, now_ms))


def test_patience__the_default_policy__is_three_deliveries_of_sixteen_minutes_and_the_pauses() -> None:
    # Two pauses of 1 and 2 seconds, each longer by a quarter at most.
    assert pytest.approx(48 * 60 + 3.75) == PATIENCE


def test_patience__one_attempt__has_no_pauses() -> None:
    assert patience_seconds(Policy(max_attempts=1, timeout_seconds=40)) == 100


def test_stall__silent_for_no_longer_than_the_retries_can_take__is_none() -> None:
    counts = Counts(total=9, done=1, running=8)

    assert _progress(counts, after_seconds=PATIENCE).stall is None


def test_stall__silent_for_longer__says_since_when_and_why() -> None:
    counts = Counts(total=9, done=1, running=8)

    stall = _progress(counts, after_seconds=PATIENCE + 10, progressed_at=timestamp(T0 + 5000)).stall

    assert stall is not None
    assert stall.since == timestamp(T0 + 5000)
    assert stall.silent_seconds == pytest.approx(PATIENCE + 5)
    assert "8 chunks are running" in stall.reason


def test_stall__nothing_runs__says_that_no_worker_takes_chunks() -> None:
    stall = _progress(Counts(total=9, queued=9), after_seconds=PATIENCE + 10).stall

    assert stall is not None
    assert "no worker" in stall.reason


@pytest.mark.parametrize(
    "sign",
    [
        {"chunks": [made_chunk(0, begin_ms=T0 + 100_000)]},
        {"running": [made_chunk(0, Disposition.RUNNING, begin_ms=T0 + 100_000)]},
        {"points": [Point(T0, 0), Point(T0 + 100_000, 1)]},
        {"progressed_at": timestamp(T0 + 100_000)},
    ],
)
def test_stall__a_later_sign_of_life__counts_from_there(sign: dict[str, Any]) -> None:
    counts = Counts(total=9, done=1, running=1, queued=7)

    assert _progress(counts, after_seconds=PATIENCE + 50, **sign).stall is None
    assert _progress(counts, after_seconds=PATIENCE + 200, **sign).stall is not None


def test_stall__let_go_on_after_a_long_pause__has_all_the_time_again() -> None:
    counts = Counts(total=9, done=1, queued=8)

    assert (
        _progress(counts, after_seconds=2 * PATIENCE, updated_at=timestamp(T0 + round(1500 * PATIENCE))).stall is None
    )


@pytest.mark.parametrize(
    ("counts", "changes"),
    [
        (Counts(total=9, done=1, queued=8), {"paused_at": timestamp(T0)}),
        (Counts(total=9, done=9), {"status": FanoutStatus.SUCCEEDED, "finished_at": timestamp(T0)}),
        (Counts(total=9, done=9), {}),
    ],
)
def test_stall__nothing_is_to_happen__is_none(counts: Counts, changes: dict[str, Any]) -> None:
    assert _progress(counts, after_seconds=10 * PATIENCE, **changes).stall is None


def test_stall__a_split_that_stopped__says_what_went_wrong() -> None:
    stall = _progress(
        Counts(total=9, done=9),
        after_seconds=PATIENCE + 10,
        status=FanoutStatus.SPLITTING,
        split_error="input x.txt: it is gone",
    ).stall

    assert stall is not None
    assert "input x.txt" in stall.reason


def test_stragglers__much_longer_than_others__are_found_the_longest_first() -> None:
    spread = spread_of([20_000] * 20)
    running = [
        made_chunk(number, Disposition.RUNNING, begin_ms=T0 - 1000 * seconds)
        for number, seconds in enumerate((29, 31, 5, 100))
    ]

    found = stragglers(running, spread, T0)

    assert [(one.chunk_id, one.seconds, one.times_p95) for one in found] == [
        ("chunk-0000030", 100, 5),
        ("chunk-0000010", 31, 1.55),
    ]


def test_stragglers__short_chunks_that_wait_for_their_turn__are_not() -> None:
    running = [made_chunk(0, Disposition.RUNNING, begin_ms=T0 - 9000)]

    assert stragglers(running, spread_of([1] * 20), T0) == []


def test_stragglers__too_few_completions__are_not_judged() -> None:
    running = [made_chunk(0, Disposition.RUNNING, begin_ms=T0 - 900_000)]

    assert stragglers(running, spread_of([1] * 4), T0) == []
    assert stragglers(running, None, T0) == []


def test_attempts_histogram__begun_and_not_begun__counts_the_begun() -> None:
    chunks = [made_chunk(number, attempt=attempt) for number, attempt in enumerate((2, 1, 1, 3, 1))]

    assert attempts_histogram([*chunks, made_chunk(9, Disposition.QUEUED)]) == {1: 3, 2: 1, 3: 1}


def test_progress__running_chunks_of_which_some_were_read__are_paid_for_all() -> None:
    running = [made_chunk(number, Disposition.RUNNING) for number in range(2)]
    counts = Counts(total=10, running=10, attempts=10)

    events = _progress(counts, after_seconds=100, running=running, policy=Policy(price_per_gb_second=1.0))

    assert events.cost is not None
    assert events.cost.gb_seconds == pytest.approx(1000)


def test_progress__no_chunks__is_whole_once_it_has_ended() -> None:
    assert _progress(Counts(), after_seconds=1).share == 0
    assert _progress(Counts(), after_seconds=1, finished_at=timestamp(T0)).share == 1


def test_progress__as_json__can_be_read_back() -> None:
    events = _progress(Counts(total=1, done=1), after_seconds=5, chunks=[made_chunk(0)])

    assert msgspec.json.decode(msgspec.json.encode(events), type=Progress) == events


def test_look__once__knows_the_rate_from_the_rows(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=100)
    for number in range(60):
        stage.complete(number, seconds=2)
    stage.start(60)

    result = Follower(store, clock, RUN).look()

    assert result.completed_per_second == pytest.approx(0.5, rel=0.1)
    assert result.items_per_second == pytest.approx(5, rel=0.1)
    assert result.estimate.eta_seconds == pytest.approx(80, rel=0.1)
    assert result.estimate.low_seconds is not None
    assert result.estimate.high_seconds is not None
    assert result.estimate.low_seconds <= 80 <= result.estimate.high_seconds
    assert result.durations is not None
    assert result.durations.p99_ms == 2000
    assert (result.share, result.sampled, result.attempts) == (0.6, 100, {1: 61})


def test_look__again_and_again__follows_what_it_sees_and_samples_seldom(
    store: SqliteStore, clock: VirtualClock
) -> None:
    stage = Stage(store, clock, chunks=400)
    follower = Follower(store, clock, RUN, sample_seconds=1000)
    follower.look()
    for number in range(200):
        stage.complete(number, seconds=1)
        result = follower.look()

    assert result.completed_per_second == pytest.approx(1, rel=0.1)
    assert result.durations == spread_of([1000] * 3)
    clock.advance(1000)
    assert follower.look().durations == spread_of([1000] * 200)


def test_look__first_chunks_complete_after_the_sample__there_is_an_estimate(
    store: SqliteStore, clock: VirtualClock
) -> None:
    stage = Stage(store, clock, chunks=20)
    follower = Follower(store, clock, RUN, sample_seconds=1000)
    assert follower.look().estimate.unknown == "0 chunks are completed; an estimate needs 3"
    for number in range(13):
        stage.complete(number, seconds=1)
    stage.start(13)

    assert (follower.look().estimate.text, follower.look().estimate.unknown) == ("6\u20138 s", None)


def test_look__a_straggler__is_shown(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=10)
    stage.start(9, worker="slow one")
    for number in range(6):
        stage.complete(number, seconds=10)

    assert [(one.chunk_id, one.worker) for one in Follower(store, clock, RUN).look().stragglers] == [
        ("chunk-0000090", "slow one")
    ]


def test_look__it_has_ended__reports_how_fast_it_was(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=10)
    for number in range(10):
        stage.complete(number, seconds=4)
    fanout = stage.queries.fanout(RUN)
    ended = replace(fanout, status=FanoutStatus.SUCCEEDED, finished_at=stage.queries.now(), version=fanout.version + 1)
    store.transact([ended.replacing(fanout.version)])
    clock.advance(100_000)

    result = Follower(store, clock, RUN).look()

    assert result.completed_per_second == 0.25
    assert (result.share, result.estimate.eta_seconds, result.stall) == (1, 0, None)


def test_look__no_such_fan_out__is_said(store: SqliteStore, clock: VirtualClock) -> None:
    with pytest.raises(NotFoundError):
        Follower(store, clock, RUN).look()
