"""The JSON Schema for editors: what loads is valid by it, and what is plainly wrong is not."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from msgspec import Struct

from headgate.pipelines.authoring import archetypes
from headgate.pipelines.authoring.archetypes import Archetype, TraitTemplate, shipped_archetypes
from headgate.pipelines.authoring.field_descriptions import CHECK_DESCRIPTIONS, DESCRIPTIONS, EXAMPLES
from headgate.pipelines.authoring.json_schema import SchemaKind, json_schema
from headgate.pipelines.authoring.loader import load_pipeline
from headgate.pipelines.authoring.scaffold import project_files
from headgate.pipelines.authoring.validation import TRIGGER_TYPES
from headgate.pipelines.definition import model as definition
from headgate.pipelines.definition.bounds import BOUNDS
from headgate.pipelines.definition.serialization import plain
from headgate.pipelines.definition.source_map import documents
from headgate.pipelines.probes import model as probe_model
from headgate.pipelines.probes.definitions import load_probe_text
from headgate.pipelines.rules.operators import CHECKS
from headgate.triggers.kinds import BUILT_IN
from tests.unit.pipelines.authoring.formats.test_detect import NEWER, OLDER
from tests.unit.pipelines.loading_rig import MEDALLION, RIGHT, SOURCE, errors, real_triggers
from tests.unit.triggers.test_config import GOOD


def _validator(kind: SchemaKind = SchemaKind.PIPELINE) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json_schema(kind))


def _document(text: str) -> Any:
    (node,) = documents(text, SOURCE)
    return node.plain()


def _files() -> list[tuple[SchemaKind, str, str]]:
    found = [(SchemaKind.PIPELINE, path.name, path.read_text()) for path in sorted(MEDALLION.glob("*.yaml"))]
    for name, text in project_files("shop").items():
        if name.endswith(".yaml"):
            found.append((SchemaKind(Path(name).parent.name.removesuffix("s")), name, text))
    return found


@pytest.mark.parametrize("kind", list(SchemaKind))
def test_json_schema__itself__is_a_schema_of_its_dialect(kind: SchemaKind) -> None:
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    schema["$defs"].clear()
    assert json_schema(kind)["$defs"], "it is the caller's own"


@pytest.mark.parametrize(("kind", "name", "text"), _files(), ids=[name for _, name, _ in _files()])
def test_json_schema__every_example_and_scaffold__is_valid(kind: SchemaKind, name: str, text: str) -> None:
    assert [error.message for error in _validator(kind).iter_errors(_document(text))] == []


def test_json_schema__the_archetypes_that_come__are_valid() -> None:
    path = Path(archetypes.__file__).with_name("archetypes.yaml")
    found = documents(path.read_text(), path.name)
    assert len(found) == len(shipped_archetypes()) == 3
    for node in found:
        _validator(SchemaKind.ARCHETYPE).validate(node.plain())


@pytest.mark.parametrize("text", [OLDER, NEWER, RIGHT])
def test_json_schema__what_loading_makes_of_any_format__is_valid(text: str) -> None:
    document = plain(load_pipeline(text, SOURCE))
    _validator().validate(document)


@pytest.mark.parametrize(
    "text",
    [
        "{id: orders, readiness: {rules: [{not: {key: hold}}, {n_of: {n: 1, rules: [{key: a}]}}]}}",
        "{id: orders, schedules: , sla: , owner: }",
        "{id: orders, readiness: {mode: any, window: 2h 30m, interval: 300, rules: [{key: a}]}}",
        "{id: orders, sla: {deadline: ':30', evaluation_deadline: 90m, day_offset: 1, max_duration: PT5M}}",
        "{id: orders, trigger: {type: http, config: {url: 'https://x.example', body: [1, {a: null}]}, poll_window: 0}}",
        "{id: orders, schedules: [{sensor: {key: a, check: in, field: b, value: [1, x]}, catch_up: none}]}",
    ],
)
def test_json_schema__forms_that_loading_takes__are_valid(text: str) -> None:
    assert [error.message for error in _validator().iter_errors(_document(text))] == []


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "{id: Orders}",
        "{id: orders, perod: daily}",
        "{id: orders, tier: 4}",
        "{id: orders, period: yearly}",
        "{id: orders, retry: {attempts: 12}}",
        "{id: orders, budgets: {drift: 6}}",
        "{id: orders, sla: {max_duration: 86401}}",
        "{id: orders, sla: {deadline: '25:00'}}",
        "{id: orders, readiness: {window: soon}}",
        "{id: orders, readiness: {rules: [{}]}}",
        "{id: orders, readiness: {rules: [{key: a, trait: b}]}}",
        "{id: orders, readiness: {rules: [{key: a, check: gtt}]}}",
        "{id: orders, readiness: {rules: [{not_: {key: hold}}]}}",
        "{id: orders, trigger: {config: {}}}",
        "{id: orders, trigger: {type: cron}}",
        "{id: orders, schedules: [{after: noon}]}",
        "{id: orders, schedules: [{exclude: {dates: [tomorrow]}}]}",
        "{id: orders, schedules: [{upstream: [{pipeline: b, periods: every}]}]}",
        "{id: orders, dry_run: 'yes'}",
    ],
)
def test_json_schema__what_is_plainly_wrong__is_not_valid(text: str) -> None:
    assert not _validator().is_valid(_document(text))
    # Loading is no more lenient, except for the name that stored definitions have.
    assert errors(text) or "not_" in text


def _structs(module: ModuleType = definition) -> list[type[Struct]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Struct)
        and not value.__name__.startswith("_")
        and value is not Struct
    ]


def test_json_schema__every_struct_and_field__is_in_it() -> None:
    parts = json_schema()["$defs"]
    for struct in _structs():
        names = {field.encode_name.removesuffix("_") for field in msgspec.structs.fields(struct)}
        assert set(parts[struct.__name__]["properties"]) == names


def test_bounds__each__is_of_a_field_there_is() -> None:
    known = {f"{struct.__name__}.{field.name}" for struct in _structs() for field in msgspec.structs.fields(struct)}
    assert {f"{struct.__name__}.{name}" for struct, name in BOUNDS} <= known


def test_descriptions__every_field_of_every_file_and_no_other__has_one_and_an_example() -> None:
    structs: list[type[Struct]] = [*_structs(), *_structs(probe_model), Archetype, TraitTemplate]
    # What a probe saw is stored, and in no file.
    fields = {
        f"{struct.__name__}.{field.name}"
        for struct in structs
        if struct.__name__ in {part for kind in SchemaKind for part in json_schema(kind)["$defs"]}
        for field in msgspec.structs.fields(struct)
    }

    assert DESCRIPTIONS.keys() == fields
    assert EXAMPLES.keys() == fields
    assert tuple(CHECK_DESCRIPTIONS) == CHECKS


@pytest.mark.parametrize("kind", SchemaKind)
def test_examples__of_every_field__are_valid(kind: SchemaKind) -> None:
    schema = json_schema(kind)
    shown = 0
    for part in schema["$defs"].values():
        for field in part.get("properties", {}).values():
            for example in field.get("examples", ()):
                jsonschema.Draft202012Validator({**field, "$defs": schema["$defs"]}).validate(example)
                shown += 1
    assert shown > 10


def test_json_schema__numbers__have_the_bounds_that_loading_has() -> None:
    parts = json_schema()["$defs"]
    for (struct, name), bounds in BOUNDS.items():
        text = msgspec.json.encode(parts[struct.__name__]["properties"][name]).decode()
        assert '"maximum"' in text, (struct, name, bounds)


def _with_trigger(trigger: dict[str, object]) -> dict[str, object]:
    return {"id": "orders", "trigger": trigger}


@pytest.mark.parametrize("type", GOOD)
def test_json_schema__config_that_its_trigger_takes__is_valid(type: str) -> None:
    _validator().validate(_with_trigger({"type": type, "config": GOOD[type]}))


@pytest.mark.parametrize(
    "trigger",
    [
        {"type": "fan-out", "config": {"handlr": "a:b", "items": []}},
        {"type": "fan-out", "config": {"handler": "a:b", "range": [1]}},
        {"type": "fan-out", "config": {"handler": "a:b", "policy": {"concurency": 2}}},
        {"type": "http", "config": {"url": "https://x", "method": "FETCH"}},
        {"type": "http", "config": {"url": "https://x", "status": {"pth": "$.x"}}},
        {"type": "http"},
        {"type": "glue", "config": {"job": "x"}},
        {"type": "command", "config": {"command": 1}},
    ],
)
def test_json_schema__config_that_its_trigger_refuses__is_not_valid(trigger: dict[str, object], tmp_path: Path) -> None:
    assert not _validator().is_valid(_with_trigger(trigger))
    assert errors(json.dumps(_with_trigger(trigger)), real_triggers(tmp_path)), "validate refuses it too"


def test_json_schema__every_field_of_every_config__is_described() -> None:
    schema = json_schema()["$defs"]
    configs = {*BUILT_IN, "StatusConfig", "Policy"}

    lacking = [
        f"{part}.{name}"
        for part in configs
        for name, field in schema[part]["properties"].items()
        if not field.get("description")
    ]
    assert lacking == [], "describe them in headgate.triggers.field_descriptions"
    assert tuple(BUILT_IN) == TRIGGER_TYPES


def test_json_schema__probes_of_the_guide__are_valid_by_schema_and_loader() -> None:
    guide = Path(__file__).parents[4] / "docs" / "how-to" / "probe-data.md"
    text = guide.read_text().split("```yaml\n")[1].split("```")[0]
    loaded = load_probe_text(text, SOURCE)
    assert [problem.text() for problem in loaded.problems] == []
    assert len(loaded.probes) == 4
    for node in documents(text, SOURCE):
        assert [error.message for error in _validator(SchemaKind.PROBE).iter_errors(node.plain())] == []


@pytest.mark.parametrize(
    "document",
    [
        {"id": "ab"},
        {"id": "ab", "files": {"path": "x"}, "http": {"url": "https://a"}},
        {"id": "ab", "files": {"pth": "x"}},
        {"id": "ab", "files": {"path": "x"}, "period": "custom"},
        {"id": "ab", "sql": {"url": "x://a/b", "query": "select 1", "password": "plain"}},
    ],
)
def test_json_schema__invalid_probe__is_refused(document: dict[str, Any]) -> None:
    assert list(_validator(SchemaKind.PROBE).iter_errors(document))
