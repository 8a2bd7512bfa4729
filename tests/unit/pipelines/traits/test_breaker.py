"""Breakers of evaluators: what opens one, what does not, and how it closes again."""

from __future__ import annotations

import pytest

from headgate.pipelines.enums import FailureCategory, TraitStatus
from headgate.pipelines.traits.breaker import BREAKERS_MAX, EvaluatorBreakers
from headgate.pipelines.traits.protocol import Answer, failure, not_met, passed, timed_out
from headgate.store.resilience.circuit_breaker import BreakerChange, BreakerState
from tests.unit.pipelines.evaluator_rig import virtual_clock

URL = "https://evaluator.example/fresh"


class Rig:
    """Breakers on a clock of their own, and how often an evaluator was really asked."""

    def __init__(self) -> None:
        self.clock = virtual_clock()
        self.changes: list[BreakerChange] = []
        self.breakers = EvaluatorBreakers(self.clock, changed=self.changes.append)
        self.asked = 0

    def ask(self, answer: Answer, evaluator: str = URL) -> Answer:
        def give() -> Answer:
            self.asked += 1
            return answer

        return self.breakers.guarded(evaluator, give)

    def fail(self, times: int, evaluator: str = URL) -> None:
        for _ in range(times):
            self.ask(TRANSIENT, evaluator)


TRANSIENT = failure(FailureCategory.TRANSIENT, "down")


@pytest.mark.parametrize(
    ("answer", "opens"),
    [
        (TRANSIENT, True),
        (timed_out(30), True),
        (failure(FailureCategory.EVALUATOR_CRASH, "signal 11"), True),
        (Answer(status=TraitStatus.FAIL, category=FailureCategory.TRANSIENT), True),
        (failure(FailureCategory.PERMANENT, "404"), False),
        (Answer(status=TraitStatus.STALE), False),
        (Answer(status=TraitStatus.STALE, category=FailureCategory.TRANSIENT), False),
        (not_met("not yet"), False),
        (passed("fine"), False),
    ],
)
def test_breaker__five_answers_within_a_minute__opens_only_for_what_speaks_against_the_evaluator__bug_41(
    answer: Answer, opens: bool
) -> None:
    rig = Rig()
    for _ in range(5):
        assert rig.breakers.state(URL) is BreakerState.CLOSED
        assert rig.ask(answer) is answer
        rig.clock.advance(10)
    assert rig.breakers.state(URL) is (BreakerState.OPEN if opens else BreakerState.CLOSED)


def test_breaker__open__is_not_asked_and_says_fail_and_transient() -> None:
    rig = Rig()
    rig.fail(5)
    answer = rig.ask(passed("fine"))
    assert (answer.status, answer.category) == (TraitStatus.FAIL, FailureCategory.TRANSIENT)
    assert "30 s" in answer.reason
    assert rig.asked == 5


def test_breaker__successes_between_the_failures__opens_all_the_same() -> None:
    rig = Rig()
    for _ in range(5):
        rig.ask(passed("fine"))
        rig.fail(1)
    assert rig.breakers.state(URL) is BreakerState.OPEN


def test_breaker__failures_further_apart_than_the_window__stays_closed() -> None:
    rig = Rig()
    for _ in range(20):
        rig.fail(1)
        rig.clock.advance(16)
    assert rig.breakers.state(URL) is BreakerState.CLOSED


def test_breaker__cooldown_is_over_and_one_try_succeeds__closes() -> None:
    rig = Rig()
    rig.fail(5)
    rig.clock.advance(29.9)
    assert rig.ask(passed("fine")).category is FailureCategory.TRANSIENT
    rig.clock.advance(0.2)
    assert rig.ask(passed("fine")).status is TraitStatus.PASS
    assert rig.breakers.state(URL) is BreakerState.CLOSED
    assert [change.after for change in rig.changes] == [BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED]


def test_breaker__the_one_try_fails__opens_for_another_cooldown() -> None:
    rig = Rig()
    rig.fail(5)
    rig.clock.advance(30)
    rig.fail(1)
    assert rig.breakers.state(URL) is BreakerState.OPEN
    asked = rig.asked
    rig.clock.advance(29)
    rig.fail(1)
    assert rig.asked == asked


def test_breaker__half_open__lets_one_through_at_a_time() -> None:
    rig = Rig()
    rig.fail(5)
    rig.clock.advance(30)
    inner: list[Answer] = []

    def give() -> Answer:
        inner.append(rig.ask(passed("second")))
        return passed("first")

    assert rig.breakers.guarded(URL, give).reason == "first"
    assert inner[0].category is FailureCategory.TRANSIENT


def test_breaker__one_evaluator_is_open__others_are_asked() -> None:
    rig = Rig()
    rig.fail(5)
    assert rig.ask(passed("fine"), "https://other.example/").status is TraitStatus.PASS


def test_breaker__more_evaluators_than_are_kept__forgets_those_used_longest_ago() -> None:
    rig = Rig()
    rig.fail(5, "old")
    rig.fail(5, "recent")
    for number in range(BREAKERS_MAX - 1):
        rig.ask(passed("fine"), f"evaluator {number}")
    assert rig.breakers.state("old") is BreakerState.CLOSED
    assert rig.breakers.state("recent") is BreakerState.OPEN
