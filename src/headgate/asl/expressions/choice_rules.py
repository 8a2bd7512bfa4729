"""Choice rules in JSONPath, compiled to evaluators that return True or False."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from headgate.asl.expressions.formats import parse_timestamp
from headgate.asl.expressions.jsonpath import compile_path
from headgate.asl.expressions.scope import Evaluator, Json, Scope

# Converts a value for a comparison; None if it has another type, which makes the comparison false.
_Converter: TypeAlias = Callable[[Json], Any]
_Comparison: TypeAlias = Callable[[Any, Any], bool]


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Json) -> int | float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _boolean(value: Json) -> bool | None:
    return value if isinstance(value, bool) else None


_CONVERTERS: Final[dict[str, _Converter]] = {"String": _text, "Numeric": _number, "Timestamp": parse_timestamp}
_COMPARISONS: Final[dict[str, _Comparison]] = {
    "Equals": operator.eq,
    "LessThan": operator.lt,
    "GreaterThan": operator.gt,
    "LessThanEquals": operator.le,
    "GreaterThanEquals": operator.ge,
}
_COMPARATORS: Final[dict[str, tuple[_Converter, _Comparison]]] = {
    "BooleanEquals": (_boolean, operator.eq),
    **{
        f"{kind}{name}": (convert, compare)
        for kind, convert in _CONVERTERS.items()
        for name, compare in _COMPARISONS.items()
    },
}
_TYPE_TESTS: Final[dict[str, Callable[[Json], bool]]] = {
    "IsNull": lambda value: value is None,
    "IsNumeric": lambda value: _number(value) is not None,
    "IsString": lambda value: _text(value) is not None,
    "IsBoolean": lambda value: _boolean(value) is not None,
    "IsTimestamp": lambda value: parse_timestamp(value) is not None,
}
_MATCHES: Final = "StringMatches"
_PRESENT: Final = "IsPresent"
# A rule with a Variable has exactly one of these.
OPERATORS: Final = frozenset(
    {*_COMPARATORS, *(f"{name}Path" for name in _COMPARATORS), *_TYPE_TESTS, _MATCHES, _PRESENT}
)
# Combine rules.
CONNECTIVES: Final = ("And", "Or", "Not")

# `*` matches any characters; `\*` and `\\` are literal.
_WILDCARD: Final = re.compile(r"\\([*\\])|(\*)")


def compile_rule(rule: Json) -> Evaluator:
    """Compile a choice rule. Raises `ValueError` with the allowed forms.

    A value of another type than the operator's makes a comparison false. The evaluator raises `StateError`
    (States.Runtime) if a path selects nothing, except for IsPresent. And and Or short-circuit, so that And can test
    IsPresent first.
    """
    if not isinstance(rule, dict):
        raise ValueError(f"a choice rule must be an object, not {rule!r}")
    connectives = [name for name in CONNECTIVES if name in rule]
    if not connectives:
        return _comparison(rule)
    if len(connectives) > 1 or "Variable" in rule:
        raise ValueError("a choice rule has one of And, Or, Not and Variable alone")
    if connectives == ["Not"]:
        negated = compile_rule(rule["Not"])
        return lambda scope: not negated(scope)
    return _combined(connectives[0], rule[connectives[0]])


def _combined(connective: str, rules: Json) -> Evaluator:
    if not isinstance(rules, list) or not rules:
        raise ValueError(f"{connective} must be a non-empty list of choice rules")
    parts = tuple(compile_rule(part) for part in rules)
    if connective == "And":
        return lambda scope: all(part(scope) for part in parts)
    return lambda scope: any(part(scope) for part in parts)


def _comparison(rule: dict[str, Json]) -> Evaluator:
    names = [name for name in rule if name in OPERATORS]
    if "Variable" not in rule or len(names) != 1:
        raise ValueError(
            "a choice rule must have And, Or or Not, or a Variable with exactly one operator; operators are "
            + ", ".join(sorted(OPERATORS))
        )
    variable = compile_path(rule["Variable"], "Variable")
    name, operand = names[0], rule[names[0]]
    if name == _PRESENT:
        expected = _flag(name, operand)
        return lambda scope: variable.is_present(scope) is expected
    if name in _TYPE_TESTS:
        return _type_test(variable, name, expected=_flag(name, operand))
    if name == _MATCHES:
        return _match(variable, operand)
    return _compared(variable, name, operand)


def _flag(name: str, operand: Json) -> bool:
    if not isinstance(operand, bool):
        raise ValueError(f"{name} must be true or false, not {operand!r}")
    return operand


def _type_test(variable: Evaluator, name: str, *, expected: bool) -> Evaluator:
    test = _TYPE_TESTS[name]
    return lambda scope: test(variable(scope)) is expected


def _compared(variable: Evaluator, name: str, operand: Json) -> Evaluator:
    convert, compare = _COMPARATORS.get(name) or _COMPARATORS[name.removesuffix("Path")]
    if name not in _COMPARATORS:
        other = compile_path(operand, name)
        return lambda scope: _holds(convert, compare, variable(scope), other(scope))
    expected = convert(operand)
    if expected is None:
        raise ValueError(f"{name} cannot be compared with {operand!r}, which is of another type")

    def holds(scope: Scope) -> bool:
        value = convert(variable(scope))
        return value is not None and compare(value, expected)

    return holds


def _holds(convert: _Converter, compare: _Comparison, left: Json, right: Json) -> bool:
    value, other = convert(left), convert(right)
    return value is not None and other is not None and compare(value, other)


def _match(variable: Evaluator, operand: Json) -> Evaluator:
    if not isinstance(operand, str):
        raise ValueError(f"{_MATCHES} must be text, not {operand!r}")
    pieces = _pieces(operand)

    def holds(scope: Scope) -> bool:
        value = variable(scope)
        return isinstance(value, str) and _matches(pieces, value)

    return holds


def _pieces(pattern: str) -> list[str]:
    """Return the literal parts between the stars of a pattern."""
    pieces = [""]
    start = 0
    for special in _WILDCARD.finditer(pattern):
        pieces[-1] += pattern[start : special.start()] + (special[1] or "")
        if special[2]:
            pieces.append("")
        start = special.end()
    pieces[-1] += pattern[start:]
    return pieces


def _matches(pieces: list[str], value: str) -> bool:
    # Linear time, unlike a backtracking regular expression: the earliest match of each piece is always sufficient.
    first, *middle = pieces
    if not middle:
        return value == first
    last = middle.pop()
    if len(value) < len(first) + len(last) or not value.startswith(first) or not value.endswith(last):
        return False
    at, end = len(first), len(value) - len(last)
    for piece in middle:
        found = value.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
