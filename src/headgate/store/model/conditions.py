"""Conditions on writes, built from named clauses with the same meaning on every backend.

A condition applies to the item as a reader sees it: an expired item counts as absent. A comparison with a missing
attribute, or with one of another type than the value, is false (`differs` and `lacks` are true). An attribute that was
spilled to a blob has another type than any value: it can be tested for presence, not compared.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.errors import InvalidItemError
from headgate.store.model.values import canonical_number, is_text, plain_number, plain_text, same

VERSION: Final = "version"
VALUE_BYTES_MAX: Final = 2048
# Any clauses of this number fit into DynamoDB's limit of 4 KB per expression.
CLAUSES_MAX: Final = 80

Operand = str | int | float | bool | bytes | None


class Comparison(enum.StrEnum):
    """How an attribute is compared with a value."""

    EQUALS = "="
    DIFFERS = "<>"
    LESS_THAN = "<"
    AT_MOST = "<="
    GREATER_THAN = ">"
    AT_LEAST = ">="


class Absent(msgspec.Struct, frozen=True, tag=True):
    """The item does not exist."""


class Exists(msgspec.Struct, frozen=True, tag=True):
    """The item exists."""


class Has(msgspec.Struct, frozen=True, tag=True):
    """The item has this attribute."""

    attribute: str


class Lacks(msgspec.Struct, frozen=True, tag=True):
    """The item does not have this attribute, or does not exist."""

    attribute: str


class Compare(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The comparison of the attribute with the value is true."""

    attribute: str
    comparison: Comparison
    value: Operand


class OneOf(msgspec.Struct, frozen=True, tag=True):
    """The attribute equals one of the values."""

    attribute: str
    values: tuple[Operand, ...]


class AnyOf(msgspec.Struct, frozen=True, tag=True):
    """At least one clause holds."""

    clauses: tuple[Condition, ...]


class AllOf(msgspec.Struct, frozen=True, tag=True):
    """Every clause holds."""

    clauses: tuple[Condition, ...]


Condition = Absent | Exists | Has | Lacks | Compare | OneOf | AnyOf | AllOf

# As a constant, because an attribute of an enum class is slow to read.
EQUALS: Final = Comparison.EQUALS
ABSENT: Final = Absent()
EXISTS: Final = Exists()


def absent() -> Absent:
    """The item does not exist or has expired."""
    return ABSENT


def exists() -> Exists:
    """The item exists and has not expired."""
    return EXISTS


def version_is(version: int) -> Compare:
    """The item has exactly this version (compare-and-swap)."""
    return Compare(VERSION, EQUALS, version)


def has(attribute: str) -> Has:
    """The item has this attribute."""
    return Has(_name(attribute))


def lacks(attribute: str) -> Lacks:
    """The item does not have this attribute, or does not exist."""
    return Lacks(_name(attribute))


def equals(attribute: str, value: Operand) -> Compare:
    """The attribute is present and equal."""
    return Compare(attribute, Comparison.EQUALS, _operand(attribute, value))


def differs(attribute: str, value: Operand) -> Compare:
    """The attribute is missing or different."""
    return Compare(attribute, Comparison.DIFFERS, _operand(attribute, value))


def less_than(attribute: str, value: Operand) -> Compare:
    """The attribute is present, of the same type, and smaller."""
    return Compare(attribute, Comparison.LESS_THAN, _operand(attribute, value))


def at_most(attribute: str, value: Operand) -> Compare:
    """The attribute is present, of the same type, and smaller or equal."""
    return Compare(attribute, Comparison.AT_MOST, _operand(attribute, value))


def greater_than(attribute: str, value: Operand) -> Compare:
    """The attribute is present, of the same type, and greater."""
    return Compare(attribute, Comparison.GREATER_THAN, _operand(attribute, value))


def at_least(attribute: str, value: Operand) -> Compare:
    """The attribute is present, of the same type, and greater or equal."""
    return Compare(attribute, Comparison.AT_LEAST, _operand(attribute, value))


def one_of(attribute: str, *values: Operand) -> OneOf:
    """The attribute is present and equals one of `values` (1 to 100)."""
    if not 1 <= len(values) <= 100:
        raise InvalidItemError(f"one_of({attribute!r}): give 1 to 100 values, not {len(values)}")
    return OneOf(attribute, tuple(_operand(attribute, value) for value in values))


def any_of(*clauses: Condition) -> AnyOf:
    """At least one of `clauses` holds."""
    return AnyOf(_bounded(clauses))


def all_of(*clauses: Condition) -> AllOf:
    """Every one of `clauses` holds."""
    return AllOf(_bounded(clauses))


def holds(condition: Condition, item: Mapping[str, Any] | None) -> bool:
    """Whether `condition` is true for `item` (None: it does not exist or has expired)."""
    attributes = {} if item is None else item
    match condition:
        case Compare():
            return _compare(condition, attributes)
        case AllOf():
            return _all_hold(condition.clauses, item)
        case Absent():
            return item is None
        case Exists():
            return item is not None
        case Has():
            return condition.attribute in attributes
        case Lacks():
            return condition.attribute not in attributes
        case OneOf():
            return any(same(attributes.get(condition.attribute, _MISSING), value) for value in condition.values)
        case AnyOf():
            return any(holds(clause, item) for clause in condition.clauses)


def _all_hold(clauses: tuple[Condition, ...], item: Mapping[str, Any] | None) -> bool:
    # A loop: a generator costs more than the few clauses.
    for clause in clauses:  # noqa: SIM110 - as above
        if not holds(clause, item):
            return False
    return True


def pins_version(condition: Condition | None) -> bool:
    """Whether `condition` requires one exact version, so that the write cannot be applied twice."""
    match condition:
        case Compare(attribute=attribute, comparison=Comparison.EQUALS):
            return attribute == VERSION
        case AllOf(clauses=clauses):
            return any(pins_version(clause) for clause in clauses)
        case AnyOf(clauses=clauses):
            return all(pins_version(clause) for clause in clauses)
    return False


def describe(condition: Condition) -> str:
    """Return the condition as a short phrase, for messages."""
    match condition:
        case Absent():
            return "absent"
        case Exists():
            return "exists"
        case Has():
            return f"has {condition.attribute}"
        case Lacks():
            return f"lacks {condition.attribute}"
        case Compare():
            return f"{condition.attribute} {condition.comparison} {condition.value!r}"
        case OneOf():
            return f"{condition.attribute} in {list(condition.values)!r}"
        case AnyOf():
            return "(" + " or ".join(map(describe, condition.clauses)) + ")"
        case AllOf():
            return "(" + " and ".join(map(describe, condition.clauses)) + ")"


_MISSING: Final = object()


def _compare(condition: Compare, item: Mapping[str, Any]) -> bool:
    actual = item.get(condition.attribute, _MISSING)
    if condition.comparison is EQUALS:
        value = condition.value
        return actual == value if type(actual) is str and type(value) is str else same(actual, value)
    if condition.comparison is Comparison.DIFFERS:
        return not same(actual, condition.value)
    if not _comparable(actual, condition.value):
        return False
    match condition.comparison:
        case Comparison.LESS_THAN:
            return bool(actual < condition.value)
        case Comparison.AT_MOST:
            return bool(actual <= condition.value)
        case Comparison.GREATER_THAN:
            return bool(actual > condition.value)
    return bool(actual >= condition.value)


def _comparable(actual: object, value: Operand) -> bool:
    if isinstance(actual, bool) or isinstance(value, bool):
        return False
    if isinstance(actual, int | float):
        return isinstance(value, int | float)
    return isinstance(actual, str | bytes) and type(actual) is type(value)


def _bounded(clauses: tuple[Condition, ...]) -> tuple[Condition, ...]:
    size = sum(map(_size, clauses))
    if not 1 <= size <= CLAUSES_MAX:
        raise InvalidItemError(
            f"a condition has 1 to {CLAUSES_MAX} clauses, not {size}; eight values of one_of count as one"
        )
    return clauses


def _size(condition: Condition) -> int:
    match condition:
        case AnyOf(clauses=clauses) | AllOf(clauses=clauses):
            return sum(map(_size, clauses))
        case OneOf(values=values):
            return 1 + len(values) // 8
    return 1


def _name(attribute: str) -> str:
    if not attribute or not is_text(attribute):
        raise InvalidItemError(f"condition on {attribute!r}: an attribute name is non-empty Unicode text")
    return attribute


def _operand(attribute: str, value: Operand) -> Operand:
    _name(attribute)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return canonical_number(plain_number(value), attribute)
    if isinstance(value, str):
        value = plain_text(value)
    if not isinstance(value, str | bytes):
        raise InvalidItemError(f"condition on {attribute!r}: compare with text, a number, a bool, bytes or None")
    if isinstance(value, str) and not is_text(value):
        raise InvalidItemError(f"condition on {attribute!r}: text with a lone surrogate cannot be compared")
    size = len(value.encode()) if isinstance(value, str) else len(value)
    if size > VALUE_BYTES_MAX:
        raise InvalidItemError(f"condition on {attribute!r}: the value has {size} bytes; at most {VALUE_BYTES_MAX}")
    return value
