"""Rates, percentiles and forecasts from points and durations that are known exactly."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fanout.insight.eta import (
    CHUNKS_SIMULATED_MAX,
    Pace,
    Point,
    Ring,
    durations_of,
    estimate,
    history,
    makespans_seconds,
    percentile,
    rate_memory_seconds,
    rate_per_second,
    spread_of,
)
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Policy, timestamp
from headgate.fanout.model.states import Disposition, FanoutStatus
from tests.unit.fanout.made_rows import T0, made_chunk, made_fanout


def _steady(per_second: float, seconds: int, *, every: int = 1) -> list[Point]:
    return [Point(T0 + 1000 * at, round(per_second * at)) for at in range(0, seconds + 1, every)]


def _completed(point: Point) -> int:
    return point.completed


@pytest.mark.parametrize("every", [1, 7, 60])
def test_rate__steady_completions__is_the_same_however_often_one_looks(every: int) -> None:
    assert rate_per_second(_steady(10, 420, every=every), _completed) == pytest.approx(10)


def test_rate__a_change_of_pace__is_followed() -> None:
    slow = _steady(10, 600)
    fast = [Point(slow[-1].at_ms + 1000 * at, slow[-1].completed + 50 * at) for at in range(1, 181)]

    rate = rate_per_second(slow + fast, _completed)

    assert rate is not None
    assert 45 < rate < 50


def test_rate__no_further_completions__dies_away() -> None:
    points = [*_steady(10, 600), Point(T0 + 1_200_000, 6000)]

    rate = rate_per_second(points, _completed)

    assert rate is not None
    assert rate < 0.01


@pytest.mark.parametrize("points", [[], [Point(T0, 5)], [Point(T0, 5), Point(T0, 9)]])
def test_rate__fewer_than_two_moments__is_unknown(points: list[Point]) -> None:
    assert rate_per_second(points, _completed) is None


def test_rate__a_count_that_shrinks__is_never_negative() -> None:
    assert rate_per_second([Point(T0, 9), Point(T0 + 1000, 3)], _completed) == 0


def test_ring__more_points_than_it_holds__keeps_the_latest() -> None:
    ring = Ring((Point(at, at) for at in range(10)), capacity=3)

    assert [point.at_ms for point in ring.points()] == [7, 8, 9]


def test_ring__the_same_moment_again__replaces_the_point() -> None:
    ring = Ring([Point(1, 1), Point(2, 2)])
    ring.add(Point(2, 5))

    assert ring.points() == [Point(1, 1), Point(2, 5)]


def test_ring__a_clock_that_was_set_back__begins_anew() -> None:
    ring = Ring([Point(5000, 1), Point(6000, 2)])
    ring.add(Point(1000, 3))

    assert ring.points() == [Point(1000, 3)]


def test_memory__slow_chunks_or_a_long_history__reaches_further_back() -> None:
    spread = spread_of([320_000])

    assert rate_memory_seconds(_steady(1, 60), None) == 60
    assert rate_memory_seconds(_steady(1, 60), spread) == 640
    assert rate_memory_seconds([Point(T0, 0), Point(T0 + 36_000_000, 9)], None) == 1800


def test_spread__known_durations__gives_their_percentiles() -> None:
    spread = spread_of(list(range(101)))

    assert spread is not None
    assert (spread.p50_ms, spread.p95_ms, spread.p99_ms, spread.max_ms) == (50, 95, 99, 100)
    assert (spread.mean_ms, spread.count) == (50, 101)


def test_spread__no_durations__is_none() -> None:
    assert spread_of([]) is None


@given(st.lists(st.integers(0, 10**9), min_size=1), st.floats(0, 1))
def test_percentile__any_values__lies_among_them(values: list[int], share: float) -> None:
    ordered = sorted(values)

    assert ordered[0] <= percentile(ordered, share) <= ordered[-1]


def test_durations__chunks_of_all_kinds__are_those_of_completed_ones() -> None:
    chunks = [
        made_chunk(0, duration_ms=300),
        made_chunk(1, Disposition.DEFERRED, duration_ms=100),
        made_chunk(2, Disposition.DEAD, duration_ms=7),
        made_chunk(3, Disposition.RUNNING),
        made_chunk(4, Disposition.QUEUED),
    ]

    assert durations_of(chunks) == [100, 300]


def test_history__a_tenth_of_the_rows__reports_the_whole_curve() -> None:
    # 1,000 chunks, one a second, of which every tenth was read.
    chunks = [made_chunk(number, begin_ms=T0 + 1000 * number) for number in range(0, 1000, 10)]
    counts = Counts(total=2000, done=1000, queued=1000)

    points = history(made_fanout(started_at=timestamp(T0)), counts, chunks, T0 + 1_000_000)

    assert points[0] == Point(T0, 0, 0)
    assert points[-1] == Point(T0 + 1_000_000, 1000, 0)
    for point in points:
        assert point.completed == pytest.approx((point.at_ms - T0) / 1000, abs=25)
    assert rate_per_second(points, _completed) == pytest.approx(1.0, rel=0.1)


def test_history__failed_chunks__are_counted_apart() -> None:
    chunks = [made_chunk(0), made_chunk(1, Disposition.DEAD), made_chunk(2, Disposition.RETRYING)]
    counts = Counts(total=3, done=1, dead=1, retrying=1)

    points = history(made_fanout(), counts, chunks, T0 + 10_000)

    assert (points[-1].completed, points[-1].failed) == (1, 1)
    assert [point.ended for point in points] == sorted(point.ended for point in points)


def test_history__a_fan_out_that_has_ended__stops_at_its_end() -> None:
    fanout = made_fanout(finished_at=timestamp(T0 + 5000))

    points = history(fanout, Counts(total=1, done=1), [made_chunk(0)], T0 + 9_999_999)

    assert points[-1] == Point(T0 + 5000, 1)


def test_history__completions_of_which_no_row_was_read__are_spread_over_the_time() -> None:
    points = history(made_fanout(), Counts(total=90, done=60, queued=30), [], T0 + 60_000, size=7)

    assert [point.completed for point in points] == [0, 10, 20, 30, 40, 50, 60]


def test_history__nothing_has_begun__is_one_point() -> None:
    assert history(made_fanout(), Counts(total=3, queued=3), [], T0) == [Point(T0, 0, 0)]


def test_makespans__all_chunks_alike__are_whole_waves() -> None:
    spans = makespans_seconds([1000] * 20, pending=10, running=0, lanes=4)

    assert spans == [3.0] * len(spans)


def test_makespans__the_same_facts__give_the_same_answer() -> None:
    draw = random.Random(1)
    durations = [draw.randrange(1, 10_000) for _ in range(50)]

    first = makespans_seconds(durations, pending=300, running=5, lanes=8)

    assert first == makespans_seconds(durations, pending=300, running=5, lanes=8)
    assert first != makespans_seconds(durations, pending=300, running=5, lanes=8, seed=1)


@pytest.mark.parametrize(("pending", "lanes"), [(1_000_000, 100), (200_000, 5000), (CHUNKS_SIMULATED_MAX + 1, 1)])
def test_makespans__much_work_or_many_workers__come_to_work_by_workers(pending: int, lanes: int) -> None:
    draw = random.Random(2)
    durations = [draw.randrange(500, 1500) for _ in range(400)]

    spans = makespans_seconds(durations, pending=pending, running=lanes, lanes=lanes)

    expected = pending * fmean(durations) / 1000 / lanes
    assert percentile(spans, 0.5) == pytest.approx(expected, rel=0.05, abs=2)
    assert spans[-1] > spans[0]


def test_makespans__one_chunk_in_twenty_is_long__the_tail_shows() -> None:
    durations = [1000] * 95 + [60_000] * 5

    spans = makespans_seconds(durations, pending=30, running=0, lanes=30)

    assert percentile(spans, 0.9) == 60


def test_makespans__workers_that_idle_between_chunks__take_longer() -> None:
    # 10 workers could end 10 chunks of a second in a second; 5 were seen.
    spans = makespans_seconds([1000] * 9, pending=1000, running=0, lanes=10, attempts_per_second=5)

    assert spans[0] == pytest.approx(200)


def test_estimate__known_rate_and_durations__gives_time_and_band() -> None:
    counts = Counts(total=1000, done=400, queued=590, running=10, attempts=410)

    found = estimate(made_fanout(), counts, Pace(10.0, [1000] * 100))

    assert found.remaining == 600
    assert found.eta_seconds == 60
    assert found.waves_seconds == 60
    assert found.p50_seconds is not None
    assert found.p90_seconds is not None
    assert 58 <= found.p50_seconds <= found.p90_seconds <= 62
    assert found.unknown is None


def test_estimate__chunks_that_take_two_tries_each__take_twice_as_long() -> None:
    once = Counts(total=200, done=100, queued=90, running=10, attempts=110)
    twice = Counts(total=200, done=100, queued=90, running=10, attempts=210)

    short, long = (estimate(made_fanout(), counts, Pace(None, [1000] * 9)) for counts in (once, twice))

    assert short.p50_seconds is not None
    assert long.p50_seconds is not None
    assert long.p50_seconds == pytest.approx(2 * short.p50_seconds, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "counts", "reason"),
    [
        ({}, Counts(total=9, done=4, queued=5), "only 4 chunks are completed"),
        ({"status": FanoutStatus.SPLITTING}, Counts(total=99, done=50, queued=49), "still being split"),
        ({"paused_at": timestamp(T0)}, Counts(total=99, done=50, queued=49), "paused"),
    ],
)
def test_estimate__too_little_is_known__says_why(changes: dict[str, Any], counts: Counts, reason: str) -> None:
    found = estimate(made_fanout(**changes), counts, Pace(1.0, [1000] * 9))

    assert (found.eta_seconds, found.p50_seconds, found.p90_seconds, found.waves_seconds) == (None,) * 4
    assert reason in (found.unknown or "")


def test_estimate__nothing_is_left__is_no_time() -> None:
    found = estimate(made_fanout(), Counts(total=9, done=9), Pace(None, []))

    assert (found.remaining, found.eta_seconds, found.p90_seconds) == (0, 0, 0)


def test_estimate__workers_between_two_handfuls_of_chunks__are_known_by_what_they_got_done() -> None:
    counts = Counts(total=2000, done=1000, queued=999, running=1, attempts=1001)

    found = estimate(made_fanout(), counts, Pace(100.0, [2000] * 50))

    assert found.eta_seconds == 10
    assert found.p50_seconds == pytest.approx(10, rel=0.1)


def test_estimate__more_seen_than_is_allowed_now__goes_by_what_is_allowed() -> None:
    counts = Counts(total=2000, done=1000, queued=990, running=10, attempts=1010)

    found = estimate(made_fanout(Policy(concurrency=10)), counts, Pace(100.0, [2000] * 50))

    assert found.p50_seconds == pytest.approx(200, rel=0.05)


def test_estimate__no_worker_is_busy__goes_by_the_concurrency_that_is_allowed() -> None:
    fanout = made_fanout(Policy(concurrency=5))
    counts = Counts(total=100, done=50, queued=50, attempts=50)

    assert estimate(fanout, counts, Pace(None, [1000] * 9)).p50_seconds == 10
    assert estimate(made_fanout(), counts, Pace(None, [1000] * 9)).unknown is not None
