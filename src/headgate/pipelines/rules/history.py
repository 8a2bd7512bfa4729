"""History comparison: whether a value is within the usual range of earlier periods."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import History
from headgate.pipelines.field_values import number, shown
from headgate.pipelines.rules.operators import FAIL, ORDERINGS, PASS, UNKNOWN, OperatorResult, compare

PERIODS_MAX = 400


def check_history(history: History, check: str) -> None:
    """Check the parameters of a comparison. Raises `DefinitionError`."""
    if not 1 <= history.periods <= PERIODS_MAX or not 1 <= history.periods_min <= history.periods:
        raise DefinitionError(
            f"history: periods is {history.periods} and periods_min {history.periods_min}; "
            f"give 1 to {PERIODS_MAX}, and a periods_min that is not larger"
        )
    shares = [share for share in (history.within, history.z_score) if share is not None]
    if any(not math.isfinite(share) or share < 0 for share in shares):
        raise DefinitionError("history: within and z_score are numbers from 0")
    if len(shares) == 2:
        raise DefinitionError("history: within or z_score, not both; write two rules")
    if not shares and check not in ORDERINGS:
        raise DefinitionError(
            f"history: say what is compared: within, z_score, or check {', '.join(sorted(ORDERINGS))} with their mean"
        )


def compare_with_history(history: History, check: str, value: object, earlier: Sequence[object]) -> OperatorResult:
    """Compare a value with those of earlier periods. Non-numeric ones are ignored.

    With fewer than `periods_min` the verdict is unknown, and a z-score needs at least two.
    """
    read = number(value)
    if read is None:
        return UNKNOWN, f"is {shown(value)}, not a number"
    numbers = [known for known in map(number, earlier) if known is not None]
    needed = max(history.periods_min, 2 if history.z_score is not None else 1)
    if len(numbers) < needed:
        return UNKNOWN, f"can be compared with {len(numbers)} of {history.periods} earlier periods, {needed} are needed"
    mean = statistics.fmean(numbers)
    usual = f"the mean of {len(numbers)} earlier periods is {mean:.6g}"
    if history.within is not None:
        return _within(read, mean, history.within, usual)
    if history.z_score is not None:
        return _z_score(read, mean, statistics.stdev(numbers), history.z_score, usual)
    verdict, reason = compare(check, read, mean)
    return verdict, f"{reason}; {usual}"


def _within(value: float, mean: float, share: float, usual: str) -> OperatorResult:
    # With a mean of zero only zero is within any share.
    allowed = abs(mean) * share
    if abs(value - mean) <= allowed:
        return PASS, f"is {value}; {usual}"
    return FAIL, f"is {value}, not within {share:.4g} of the usual; {usual}"


def _z_score(value: float, mean: float, spread: float, limit: float, usual: str) -> OperatorResult:
    # With a spread of zero any other value is infinitely far away.
    score = 0.0 if value == mean else math.inf if spread == 0 else abs(value - mean) / spread
    if score <= limit:
        return PASS, f"is {value}; {usual}"
    return FAIL, f"is {value}, {score:.3g} standard deviations from the usual; {usual}"
