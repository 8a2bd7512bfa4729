"""Tolerated failures: how many chunks of a fan-out may fail, and whether more have.

The unit is a chunk; with `each`, an item.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.fanout.model.rows import Policy

FAIL: Final = "fail"
PAUSE: Final = "pause"
FAILURES_ACTIONS: Final = (FAIL, PAUSE)
# 29 of 100 are not more than a share of 0.29.
_ROUNDING: Final = 1e-6


class Failures(Struct, frozen=True):
    """Failed chunks or items of a fan-out."""

    failed: int
    total: int
    # In the singular.
    unit: str


def is_limited(policy: Policy) -> bool:
    """Whether the policy says how many failures are tolerated."""
    return policy.tolerated_failures is not None or policy.tolerated_failure_share is not None


def exceeded_reason(policy: Policy, failures: Failures, *, is_split: bool) -> str | None:
    """Return why there are more failures than tolerated, or None. A share is known once the fan-out is split."""
    count, share = policy.tolerated_failures, policy.tolerated_failure_share
    if count is not None and failures.failed > count:
        return f"{_counted(failures.failed, failures.unit)} failed, and {count} {_are(count)} tolerated"
    if share is not None and is_split and failures.failed > share * failures.total + _ROUNDING:
        of_all = f"{failures.failed} of {_counted(failures.total, failures.unit)}"
        return f"{of_all} failed, and {100 * share:g} % are tolerated"
    return None


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"
