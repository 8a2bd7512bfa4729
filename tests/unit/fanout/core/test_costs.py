"""What a fan-out costs, against figures worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.fanout.core.costs import LAMBDA, NO_PRICES, Cost, Price, Prices, cost_of, fanout_cost, price_of
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Policy
from tests.unit.fanout.made_rows import made_fanout

PRICE = LAMBDA.per_gb_second


def _cost(policy: Policy, counts: Counts, *, price_per_request: float = 0.0, running_ms: int = 0) -> Cost:
    return cost_of(policy, counts, Price(PRICE, price_per_request, "EUR", "a test"), running_ms=running_ms)


def test_cost__a_survey_of_5100_chunks_of_320_seconds__is_21_76() -> None:
    counts = Counts(total=5100, done=5100, attempts=5100, busy_ms=5100 * 320_000)

    cost = _cost(Policy(), counts)

    assert cost.so_far == pytest.approx(21.76, abs=0.005)
    assert cost.projected == cost.so_far
    assert cost.gb_seconds == 5100 * 320
    assert cost.wasted == 0


def test_cost__larger_workers__cost_more() -> None:
    counts = Counts(total=1, done=1, attempts=1, busy_ms=1_000_000)

    assert _cost(Policy(worker_gb=2.0), counts).so_far == pytest.approx(2000 * PRICE)


def test_cost__half_is_done__projects_the_same_again() -> None:
    counts = Counts(total=20, done=10, queued=10, attempts=10, busy_ms=10_000)

    cost = _cost(Policy(), counts, price_per_request=0.5)

    assert cost.so_far == pytest.approx(10 * PRICE + 5)
    assert cost.per_chunk == pytest.approx(cost.so_far / 10)
    assert cost.projected == pytest.approx(2 * cost.so_far)


def test_cost__chunks_that_run__are_in_what_is_spent_and_projected_once() -> None:
    counts = Counts(total=20, done=10, running=10, attempts=20, busy_ms=10_000)

    cost = _cost(Policy(), counts, running_ms=5000)

    assert cost.so_far == pytest.approx(15 * PRICE)
    assert cost.projected == pytest.approx(20 * PRICE)


def test_cost__attempts_that_failed__are_wasted() -> None:
    counts = Counts(total=5, done=5, attempts=8, retries=3, busy_ms=8000, wasted_ms=3000)

    cost = _cost(Policy(), counts, price_per_request=1.0)

    assert cost.wasted == pytest.approx(3 * PRICE + 3)
    assert cost.so_far == pytest.approx(8 * PRICE + 8)
    assert cost.requests == 8


def test_cost__too_few_have_ended__projects_nothing() -> None:
    cost = _cost(Policy(budget=1.0), Counts(total=100, done=4, queued=96, attempts=4, busy_ms=4000))

    assert (cost.per_chunk, cost.projected, cost.will_be_over_budget) == (None, None, False)


@pytest.mark.parametrize(
    ("budget", "is_over", "will_be"),
    [(None, False, False), (1.0, True, True), (15.0, False, True), (25.0, False, False)],
)
def test_cost__with_a_budget__says_whether_it_holds(budget: float | None, is_over: bool, will_be: bool) -> None:
    counts = Counts(total=20, done=10, queued=10, attempts=10)

    cost = _cost(Policy(budget=budget), counts, price_per_request=1.0)

    assert (cost.is_over_budget, cost.will_be_over_budget) == (is_over, will_be)


def test_cost__nothing_at_all__is_nothing() -> None:
    cost = _cost(Policy(), Counts())

    assert (cost.so_far, cost.wasted, cost.projected) == (0, 0, 0)


def test_cost__a_chunk_that_costs_more_than_the_mean__is_in_the_projection() -> None:
    # Ten chunks of a second, and one that has been running for 70 seconds.
    counts = Counts(total=11, done=10, running=1, attempts=11, busy_ms=10_000)

    cost = _cost(Policy(), counts, running_ms=70_000)

    assert cost.so_far == pytest.approx(80 * PRICE)
    assert cost.projected == pytest.approx(80 * PRICE)


def test_cost__slow_lane_is_open__is_projected_too() -> None:
    counts = Counts(total=10, done=8, deferred=2, slow_total=2, slow_queued=2, attempts=10, busy_ms=10_000)

    assert _cost(Policy(), counts).projected == pytest.approx(12 * PRICE)


_number = st.integers(0, 1000)


@given(st.builds(
    Counts, total=_number, queued=_number, retrying=_number, running=_number, done=_number, dead=_number,
    attempts=st.integers(2000, 5000), busy_ms=st.integers(0, 10**9), slow_total=_number, slow_queued=_number,
    slow_running=_number,
), st.integers(0, 10**9))  # fmt: skip
def test_cost__any_counts__is_never_projected_below_what_is_spent(counts: Counts, running_ms: int) -> None:
    cost = _cost(Policy(), counts, running_ms=running_ms, price_per_request=0.1)

    assert cost.projected is None or cost.projected >= cost.so_far - 1e-9 * cost.so_far


def test_price__local_work__has_none_unless_configured() -> None:
    assert price_of(made_fanout(), NO_PRICES) is None
    assert fanout_cost(made_fanout(), Counts(total=1, done=1, busy_ms=1000), NO_PRICES) is None

    found = price_of(made_fanout(), Prices(0.5, 0.1, "EUR"))

    assert found == Price(0.5, 0.1, "EUR", "setting fanout.price_per_gb_second")


def test_price__policy_has_its_own__takes_precedence() -> None:
    found = price_of(made_fanout(Policy(price_per_gb_second=2.0)), Prices(0.5, None, "CHF"))

    assert found == Price(2.0, 0.0, "CHF", "policy of the fan-out")


def test_price__sent_to_a_queue__is_that_of_lambda() -> None:
    assert price_of(made_fanout(queue_url="https://sqs/q"), NO_PRICES) == LAMBDA
