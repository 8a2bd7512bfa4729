"""Pages of the REST API: every operation with its parameters, body, answers and errors, from the OpenAPI document."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from docs.generator.access_page import audit_of
from docs.generator.markdown import NOTE, cell, code
from docs.generator.served import served
from headgate.auth.roles import roles_with
from headgate.serve.http.operations import Operation

Schema = dict[str, Any]

# The first segment of a path after /api/v1, by page.
_PARTS: Final[Mapping[str, tuple[str, frozenset[str]]]] = {
    "pipelines": (
        "REST: pipelines, runs and alerts",
        frozenset(
            {
                "pipelines",
                "runs",
                "reruns",
                "backfills",
                "calendars",
                "definition-folder",
                "expectations",
                "pipeline-events",
                "upcoming",
                "pools",
                "probes",
                "alerts",
                "alert-mutes",
                "alert-channels",
                "notify",
                "callbacks",
            }
        ),
    ),
    "health": (
        "REST: datasets, signals, incidents and the gate",
        frozenset(
            {
                "datasets",
                "dataset-changes",
                "dataset-names",
                "dataset-export",
                "dataset-duplicates",
                "signals",
                "incidents",
                "evidence",
                "gate",
                "lineage",
                "columns",
                "jobs",
                "resolve",
                "resolution-rules",
                "topics",
                "alert-quotas",
                "flags",
                "schemas",
                "checks",
                "audit",
            }
        ),
    ),
    "executions": (
        "REST: executions, schedules and events",
        frozenset(
            {
                "executions",
                "workflows",
                "activities",
                "tasks",
                "schedules",
                "events",
                "subscriptions",
                "dead-letters",
                "deployments",
                "workers",
            }
        ),
    ),
    "fan-outs": ("REST: fan-outs", frozenset({"fanouts", "campaigns"})),
    "state-machines": ("REST: state machines", frozenset({"machines", "machine-executions"})),
    "server": ("REST: sessions, API keys and settings", frozenset({"api-keys", "sessions", "settings"})),
}
_ERRORS_OF_ALL: Final = frozenset({"400", "401", "403"})
_PROBLEM: Final = "Problem"
_REFERENCE: Final = "#/components/schemas/"
_INTRODUCTION: Final = """\
Every operation below `/api/v1`, generated from the OpenAPI document that the server returns at `/api/openapi.json`.

A request authenticates with `Authorization: Bearer KEY`; a local program needs none, unless `auth.required` is set.
What each role may do is in [access](../access.md). Times are ISO 8601 in UTC, unless a field's name ends in `_ms`
(milliseconds since 1970).

An error is a problem document, `application/problem+json`, with the fields of [Problem](#problem). Its `code` is one of
[errors](../errors.md). Any operation may answer 400 (malformed), 401 (not authenticated), 403 (the permission is
missing), 429 and 503 (try again after `Retry-After`); operations list their other errors.
"""


@functools.cache
def _operations() -> Mapping[str, Sequence[Operation]]:
    """Return the operations by page. A path that belongs to no page is an error: add it to `_PARTS`."""
    pages: dict[str, list[Operation]] = defaultdict(list)
    page_of = {segment: page for page, (_, segments) in _PARTS.items() for segment in segments}
    for operation in served().operations:
        pages[page_of[operation.path.split("/")[1]]].append(operation)
    return pages


def rest_page(page: str) -> str:
    """Return one page of operations and the types that they use."""
    title, _ = _PARTS[page]
    operations = _operations()[page]
    lines = [f"# {title}", "", NOTE, _INTRODUCTION, "| Operation | For |", "|---|---|"]
    lines += [f"| [`{each.method} {each.path}`](#{_anchor(each)}) | {cell(each.summary)} |" for each in operations]
    lines.append("")
    used: set[str] = set()
    for operation in operations:
        described = served().document["paths"][operation.prefix + operation.path][operation.method.lower()]
        used |= _names_in(described)
        lines += _operation(operation, described)
    lines += ["## Types", ""]
    for name in sorted(_closed(used | {_PROBLEM})):
        lines += _type(name)
    return "\n".join(lines)


def _anchor(operation: Operation) -> str:
    return _slug(f"{operation.method} {operation.path}")


def _slug(heading: str) -> str:
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def _operation(operation: Operation, described: Schema) -> Iterator[str]:
    yield from (f"## `{operation.method} {operation.path}`", "", f"{operation.summary}.", "")
    if operation.description:
        yield from (operation.description, "")
    if operation.rule is None:
        yield from ("Permission: none; see [access](../access.md).", "")
    else:
        roles = ", ".join(roles_with(operation.rule.permission))
        audit = audit_of(operation)
        audited = f" Audit: {audit}." if audit else ""
        yield from (f"Permission: `{operation.rule.permission}` ({roles}).{audited}", "")
    parameters = described["parameters"]
    if parameters:
        yield from ("| Parameter | In | Type | Default | For |", "|---|---|---|---|---|")
        for each in parameters:
            schema = each["schema"]
            default = "required" if each["required"] else code(_default(schema))
            about = each.get("description", "")
            yield f"| `{each['name']}` | {each['in']} | {cell(_text(schema))} | {default} | {cell(about)} |"
        yield ""
    for media, content in described.get("requestBody", {}).get("content", {}).items():
        form = "" if media == "application/json" else f" (`{media}`)"
        yield from (f"Body{form}: {_text(content.get('schema', {}))}.", "")
    yield from _answers(described["responses"])


def _answers(responses: Mapping[str, Schema]) -> Iterator[str]:
    yield from ("| Status | Answer |", "|---|---|")
    for status in sorted(responses):
        answer = responses[status]
        if (status in _ERRORS_OF_ALL and answer["description"].endswith(".")) or status == "default":
            continue
        texts = [
            _text(content.get("schema", {})) + ("" if media.endswith("json") else f" (`{media}`)")
            for media, content in answer.get("content", {}).items()
            if media != "application/problem+json"
        ]
        meaning = answer["description"] if answer["description"].endswith(".") else HTTPStatus(int(status)).phrase + "."
        yield f"| {status} | {cell(' '.join([meaning, *(f'{text}.' for text in texts)]))} |"
    yield ""


def _names_in(value: object) -> set[str]:
    """Return the names of the types that a part of the document refers to."""
    if isinstance(value, dict):
        own = {value["$ref"].removeprefix(_REFERENCE)} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(_names_in(each) for each in value.values()))
    if isinstance(value, list):
        return set().union(*(_names_in(each) for each in value))
    return set()


def _closed(names: Iterable[str]) -> set[str]:
    """Return the names with those that their types refer to, at any depth."""
    found: set[str] = set()
    open_names = set(names)
    while open_names:
        found |= open_names
        open_names = {each for name in open_names for each in _names_in(_schema(name))} - found
    return found


def _schema(name: str) -> Schema:
    schema: Schema = served().document["components"]["schemas"][name]
    return schema


def _type(name: str) -> Iterator[str]:
    schema = _schema(name)
    yield from (f"### {name}", "", " ".join(schema.get("description", "").split("\n\n")[0].split()), "")
    if "enum" in schema:
        yield from (f"One of {', '.join(f'`{value}`' for value in schema['enum'])}.", "")
    if schema.get("properties"):
        required = schema.get("required", ())
        yield from ("| Field | Type | Default |", "|---|---|---|")
        for field, part in schema["properties"].items():
            default = "required" if field in required else code(_default(part))
            about = f". {part['description']}" if part.get("description") else ""
            yield f"| `{field}` | {cell(_text(part) + about)} | {default} |"
        yield ""


def _default(schema: Schema) -> str:
    value = schema.get("default")
    if value in (None, "", [], {}):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(schema: Any) -> str:  # noqa: ANN401 - an object, or a boolean
    """Return a schema in words, with links to types."""
    if isinstance(schema, bool):
        return "any"
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REFERENCE)
        return f"[{name}](#{_slug(name)})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_text(each) for each in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {_text(schema['items'])}" if "items" in schema else "list"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {_text(values)}" if isinstance(values, dict) and values else "object"
        case None:
            return "any"
        case kind:
            limits = [
                f"{text} {schema[key]:g}"
                for key, text in (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"))
                if key in schema
            ]
            return " ".join([str(kind), *limits])


def rest_pages() -> Iterator[tuple[str, functools.partial[str]]]:
    """Give the pages by file name."""
    for page in _PARTS:
        yield f"rest/{page}.md", functools.partial(rest_page, page)
