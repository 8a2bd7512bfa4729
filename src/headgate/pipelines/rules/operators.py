"""Rule operators: compare a sensor value with the value of a rule.

A value that the operator cannot use makes the verdict unknown, never false and never zero. Numeric text counts as a
number and `"true"` as true, because producers and stores write the same value in different ways.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headgate.durable.model import duration
from headgate.errors import DefinitionError, InvalidPayloadError, UserError
from headgate.health.resolution.safe_regex import TEXT_LENGTH_MAX, compiled
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import Verdict
from headgate.pipelines.field_values import is_equal, moment_ms, number, shown

PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN

# The verdict of an operator, and its reason as a phrase that follows the name of the field.
OperatorResult = tuple[Verdict, str]
# Evaluates a present value at a time.
Operator = Callable[[Any, float], OperatorResult]

_COMPARISONS: Final[dict[str, tuple[Callable[[Any, Any], bool], str]]] = {
    "gt": (operator.gt, "more than"),
    "gte": (operator.ge, "at least"),
    "lt": (operator.lt, "less than"),
    "lte": (operator.le, "at most"),
}
ORDERINGS: Final = frozenset(_COMPARISONS)
CHECKS: Final = (
    "exists", "equals", "not_equals", "gt", "gte", "lt", "lte", "between", "in", "regex", "age_lt", "age_gt",
)  # fmt: skip


def compile_operator(check: str, value: Json, *, future_max_seconds: float) -> Operator:
    """Return the operator for a check with a fixed value. Raises `DefinitionError`."""
    if check in _COMPARISONS:
        return _ordering(check, _checked_number(check, value))
    match check:
        case "equals":
            return _equals(value)
        case "not_equals":
            return _not_equals(value)
        case "between":
            return _between(value)
        case "in":
            return _one_of(value)
        case "regex":
            return _regex(value)
        case "age_lt" | "age_gt":
            return age(check, value, future_max_seconds=future_max_seconds)
    raise DefinitionError(f"check {check!r} is not known; use one of {', '.join(CHECKS)}")


def compare(check: str, left: object, right: object) -> OperatorResult:
    """Compare two sensor values by equals, not_equals, gt, gte, lt or lte."""
    if check in _COMPARISONS:
        bound = number(right)
        return (
            (UNKNOWN, f"is compared with {shown(right)}, which is not a number")
            if bound is None
            else _ordering(check, bound)(left, 0.0)
        )
    return (_equals(right) if check == "equals" else _not_equals(right))(left, 0.0)


def age(check: str, value: Json, *, future_max_seconds: float) -> Operator:
    """Return the operator that compares the age of a time with a duration. Raises `DefinitionError`."""
    try:
        limit_ms = duration.seconds(value, name=f"check {check}: value") * 1000
    except UserError as exc:
        raise DefinitionError(str(exc)) from exc
    future_ms = future_max_seconds * 1000
    limit_text = duration.text(limit_ms / 1000)
    is_younger = check == "age_lt"
    wanted = f"less than {limit_text}" if is_younger else f"more than {limit_text}"

    def check_value(actual: object, now_ms: float) -> OperatorResult:
        at_ms = moment_ms(actual)
        if at_ms is None:
            return UNKNOWN, f"is {shown(actual)}, not a moment with an offset"
        age_ms = now_ms - at_ms
        if age_ms < -future_ms:
            return UNKNOWN, f"is {_span(-age_ms)} in the future and not accepted"
        is_held = max(0.0, age_ms) < limit_ms if is_younger else age_ms > limit_ms
        text = f"is {_span(max(0.0, age_ms))} old"
        return (PASS, text) if is_held else (FAIL, f"{text}, {wanted} is needed")

    return check_value


def _ordering(check: str, bound: float) -> Operator:
    holds, words = _COMPARISONS[check]
    needed = f"{words} {bound} is needed"

    def check_value(actual: object, _: float) -> OperatorResult:
        read = actual if type(actual) is int else number(actual)
        if read is None:
            return UNKNOWN, f"is {shown(actual)}, not a number"
        return (PASS, f"is {read}") if holds(read, bound) else (FAIL, f"is {read}, {needed}")

    return check_value


def _equals(value: Json) -> Operator:
    wanted = shown(value)

    def check_value(actual: object, _: float) -> OperatorResult:
        # Fast path: the types nearly always match.
        is_same = actual == value if type(actual) is type(value) else is_equal(actual, value)
        return (PASS, f"is {shown(actual)}") if is_same else (FAIL, f"is {shown(actual)}, not {wanted}")

    return check_value


def _not_equals(value: Json) -> Operator:
    def check_value(actual: object, _: float) -> OperatorResult:
        return (FAIL if is_equal(actual, value) else PASS), f"is {shown(actual)}"

    return check_value


def _between(value: Json) -> Operator:
    pair = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    bounds = [read for read in map(number, pair) if read is not None]
    if len(pair) != 2 or len(bounds) != 2 or bounds[0] > bounds[1]:
        raise DefinitionError(f"check between: value is {shown(value)}; give two numbers, the lower first: [1, 10]")
    low, high = bounds

    def check_value(actual: object, _: float) -> OperatorResult:
        read = number(actual)
        if read is None:
            return UNKNOWN, f"is {shown(actual)}, not a number"
        return (PASS, f"is {read}") if low <= read <= high else (FAIL, f"is {read}, not from {low} to {high}")

    return check_value


def _one_of(value: Json) -> Operator:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DefinitionError(f"check in: value is {shown(value)}; give a list of at least one: [a, b]")
    allowed = tuple(value)
    listed = ", ".join(shown(each) for each in allowed[:10]) + (" …" if len(allowed) > 10 else "")

    def check_value(actual: object, _: float) -> OperatorResult:
        is_held = any(is_equal(actual, each) for each in allowed)
        return (PASS, f"is {shown(actual)}") if is_held else (FAIL, f"is {shown(actual)}, not one of {listed}")

    return check_value


def _regex(value: Json) -> Operator:
    if not isinstance(value, str):
        raise DefinitionError(f"check regex: value is {shown(value)}; give a regular expression as text")
    try:
        pattern = compiled(value, field="check regex: value")
    except InvalidPayloadError as exc:
        raise DefinitionError(str(exc)) from exc

    def check_value(actual: object, _: float) -> OperatorResult:
        text = actual if isinstance(actual, str) else shown(actual)
        if (isinstance(actual, Mapping | Sequence) and not isinstance(actual, str)) or len(text) > TEXT_LENGTH_MAX:
            return UNKNOWN, f"is {shown(actual)}, not text of at most {TEXT_LENGTH_MAX} characters"
        return (
            (PASS, f"is {shown(actual)}") if pattern.search(text) else (FAIL, f"is {shown(actual)}, not like {value}")
        )

    return check_value


def _checked_number(check: str, value: Json) -> int | float:
    read = number(value)
    if read is None:
        raise DefinitionError(f"check {check}: value is {shown(value)}; give a number")
    return read


def _span(ms: float) -> str:
    """Format a duration in whole seconds, from an hour in minutes, from a century in days."""
    seconds = int(ms / 1000)
    if seconds > duration.SECONDS_MAX:
        return f"{seconds // 86_400}d"
    return duration.text(seconds - seconds % 60 if seconds >= 3_600 else seconds)
