"""Field tables: the fields of structs with types, defaults and meanings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from docs.generator.markdown import cell, code
from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds


def summary(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def fields_of(cls: type) -> list[Any]:
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    return list(info.fields)


def nested_structs(cls: type) -> list[dict[str, type]]:
    """Return the fields that hold a struct."""
    found = []
    for field in fields_of(cls):
        kinds = getattr(field.type, "types", (field.type,))
        found += [{field.encode_name: kind.cls} for kind in kinds if isinstance(kind, msgspec.inspect.StructType)]
    return found


def fields_table(fields: Iterable[Any], owner: str, described: Mapping[str, str]) -> Iterator[str]:
    yield from ("| Field | Value | Default | For |", "|---|---|---|---|")
    for field in fields:
        default = "required" if field.required else code(default_text(field))
        about = described[f"{owner}.{field.name}"]
        yield f"| `{field.encode_name}` | {cell(type_text(field.type))} | {default} | {cell(about)} |"
    yield ""


def default_text(field: Any) -> str:  # noqa: ANN401 - a field of msgspec's
    """Return a default as it is written in a file; empty for none."""
    default = field.default
    if isinstance(default, Seconds):
        return duration.text(float(default))
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return str(default) if isinstance(default, str | int | float) else ""


_TYPE_TEXTS: Final[Mapping[type, str]] = {
    msgspec.inspect.StrType: "text",
    msgspec.inspect.IntType: "whole number",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "true or false",
    msgspec.inspect.CustomType: "duration",
    msgspec.inspect.AnyType: "any",
    msgspec.inspect.StructType: "mapping, below",
}


def type_text(kind: Any) -> str:  # noqa: ANN401 - a type of msgspec's
    """Return a type in words."""
    match kind:
        case msgspec.inspect.UnionType():
            members = [each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)]
            return " or ".join(type_text(each) for each in members)
        case msgspec.inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return f"list of {type_text(kind.item_type)}"
        case msgspec.inspect.TupleType():
            return f"list of {len(kind.item_types)}: {', '.join(type_text(each) for each in kind.item_types)}"
        case msgspec.inspect.EnumType():
            return "one of " + ", ".join(f"`{member.value}`" for member in kind.cls)
        case msgspec.inspect.DictType():
            return f"mapping to {type_text(kind.value_type)}"
    return _TYPE_TEXTS[type(kind)]
