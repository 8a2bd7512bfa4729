"""Pages of definition files: pipelines with archetypes, and probes, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from docs.generator.field_tables import default_text, fields_of, summary, type_text
from docs.generator.markdown import NOTE, cell, code
from headgate.durable.model import duration
from headgate.pipelines.authoring.archetypes import Archetype, TraitTemplate
from headgate.pipelines.authoring.field_descriptions import CHECK_DESCRIPTIONS, DESCRIPTIONS, EXAMPLES
from headgate.pipelines.authoring.json_schema import SchemaKind, json_schema
from headgate.pipelines.authoring.validation import BUILTINS
from headgate.pipelines.definition import model
from headgate.pipelines.definition.bounds import BOUNDS, Bounds
from headgate.pipelines.definition.typed_decoder import name_in_files
from headgate.pipelines.probes import model as probes
from headgate.pipelines.probes.definitions import PERIODS_MAX
from headgate.pipelines.traits.builtin import BuiltinEvaluator
from headgate.pipelines.traits.probes import file_exists, s3_object
from headgate.pipelines.traits.sql_count import sql_count

_PIPELINE: Final = """\
Every field of a pipeline file, such as `pipelines/orders-daily.yaml`. Unknown fields are refused, and
`headgate pipeline validate` reports each problem with file, line and field.

A duration is a number of seconds or a text such as `90s`, `5m` or `1h30m`. A dataset is a URN, such as
`urn:dp:shop:orders:v1`. The config of each type of trigger is in [triggers](triggers.md). How the parts work together:
[run a pipeline](../how-to/run-a-pipeline.md), [traits and archetypes](../how-to/share-checks-with-archetypes.md).

For editors: `headgate init` writes `schemas/pipeline.json`, and `headgate pipeline schema` prints it. A file that
begins with `# yaml-language-server: $schema=../schemas/pipeline.json` is completed and checked while it is typed.
"""
_PROBES: Final = """\
Every field of a file in the folder `probes`. How to use them: [probe data](../how-to/probe-data.md). A duration is a
number of seconds or a text such as `90s`, `5m` or `1h30m`.
"""
_EXPLAINED: Final[dict[str, str]] = {
    "Rule": (
        "A rule gives exactly one of `key`, `all`, `any`, `n_of`, `not`, `upstream`, `dataset` and `trait`. Its "
        "verdict is PASS, FAIL or UNKNOWN; UNKNOWN means that the value is missing or cannot be compared."
    ),
}
_BOUNDS: Final[dict[tuple[str, str], Bounds]] = {
    **{(owner.__name__, name): bounds for (owner, name), bounds in BOUNDS.items()},
    ("Probe", "periods"): Bounds(1, PERIODS_MAX),
}
_PIPELINE_STRUCTS: Final = (
    model.Pipeline,
    model.Schedule,
    model.SensorTrigger,
    model.Upstream,
    model.Exclusions,
    model.Inclusions,
    model.Readiness,
    model.Rule,
    model.NOf,
    model.History,
    model.Trait,
    model.TriggerSpec,
    model.RetryPolicy,
    model.Budgets,
    model.Sla,
    model.PostRun,
    model.Monitoring,
    model.Cascade,
    model.Quarantine,
    model.Alerts,
    model.WatchdogSpec,
)
_PROBE_STRUCTS: Final = (
    probes.Probe,
    probes.SqlProbe,
    probes.FilesProbe,
    probes.DeltaProbe,
    probes.IcebergProbe,
    probes.HttpProbe,
    probes.Expectation,
)


def pipeline_page() -> str:
    """Return the page of pipeline and archetype files."""
    schema = json_schema(SchemaKind.PIPELINE)["$defs"]
    lines = ["# Pipeline files", "", NOTE, _PIPELINE]
    for struct in _PIPELINE_STRUCTS:
        lines += _struct(struct, schema, _places(struct, _PIPELINE_STRUCTS))
        if struct is model.Rule:
            lines += _checks()
        if struct is model.Trait:
            lines += _evaluators()
    lines += ["## Archetype files", ""]
    lines += ["Every field of a file in the folder `archetypes`: a kind of pipeline, with the traits that it has.", ""]
    schema = json_schema(SchemaKind.ARCHETYPE)["$defs"]
    for archetype in (Archetype, TraitTemplate):
        lines += _struct(archetype, schema, _places(archetype, (Archetype, TraitTemplate)))
    return "\n".join(lines)


def probes_page() -> str:
    """Return the page of probe files."""
    schema = json_schema(SchemaKind.PROBE)["$defs"]
    lines = ["# Probes", "", NOTE, _PROBES]
    for struct in _PROBE_STRUCTS:
        lines += _struct(struct, schema, _places(struct, _PROBE_STRUCTS))
    return "\n".join(lines)


def _places(struct: type, structs: tuple[type, ...]) -> list[str]:
    """Return the fields that hold a struct."""
    return [
        f"`{owner.__name__}.{name_in_files(field.encode_name)}`"
        for owner in structs
        for field in fields_of(owner)
        if struct in _held(field.type)
    ]


def _held(kind: Any) -> set[type]:  # noqa: ANN401 - a type of msgspec's
    """Return the structs that a type holds."""
    match kind:
        case msgspec.inspect.StructType():
            return {kind.cls}
        case msgspec.inspect.UnionType():
            return set().union(*(_held(each) for each in kind.types))
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            return _held(kind.item_type)
        case msgspec.inspect.DictType():
            return _held(kind.value_type)
    return set()


def _struct(struct: type, schema: dict[str, Any], places: list[str]) -> Iterator[str]:
    name = struct.__name__
    where = f" The value of {' and '.join(places)}." if places else ""
    yield from (f"## {name}", "", f"{summary(struct)}{where}", "")
    if _EXPLAINED.get(name):
        yield from (_EXPLAINED[name], "")
    yield from ("| Field | Value | Default | Example | For |", "|---|---|---|---|---|")
    for field in fields_of(struct):
        shown = name_in_files(field.encode_name)
        default = "required" if field.required else code(default_text(field))
        value = _value(name, field, schema[name]["properties"][shown])
        key = f"{name}.{field.name}"
        yield f"| `{shown}` | {cell(value)} | {default} | {cell(code(EXAMPLES[key]))} | {cell(DESCRIPTIONS[key])} |"
    yield ""


def _value(owner: str, field: Any, schema: dict[str, Any]) -> str:  # noqa: ANN401 - a field of msgspec's
    """Return the type of a field with the values that are allowed."""
    allowed = next((part["enum"] for part in (schema, *schema.get("anyOf", ())) if "enum" in part), None)
    if allowed is not None:
        return "one of " + ", ".join(f"`{value}`" for value in allowed)
    text = type_text(field.type)
    for struct in _held(field.type):
        text = text.replace("mapping, below", f"[{struct.__name__}](#{struct.__name__.lower()})")
    bounds = _BOUNDS.get((owner, field.name))
    if bounds is None:
        return text
    is_time = "duration" in text
    low, high = (duration.text(each) if is_time else f"{each:g}" for each in (bounds.low, bounds.high))
    return f"{text}, {low} to {high}{', or 0' if bounds.zero else ''}"


def _checks() -> Iterator[str]:
    yield from ("### Checks of a rule", "", "| `check` | Passes if |", "|---|---|")
    for name, text in CHECK_DESCRIPTIONS.items():
        yield f"| `{name}` | {text} |"
    yield ""


def _evaluators() -> Iterator[str]:
    yield from ("### Built-in evaluators", "", "| `evaluator` | Passes if |", "|---|---|")
    outside = {"file-exists": file_exists, "s3-object": s3_object, "sql-count": sql_count}
    for name in BUILTINS:
        evaluator = outside.get(name) or getattr(BuiltinEvaluator, f"_{name.replace('-', '_')}")
        line = (evaluator.__doc__ or "").splitlines()[0].removeprefix("Whether ")
        yield f"| `builtin:{name}` | {cell(line[0].upper() + line[1:])} |"
    yield ""
