"""JSON Schema of pipelines, archetypes and probes for editors, generated from the structs and their bounds.

A valid document may still be refused: cron expressions and dependency cycles are beyond a schema.
"""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.inspect import Field, StructType, Type

from headgate.durable.model import duration
from headgate.durable.model.duration import Seconds
from headgate.errors import SettingsError
from headgate.pipelines.authoring.archetypes import RULES, Archetype
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

DESCRIPTIONS: Final[dict[str, str]] = {
    "Pipeline.id": "The id of the pipeline in rows, URLs and commands.",
    "Pipeline.owner": "The contact for problems.",
    "Pipeline.tier": "Criticality: 1 is critical, 3 is the default.",
    "Pipeline.period": "The period of one run: an hour, a day, a week, a month, or a custom length.",
    "Pipeline.every": 'The length of a custom period, such as "15m".',
    "Pipeline.timezone": "The zone in which days and hours are counted, such as Europe/Berlin.",
    "Pipeline.archetype": "The kind of pipeline that gives it traits.",
    "Pipeline.schedules": "When it is due. Without any, only markers and operators start runs.",
    "Pipeline.readiness": "When a run may start.",
    "Pipeline.trigger": "What starts the job.",
    "Pipeline.retry": "How a failed job is retried.",
    "Pipeline.budgets": "How many reruns a period may have, by reason.",
    "Pipeline.sla": "Deadlines. They are reported, never enforced.",
    "Pipeline.post_run": "Checks after the job has succeeded.",
    "Pipeline.watchdog": "Thresholds of the watchdog for this pipeline, instead of those of the settings.",
    "Pipeline.concurrency": "How many of its runs may have a job at once, over all periods; 0 is no limit.",
    "Pipeline.pool": "A pool of the settings (pipelines.pools): a run starts its job when the pool has free slots.",
    "Pipeline.slots": "How many slots of the pool each run takes.",
    "Pipeline.reads": "Datasets that it reads, for health.",
    "Pipeline.writes": "Datasets that it writes, for health.",
    "Pipeline.dry_run": "Reports what would be started, and starts nothing.",
    "Pipeline.shadow": "Evaluates and reports its rules without blocking runs.",
    "Schedule.name": "Its name in ids and rows; needed where there are several.",
    "Schedule.cron": 'Five fields, six with seconds first, "@hourly" and the like, or "every 15m".',
    "Schedule.timezone": "The zone of the cron expression and of its times; the pipeline's, unless given.",
    "Schedule.catch_up": "How slots that passed during a downtime are treated.",
    "Schedule.after": '"HH:MM": not before.',
    "Schedule.deadline": 'Evaluation deadline: "HH:MM", ":MM" of the hour after the period, or a duration.',
    "Schedule.sensor": "A sensor whose arrival starts a run.",
    "Schedule.upstream": "Pipelines whose runs start a run of this one.",
    "Schedule.event": "A type of event on the bus that starts a run.",
    "Schedule.exclude": "Days on which it does not run. They add up.",
    "Schedule.include": "The only days on which it is due.",
    "Exclusions.holidays": 'A country ("DE"), a part of one ("DE-BY") or a market ("NYSE").',
    "Exclusions.days": "Weekdays, in full or by their first three letters.",
    "Exclusions.calendar": "The name of a stored calendar.",
    "Inclusions.business_days": "The nth business day of a month; -1 is the last.",
    "SensorTrigger.key": "The key of the sensor, without its period.",
    "SensorTrigger.deadline": 'Latest time for a start: "HH:MM", or ":MM" of the hour after the period.',
    "SensorTrigger.settle": "How long to wait for further updates before the start.",
    "Upstream.periods": "Which of its periods: the same, the previous, or all within ours.",
    "Upstream.missing_max": "How many of those may be missing.",
    "Rule.key": 'The key of the sensor, or "probe:NAME".',
    "Rule.check": "How its field is compared.",
    "Rule.field": "The compared field; a dotted path reaches nested fields.",
    "Rule.value": "What the field is compared with.",
    "Rule.other": 'Compares with a field of another sensor: "key.field".',
    "Rule.history": "Compares with the same field of earlier periods.",
    "Rule.severity": "Whether it blocks a run or only warns.",
    "Rule.on_unknown": "How an unknown verdict is treated.",
    "Rule.stable_for": "It counts after this many consecutive passes.",
    "Rule.future_max": "Timestamps further ahead of the clock than this are rejected.",
    "Trait.evaluator": '"builtin:NAME", "plugin:NAME", "probe:NAME", "https://…", "command:…", or "push".',
    "Trait.ttl": "The lifetime of a result.",
    "Readiness.mode": "Whether all rules must pass, or any.",
    "Readiness.window": "How long a run waits to become ready.",
    "Readiness.interval": "The interval of evaluations, in addition to those on changes.",
    "Readiness.timeout": "A hard limit, counted from the start of the run.",
    "TriggerSpec.type": "The kind of trigger.",
    "TriggerSpec.config": "The configuration of the trigger. Texts may contain ${date} and other placeholders.",
    "TriggerSpec.check_interval": "The interval at which the job is polled.",
    "TriggerSpec.poll_window": "How long the job may take, polled or calling back; 0 is the default of one hour.",
    "TriggerSpec.callback": "Whether the job reports its own end, at a URL and with a token that are sent to it.",
    "TriggerSpec.heartbeat": "How long a job that calls back may be silent before its run fails.",
    "RetryPolicy.attempts": "Total number of attempts.",
    "RetryPolicy.permanent_retries": "Further attempts after a permanent failure.",
    "WatchdogSpec.stuck": "Time without activity, beyond what job and readiness allow, after which a run is stuck.",
    "WatchdogSpec.schedule_grace": "Time after its slot by which a period must have started, without a deadline.",
    "WatchdogSpec.recovery_grace": "Time after a failure or an arrival, after which the watchdog starts the period.",
    "WatchdogSpec.lost": "Time after its last change, after which a run or lock without an execution is lost.",
    "WatchdogSpec.patience": "Time for which a failure or an arrival is retried while the pipeline may not run.",
    "Budgets.drift": "Reruns for drift and late data.",
    "Budgets.manual": "Reruns by hand.",
    "Budgets.breaker": "Consecutive failures after which the pipeline is stopped; 0 is never.",
    "Sla.deadline": 'Completion deadline: "HH:MM" of the day, ":MM" of the hour after the period, or a duration.',
    "Sla.evaluation_deadline": "Evaluation deadline, in the same forms.",
    "Sla.day_offset": "How many days after the period the deadline is.",
    "Sla.max_duration": "Counted from the first sensor, or from the start of the run; at most a day.",
    "Sla.expected_duration": "How long the job usually takes: the warning comes that much before the deadline.",
    "PostRun.drift_field": "The field whose change after the run counts as drift.",
    "PostRun.drift_threshold": "By how much it may differ.",
    "Probe.id": "The id of the probe; rules, sensor triggers and traits name it as probe:ID.",
    "Probe.description": "What it is for.",
    "Probe.owner": "The contact for problems.",
    "Probe.sql": "One value of a SQL query; exactly one of the kinds is given.",
    "Probe.files": "Files or objects that match a pattern.",
    "Probe.delta": "A Delta table.",
    "Probe.iceberg": "An Iceberg table.",
    "Probe.http": "An HTTP service.",
    "Probe.every": "How often it looks, once for all pipelines.",
    "Probe.timeout": "Time limit of one look.",
    "Probe.period": "The periods it looks at; without one, its result applies to every run.",
    "Probe.timezone": "The zone of the periods.",
    "Probe.periods": "How many of the latest periods it looks at, the current one included.",
    "Probe.expect": "Comparisons of what was seen, all of which must hold; by default that there is something.",
    "SqlProbe.url": "URL of SQLAlchemy without a password, such as postgresql+psycopg://reader@host/shop.",
    "SqlProbe.password": "Reference to a secret: ${env:HG_SECRET_NAME} or ${file:NAME}.",
    "SqlProbe.query": "One SELECT of one value; :date, :year, :month, :day and :hour are bound to the period.",
    "FilesProbe.path": "Path below the allowed folders, or s3://bucket/key, with *, ?, […] and **.",
    "FilesProbe.marker": "File that every folder with a match must have, such as _SUCCESS.",
    "DeltaProbe.path": "Folder of the table.",
    "IcebergProbe.path": "Folder of the table, or one metadata file.",
    "HttpProbe.url": "Address of the request; ${date} is filled in.",
    "HttpProbe.headers": "Request headers; values may refer to secrets.",
    "HttpProbe.value": "JSONPath of the value in the answer, such as $.data.count.",
    "Expectation.field": "Field of what was seen; by default value.",
    "Expectation.check": "How it is compared, as in rules.",
    "Expectation.value": "What it is compared with.",
    "PostRun.sensor_timeout": "How long the post-run sensor may take to arrive; 0: none is expected.",
}

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
