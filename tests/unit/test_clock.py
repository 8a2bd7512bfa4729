"""The system clock shows the machine's time; the virtual clock shows the test's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from headgate.clock import SystemClock, VirtualClock

NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true within 10 s"
        time.sleep(0.001)


def _sleeper(clock: VirtualClock, seconds: float) -> threading.Thread:
    thread = threading.Thread(target=clock.sleep, args=(seconds,), daemon=True)
    thread.start()
    return thread


def test_system_clock__seconds_and_now__report_the_same_time() -> None:
    clock = SystemClock()

    before, now, after = clock.seconds(), clock.now(), clock.seconds()

    assert now.tzinfo is UTC
    assert before <= now.timestamp() + 1e-3
    assert now.timestamp() <= after + 1e-3


def test_system_clock__sleep__lets_monotonic_time_pass() -> None:
    clock = SystemClock()
    start = clock.monotonic()

    clock.sleep(0.01)

    assert clock.monotonic() - start >= 0.009


def test_virtual_clock__left_alone__stands_still() -> None:
    clock = VirtualClock(NOON.timestamp())

    assert clock.now() == NOON
    assert clock.seconds() == NOON.timestamp()
    assert clock.monotonic() == clock.monotonic() == 0


def test_advance__some_seconds__moves_wall_and_monotonic_time() -> None:
    clock = VirtualClock(NOON.timestamp())

    clock.advance(90.5)

    assert clock.now() == NOON + timedelta(seconds=90.5)
    assert clock.monotonic() == 90.5


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_step__forwards_or_back__moves_wall_time_alone(seconds: float) -> None:
    clock = VirtualClock(NOON.timestamp())

    clock.step(seconds)

    assert clock.now() == NOON + timedelta(seconds=seconds)
    assert clock.monotonic() == 0


def test_advance__backwards__is_refused_and_moves_nothing() -> None:
    clock = VirtualClock(NOON.timestamp())

    with pytest.raises(ValueError, match="step"):
        clock.advance(-1)

    assert clock.now() == NOON
    assert clock.monotonic() == 0


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_virtual_sleep__no_time__returns_at_once(seconds: float) -> None:
    clock = VirtualClock()

    clock.sleep(seconds)

    assert clock.sleepers() == 0


def test_advance__to_the_end_of_a_sleep__wakes_who_is_due_and_no_other() -> None:
    clock = VirtualClock()
    short, long = _sleeper(clock, 5), _sleeper(clock, 10)
    _until(lambda: clock.sleepers() == 2)

    clock.advance(5)
    short.join(10)

    assert not short.is_alive()
    assert clock.sleepers() == 1
    assert long.is_alive()
    clock.advance(5)
    long.join(10)
    assert clock.sleepers() == 0


def test_advance__in_parts__adds_up_for_a_sleeper() -> None:
    clock = VirtualClock()
    sleeper = _sleeper(clock, 3)
    _until(lambda: clock.sleepers() == 1)

    for _ in range(3):
        clock.advance(1)
    sleeper.join(10)

    assert not sleeper.is_alive()


def test_step__past_the_end_of_a_sleep__wakes_no_one() -> None:
    clock = VirtualClock()
    sleeper = _sleeper(clock, 5)
    _until(lambda: clock.sleepers() == 1)

    clock.step(1_000)
    sleeper.join(0.05)

    assert sleeper.is_alive()
    clock.advance(5)
    sleeper.join(10)
    assert not sleeper.is_alive()
