"""Retries: whether a failure is followed by another attempt, and after how long.

Transient failures and permanent ones have separate budgets. Reruns do not count: a requested run starts with both
budgets full.
"""

from __future__ import annotations

from msgspec import Struct

from headgate.pipelines.definition.model import RetryPolicy
from headgate.pipelines.enums import FailureCategory, RunStatus
from headgate.pipelines.runs.rows import RunLog


class RetryDecision(Struct, frozen=True, kw_only=True):
    """The consequence of a failure. `is_exhausted`: the retries of the policy are used up."""

    is_retryable: bool
    reason: str
    backoff_seconds: float = 0.0
    is_exhausted: bool = False


def decide_retry(policy: RetryPolicy, log: RunLog) -> RetryDecision:
    """Decide whether the latest failure of a log is retried. One without a category counts as transient."""
    if log.status is not RunStatus.FAILED:
        return RetryDecision(is_retryable=False, reason=f"it is {log.status}, not failed")
    category = log.category or FailureCategory.TRANSIENT
    if category is FailureCategory.PERMANENT:
        return _within(policy, log.permanent_failures, policy.permanent_retries + 1, category)
    if category not in policy.categories:
        return RetryDecision(is_retryable=False, reason=f"failures that are {category} are not tried again")
    return _within(policy, log.failures, policy.attempts, category)


def backoff_seconds(policy: RetryPolicy, failures: int) -> float:
    """Return the backoff after a number of failures: exponential and bounded."""
    # Bounded before the multiplication, so that many failures do not overflow.
    exponent = min(max(failures, 1) - 1, 64)
    return min(policy.backoff * policy.multiplier**exponent, float(policy.backoff_max))


def _within(policy: RetryPolicy, failures: int, attempts_max: int, category: FailureCategory) -> RetryDecision:
    if failures < attempts_max:
        wait = backoff_seconds(policy, failures)
        return RetryDecision(
            is_retryable=True, reason=f"attempt {failures + 1} of {attempts_max} is left", backoff_seconds=wait
        )
    return RetryDecision(
        is_retryable=False,
        reason=f"its {attempts_max} attempts for {category} failures are used up",
        is_exhausted=attempts_max > 1,
    )
