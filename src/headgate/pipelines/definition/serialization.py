"""Serialization: definitions as JSON with a digest, and the differences between two definitions."""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, UNSET, Struct
from msgspec.structs import FieldInfo

from headgate import typed_decode
from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds, from_json_type
from headgate.errors import InvalidPayloadError
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition.typed_decoder import name_in_files


def encode(pipeline: Pipeline) -> str:
    """Encode a definition as JSON without default values. Equal definitions have equal texts."""
    return _ENCODER.encode(plain(pipeline)).decode()


def decode(text: str | bytes) -> Pipeline:
    """Decode a definition. Raises `InvalidPayloadError`."""
    try:
        return _DECODER.decode(text)
    except msgspec.ValidationError:
        # An earlier version stored the Python name of this field.
        earlier = msgspec.json.decode(text)
    except msgspec.MsgspecError as exc:
        raise InvalidPayloadError(f"definition: it is not that of a pipeline: {exc}; validate it") from exc
    try:
        return typed_decode.convert(_renamed(earlier), Pipeline, dec_hook=from_json_type)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"definition: it is not that of a pipeline: {exc}; validate it") from exc


def digest(pipeline: Pipeline) -> str:
    """Return the digest of a definition: 64 hexadecimal digits."""
    return hashlib.sha256(encode(pipeline).encode()).hexdigest()


def plain(pipeline: Pipeline) -> dict[str, Any]:
    """Return a definition as maps, lists and scalars without default values, as a copy."""
    fields: dict[str, Any] = _plain(pipeline)
    return fields


def _renamed(value: Any) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Return a stored definition with the former rule field `not_` renamed."""
    match value:
        case dict():
            is_rule = "not_" in value and "not" not in value
            return {"not" if is_rule and key == "not_" else key: _renamed(each) for key, each in value.items()}
        case list():
            return [_renamed(each) for each in value]
    return value


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
    # By value: msgspec omits only the identical default object, so that an explicit default would change the text.
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


# Cached: msgspec inspects the types at each call.
@functools.cache
def _fields(kind: type[Struct]) -> tuple[FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _is_default(field: FieldInfo, value: object) -> bool:
    if field.default_factory is not NODEFAULT:
        return bool(value == field.default_factory())
    return value is UNSET or bool(value == field.default)


# Sorted, so that user maps that differ only in order are equal.
_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_DECODER: Final = msgspec.json.Decoder(Pipeline, dec_hook=from_json_type)

_ABSENT: Final = object()
_SHOWN_MAX: Final = 120
# The fields that identify an item of a list, so that an inserted item does not change all that follow.
_NAMES: Final = ("name", "key", "pipeline", "trait", "dataset")


def differences(old: Pipeline, new: Pipeline) -> list[str]:
    """Return the differences by field: `+` added, `-` removed, `~` changed. Empty: they are equal."""
    before, after = plain(old), plain(new)
    _as_written(old, before)
    _as_written(new, after)
    return list(_compare("", before, after))


def summary(pipeline: Pipeline) -> str:
    """Return a definition as indented JSON."""
    return msgspec.json.format(encode(pipeline), indent=2)


def _as_written(part: Any, shown: Any) -> None:  # noqa: ANN401 - structs and their plain form, side by side
    """Replace seconds by duration texts, and Python names by those of files."""
    if isinstance(part, msgspec.Struct) and isinstance(shown, dict):
        for field in msgspec.structs.fields(part):
            value = getattr(part, field.name)
            if field.encode_name in shown and isinstance(value, Seconds):
                shown[field.encode_name] = duration.text(value)
            elif field.encode_name in shown:
                _as_written(value, shown[field.encode_name])
                if name_in_files(field.encode_name) != field.encode_name:
                    shown[name_in_files(field.encode_name)] = shown.pop(field.encode_name)
    elif isinstance(part, tuple) and isinstance(shown, list):
        for value, below in zip(part, shown, strict=True):
            _as_written(value, below)
    elif isinstance(part, dict) and isinstance(shown, dict):
        for key, value in part.items():
            _as_written(value, shown[key])


def _compare(path: str, old: Any, new: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    if _is_same(old, new):
        return
    if isinstance(old, list) and isinstance(new, list) and _has_parts(old) and _has_parts(new):
        old, new = _by_name(old), _by_name(new)
        yield from _compare_maps(path, old, new, "[{}]")
    elif isinstance(old, dict) and isinstance(new, dict):
        yield from _compare_maps(path, old, new, ".{}")
    elif old is _ABSENT:
        yield f"+ {path}: {_text(new)}"
    elif new is _ABSENT:
        yield f"- {path}: {_text(old)}"
    else:
        yield f"~ {path}: {_text(old)} → {_text(new)}"


def _compare_maps(path: str, old: dict[str, Any], new: dict[str, Any], form: str) -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        below = f"{path}{form.format(key)}".removeprefix(".")
        yield from _compare(below, old.get(key, _ABSENT), new.get(key, _ABSENT))


def _is_same(old: Any, new: Any) -> bool:  # noqa: ANN401
    if old is _ABSENT or new is _ABSENT:
        return old is new
    # By their text, because 1 == True in Python.
    return msgspec.json.encode(old, order="sorted") == msgspec.json.encode(new, order="sorted")


def _has_parts(items: list[Any]) -> bool:
    return all(isinstance(item, dict) for item in items)


def _by_name(items: list[Any]) -> dict[str, Any]:
    """Return the items of a list by their identifying field, or else by number."""
    named: dict[str, Any] = {}
    for index, item in enumerate(items):
        name = next((str(item[key]) for key in _NAMES if isinstance(item.get(key), str) and item[key]), str(index))
        named[name if name not in named else f"{name}#{index}"] = item
    return named


def _text(value: Any) -> str:  # noqa: ANN401
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
