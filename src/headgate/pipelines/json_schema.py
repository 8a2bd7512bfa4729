"""JSON Schema of definitions and archetypes, for editors: made of the structs, their limits and what they may name.

What it lets through may still be refused: a cron expression and a circle of upstreams take more than a schema.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.inspect import Field, StructType, Type

from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds
from headgate.pipelines.archetypes import RULES, Archetype
from headgate.pipelines.definition import Pipeline
from headgate.pipelines.definition_checks import ID, MODES, TRAIT_RULES, TRIGGER_TYPES
from headgate.pipelines.limits import BOUNDS, Bounds
from headgate.pipelines.related_periods import CHOICES
from headgate.pipelines.rule_checks import FORMS
from headgate.pipelines.rule_operators import CHECKS
from headgate.pipelines.schema_texts import DESCRIPTIONS
from headgate.pipelines.typed_reading import name_in_files

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
# Texts that `duration` reads, and nothing that is far from one.
DURATION: Final = r"^(P(?=.).*|\s*([0-9]+(\.[0-9]+)?\s*(w|d|h|m|s|ms)\s*)+)$"
_TIME: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_DEADLINE: Final = rf"^(([01][0-9]|2[0-3])?:[0-5][0-9]|{DURATION[1:-1]})$"
_DAY: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"

Schema = dict[str, Any]

# What a field takes besides what its type says.
_NARROWED: Final[dict[tuple[str, str], Schema]] = {
    ("Pipeline", "id"): {"pattern": f"^{ID.pattern}$"},
    ("Upstream", "periods"): {"enum": list(CHOICES)},
    ("Rule", "check"): {"enum": list(CHECKS)},
    ("SensorTrigger", "check"): {"enum": list(CHECKS)},
    ("Readiness", "mode"): {"enum": [*MODES, *(mode.lower() for mode in MODES)]},
    ("Readiness", "trait_rule"): {"enum": list(TRAIT_RULES)},
    ("Archetype", "trait_rule"): {"enum": list(RULES)},
    ("TriggerSpec", "type"): {"enum": list(TRIGGER_TYPES)},
}
_PATTERNS: Final[dict[tuple[str, str], str]] = {
    ("Schedule", "after"): _TIME,
    ("Schedule", "deadline"): _DEADLINE,
    ("SensorTrigger", "deadline"): _DEADLINE,
    ("Sla", "deadline"): _DEADLINE,
    ("Sla", "evaluation_deadline"): _DEADLINE,
}
_SCALARS: Final[dict[type[Type], str]] = {
    msgspec.inspect.StrType: "string",
    msgspec.inspect.IntType: "integer",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "boolean",
}
_DAYS: Final = {("Exclusions", "dates"), ("Inclusions", "dates")}


class Kind(enum.StrEnum):
    """What a schema is for."""

    PIPELINE = "pipeline"
    ARCHETYPE = "archetype"


_STRUCTS: Final[dict[Kind, type[Struct]]] = {Kind.PIPELINE: Pipeline, Kind.ARCHETYPE: Archetype}


def json_schema(kind: Kind = Kind.PIPELINE) -> Schema:
    """Return the schema of a kind of file, in draft 2020-12. It is the caller's own."""
    made = _Maker()
    root = made.schema(msgspec.inspect.type_info(_STRUCTS[kind]))
    if "Rule" in made.parts:
        made.parts["Rule"]["oneOf"] = [{"required": [name_in_files(form)]} for form in FORMS]
    return {
        "$schema": DIALECT,
        "$id": f"urn:headgate:schema:{kind.value}",
        "title": f"Headgate {kind.value}",
        **root,
        "$defs": made.parts,
    }


class _Maker:
    """Makes a schema of types, with a part of its own for each struct and enum."""

    def __init__(self) -> None:
        self.parts: dict[str, Schema] = {}
        self._bounds = {(owner.__name__, name): limit for (owner, name), limit in BOUNDS.items()}

    def schema(self, kind: Type) -> Schema:
        match kind:
            case msgspec.inspect.StructType():
                return self._struct(kind)
            case msgspec.inspect.EnumType():
                return {"enum": [str(member.value) for member in kind.cls]}
            case msgspec.inspect.VarTupleType():
                return {"type": "array", "items": self.schema(kind.item_type)}
            case msgspec.inspect.DictType():
                return {"type": "object", "additionalProperties": self.schema(kind.value_type)}
            case msgspec.inspect.UnionType():
                return self.schema(next(each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)))
            case msgspec.inspect.CustomType():
                return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION}]}
        return {"type": _SCALARS[type(kind)]} if type(kind) in _SCALARS else {}

    def _struct(self, kind: StructType) -> Schema:
        name = kind.cls.__name__
        reference: Schema = {"$ref": f"#/$defs/{name}"}
        if name not in self.parts:
            # Before its fields are looked at: a rule holds rules.
            part = self.parts[name] = {"type": "object", "description": (kind.cls.__doc__ or "").split("\n")[0]}
            part["properties"] = {name_in_files(field.encode_name): self._field(name, field) for field in kind.fields}
            part["additionalProperties"] = False
            required = [name_in_files(field.encode_name) for field in kind.fields if field.required]
            if required:
                part["required"] = required
        return reference

    def _field(self, owner: str, field: Field) -> Schema:
        key = (owner, field.name)
        schema = {**self.schema(field.type), **_NARROWED.get(key, {})}
        if key in self._bounds:
            _bound(schema, self._bounds[key])
        if key in _PATTERNS:
            schema["pattern"] = _PATTERNS[key]
        if key in _DAYS:
            schema["items"]["pattern"] = _DAY
        texts: Schema = {}
        if f"{owner}.{field.name}" in DESCRIPTIONS:
            texts["description"] = DESCRIPTIONS[f"{owner}.{field.name}"]
        if field.required:
            return {**schema, **texts}
        if isinstance(field.default, str | int | float | bool) and field.default != "":
            is_time = isinstance(field.default, Seconds)
            texts["default"] = duration.text(float(field.default)) if is_time else field.default
        # Loading takes a field with nothing behind it for one that is not given.
        return {"anyOf": [schema, {"type": "null"}], **texts} if schema else texts


def _bound(schema: Schema, bounds: Bounds) -> None:
    """Narrow the numbers of a field; durations that are texts are left to loading."""
    for part in (schema, *schema.get("anyOf", ())):
        if part.get("type") in ("number", "integer"):
            part["minimum"], part["maximum"] = 0 if bounds.zero else bounds.low, bounds.high
