"""Retries: whether a failure is followed by another attempt, and after how long.

Failures that trying again may help against and those that it is not known to have budgets of their own. Neither is
touched by reruns: what someone asks for anew begins with both of them whole.
"""

from __future__ import annotations

from msgspec import Struct

from headgate.pipelines.definition.model import RetryPolicy
from headgate.pipelines.enums import FailureCategory, RunStatus
from headgate.pipelines.runs.rows import RunLog


class RetryDecision(Struct, frozen=True, kw_only=True):
    """What follows a failure. `is_exhausted` is true where another attempt would have followed an earlier one."""

    is_retryable: bool
    reason: str
    backoff_seconds: float = 0.0
    is_exhausted: bool = False


def decide_retry(policy: RetryPolicy, log: RunLog) -> RetryDecision:
    """Return what follows the failure that a log stands at. One without a category counts as transient."""
    if log.status is not RunStatus.FAILED:
        return RetryDecision(is_retryable=False, reason=f"it is {log.status}, not failed")
    category = log.category or FailureCategory.TRANSIENT
    if category is FailureCategory.PERMANENT:
        return _within(policy, log.permanent_failures, policy.permanent_retries + 1, category)
    if category not in policy.categories:
        return RetryDecision(is_retryable=False, reason=f"failures that are {category} are not tried again")
    return _within(policy, log.failures, policy.attempts, category)


def backoff_seconds(policy: RetryPolicy, failures: int) -> float:
    """Return how long to wait after so many failures: growing, and bounded."""
    # Bounded before it is multiplied: a long row of failures must not overflow.
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
        reason=f"its {attempts_max} attempts at what is {category} are used up",
        is_exhausted=attempts_max > 1,
    )
