"""Views: response types whose fields come from domain structs by name."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from headgate.durable.model.records import instant

V = TypeVar("V")


def shown(kind: type[V], *sources: object, **more: Any) -> V:  # noqa: ANN401 - fields of the view
    """Build a view: each field from `more`, or else from the first source that has it.

    A source may have it as `*_ms`, which becomes text; tuples become lists. If no source has it, one must be None, and
    so is the field. Raises `AttributeError` otherwise.
    """
    names: tuple[str, ...] = getattr(kind, "__struct_fields__", None) or _dataclass_fields(kind)
    for name in names:
        if name not in more:
            more[name] = _value(name, sources)
    return kind(**more)


def _dataclass_fields(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a type
    return tuple(each.name for each in dataclasses.fields(kind) if each.init)


def _value(name: str, sources: tuple[object, ...]) -> Any:  # noqa: ANN401 - of any field
    for source in sources:
        if hasattr(source, name):
            value = getattr(source, name)
            return list(value) if isinstance(value, tuple) else value
        if hasattr(source, f"{name}_ms"):
            ms = getattr(source, f"{name}_ms")
            return instant(ms) if ms else None
    if None in sources:
        return None
    raise AttributeError(f"{name}: not in {', '.join(type(each).__name__ for each in sources)}")
