"""Differences between two definitions, as lines that a person reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition import Pipeline
from headgate.pipelines.definition_json import encode, plain
from headgate.pipelines.typed_reading import name_in_files

_ABSENT: Final = object()
_SHOWN_MAX: Final = 120
# Of a list, what tells one item from another, so that one that is put in does not change all that follow.
_NAMES: Final = ("name", "key", "pipeline", "trait", "dataset")


def differences(old: Pipeline, new: Pipeline) -> list[str]:
    """Return what changed, by field: `+` is new, `-` is gone, `~` is other than before. None: they are the same."""
    before, after = plain(old), plain(new)
    _as_written(old, before)
    _as_written(new, after)
    return list(_compare("", before, after))


def summary(pipeline: Pipeline) -> str:
    """Return a definition as indented JSON, for people."""
    return msgspec.json.format(encode(pipeline), indent=2)


def _as_written(part: Any, shown: Any) -> None:  # noqa: ANN401 - structs and their plain form, side by side
    """Replace seconds by the text that people write, and names of ours by those of files."""
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
    # By their text, because to Python 1 is True.
    return msgspec.json.encode(old, order="sorted") == msgspec.json.encode(new, order="sorted")


def _has_parts(items: list[Any]) -> bool:
    return all(isinstance(item, dict) for item in items)


def _by_name(items: list[Any]) -> dict[str, Any]:
    """Return the items of a list by what tells them apart, or else by their number."""
    found: dict[str, Any] = {}
    for index, item in enumerate(items):
        name = next((str(item[key]) for key in _NAMES if isinstance(item.get(key), str) and item[key]), str(index))
        found[name if name not in found else f"{name}#{index}"] = item
    return found


def _text(value: Any) -> str:  # noqa: ANN401
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
