"""Token buckets: what they admit, how long a refused request waits, and how many there are."""

from __future__ import annotations

import pytest

from headgate.auth.failed_logins import PERIOD_SECONDS, FailedLogins, Tally, count_failure
from headgate.auth.rate_limits import Level, Rate, RateLimiter, take
from headgate.clock import VirtualClock
from headgate.errors import RateLimitedError

RATE = Rate(per_second=2.0, burst=3.0)


def test_take__new_bucket__is_full() -> None:
    assert take(None, RATE, 10.0) == (Level(2.0, 10.0), 0.0)


def test_take__empty_bucket__waits_for_the_next_token() -> None:
    assert take(Level(0.0, 10.0), RATE, 10.0) == (Level(0.0, 10.0), 0.5)
    assert take(Level(0.0, 10.0), RATE, 10.25) == (Level(0.5, 10.25), 0.25)


def test_take__after_the_wait__is_admitted() -> None:
    assert take(Level(0.0, 10.0), RATE, 10.5) == (Level(0.0, 10.5), 0.0)


def test_take__long_pause__holds_no_more_than_the_burst() -> None:
    assert take(Level(0.0, 10.0), RATE, 1000.0) == (Level(2.0, 1000.0), 0.0)


def test_take__clock_went_back__adds_nothing() -> None:
    assert take(Level(1.0, 10.0), RATE, 5.0) == (Level(0.0, 5.0), 0.0)


def test_limiter__keys__have_buckets_of_their_own_and_the_oldest_is_dropped() -> None:
    limiter = RateLimiter(Rate(1.0, 1.0), buckets_max=2)

    assert limiter.wait_seconds("a", 0.0) == 0
    assert limiter.wait_seconds("a", 0.0) == 1.0
    assert limiter.wait_seconds("b", 0.0) == 0
    assert limiter.wait_seconds("c", 0.0) == 0
    assert len(limiter) == 2
    # Dropped, and so full again.
    assert limiter.wait_seconds("a", 0.0) == 0


def test_count_failure__within_a_period__is_logged_once() -> None:
    assert count_failure(None, 5.0) == (Tally(5.0, 0), 1)
    assert count_failure(Tally(5.0, 0), 6.0) == (Tally(5.0, 1), 0)
    assert count_failure(Tally(5.0, 1), 7.0) == (Tally(5.0, 2), 0)


def test_count_failure__next_period__is_logged_with_those_before() -> None:
    assert count_failure(Tally(5.0, 2), 5.0 + PERIOD_SECONDS) == (Tally(5.0 + PERIOD_SECONDS, 0), 3)


def test_failed_logins__beyond_the_limit__says_when_to_retry() -> None:
    clock = VirtualClock()
    logins = FailedLogins(2, clock)
    logins.record("10.0.0.1")
    logins.record("10.0.0.1")

    with pytest.raises(RateLimitedError) as limited:
        logins.record("10.0.0.1")

    assert limited.value.retry_after_seconds == pytest.approx(30.0)
    logins.record("10.0.0.2")


def test_failed_logins__unlimited__never_refuses() -> None:
    logins = FailedLogins(0, VirtualClock())
    for _ in range(1000):
        logins.record("10.0.0.1")
