"""Costs: money spent on a fan-out so far, the wasted part of it, and the projected total.

Local work has no cost unless a price is configured. Work that is sent to a queue is priced as AWS Lambda bills it.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Fanout, Policy

# Minimum of ended chunks for a projection.
ENDED_MIN: Final = 5


class Prices(Struct, frozen=True):
    """Prices of the settings, for fan-outs whose policy has none."""

    per_gb_second: float | None = None
    per_request: float | None = None
    currency: str = "USD"


NO_PRICES: Final = Prices()


class Price(Struct, frozen=True):
    """The price of worker time, and where it comes from."""

    per_gb_second: float
    per_request: float
    currency: str
    source: str


LAMBDA: Final = Price(0.0000133334, 0.0000002, "USD", "list price of AWS Lambda, arm64, us-east-1")


class Cost(Struct, frozen=True, kw_only=True):
    """Cost in `currency`. `projected` is None until enough chunks have ended, and never less than `so_far`."""

    currency: str
    price_source: str
    so_far: float
    wasted: float
    per_chunk: float | None
    projected: float | None
    gb_seconds: float
    requests: int
    budget: float | None = None
    is_over_budget: bool = False
    will_be_over_budget: bool = False


def price_of(fanout: Fanout, prices: Prices) -> Price | None:
    """Return the price of a fan-out's work: of its policy, of the settings, or of AWS Lambda if it has a queue."""
    own = fanout.rules().price_per_gb_second
    is_remote = fanout.queue_url is not None
    per_request = prices.per_request
    if per_request is None:
        per_request = LAMBDA.per_request if is_remote else 0.0
    if own is not None:
        return Price(own, per_request, prices.currency, "policy of the fan-out")
    if prices.per_gb_second is not None:
        return Price(prices.per_gb_second, per_request, prices.currency, "setting fanout.price_per_gb_second")
    return LAMBDA if is_remote else None


def fanout_cost(fanout: Fanout, counts: Counts, prices: Prices, *, running_ms: int = 0) -> Cost | None:
    """Return the cost of a fan-out, or None without a price."""
    price = price_of(fanout, prices)
    return None if price is None else cost_of(fanout.rules(), counts, price, running_ms=running_ms)


def cost_of(policy: Policy, counts: Counts, price: Price, *, running_ms: int = 0) -> Cost:
    """Return the cost of a fan-out at a price.

    The counts cover ended attempts; `running_ms` is the total time of the running ones. Wasted cost is that of attempts
    that failed or were lost.
    """
    running = counts.running + counts.slow_running
    ended = counts.completed + counts.failed
    spent = _money(policy, price, counts.busy_ms, counts.attempts - running)
    so_far = _money(policy, price, counts.busy_ms + running_ms, counts.attempts)
    per_chunk = spent / ended if ended >= ENDED_MIN else None
    still_open = counts.open + counts.slow_open
    projected = None
    if still_open == 0:
        projected = so_far
    elif per_chunk is not None:
        # Running chunks cost the mean, or what they have cost already if that is more.
        projected = spent + max(so_far - spent, per_chunk * running) + per_chunk * (still_open - running)
    budget = policy.budget
    return Cost(
        currency=price.currency,
        price_source=price.source,
        so_far=so_far,
        wasted=_money(policy, price, counts.wasted_ms, counts.retries),
        per_chunk=per_chunk,
        projected=projected,
        gb_seconds=(counts.busy_ms + running_ms) / 1000 * policy.worker_gb,
        requests=counts.attempts,
        budget=budget,
        is_over_budget=budget is not None and so_far > budget,
        will_be_over_budget=budget is not None and projected is not None and projected > budget,
    )


def _money(policy: Policy, price: Price, busy_ms: int, requests: int) -> float:
    return busy_ms / 1000 * policy.worker_gb * price.per_gb_second + requests * price.per_request
