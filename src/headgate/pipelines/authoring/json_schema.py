"""JSON Schema of pipelines, archetypes and probes for editors, generated from the structs and their bounds.

A valid document may still be refused: cron expressions and dependency cycles are beyond a schema.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct
from msgspec.inspect import Field, StructType, Type

from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds
from headgate.errors import SettingsError
from headgate.pipelines.authoring.archetypes import RULES, Archetype
from headgate.pipelines.authoring.field_descriptions import DESCRIPTIONS, EXAMPLES
from headgate.pipelines.authoring.rule_checks import FORMS
from headgate.pipelines.authoring.validation import ID, MODES, TRAIT_RULES, trigger_types
from headgate.pipelines.definition.bounds import BOUNDS, Bounds
from headgate.pipelines.definition.model import Period, Pipeline
from headgate.pipelines.definition.typed_decoder import name_in_files
from headgate.pipelines.probes.definitions import ID as PROBE_ID
from headgate.pipelines.probes.definitions import PERIODS_MAX
from headgate.pipelines.probes.model import KINDS, Probe
from headgate.pipelines.rules.operators import CHECKS
from headgate.pipelines.schedule.related_periods import CHOICES
from headgate.triggers.field_descriptions import DESCRIPTIONS as FIELD_DESCRIPTIONS
from headgate.triggers.kinds import kind_named

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
# Duration texts, approximately.
DURATION: Final = r"^(P(?=.).*|\s*([0-9]+(\.[0-9]+)?\s*(w|d|h|m|s|ms)\s*)+)$"
_TIME: Final = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
_DEADLINE: Final = rf"^(([01][0-9]|2[0-3])?:[0-5][0-9]|{DURATION[1:-1]})$"
_DAY: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"

Schema = dict[str, Any]

# Restrictions of fields beyond their types.
_NARROWED: Final[dict[tuple[str, str], Schema]] = {
    ("Pipeline", "id"): {"pattern": f"^{ID.pattern}$"},
    ("Probe", "id"): {"pattern": f"^{PROBE_ID.pattern}$"},
    ("Probe", "period"): {"enum": [period.value for period in Period if period is not Period.CUSTOM]},
    ("Probe", "periods"): {"minimum": 1, "maximum": PERIODS_MAX},
    ("SqlProbe", "password"): {"pattern": r"^\$\{(env|file):[^{}]+\}$"},
    ("Expectation", "check"): {"enum": list(CHECKS)},
    ("Upstream", "periods"): {"enum": list(CHOICES)},
    ("Rule", "check"): {"enum": list(CHECKS)},
    ("SensorTrigger", "check"): {"enum": list(CHECKS)},
    ("Readiness", "mode"): {"enum": [*MODES, *(mode.lower() for mode in MODES)]},
    ("Readiness", "trait_rule"): {"enum": list(TRAIT_RULES)},
    ("Archetype", "trait_rule"): {"enum": list(RULES)},
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


class SchemaKind(enum.StrEnum):
    """The file type of a schema."""

    PIPELINE = "pipeline"
    ARCHETYPE = "archetype"
    PROBE = "probe"


_STRUCTS: Final[dict[SchemaKind, type[Struct]]] = {
    SchemaKind.PIPELINE: Pipeline,
    SchemaKind.ARCHETYPE: Archetype,
    SchemaKind.PROBE: Probe,
}


def json_schema(kind: SchemaKind = SchemaKind.PIPELINE) -> Schema:
    """Return the schema of a file type, in draft 2020-12, as a copy."""
    made = _SchemaBuilder()
    root = made.schema(msgspec.inspect.type_info(_STRUCTS[kind]))
    if "Rule" in made.parts:
        made.parts["Rule"]["oneOf"] = [{"required": [name_in_files(form)]} for form in FORMS]
    if "TriggerSpec" in made.parts:
        made.parts["TriggerSpec"]["allOf"] = [made.config_of(name) for name in trigger_types()]
    if "Probe" in made.parts:
        made.parts["Probe"]["oneOf"] = [{"required": [kind]} for kind in KINDS]
    return {
        "$schema": DIALECT,
        "$id": f"urn:headgate:schema:{kind.value}",
        "title": f"Headgate {kind.value}",
        **root,
        "$defs": made.parts,
    }


def schema_text(kind: SchemaKind) -> str:
    """Return the schema of a file type as the text of a JSON file."""
    return msgspec.json.format(msgspec.json.encode(json_schema(kind)), indent=2).decode() + "\n"


class _SchemaBuilder:
    """Builds a schema from types, with a definition for each struct and enum."""

    def __init__(self) -> None:
        self.parts: dict[str, Schema] = {}
        self._bounds = {(owner.__name__, name): limit for (owner, name), limit in BOUNDS.items()}

    def schema(self, kind: Type) -> Schema:
        match kind:
            case msgspec.inspect.StructType():
                return self._struct(kind)
            case msgspec.inspect.EnumType():
                return {"enum": [str(member.value) for member in kind.cls]}
            case msgspec.inspect.LiteralType():
                return {"enum": list(kind.values)}
            case msgspec.inspect.CustomType():
                return {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION}]}
        if type(kind) in _SCALARS:
            return {"type": _SCALARS[type(kind)]}
        return self._composed(kind)

    def _composed(self, kind: Type) -> Schema:
        """Return the schema of a type that is made of others; any other type may hold any value."""
        match kind:
            case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
                return {"type": "array", "items": self.schema(kind.item_type)}
            case msgspec.inspect.TupleType():
                items, count = [self.schema(each) for each in kind.item_types], len(kind.item_types)
                return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
            case msgspec.inspect.DictType():
                return {"type": "object", "additionalProperties": self.schema(kind.value_type)}
            case msgspec.inspect.UnionType():
                members = [self.schema(each) for each in kind.types if not isinstance(each, msgspec.inspect.NoneType)]
                return members[0] if len(members) == 1 else {"anyOf": members}
            case msgspec.inspect.Metadata():
                return {**self.schema(kind.type), **(kind.extra_json_schema or {})}
        return {}

    def config_of(self, name: str) -> Schema:
        """Return the condition that gives the config of one type of trigger its schema."""
        when: Schema = {"properties": {"type": {"const": name}}, "required": ["type"]}
        try:
            config_type = kind_named(name).config_type
            info = msgspec.inspect.type_info(config_type)
        except (SettingsError, TypeError):
            # A plug-in that is broken, or whose config is no struct: the loader says so.
            return {"if": when, "then": {}}
        if not isinstance(info, StructType):
            return {"if": when, "then": {}}
        then: Schema = {"properties": {"config": self._struct(info, name)}}
        if any(field.required for field in info.fields):
            then["required"] = ["config"]
        return {"if": when, "then": then}

    def _struct(self, kind: StructType, name: str = "") -> Schema:
        name = name or kind.cls.__name__
        reference: Schema = {"$ref": f"#/$defs/{name}"}
        if name not in self.parts:
            # Registered before its fields: rules are recursive.
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
        if key == ("TriggerSpec", "type"):
            schema["enum"] = list(trigger_types())
        if key in _DAYS:
            schema["items"]["pattern"] = _DAY
        texts: Schema = {}
        described = DESCRIPTIONS.get(f"{owner}.{field.name}") or FIELD_DESCRIPTIONS.get(f"{owner}.{field.name}")
        if described:
            texts["description"] = described
        if f"{owner}.{field.name}" in EXAMPLES:
            texts["examples"] = [yaml.safe_load(EXAMPLES[f"{owner}.{field.name}"])]
        if field.required:
            return {**schema, **texts}
        if isinstance(field.default, str | int | float | bool) and field.default != "":
            is_time = isinstance(field.default, Seconds)
            texts["default"] = duration.text(float(field.default)) if is_time else field.default
        # The loader treats a key without a value as absent.
        return {"anyOf": [schema, {"type": "null"}], **texts} if schema else texts


def _bound(schema: Schema, bounds: Bounds) -> None:
    """Restrict the numbers of a field; the loader checks duration texts."""
    for part in (schema, *schema.get("anyOf", ())):
        if part.get("type") in ("number", "integer"):
            part["minimum"], part["maximum"] = 0 if bounds.zero else bounds.low, bounds.high
