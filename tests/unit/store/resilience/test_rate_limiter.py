"""The limiter: it finds out what a table takes, shares it by what matters, and lets go when all is well."""

from __future__ import annotations

import contextvars
import itertools
import threading
import time

import pytest

from headgate.clock import SystemClock, VirtualClock
from headgate.errors import DeadlineExceededError, ThrottledError
from headgate.store.deadlines import deadline_within
from headgate.store.resilience.rate_limiter import (
    RATE_MIN,
    LimiterLimits,
    Priority,
    RateLimiter,
    current_priority,
    prioritised,
)

TRANSITION, REFRESH, EVIDENCE = Priority.TRANSITION, Priority.REFRESH, Priority.EVIDENCE


class WaitingClock(VirtualClock):
    """A clock on which sleepers only say how long they would, as if each had a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Rig:
    def __init__(self, limits: LimiterLimits | None = None) -> None:
        self.clock = WaitingClock()
        self.limiter = RateLimiter("t", self.clock, limits or LimiterLimits())

    def send(self, priority: Priority = REFRESH, units: int = 1) -> bool:
        """Whether a call was let through, be it after a wait."""
        with prioritised(priority):
            try:
                self.limiter.acquire(units)
            except ThrottledError:
                return False
        return True

    def busy(self, per_second: int, seconds: int) -> None:
        for _ in range(per_second * seconds):
            self.clock.advance(1 / per_second)
            self.limiter.acquire()

    @property
    def rate(self) -> float:
        assert self.limiter.rate is not None
        return self.limiter.rate


@pytest.fixture
def rig() -> Rig:
    """A limiter that was throttled at 100 calls a second, and now allows 50."""
    rig = Rig()
    rig.busy(100, 3)
    rig.limiter.throttled()
    return rig


def test_limiter__never_throttled__never_limits() -> None:
    rig = Rig()

    for _ in range(100_000):
        rig.limiter.acquire()

    assert rig.limiter.rate is None
    assert rig.clock.slept == []


def test_limiter__throttled__allows_half_of_what_was_sent(rig: Rig) -> None:
    assert rig.rate == pytest.approx(50, rel=0.05)


def test_limiter__throttles_of_one_second__cut_once(rig: Rig) -> None:
    for _ in range(50):
        rig.limiter.throttled()
    assert rig.rate == pytest.approx(50, rel=0.05)

    rig.clock.advance(1)
    rig.limiter.throttled()
    assert rig.rate == pytest.approx(25, rel=0.1)


def test_limiter__throttled_for_ever__keeps_a_trickle(rig: Rig) -> None:
    for _ in range(100):
        rig.clock.advance(1)
        rig.limiter.throttled()

    assert rig.rate == RATE_MIN


def test_limiter__seconds_without_throttle__grow_by_equal_steps_until_it_lets_go(rig: Rig) -> None:
    seen = []
    for _ in range(60):
        rig.clock.advance(1)
        rig.send()
        seen.append(rig.limiter.rate)

    limited = [rate for rate in seen if rate is not None]
    steps = [after - before for before, after in itertools.pairwise(limited[2:])]
    assert all(step == pytest.approx(10, rel=0.05) for step in steps), "added, not multiplied"
    assert seen[-1] is None
    assert 30 <= len(limited) <= 40


def test_limiter__no_token__waits_until_one_is_due(rig: Rig) -> None:
    for _ in range(5):
        assert rig.send()

    assert rig.clock.slept == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1], rel=0.1)


def test_limiter__overload__sheds_evidence_then_refreshes_then_transitions(rig: Rig) -> None:
    let_through = {priority: sum(rig.send(priority) for _ in range(60)) for priority in (EVIDENCE, REFRESH, TRANSITION)}

    # 50 a second: a second's worth of refreshes may wait, and another second's of transitions.
    assert let_through[EVIDENCE] == 0
    assert let_through[REFRESH] == pytest.approx(50, abs=1)
    assert let_through[TRANSITION] == pytest.approx(50, abs=1)
    assert rig.limiter.shed == 180 - sum(let_through.values())


def test_limiter__shed__says_when_to_come_back(rig: Rig) -> None:
    for _ in range(50):
        rig.send()

    with pytest.raises(ThrottledError, match=r"table t: it takes 50 calls a second.*try again in 1.0 s") as caught:
        rig.limiter.acquire()

    assert caught.value.retry_after_seconds == pytest.approx(1.02, rel=0.05)


def test_limiter__shed__takes_nothing(rig: Rig) -> None:
    for _ in range(1000):
        rig.send(EVIDENCE)

    rig.clock.advance(0.02)
    assert rig.send(EVIDENCE)


def test_limiter__deadline__is_not_waited_past(rig: Rig) -> None:
    for _ in range(10):
        rig.send()

    with deadline_within(0.1, rig.clock), pytest.raises(ThrottledError):
        rig.limiter.acquire()
    with deadline_within(0.5, rig.clock), deadline_within(9.0, rig.clock):
        rig.limiter.acquire()
        rig.clock.advance(0.6)
        with pytest.raises(DeadlineExceededError, match="table t"):
            rig.limiter.acquire()
    rig.limiter.acquire()


def test_limiter__call_larger_than_a_second_s_worth__is_let_in_when_all_is_quiet(rig: Rig) -> None:
    rig.clock.advance(1)

    assert rig.send(EVIDENCE, units=10_000)
    assert not rig.send(EVIDENCE)


def test_limiter__without_waiting__borrows_and_lets_others_wait(rig: Rig) -> None:
    for _ in range(50):
        rig.limiter.acquire(wait=False)
    assert rig.clock.slept == []

    with pytest.raises(ThrottledError):
        rig.limiter.acquire(wait=False)
    with prioritised(TRANSITION):
        rig.limiter.acquire()
    assert rig.clock.slept == pytest.approx([1.02], rel=0.05)


def test_limiter__waiting_places__are_bounded_and_kept_for_transitions() -> None:
    clock = VirtualClock()
    limiter = RateLimiter("t", clock, LimiterLimits(waiting_max=8, wait_seconds_max=1000.0))
    for _ in range(300):
        clock.advance(0.01)
        limiter.acquire()
    limiter.throttled()
    outcomes: list[str] = []

    def call(priority: Priority) -> None:
        with prioritised(priority):
            try:
                limiter.acquire()
                outcomes.append("sent")
            except ThrottledError:
                outcomes.append("shed")

    threads = [threading.Thread(target=call, args=(which,)) for which in [REFRESH] * 6 + [TRANSITION] * 6]
    for started, thread in enumerate(threads, 1):
        thread.start()
        ends_at = time.monotonic() + 10
        while clock.sleepers() + outcomes.count("shed") < started:
            assert time.monotonic() < ends_at
            time.sleep(0.001)
    assert clock.sleepers() == 8
    assert outcomes == ["shed"] * 4

    clock.advance(10)
    for thread in threads:
        thread.join(10)
    assert outcomes.count("sent") == 8


def test_priority__is_ordinary_unless_said__and_is_inherited_by_a_context() -> None:
    assert current_priority() is REFRESH
    with prioritised(TRANSITION):
        with prioritised(EVIDENCE):
            assert current_priority() is EVIDENCE
        assert contextvars.copy_context().run(current_priority) is TRANSITION
    assert current_priority() is REFRESH


class Backend:
    """A table that takes so many calls a second, and throttles the rest."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._second = -1
        self._taken = 0

    def takes(self, now: float) -> bool:
        if int(now) != self._second:
            self._second, self._taken = int(now), 0
        self._taken += 1
        return self._taken <= self.capacity


def test_limiter__overload_of_three_times_the_capacity__transitions_pass_and_little_is_wasted() -> None:
    rig = Rig()
    backend = Backend(capacity=100)
    sent = dict.fromkeys(Priority, 0)
    offered = dict.fromkeys(Priority, 0)
    throttled = 0
    # Each second: 20 transitions, 80 refreshes, 200 pieces of evidence, evenly.
    mix = ([EVIDENCE] * 10 + [REFRESH] * 4 + [TRANSITION]) * 20
    pending: list[tuple[float, Priority]] = []
    for _second in range(120):
        for priority in mix:
            rig.clock.advance(1 / len(mix))
            offered[priority] += 1
            before = len(rig.clock.slept)
            if rig.send(priority):
                wait = rig.clock.slept[before] if len(rig.clock.slept) > before else 0.0
                pending.append((rig.clock.monotonic() + wait, priority))
            due = [entry for entry in pending if entry[0] <= rig.clock.monotonic()]
            pending = [entry for entry in pending if entry[0] > rig.clock.monotonic()]
            for _, whose in due:
                if backend.takes(rig.clock.monotonic()):
                    sent[whose] += 1
                else:
                    throttled += 1
                    rig.limiter.throttled()

    assert sent[TRANSITION] >= 0.9 * offered[TRANSITION]
    assert sent[REFRESH] >= 0.4 * offered[REFRESH]
    assert sent[EVIDENCE] <= 0.25 * offered[EVIDENCE]
    assert sum(sent.values()) >= 0.6 * 120 * backend.capacity, "the capacity is used"
    assert throttled <= 0.1 * sum(sent.values()), "and little is sent in vain"

    for _ in range(120):
        rig.clock.advance(1)
        rig.send()
    assert rig.limiter.rate is None, "the limit is lifted once the load is gone"


def test_limiter__many_threads_on_the_real_clock__keep_to_the_rate() -> None:
    clock = SystemClock()
    limiter = RateLimiter("t", clock, LimiterLimits(wait_seconds_max=20.0, growth=0.0))
    for _ in range(400):
        limiter.acquire()
    limiter.throttled()
    began_at = clock.monotonic()

    def call() -> None:
        for _ in range(10):
            limiter.acquire()

    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    # 120 calls at 200 a second (a little more as it grows): no burst was saved up.
    assert 0.4 <= clock.monotonic() - began_at < 5
    assert limiter.shed == 0
