"""What a fan-out costs, against figures worked out by hand."""

from __future__ import annotations

import pytest

from headgate.fanout.core.costs import cost_of
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Policy

PRICE = Policy().price_per_gb_second


def test_cost__a_survey_of_5100_chunks_of_320_seconds__is_21_76() -> None:
    counts = Counts(total=5100, done=5100, attempts=5100, busy_ms=5100 * 320_000)

    cost = cost_of(Policy(), counts, price_per_request=0)

    assert cost.so_far == pytest.approx(21.76, abs=0.005)
    assert cost.projected == cost.so_far
    assert cost.gb_seconds == 5100 * 320
    assert cost.wasted == 0


def test_cost__larger_workers__cost_more() -> None:
    counts = Counts(total=1, done=1, attempts=1, busy_ms=1_000_000)

    assert cost_of(Policy(worker_gb=2.0), counts, price_per_request=0).so_far == pytest.approx(2000 * PRICE)


def test_cost__half_is_done__projects_the_same_again() -> None:
    counts = Counts(total=20, done=10, queued=10, attempts=10, busy_ms=10_000)

    cost = cost_of(Policy(), counts, price_per_request=0.5)

    assert cost.so_far == pytest.approx(10 * PRICE + 5)
    assert cost.per_chunk == pytest.approx(cost.so_far / 10)
    assert cost.projected == pytest.approx(2 * cost.so_far)


def test_cost__chunks_that_run__are_in_what_is_spent_and_projected_once() -> None:
    counts = Counts(total=20, done=10, running=10, attempts=20, busy_ms=10_000)

    cost = cost_of(Policy(), counts, running_ms=5000, price_per_request=0)

    assert cost.so_far == pytest.approx(15 * PRICE)
    assert cost.projected == pytest.approx(20 * PRICE)


def test_cost__attempts_that_failed__are_wasted() -> None:
    counts = Counts(total=5, done=5, attempts=8, retries=3, busy_ms=8000, wasted_ms=3000)

    cost = cost_of(Policy(), counts, price_per_request=1.0)

    assert cost.wasted == pytest.approx(3 * PRICE + 3)
    assert cost.so_far == pytest.approx(8 * PRICE + 8)
    assert cost.requests == 8


def test_cost__too_few_have_ended__projects_nothing() -> None:
    cost = cost_of(Policy(budget=1.0), Counts(total=100, done=4, queued=96, attempts=4, busy_ms=4000))

    assert (cost.per_chunk, cost.projected, cost.will_be_over_budget) == (None, None, False)


@pytest.mark.parametrize(
    ("budget", "is_over", "will_be"),
    [(None, False, False), (1.0, True, True), (15.0, False, True), (25.0, False, False)],
)
def test_cost__with_a_budget__says_whether_it_holds(budget: float | None, is_over: bool, will_be: bool) -> None:
    counts = Counts(total=20, done=10, queued=10, attempts=10)

    cost = cost_of(Policy(budget=budget), counts, price_per_request=1.0)

    assert (cost.is_over_budget, cost.will_be_over_budget) == (is_over, will_be)


def test_cost__nothing_at_all__is_nothing() -> None:
    cost = cost_of(Policy(), Counts())

    assert (cost.so_far, cost.wasted, cost.projected) == (0, 0, 0)
