"""Costs: money spent on a fan-out so far, the wasted part of it, and the projected total."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Policy

# Price of one AWS Lambda invocation.
PRICE_PER_REQUEST: Final = 0.0000002
# Minimum of ended chunks for a projection.
ENDED_MIN: Final = 5


class Cost(Struct, frozen=True):
    """Cost in the currency of the policy's price. `projected` is None until enough chunks have ended."""

    so_far: float
    wasted: float
    per_chunk: float | None
    projected: float | None
    gb_seconds: float
    requests: int
    budget: float | None = None
    is_over_budget: bool = False
    will_be_over_budget: bool = False


def cost_of(
    policy: Policy, counts: Counts, *, running_ms: int = 0, price_per_request: float = PRICE_PER_REQUEST
) -> Cost:
    """Return the cost of a fan-out.

    The counts cover ended attempts; `running_ms` is the total time of the running ones. Wasted cost is that of attempts
    that failed or were lost.
    """
    gb_seconds = (counts.busy_ms + running_ms) / 1000 * policy.worker_gb
    ended = counts.completed + counts.failed
    spent = _money(policy, counts.busy_ms, counts.attempts - counts.running - counts.slow_running, price_per_request)
    so_far = _money(policy, counts.busy_ms + running_ms, counts.attempts, price_per_request)
    per_chunk = spent / ended if ended >= ENDED_MIN else None
    projected = None
    if counts.open == 0:
        projected = so_far
    elif per_chunk is not None:
        # A running chunk is projected at the mean cost, so its cost so far is not added.
        projected = spent + per_chunk * counts.open
    budget = policy.budget
    return Cost(
        so_far=so_far,
        wasted=_money(policy, counts.wasted_ms, counts.retries, price_per_request),
        per_chunk=per_chunk,
        projected=projected,
        gb_seconds=gb_seconds,
        requests=counts.attempts,
        budget=budget,
        is_over_budget=budget is not None and so_far > budget,
        will_be_over_budget=budget is not None and projected is not None and max(so_far, projected) > budget,
    )


def _money(policy: Policy, busy_ms: int, requests: int, price_per_request: float) -> float:
    return busy_ms / 1000 * policy.worker_gb * policy.price_per_gb_second + requests * price_per_request
