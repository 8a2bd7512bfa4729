"""Marshalling: converts canonical values to DynamoDB's typed attribute values and back."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from headgate.store.model.schema import Key, Table
from headgate.store.model.values import Item, parse_number

AttributeValue = dict[str, Any]
Attributes = dict[str, AttributeValue]


def to_attributes(item: Mapping[str, Any]) -> Attributes:
    """Return a canonical item in DynamoDB's form."""
    return {name: to_value(value) for name, value in item.items()}


def to_key(table: Table, key: Key) -> Attributes:
    """Return the key of an item in DynamoDB's form."""
    return {name: to_value(part) for name, part in table.key_attributes(key).items()}


def from_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> Item:
    """Return the canonical item of DynamoDB attributes."""
    return {name: from_value(value) for name, value in attributes.items()}


def to_value(value: Any) -> AttributeValue:  # noqa: ANN401 - any storable value
    """Return a canonical value in DynamoDB's form."""
    match value:
        case str():
            return {"S": value}
        case None:
            return {"NULL": True}
        case bool():
            return {"BOOL": value}
        case int() | float():
            return {"N": _number_text(value)}
        case dict():
            return {"M": to_attributes(value)}
        case list():
            return {"L": [to_value(element) for element in value]}
        case bytes():
            return {"B": value}
        case frozenset():
            return _to_set(value)
    raise AssertionError(f"not a canonical value: {type(value)}")


def from_value(value: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the canonical value of a DynamoDB attribute value."""
    ((kind, content),) = value.items()
    match kind:
        case "S" | "BOOL" | "B":
            return content
        case "N":
            return parse_number(content)
        case "NULL":
            return None
        case "M":
            return from_attributes(content)
        case "L":
            return [from_value(element) for element in content]
        case "SS" | "BS":
            return frozenset(content)
        case "NS":
            return frozenset(map(parse_number, content))
    raise AssertionError(f"DynamoDB has no type {kind!r}")


def _number_text(number: int | float) -> str:
    # `repr` is the shortest decimal of a float; Decimal formats its exponent as DynamoDB does.
    return str(number) if type(number) is int else str(Decimal(repr(number)))


def _to_set(elements: frozenset[Any]) -> AttributeValue:
    # Sorted, so that equal sets make equal requests.
    ordered = sorted(elements)
    if isinstance(ordered[0], str):
        return {"SS": ordered}
    if isinstance(ordered[0], bytes):
        return {"BS": ordered}
    return {"NS": [_number_text(element) for element in ordered]}
