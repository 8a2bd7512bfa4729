"""Definitions as JSON: how they are stored, sent, and told apart by a digest."""

from __future__ import annotations

import enum
import functools
import hashlib
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, UNSET, Struct
from msgspec.structs import FieldInfo

from headgate import shapes
from headgate.durable.model.duration import Seconds, from_json_type
from headgate.errors import InvalidPayloadError
from headgate.pipelines.definition import Pipeline


def encode(pipeline: Pipeline) -> str:
    """Return a definition as JSON without what equals a default. The same definition has the same text."""
    return _ENCODER.encode(plain(pipeline)).decode()


def decode(text: str | bytes) -> Pipeline:
    """Return the definition that `encode` made a text of. Raises `InvalidPayloadError`, naming what is wrong."""
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        # Kept under the name that it has in Python, by an earlier version.
        earlier = msgspec.json.decode(text)
    except msgspec.MsgspecError as exc:
        raise InvalidPayloadError(f"definition: it is not that of a pipeline: {exc}; validate it") from exc
    try:
        return shapes.convert(_renamed(earlier), Pipeline, dec_hook=from_json_type)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"definition: it is not that of a pipeline: {exc}; validate it") from exc


def digest(pipeline: Pipeline) -> str:
    """Return what tells this definition from every other: 64 hexadecimal digits."""
    return hashlib.sha256(encode(pipeline).encode()).hexdigest()


def plain(pipeline: Pipeline) -> dict[str, Any]:
    """Return a definition as maps, lists and scalars, without what equals a default. They are the caller's own."""
    found: dict[str, Any] = _plain(pipeline)
    return found


def _renamed(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return a stored definition with the rule that was called `not_` under its name."""
    match value:
        case dict():
            is_rule = "not_" in value and "not" not in value
            return {"not" if is_rule and key == "not_" else key: _renamed(each) for key, each in value.items()}
        case list():
            return [_renamed(each) for each in value]
    return value


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
    # By value: msgspec itself leaves out only the very object that is the default, so that a definition which says
    # what would be so anyway would differ from one that does not.
    match value:
        case Struct():
            return {
                field.encode_name: _plain(getattr(value, field.name))
                for field in _fields(type(value))
                if field.required or not _is_default(field, getattr(value, field.name))
            }
        case dict():
            return {key: _plain(each) for key, each in value.items()}
        case tuple() | list():
            return [_plain(each) for each in value]
        case Seconds():
            return int(value) if value.is_integer() else float(value)
        case enum.Enum():
            return value.value
    return value


# msgspec looks through the types each time it is asked.
@functools.cache
def _fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _is_default(field: FieldInfo, value: object) -> bool:
    if field.default_factory is not NODEFAULT:
        return bool(value == field.default_factory())
    return value is UNSET or bool(value == field.default)


# Sorted, so that maps of users that differ in order alone are the same.
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder(Pipeline, dec_hook=from_json_type)
