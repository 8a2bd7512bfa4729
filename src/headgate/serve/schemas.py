"""JSON Schemas of what is kept of health, served by the names that others know them by."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.auth.rules import Rule
from headgate.errors import NotFoundError
from headgate.health.evidence.rows import Evidence
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.datasets import Dataset
from headgate.health.model.incidents import Incident
from headgate.serve.health_views import SignalView
from headgate.serve.operations import PREFIX, Answer, Call, NoQuery, Operation

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS: Final[dict[str, type[Struct]]] = {
    "signal-state-schema.json": SignalView,
    "incident-index-schema.json": Incident,
    "dataset-registry-schema.json": Dataset,
    "evidence-cache-schema.json": Evidence,
    "lineage-index-schema.json": LineageSpec,
}


class SchemaNames(Struct, frozen=True):
    """The schemas that there are."""

    schemas: list[str]


def schema_operations() -> list[Operation]:
    """Return what can be asked of schemas."""
    reads = Rule(Permission.DATASET_READ)
    return [
        Operation("GET", "/schemas", "List JSON Schemas", _ls, {200: SchemaNames}, rule=reads),
        Operation("GET", "/schemas/{name}", "Show a JSON Schema", _show, {200: dict[str, Any]}, rule=reads),
    ]


def _ls(_call: Call[None, NoQuery]) -> Answer:
    return Answer(SchemaNames(sorted(SCHEMAS)))


def _show(call: Call[None, NoQuery]) -> Answer:
    name = call.path["name"]
    if name not in SCHEMAS:
        raise NotFoundError(f"schema {name[:80]}: there is none; there are {', '.join(sorted(SCHEMAS))}")
    return Answer(schema(name))


@cache
def schema(name: str) -> dict[str, Any]:
    """Return a schema by its name."""
    kind = SCHEMAS[name]
    (made,), parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    return {"$schema": DIALECT, "$id": f"{PREFIX}/schemas/{name}", **made, "$defs": parts}
