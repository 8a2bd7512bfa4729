"""The breaker: what trips it, what does not, and how it comes back."""

from __future__ import annotations

import itertools
import random
import threading

import pytest

from headgate.clock import VirtualClock
from headgate.errors import BreakerOpenError
from headgate.store.resilience.circuit_breaker import BreakerChange, BreakerLimits, BreakerState, CircuitBreaker

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class Rig:
    def __init__(self, limits: BreakerLimits | None = None) -> None:
        self.clock = VirtualClock()
        self.changes: list[BreakerChange] = []
        self.breaker = CircuitBreaker("get on t", self.clock, limits or BreakerLimits(), self.changes.append)

    def fail(self, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.failed(self.breaker.admit())

    def succeed(self, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.succeeded(self.breaker.admit())

    def is_refused(self) -> bool:
        try:
            self.breaker.abandoned(self.breaker.admit())
        except BreakerOpenError:
            return True
        return False

    def after(self) -> list[BreakerState]:
        return [change.after for change in self.changes]


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_breaker__ten_failures__opens_for_thirty_seconds(rig: Rig) -> None:
    rig.fail(9)
    assert rig.breaker.state is CLOSED
    rig.fail()
    assert rig.breaker.state is OPEN

    rig.clock.advance(20)
    with pytest.raises(BreakerOpenError, match=r"get on t.*10\.0 s") as caught:
        rig.breaker.admit()

    assert caught.value.retry_after_seconds == pytest.approx(10)
    assert rig.changes == [BreakerChange("get on t", CLOSED, OPEN)]


def test_breaker__nine_of_ten_fail__trips_although_a_success_comes_every_tenth(rig: Rig) -> None:
    rig.succeed()
    rig.fail(9)
    rig.succeed()
    assert rig.breaker.state is CLOSED
    rig.fail()

    assert rig.breaker.state is OPEN


def test_breaker__just_half_fails__trips_and_less_does_not() -> None:
    half, less = Rig(), Rig()
    half.succeed(20)
    half.fail(20)
    less.succeed(21)
    for _ in range(20):
        less.fail()
        less.succeed()

    assert half.breaker.state is OPEN
    assert less.breaker.state is CLOSED


def test_breaker__failures_spread_over_hours__never_trip(rig: Rig) -> None:
    for _ in range(100):
        rig.fail()
        rig.clock.advance(4)

    assert rig.breaker.state is CLOSED


def test_breaker__old_successes__do_not_hide_an_outage(rig: Rig) -> None:
    rig.succeed(1000)
    rig.clock.advance(34)
    rig.fail(10)

    assert rig.breaker.state is OPEN


def test_breaker__half_open__admits_three_probes_of_500_callers(rig: Rig) -> None:
    rig.fail(10)
    rig.clock.advance(30)
    admitted: list[int] = []
    start = threading.Barrier(20)

    def call() -> None:
        start.wait()
        for _ in range(25):
            try:
                admitted.append(rig.breaker.admit())
            except BreakerOpenError:
                pass

    threads = [threading.Thread(target=call) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(admitted) == 3
    assert rig.breaker.state is HALF_OPEN
    for ticket in admitted:
        rig.breaker.succeeded(ticket)
    assert rig.breaker.state is CLOSED
    assert rig.after() == [OPEN, HALF_OPEN, CLOSED]


def test_breaker__probe_fails__opens_for_another_full_time(rig: Rig) -> None:
    rig.fail(10)
    rig.clock.advance(30)
    first, second = rig.breaker.admit(), rig.breaker.admit()
    rig.breaker.succeeded(first)

    rig.breaker.failed(second)

    assert rig.breaker.state is OPEN
    rig.clock.advance(29.9)
    assert rig.is_refused()
    rig.clock.advance(0.2)
    rig.succeed(3)
    assert rig.breaker.state is CLOSED


def test_breaker__late_failures_of_calls_begun_before__do_not_prolong_it(rig: Rig) -> None:
    late = [rig.breaker.admit() for _ in range(5)]
    rig.fail(10)
    rig.clock.advance(29)
    for ticket in late[:3]:
        rig.breaker.failed(ticket)
    rig.clock.advance(1)

    probes = [rig.breaker.admit() for _ in range(3)]
    rig.breaker.failed(late[3])
    assert rig.breaker.state is HALF_OPEN, "a late failure is not a probe's"
    for ticket in probes:
        rig.breaker.succeeded(ticket)
    rig.breaker.failed(late[4])

    assert rig.breaker.state is CLOSED
    rig.fail(9)
    assert rig.breaker.state is CLOSED, "the late one did not count"


def test_breaker__late_success__does_not_close_it(rig: Rig) -> None:
    late = [rig.breaker.admit() for _ in range(5)]
    rig.fail(10)
    rig.clock.advance(30)
    rig.breaker.admit()
    for ticket in late:
        rig.breaker.succeeded(ticket)

    assert rig.breaker.state is HALF_OPEN


def test_breaker__probe_that_learns_nothing__gives_its_place_back(rig: Rig) -> None:
    rig.fail(10)
    rig.clock.advance(30)
    for _ in range(10):
        rig.breaker.abandoned(rig.breaker.admit())

    assert rig.breaker.state is HALF_OPEN
    rig.succeed(3)
    assert rig.breaker.state is CLOSED


def test_breaker__probes_that_never_return__are_given_up_after_a_while(rig: Rig) -> None:
    rig.fail(10)
    rig.clock.advance(30)
    lost = [rig.breaker.admit() for _ in range(3)]
    with pytest.raises(BreakerOpenError) as caught:
        rig.breaker.admit()
    assert caught.value.retry_after_seconds <= 1.0

    rig.clock.advance(30)
    rig.succeed(3)

    assert rig.breaker.state is CLOSED
    rig.breaker.failed(lost[0])
    assert rig.breaker.state is CLOSED


def test_breaker__wall_clock_set_back__opens_no_longer(rig: Rig) -> None:
    rig.fail(10)
    rig.clock.step(-86_400)
    rig.clock.advance(30)

    assert not rig.is_refused()


def test_breaker__refused_callers_who_only_look__take_no_probe(rig: Rig) -> None:
    rig.fail(10)
    with pytest.raises(BreakerOpenError):
        rig.breaker.refuse_if_open()
    rig.clock.advance(30)
    for _ in range(10):
        rig.breaker.refuse_if_open()

    assert rig.breaker.state is OPEN
    assert [rig.is_refused() for _ in range(2)] == [False, False]


@pytest.mark.parametrize("seed", range(4))
def test_breaker__random_walk__moves_only_as_it_may(seed: int) -> None:
    draw = random.Random(seed)
    rig = Rig(BreakerLimits(failures_min=3, window_seconds=5, open_seconds=4, probes=2))
    out: list[int] = []
    opened_at = -1.0
    for _ in range(5000):
        received, before = len(rig.changes), rig.breaker.state
        match draw.randrange(5):
            case 0 | 1:
                try:
                    out.append(rig.breaker.admit())
                except BreakerOpenError:
                    assert before is not CLOSED
                else:
                    assert before is not OPEN or rig.clock.monotonic() - opened_at >= 4
            case 2:
                rig.clock.advance(draw.randrange(4) / 8)
            case _ if out:
                ticket = out.pop(draw.randrange(len(out)))
                draw.choice([rig.breaker.succeeded, rig.breaker.failed, rig.breaker.abandoned])(ticket)
        if rig.changes[received:] and rig.breaker.state is OPEN:
            opened_at = rig.clock.monotonic()

    legal = {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, OPEN), (HALF_OPEN, CLOSED)}
    assert {(change.before, change.after) for change in rig.changes} == legal
    for change, following in itertools.pairwise(rig.changes):
        assert change.after is following.before
