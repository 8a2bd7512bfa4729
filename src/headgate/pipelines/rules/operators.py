"""Operators of rules: how a value of a sensor is held against another, and what cannot be compared.

A value that is of no use to the operator makes it unknown, never false and never zero. Text that is a number counts
as one, and `true` is `"true"`, because producers and stores write the same thing in different ways.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from headgate.durable.model import duration
from headgate.errors import DefinitionError, InvalidPayloadError, UserError
from headgate.health.resolution.safe_regex import TEXT_LENGTH_MAX, compiled
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import Verdict

PASS, FAIL, UNKNOWN = Verdict.PASS, Verdict.FAIL, Verdict.UNKNOWN

# What an operator comes to, and why in a few words that follow the name of what was looked at.
Finding = tuple[Verdict, str]
# Holds a value that is there against what the rule says, at a moment.
Operator = Callable[[Any, float], Finding]

MISSING: Final = object()
SHOWN_MAX: Final = 80

_NUMBER: Final = re.compile(r"\s*[+-]?(\d{1,300}(\.\d{0,300})?|\.\d{1,300})([eE][+-]?\d{1,3})?\s*", re.ASCII)
_WHOLE: Final = re.compile(r"\s*[+-]?\d{1,300}\s*", re.ASCII)
# What a number of seconds, milliseconds and microseconds since 1970 is below, until the year 5138.
_SECONDS_BELOW: Final = 1e11
_MILLISECONDS_BELOW: Final = 1e14
_MICROSECONDS_BELOW: Final = 1e17
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


def number(value: object) -> int | float | None:
    """Return the number that a value is or stands for as text; None: it is none. A bool is not a number."""
    kind = type(value)
    if kind is int:
        return value  # type: ignore[return-value]
    if kind is float:
        return value if math.isfinite(value) else None  # type: ignore[return-value,arg-type]
    if isinstance(value, str):
        return _number_of_text(value)
    return None


@lru_cache(maxsize=8192)
def _number_of_text(text: str) -> int | float | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    if not _NUMBER.fullmatch(text):
        return None
    read = float(text)
    return read if math.isfinite(read) else None


def moment_ms(value: object) -> float | None:
    """Return the milliseconds since 1970 of a moment; None: it is none.

    A number, also as text, is seconds, milliseconds, micro- or nanoseconds, told by its size. Other text is ISO 8601
    with an offset: without one, two programs would read it differently.
    """
    read = number(value)
    if read is not None:
        return _milliseconds(read)
    return _moment_of_text(value) if isinstance(value, str) else None


def _milliseconds(epoch: float) -> float | None:
    if epoch <= 0:
        return None
    if epoch < _SECONDS_BELOW:
        return epoch * 1000
    if epoch < _MILLISECONDS_BELOW:
        return epoch
    return epoch / 1000 if epoch < _MICROSECONDS_BELOW else epoch / 1_000_000


@lru_cache(maxsize=8192)
def _moment_of_text(text: str) -> float | None:
    try:
        read = datetime.fromisoformat(text.strip())
        return None if read.tzinfo is None else read.timestamp() * 1000
    except (ValueError, OverflowError):
        return None


def field_of(data: Mapping[str, Json], field: str) -> Any:  # noqa: ANN401  # a value is what it is
    """Return a field, by its name or by a path of names with dots; `MISSING` if it is not there or null."""
    value = data.get(field, MISSING)
    if value is MISSING and "." in field:
        value = data
        for name in field.split("."):
            value = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
    return MISSING if value is None else value


def is_equal(left: object, right: object) -> bool:
    """Whether two values are the same in whatever form they are written: 1, 1.0 and "1"; true and "true"."""
    if isinstance(left, bool) or isinstance(right, bool):
        return _truth(left) is not None and _truth(left) is _truth(right)
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, int | float) or isinstance(right, int | float):
        first, second = number(left), number(right)
        return first is not None and first == second
    return left == right


def shown(value: object) -> str:
    """Return a value as reasons show it, cut to a length that can be read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= SHOWN_MAX else f'"{value[:SHOWN_MAX]}…"'
    text = str(value)
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "…"


def compile_operator(check: str, value: Json, *, future_max_seconds: float) -> Operator:
    """Return the operator of a rule with a fixed value. Raises `DefinitionError`, saying what is allowed."""
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


def compare(check: str, left: object, right: object) -> Finding:
    """Hold one value of a sensor against another by equals, not_equals, gt, gte, lt or lte."""
    if check in _COMPARISONS:
        bound = number(right)
        return (
            (UNKNOWN, f"is held against {shown(right)}, which is not a number")
            if bound is None
            else _ordering(check, bound)(left, 0.0)
        )
    return (_equals(right) if check == "equals" else _not_equals(right))(left, 0.0)


def age(check: str, value: Json, *, future_max_seconds: float) -> Operator:
    """Return the operator that holds the age of a moment against a duration. Raises `DefinitionError`."""
    try:
        limit_ms = duration.seconds(value, name=f"check {check}: value") * 1000
    except UserError as exc:
        raise DefinitionError(str(exc)) from exc
    future_ms = future_max_seconds * 1000
    limit_text = duration.text(limit_ms / 1000)
    is_younger = check == "age_lt"
    wanted = f"less than {limit_text}" if is_younger else f"more than {limit_text}"

    def find(given: object, now_ms: float) -> Finding:
        at_ms = moment_ms(given)
        if at_ms is None:
            return UNKNOWN, f"is {shown(given)}, not a moment with an offset"
        age_ms = now_ms - at_ms
        if age_ms < -future_ms:
            return UNKNOWN, f"is {_span(-age_ms)} in the future and not believed"
        is_held = max(0.0, age_ms) < limit_ms if is_younger else age_ms > limit_ms
        text = f"is {_span(max(0.0, age_ms))} old"
        return (PASS, text) if is_held else (FAIL, f"{text}, {wanted} is needed")

    return find


def _ordering(check: str, bound: float) -> Operator:
    holds, words = _COMPARISONS[check]
    needed = f"{words} {bound} is needed"

    def find(given: object, _: float) -> Finding:
        read = given if type(given) is int else number(given)
        if read is None:
            return UNKNOWN, f"is {shown(given)}, not a number"
        return (PASS, f"is {read}") if holds(read, bound) else (FAIL, f"is {read}, {needed}")

    return find


def _equals(value: Json) -> Operator:
    wanted = shown(value)

    def find(given: object, _: float) -> Finding:
        # The same type first, which is nearly always so.
        is_same = given == value if type(given) is type(value) else is_equal(given, value)
        return (PASS, f"is {shown(given)}") if is_same else (FAIL, f"is {shown(given)}, not {wanted}")

    return find


def _not_equals(value: Json) -> Operator:
    def find(given: object, _: float) -> Finding:
        return (FAIL if is_equal(given, value) else PASS), f"is {shown(given)}"

    return find


def _between(value: Json) -> Operator:
    given_bounds = value if isinstance(value, Sequence) and not isinstance(value, str) else ()
    bounds = [read for read in map(number, given_bounds) if read is not None]
    if len(given_bounds) != 2 or len(bounds) != 2 or bounds[0] > bounds[1]:
        raise DefinitionError(f"check between: value is {shown(value)}; give two numbers, the lower first: [1, 10]")
    low, high = bounds

    def find(given: object, _: float) -> Finding:
        read = number(given)
        if read is None:
            return UNKNOWN, f"is {shown(given)}, not a number"
        return (PASS, f"is {read}") if low <= read <= high else (FAIL, f"is {read}, not from {low} to {high}")

    return find


def _one_of(value: Json) -> Operator:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise DefinitionError(f"check in: value is {shown(value)}; give a list of at least one: [a, b]")
    allowed = tuple(value)
    listed = ", ".join(shown(each) for each in allowed[:10]) + (" …" if len(allowed) > 10 else "")

    def find(given: object, _: float) -> Finding:
        is_held = any(is_equal(given, each) for each in allowed)
        return (PASS, f"is {shown(given)}") if is_held else (FAIL, f"is {shown(given)}, not one of {listed}")

    return find


def _regex(value: Json) -> Operator:
    if not isinstance(value, str):
        raise DefinitionError(f"check regex: value is {shown(value)}; give a regular expression as text")
    try:
        pattern = compiled(value, field="check regex: value")
    except InvalidPayloadError as exc:
        raise DefinitionError(str(exc)) from exc

    def find(given: object, _: float) -> Finding:
        text = given if isinstance(given, str) else shown(given)
        if (isinstance(given, Mapping | Sequence) and not isinstance(given, str)) or len(text) > TEXT_LENGTH_MAX:
            return UNKNOWN, f"is {shown(given)}, not text of at most {TEXT_LENGTH_MAX} characters"
        return (PASS, f"is {shown(given)}") if pattern.search(text) else (FAIL, f"is {shown(given)}, not like {value}")

    return find


def _checked_number(check: str, value: Json) -> int | float:
    read = number(value)
    if read is None:
        raise DefinitionError(f"check {check}: value is {shown(value)}; give a number")
    return read


def _truth(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return None


def _span(ms: float) -> str:
    """Return a length of time as people say it: whole seconds, above an hour minutes, above a century days."""
    seconds = int(ms / 1000)
    if seconds > duration.SECONDS_MAX:
        return f"{seconds // 86_400}d"
    return duration.text(seconds - seconds % 60 if seconds >= 3_600 else seconds)
