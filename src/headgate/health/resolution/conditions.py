"""Rule conditions: a field of the message, an operator with a value, and the dataset if they match.

A field is a path into the payload (`$.order.items[0].sku`) or a header (`headers.event-type`). A missing field matches
the negated operators and no others. Values of different types are never equal, ordered or contained in each other;
headers are text, and are parsed as numbers when compared with one.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.errors import InvalidPayloadError
from headgate.health.model.urns import dataset_urn
from headgate.health.resolution.safe_regex import TEXT_LENGTH_MAX, compiled
from headgate.store.model.values import same

HEADERS: Final = "headers."
VALUES_MAX: Final = 200
VALUE_BYTES_MAX: Final = 4096
FIELD_LENGTH_MAX: Final = 512
_STEP: Final = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d{1,6})\]|\['([^'\\]+)'\]")

Headers = Mapping[str, str]
Test = Callable[[Any], bool]


class Operator(enum.StrEnum):
    """The operator of a condition."""

    EQUALS = "EQUALS"
    NOT_EQUALS = "NOT_EQUALS"
    IN = "IN"
    NOT_IN = "NOT_IN"
    EXISTS = "EXISTS"
    NOT_EXISTS = "NOT_EXISTS"
    REGEX = "REGEX"
    PREFIX = "PREFIX"
    SUFFIX = "SUFFIX"
    CONTAINS = "CONTAINS"
    GT = "GT"
    GTE = "GTE"
    LT = "LT"
    LTE = "LTE"
    BETWEEN = "BETWEEN"


class Condition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A condition: if it matches, the message belongs to this dataset. EXISTS and NOT_EXISTS take no value."""

    field: str
    operator: str
    dataset_urn: str
    value: Any = None


class Predicate:
    """A compiled condition."""

    __slots__ = ("_is_number", "_path", "_test", "dataset_urn", "header", "text")

    def __init__(self, condition: Condition, *, field: str) -> None:
        """Raises `InvalidPayloadError` naming the invalid field of the condition, and `InvalidIdError`."""
        self.dataset_urn = dataset_urn(condition.dataset_urn)
        operator = _operator(condition.operator, f"{field}.operator")
        self.header, self._path = _source(condition.field, f"{field}.field")
        _check_value(operator, condition.value, f"{field}.value", is_header=self.header is not None)
        self._is_number = self.header is not None and operator in _NUMERIC and _is_numeric(condition.value)
        self._test = _test(operator, condition.value, f"{field}.value")
        self.text = f"{condition.field} {operator}" + ("" if operator in _VALUELESS else f" {condition.value!r}")

    def holds(self, payload: object, headers: Headers) -> bool:
        """Whether a message matches. Header names are in lower case."""
        if self.header is not None:
            found = headers.get(self.header, MISSING)
            return self._test(_number(found) if self._is_number else found)
        value = payload
        for step in self._path:
            if isinstance(step, str):
                if not isinstance(value, dict) or step not in value:
                    return self._test(MISSING)
                value = value[step]
            else:
                if not isinstance(value, list) or step >= len(value):
                    return self._test(MISSING)
                value = value[step]
        return self._test(MISSING if payload is None else value)


class _Missing(enum.Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
_VALUELESS: Final = (Operator.EXISTS, Operator.NOT_EXISTS)
_LISTED: Final = (Operator.IN, Operator.NOT_IN, Operator.BETWEEN)
_TEXTUAL: Final = (Operator.REGEX, Operator.PREFIX, Operator.SUFFIX)
_ORDERED: Final = (Operator.GT, Operator.GTE, Operator.LT, Operator.LTE)
_NUMERIC: Final = (*_ORDERED, Operator.BETWEEN)


def path(text: str, *, field: str) -> tuple[str | int, ...]:
    """Return the steps of a path such as `$.a.b[0].c`. Raises `InvalidPayloadError` for other syntax."""
    steps: list[str | int] = []
    at = 1
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise InvalidPayloadError(
                f"{field} {text[:80]!r}: invalid from character {at + 1}; names, ['names'] and [0] are "
                "supported, such as $.order.items[0].sku"
            )
        name, index, quoted = found.groups()
        steps.append(int(index) if index is not None else name or quoted)
        at = found.end()
    return tuple(steps)


def _operator(given: str, field: str) -> Operator:
    try:
        return Operator(given.strip().upper())
    except ValueError as exc:
        raise InvalidPayloadError(f"{field} {given[:40]!r}: not one of {', '.join(Operator)}") from exc


def _source(given: str, field: str) -> tuple[str | None, tuple[str | int, ...]]:
    """Return the name of a header, or the steps of a path."""
    if len(given) <= FIELD_LENGTH_MAX:
        name = given.removeprefix(HEADERS)
        if name and name != given:
            return name.lower(), ()
        if given.startswith("$") and len(given) > 1:
            return None, path(given, field=field)
    raise InvalidPayloadError(
        f"{field} {given[:80]!r}: start it with $. for the payload or {HEADERS} for a header, "
        f"and use at most {FIELD_LENGTH_MAX} characters"
    )


def _check_value(operator: Operator, value: object, field: str, *, is_header: bool) -> None:
    """Raise `InvalidPayloadError` for a value that the operator cannot use."""
    wrong: str | None = None
    members = value if isinstance(value, list | tuple) else []
    if operator in _VALUELESS:
        wrong = "none" if value is not None else None
    elif operator is Operator.BETWEEN:
        is_pair = len(members) == 2 and _is_ordered(*members) and not members[0] > members[1]
        wrong = None if is_pair else "two numbers or two texts, the lower first"
    elif operator in _LISTED:
        wrong = None if 1 <= len(members) <= VALUES_MAX else f"a list of 1 to {VALUES_MAX} values"
    elif operator in _TEXTUAL:
        wrong = None if isinstance(value, str) and value else "some text"
    elif operator in _ORDERED:
        wrong = None if _is_ordered(value, value) else "a number or text"
    equal_to = members if operator in (Operator.IN, Operator.NOT_IN) else [value]
    compares = operator in (Operator.EQUALS, Operator.NOT_EQUALS, Operator.IN, Operator.NOT_IN, Operator.CONTAINS)
    if wrong is None and is_header and compares and not all(isinstance(each, str) for each in equal_to):
        wrong = "text, as headers are"
    if wrong is not None:
        raise InvalidPayloadError(f"{field} {str(value)[:40]!r}: {operator} takes {wrong}")
    size = len(msgspec.json.encode(value))
    if size > VALUE_BYTES_MAX:
        raise InvalidPayloadError(f"{field}: {size} bytes of JSON; at most {VALUE_BYTES_MAX}")


def _test(operator: Operator, value: Any, field: str) -> Test:  # noqa: ANN401 - any JSON value
    """Return the comparison with a value."""
    if operator is Operator.REGEX:
        search = compiled(value, field=field).search
        return lambda found: isinstance(found, str) and len(found) <= TEXT_LENGTH_MAX and search(found) is not None
    if operator in (Operator.IN, Operator.NOT_IN):
        return _membership(value, is_wanted=operator is Operator.IN)
    plain: Mapping[Operator, Test] = {
        Operator.EQUALS: lambda found: same(found, value),
        Operator.NOT_EQUALS: lambda found: not same(found, value),
        Operator.EXISTS: lambda found: found is not MISSING,
        Operator.NOT_EXISTS: lambda found: found is MISSING,
        Operator.PREFIX: lambda found: isinstance(found, str) and found.startswith(value),
        Operator.SUFFIX: lambda found: isinstance(found, str) and found.endswith(value),
        Operator.CONTAINS: lambda found: _contains(found, value),
        Operator.GT: lambda found: _is_ordered(found, value) and found > value,
        Operator.GTE: lambda found: _is_ordered(found, value) and found >= value,
        Operator.LT: lambda found: _is_ordered(found, value) and found < value,
        Operator.LTE: lambda found: _is_ordered(found, value) and found <= value,
        Operator.BETWEEN: lambda found: _is_ordered(found, value[0]) and value[0] <= found <= value[1],
    }
    return plain[operator]


def _membership(values: Any, *, is_wanted: bool) -> Test:  # noqa: ANN401
    texts = frozenset(each for each in values if isinstance(each, str))
    others = [each for each in values if not isinstance(each, str)]

    def test(found: object) -> bool:
        is_member = found in texts if isinstance(found, str) else any(same(found, other) for other in others)
        return is_member is is_wanted

    return test


def _contains(found: object, value: object) -> bool:
    if isinstance(found, str):
        return isinstance(value, str) and value in found
    return isinstance(found, list) and any(same(each, value) for each in found)


def _number(found: object) -> object:
    """Return the number in a header's text, or the text."""
    try:
        return float(found) if isinstance(found, str) else found
    except ValueError:
        return found


def _is_numeric(value: object) -> bool:
    first = value[0] if isinstance(value, list | tuple) and value else value
    return isinstance(first, int | float)


def _is_ordered(low: object, high: object) -> bool:
    if isinstance(low, str):
        return isinstance(high, str)
    numbers = (low, high)
    return all(isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each) for each in numbers)
