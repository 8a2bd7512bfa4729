"""Starts within a rate limit."""

from __future__ import annotations

import random

import pytest

from headgate.durable.engine.rate_window import ENTRIES_MAX, Starts, with_start


def admitted(arrivals_ms: list[int], rate: int, per_ms: int) -> list[int]:
    recent: tuple[Starts, ...] = ()
    started = []
    for at_ms in arrivals_ms:
        after = with_start(recent, rate, per_ms, at_ms)
        if after is not None:
            recent = after
            started.append(at_ms)
        assert len(recent) <= 2 * ENTRIES_MAX + 2
    return started


def most_in_a_window(started_ms: list[int], per_ms: int) -> int:
    return max(sum(at <= each < at + per_ms for each in started_ms) for at in started_ms)


def test_starts__more_than_the_rate_at_once__those_beyond_it_are_refused() -> None:
    assert admitted([0] * 15, 10, 1000) == [0] * 10


def test_starts__a_burst_at_the_end_of_a_window__does_not_add_to_the_next() -> None:
    # A bucket that refills would admit 19 between 900 and 1,900.
    started = admitted([900] * 10 + list(range(901, 1950)), 10, 1000)
    assert started == [900] * 10 + [1900 + number for number in range(10)]


@pytest.mark.parametrize(("rate", "per_ms"), [(1, 1000), (10, 1000), (64, 1000), (300, 1000), (300, 70), (999, 9000)])
def test_starts__arrivals_of_any_kind__no_window_has_more_than_the_rate(rate: int, per_ms: int) -> None:
    chance = random.Random(rate)
    now, arrivals = 0, []
    for _ in range(6 * rate):
        now += chance.choice([0, 0, 0, 1, per_ms // (2 * rate), per_ms // 3 if chance.random() < 0.01 else 0])
        arrivals.append(now)
    started = admitted(arrivals, rate, per_ms)
    assert most_in_a_window(started, per_ms) <= rate


@pytest.mark.parametrize("rate", [1, 10, 500])
def test_starts__always_more_work_than_the_rate__the_rate_is_used(rate: int) -> None:
    started = admitted(list(range(20_000)), rate, 1000)
    assert len(started) >= 20 * rate * 0.95


def test_starts__clock_set_back_by_more_than_a_window__earlier_starts_do_not_count() -> None:
    recent = with_start((), 1, 1000, 100_000)
    assert recent is not None
    assert with_start(recent, 1, 1000, 99_500) is None
    assert with_start(recent, 1, 1000, 50_000) is not None
