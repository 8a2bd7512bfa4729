"""JSON Schema of definitions and archetypes, for editors: made of the structs, their limits and what they may name.

What it lets through may still be refused: a cron expression and a circle of upstreams take more than a schema.

What editors say of each field of a definition, by struct and name.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.inspect import Field, StructType, Type

from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds
from headgate.pipelines.authoring.archetypes import RULES, Archetype
from headgate.pipelines.authoring.rule_checks import FORMS
from headgate.pipelines.authoring.validation import ID, MODES, TRAIT_RULES, trigger_types
from headgate.pipelines.definition.bounds import BOUNDS, Bounds
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition.typed_decoder import name_in_files
from headgate.pipelines.rules.operators import CHECKS
from headgate.pipelines.schedule.related_periods import CHOICES

DESCRIPTIONS: Final[dict[str, str]] = {
    "Pipeline.id": "What the pipeline is called in ids, rows, URLs and commands.",
    "Pipeline.owner": "Who is asked when something is wrong.",
    "Pipeline.tier": "How much depends on it: 1 is critical, 3 is the usual.",
    "Pipeline.period": "What one run is for: an hour, a day, a week, a month, or a length of your own.",
    "Pipeline.every": 'The length of a custom period, such as "15m".',
    "Pipeline.timezone": "The zone in which days and hours are counted, such as Europe/Berlin.",
    "Pipeline.archetype": "The kind of pipeline that gives it traits.",
    "Pipeline.schedules": "The ways in which it is due. Without any, only markers and people begin runs.",
    "Pipeline.readiness": "When a run may start.",
    "Pipeline.trigger": "What starts the job.",
    "Pipeline.retry": "What follows a job that failed.",
    "Pipeline.budgets": "How many reruns a period may have, by reason.",
    "Pipeline.sla": "By when things have to be done. Told, never enforced.",
    "Pipeline.post_run": "What is looked at once the job has succeeded.",
    "Pipeline.concurrency": "How many of its runs may be under way at once; 0 is no limit.",
    "Pipeline.reads": "Datasets that it reads, for health.",
    "Pipeline.writes": "Datasets that it writes, for health.",
    "Pipeline.dry_run": "Says what would be started, and starts nothing.",
    "Pipeline.shadow": "Evaluates and tells, and is never held back by it.",
    "Schedule.name": "Its name in ids and rows; needed where there are several.",
    "Schedule.cron": 'Five fields, six with seconds first, "@hourly" and the like, or "every 15m".',
    "Schedule.timezone": "The zone of the cron expression and of its times; the pipeline's, unless given.",
    "Schedule.catch_up": "What becomes of slots that passed while nobody was looking.",
    "Schedule.after": '"HH:MM": not before.',
    "Schedule.deadline": 'To be evaluated by: "HH:MM", ":MM" of the hour after the period, or a duration.',
    "Schedule.sensor": "A sensor whose arrival begins a run.",
    "Schedule.upstream": "Runs of other pipelines that begin a run of this one.",
    "Schedule.event": "A type of events on the bus that begins a run.",
    "Schedule.exclude": "Days on which it is dormant. They add up.",
    "Schedule.include": "The only days on which it is due.",
    "Exclusions.holidays": 'A country ("DE"), a part of one ("DE-BY") or a market ("NYSE").',
    "Exclusions.days": "Weekdays, in full or by their first three letters.",
    "Exclusions.calendar": "A calendar that is kept by name.",
    "Inclusions.business_days": "The nth business day of a month; -1 is the last.",
    "SensorTrigger.key": "The key of the sensor, without its period.",
    "SensorTrigger.deadline": 'From then on it is too late: "HH:MM", or ":MM" of the hour after the period.',
    "SensorTrigger.settle": "How long to wait for more of the same before beginning.",
    "Upstream.periods": "Which of its periods: the same, the one before, or all that lie in ours.",
    "Upstream.missing_max": "How many of those may be missing.",
    "Rule.key": "The sensor that is looked at.",
    "Rule.check": "How its field is compared.",
    "Rule.field": "The field that is compared; names with dots reach further down.",
    "Rule.value": "What the field is compared with.",
    "Rule.other": 'Compares with a field of another sensor: "key.field".',
    "Rule.history": "Compares with the same field of earlier periods.",
    "Rule.severity": "Whether it holds a run back or is only told.",
    "Rule.on_unknown": "What to do if it cannot be told.",
    "Rule.stable_for": "It counts once it has passed this many evaluations in a row.",
    "Rule.future_max": "Timestamps further ahead of the clock than this are not believed.",
    "Trait.evaluator": '"builtin:NAME", "plugin:NAME", "https://…", "command:…", or "push" if it is told from outside.',
    "Trait.ttl": "How long a result counts.",
    "Readiness.mode": "Whether all rules must pass, or any.",
    "Readiness.window": "For how long readiness is waited for.",
    "Readiness.interval": "How often it is evaluated, besides when something it looks at changes.",
    "Readiness.timeout": "A hard stop, counted from the start of the run.",
    "TriggerSpec.type": "The kind of trigger.",
    "TriggerSpec.config": "What the kind of trigger needs. Texts may have ${date} and the like.",
    "TriggerSpec.check_interval": "How often the job is asked how it is.",
    "TriggerSpec.poll_window": "For how long it is asked; 0 is the usual hour.",
    "TriggerSpec.callback": "Whether the job says itself that it has ended.",
    "RetryPolicy.attempts": "Attempts in all.",
    "RetryPolicy.permanent_retries": "Further attempts after a failure that trying again is not known to help against.",
    "Budgets.drift": "Reruns for drift and late data.",
    "Budgets.manual": "Reruns by hand.",
    "Budgets.breaker": "Failures in a row after which the pipeline is stopped; 0 is never.",
    "Sla.deadline": 'To be done by: "HH:MM" of the day, ":MM" of the hour after the period, or a duration.',
    "Sla.evaluation_deadline": "To be evaluated by, in the same forms.",
    "Sla.day_offset": "How many days after the period the deadline is.",
    "Sla.max_duration": "Counted from the first sensor, or from the start of the run; at most a day.",
    "Sla.expected_duration": "How long the job usually takes: the warning comes that much before the deadline.",
    "PostRun.drift_field": "The field whose change after the run counts as drift.",
    "PostRun.drift_threshold": "By how much it may differ.",
    "PostRun.sensor_timeout": "How long after the run its sensors may take to come; 0: none has to.",
}

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
        if key == ("TriggerSpec", "type"):
            schema["enum"] = list(trigger_types())
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
