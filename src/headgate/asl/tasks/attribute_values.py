"""Attribute values: converts items between DynamoDB's JSON and the store's values."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.asl.expressions.scope import Json
from headgate.errors import InvalidItemError
from headgate.store.dynamodb.marshalling import to_attributes, to_value
from headgate.store.model.values import parse_number

_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?")
_DEPTH_MAX: Final = 32
_KINDS: Final = "S, N, B, BOOL, NULL, M, L, SS, NS or BS"
_TEXTS: Final = {"S", "N", "B"}
_SETS: Final = {"SS": "S", "NS": "N", "BS": "B"}


def read_item(attributes: Json, where: str) -> dict[str, Any]:
    """Parse an item. Raises `InvalidItemError` that names the path."""
    if not isinstance(attributes, Mapping):
        raise InvalidItemError(f'{where}: it must be an object of attribute values such as {{"id": {{"S": "7"}}}}')
    return {name: read_value(value, f"{where}.{name}") for name, value in attributes.items()}


def read_value(value: Json, where: str, depth: int = 1) -> Any:  # noqa: ANN401 - a value of any type
    """Parse one attribute value. Raises `InvalidItemError` that names the path."""
    if depth > _DEPTH_MAX:
        raise InvalidItemError(f"{where}: nested deeper than {_DEPTH_MAX} levels")
    if not isinstance(value, Mapping) or len(value) != 1:
        raise InvalidItemError(f"{where}: an attribute value is an object with one member of {_KINDS}")
    ((kind, content),) = value.items()
    if kind in _TEXTS:
        return _read_text(kind, content, f"{where}.{kind}")
    if kind in _SETS and isinstance(content, list):
        return frozenset(_read_text(_SETS[kind], element, f"{where}.{kind}") for element in content)
    match kind, content:
        case "BOOL", bool():
            return content
        case "NULL", True:
            return None
        case "M", dict():
            return {name: read_value(element, f"{where}.{name}", depth + 1) for name, element in content.items()}
        case "L", list():
            return [read_value(each, f"{where}[{index}]", depth + 1) for index, each in enumerate(content)]
    raise InvalidItemError(f"{where}: {kind!r} with {type(content).__name__} is not an attribute value; use {_KINDS}")


def write_item(item: Mapping[str, Any]) -> dict[str, Json]:
    """Return an item as attribute values in JSON."""
    written: dict[str, Json] = msgspec.to_builtins(to_attributes(item))
    return written


def kind_of(value: Any) -> str:  # noqa: ANN401 - a value of any type
    """Return DynamoDB's type code of a value."""
    return next(iter(to_value(value)))


def _read_text(kind: str, content: Json, where: str) -> Any:  # noqa: ANN401 - text, a number or bytes
    if not isinstance(content, str):
        raise InvalidItemError(f'{where}: it must be text, also for a number, such as {{"N": "12"}}')
    if kind == "S":
        return content
    if kind == "N":
        if not _NUMBER.fullmatch(content):
            raise InvalidItemError(f"{where}: {content[:40]!r} is not a number")
        return parse_number(content)
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as exc:
        raise InvalidItemError(f"{where}: {content[:40]!r} is not base64") from exc
