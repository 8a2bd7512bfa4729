"""Rates, percentiles and forecasts from points and durations that are known exactly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.fanout.insight.eta import (
    Estimate,
    Point,
    Ring,
    band_text,
    durations_of,
    estimate,
    history,
    rate_memory_seconds,
    rate_per_second,
    spread_of,
)
from headgate.fanout.insight.makespans import CHUNKS_SIMULATED_MAX, LaneWork, lifetimes, makespans_seconds, percentile
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import SLOW_LANE, Policy, timestamp
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


def _work(durations_ms: Sequence[int], **known: Any) -> LaneWork:
    completed = known.pop("completed", len(durations_ms))
    return LaneWork(durations_ms=sorted(durations_ms), completed=completed, **known)


def _makespans(work: LaneWork, lanes: int, seed: int = 0) -> list[float]:
    return makespans_seconds(work, lanes=lanes, policy=Policy(), seed=seed)


def _estimate(work: LaneWork, *others: LaneWork, policy: Policy | None = None, **fanout: Any) -> Estimate:
    return estimate(made_fanout(policy, **fanout), [work, *others])


def test_makespans__all_chunks_alike__are_whole_waves() -> None:
    spans = _makespans(_work([1000] * 20, pending=10), lanes=4)

    assert spans == [3.0] * len(spans)


def test_makespans__the_same_facts__give_the_same_answer() -> None:
    draw = random.Random(1)
    work = _work([draw.randrange(1, 10_000) for _ in range(50)], pending=300, running=5)

    first = _makespans(work, 8)

    assert first == _makespans(work, 8)
    assert first != _makespans(work, 8, seed=1)


@pytest.mark.parametrize(("pending", "lanes"), [(1_000_000, 100), (200_000, 5000), (CHUNKS_SIMULATED_MAX + 1, 1)])
def test_makespans__much_work_or_many_workers__come_to_work_by_workers(pending: int, lanes: int) -> None:
    draw = random.Random(2)
    durations = [draw.randrange(500, 1500) for _ in range(400)]

    spans = _makespans(_work(durations, pending=pending, running=lanes), lanes)

    expected = pending * fmean(durations) / 1000 / lanes
    assert percentile(spans, 0.5) == pytest.approx(expected, rel=0.05, abs=2)
    assert spans[-1] > spans[0]


def test_makespans__one_chunk_in_twenty_is_long__the_tail_shows() -> None:
    durations = [1000] * 95 + [60_000] * 5

    spans = _makespans(_work(durations, pending=30), lanes=30)

    assert percentile(spans, 0.9) >= 60


def test_makespans__workers_that_idle_between_chunks__take_longer() -> None:
    # 10 workers could end 10 chunks of a second in a second; 5 were seen.
    spans = _makespans(_work([1000] * 9, pending=1000, attempts_per_second=5), lanes=10)

    assert spans[0] == pytest.approx(200)


def test_makespans__first_wave_half_done__workers_do_not_seem_to_idle() -> None:
    # 10 workers have ended 10 chunks of 10 s each, and are half done with the next.
    work = _work([10_000] * 10, pending=100, running=10, ages_ms=[5000] * 10, attempts_per_second=10 / 15)

    assert percentile(_makespans(work, 10), 0.5) == pytest.approx(105, rel=0.02)


def test_lifetimes__only_short_chunks_have_ended__running_ones_count_as_longer() -> None:
    known = lifetimes([1000, 2000], [500, 1500, 9000], completed=2, running=3)

    # Of 4 chunks that reach 1 s one ends then, of 2 that reach 2 s one; the last is beyond.
    assert known.cumulative == pytest.approx([1 / 4, 1 / 4 + 3 / 8])
    assert known.beyond == pytest.approx(3 / 8)


def test_estimate__known_rate_and_durations__gives_time_and_band() -> None:
    found = _estimate(_work([1000] * 100, pending=590, running=10, completed=400, attempts_per_second=10.0))

    assert found.remaining == 600
    assert found.eta_seconds == pytest.approx(60, rel=0.02)
    assert found.low_seconds == pytest.approx(54, abs=1)
    assert found.high_seconds == pytest.approx(66, abs=1)
    assert found.text == band_text(found.low_seconds or 0, found.high_seconds or 0)
    assert found.unknown is None


def test_estimate__chunks_that_take_two_tries_each__take_twice_as_long() -> None:
    once, twice = (
        _estimate(_work([1000] * 9, pending=90, running=10, tries=tries), policy=Policy(max_attempts=9))
        for tries in (1.0, 2.0)
    )

    assert once.eta_seconds is not None
    assert twice.eta_seconds is not None
    assert twice.eta_seconds > 1.8 * once.eta_seconds


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"status": FanoutStatus.SPLITTING}, "still being split"),
        ({"paused_at": timestamp(T0)}, "paused"),
        ({"cancelled_at": timestamp(T0)}, "being cancelled"),
    ],
)
def test_estimate__held_as_a_whole__says_why(changes: dict[str, Any], reason: str) -> None:
    found = _estimate(_work([1000] * 9, pending=50, running=1), **changes)

    assert (found.eta_seconds, found.low_seconds, found.high_seconds) == (None,) * 3
    assert reason in (found.unknown or "")
    assert found.text == f"unknown: {found.unknown}"


def test_estimate__too_few_are_completed__says_how_many_it_needs() -> None:
    found = _estimate(_work([1000] * 2, pending=5, running=1))

    assert found.text == "unknown: 2 chunks are completed; an estimate needs 3"


def test_estimate__no_worker__is_unknown_also_with_a_concurrency() -> None:
    work = _work([1000] * 9, pending=50, idle_seconds=20.0, attempts_per_second=0.4)

    assert _estimate(work, policy=Policy(concurrency=5)).unknown == "no chunk is running: no worker takes them"
    # Between two batches of claims.
    assert _estimate(replace(work, idle_seconds=2.0)).unknown is None
    # A backoff is no missing worker.
    assert _estimate(replace(work, retrying=50)).unknown is None


def test_estimate__a_hung_chunk_among_the_last__is_unknown_and_names_it() -> None:
    work = _work([1000, 1200] * 50, running=1, ages_ms=[70_000], oldest_chunk_id="chunk-0000300")

    found = _estimate(work)

    assert found.unknown == (
        "chunk-0000300 has been running for 70 s, and the others took at most 1.2 s; its time-out is 15 min"
    )


def test_estimate__a_hung_chunk_while_the_rest_takes_long__is_known() -> None:
    work = _work([1000, 1200] * 50, pending=5000, running=4, ages_ms=[70_000, 100, 200, 300])

    found = _estimate(work)

    assert found.unknown is None
    assert found.low_seconds is not None
    assert found.low_seconds > 1000


def test_estimate__every_worker_is_hung__is_unknown_whatever_is_queued() -> None:
    work = _work([1000] * 50, pending=5000, running=2, ages_ms=[70_000, 80_000])

    assert _estimate(work).unknown is not None


def test_estimate__a_chunk_that_outlives_all_others__may_take_as_long_again() -> None:
    found = _estimate(_work([10_000, 20_000, 30_000], running=1, ages_ms=[60_000]))

    assert found.high_seconds is not None
    assert found.high_seconds >= 60


@given(
    st.lists(st.integers(0, 600_000), min_size=3, max_size=30),
    st.lists(st.integers(0, 600_000), max_size=10),
    st.integers(0, 300),
)
def test_estimate__any_open_work__is_never_nothing_and_never_a_contradiction(
    durations_ms: list[int], ages_ms: list[int], pending: int
) -> None:
    work = _work(durations_ms, pending=pending, running=len(ages_ms), ages_ms=ages_ms)

    found = _estimate(work)

    if not work.open:
        assert (found.remaining, found.text) == (0, "nothing")
    elif found.unknown is None:
        assert found.low_seconds is not None
        assert found.eta_seconds is not None
        assert found.high_seconds is not None
        assert 0 <= found.low_seconds <= found.eta_seconds <= found.high_seconds
        assert found.high_seconds >= 1
        overdue = [age for age in ages_ms if age > max(durations_ms)]
        assert found.high_seconds >= max(overdue, default=0) / 1000


def test_estimate__nothing_is_left__is_no_time() -> None:
    found = _estimate(LaneWork())

    assert (found.remaining, found.eta_seconds, found.high_seconds) == (0, 0, 0)


def test_estimate__two_lanes__the_longer_one_decides() -> None:
    main = _work([1000] * 50, pending=10, running=10)
    slow = _work([60_000] * 5, lane=SLOW_LANE, pending=9, running=1)

    found = _estimate(main, slow)

    assert [lane.lane for lane in found.lanes] == ["main", "slow"]
    assert found.remaining == 30
    assert found.high_seconds == found.lanes[1].high_seconds
    assert found.lanes[0].high_seconds is not None
    assert found.lanes[0].high_seconds < 5


def test_estimate__slow_lane_without_an_end__is_unknown_though_the_main_lane_is_done() -> None:
    slow = LaneWork(lane=SLOW_LANE, pending=4, running=1, ages_ms=[30_000])

    found = _estimate(_work([1000] * 50), slow)

    assert found.text == "unknown: 0 chunks of the slow lane are completed; an estimate needs 3"


def test_estimate__slow_lane_that_no_worker_takes__says_so() -> None:
    slow = LaneWork(lane=SLOW_LANE, pending=5, idle_seconds=60.0)

    assert _estimate(_work([1000] * 50), slow).unknown == "no chunk of the slow lane is running: no worker takes them"


def test_estimate__main_lane_goes_on_deferring__the_slow_lane_gets_more() -> None:
    main = _work([1000] * 50, pending=50, running=10)
    slow = _work([10_000] * 5, lane=SLOW_LANE, running=1, ages_ms=[0])

    alone = _estimate(main, slow)
    more = _estimate(main, replace(slow, expected=10))

    assert alone.high_seconds is not None
    assert more.low_seconds is not None
    assert more.low_seconds > alone.high_seconds
    assert more.remaining == alone.remaining


def test_estimate__workers_between_two_handfuls_of_chunks__are_known_by_what_they_got_done() -> None:
    work = _work([200] * 50, pending=999, running=1, completed=1000, attempts_per_second=100.0)

    assert _estimate(work).eta_seconds == pytest.approx(10, rel=0.1)


def test_estimate__more_seen_than_is_allowed_now__goes_by_what_is_allowed() -> None:
    work = _work([2000] * 50, pending=990, running=20, completed=1000)

    assert _estimate(work, policy=Policy(concurrency=10)).eta_seconds == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.0, 0.4, "under 1 s"),
        (0.2, 4.2, "under 5 s"),
        (4.9, 5.0, "4\u20135 s"),
        (5.0, 5.0, "about 5 s"),
        (100, 119, "100\u2013119 s"),
        (250, 400, "4\u20137 min"),
        (4000, 9000, "1\u20133 h"),
        (90_000, 700_000, "1\u20139 d"),
    ],
)
def test_band__in_words__is_rounded_outwards_in_one_unit(low: float, high: float, text: str) -> None:
    assert band_text(low, high) == text
