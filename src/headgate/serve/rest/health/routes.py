"""Health routes: assembles the health API, and serves JSON Schemas by name."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from headgate.auth.api_keys import ApiKeys
from headgate.auth.roles import Permission
from headgate.auth.rules import Rule
from headgate.checks.service import CheckService
from headgate.errors import NotFoundError
from headgate.health.evidence.rows import Evidence
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model.datasets import Dataset
from headgate.health.model.incidents import Incident
from headgate.health.service import HealthService
from headgate.serve.http.idempotency import RETENTION_SECONDS, IdempotencyStore
from headgate.serve.http.operations import (
    PREFIX,
    AccessPolicy,
    Answer,
    Auditing,
    Call,
    NoQuery,
    Operation,
    operation_routes,
)
from headgate.serve.rest.health.audit import audit_operations
from headgate.serve.rest.health.baselines import baseline_operations
from headgate.serve.rest.health.checks import check_operations
from headgate.serve.rest.health.datasets import dataset_operations
from headgate.serve.rest.health.evidence import evidence_operations
from headgate.serve.rest.health.fields import field_operations
from headgate.serve.rest.health.flags import flag_operations
from headgate.serve.rest.health.gate import gate_operations
from headgate.serve.rest.health.incidents import incident_operations
from headgate.serve.rest.health.lineage import lineage_operations
from headgate.serve.rest.health.models import SignalView
from headgate.serve.rest.health.resolution import resolution_operations
from headgate.serve.rest.health.results import result_operations
from headgate.serve.rest.health.signals import signal_operations
from headgate.serve.rest.health.topic_producers import topic_producer_operations
from headgate.serve.rest.parameters import ColumnUrn, DatasetUrn, ProducerId, SignalType, SpecId, TopicPattern
from headgate.serve.runtime.thread_pool import WorkPool

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS: Final[dict[str, type[Struct]]] = {
    "signal-state-schema.json": SignalView,
    "incident-index-schema.json": Incident,
    "dataset-registry-schema.json": Dataset,
    "evidence-cache-schema.json": Evidence,
    "lineage-index-schema.json": LineageSpec,
}


class SchemaNames(Struct, frozen=True):
    """Names of the schemas."""

    schemas: list[str]


def schema_operations() -> list[Operation]:
    """Return the operations on schemas."""
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
        raise NotFoundError(f"schema {name[:80]}: not found; available are {', '.join(sorted(SCHEMAS))}")
    return Answer(schema(name))


@cache
def schema(name: str) -> dict[str, Any]:
    """Return a schema by name."""
    kind = SCHEMAS[name]
    (made,), parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    return {"$schema": DIALECT, "$id": f"{PREFIX}/schemas/{name}", **made, "$defs": parts}


# Every operation has its own rule; one without would require administration.
_POLICY: Final = AccessPolicy(Permission.KEY_MANAGE, Permission.KEY_MANAGE)


def health_routes(
    health: HealthService,
    keys: ApiKeys,
    pool: WorkPool,
    *,
    checks: CheckService | None = None,
    auditing: Auditing | None = None,
    idempotency_seconds: int = RETENTION_SECONDS,
) -> list[ControllerRouterHandler]:
    """Return the routes of health. They are one set: several nouns share the paths below a dataset.

    Responses by Idempotency-Key are kept for `idempotency_seconds`.
    """
    operations = [
        *dataset_operations(health),
        *result_operations(health),
        *field_operations(health),
        *resolution_operations(health),
        *topic_producer_operations(health),
        *signal_operations(health),
        *baseline_operations(health),
        *incident_operations(health),
        *evidence_operations(health),
        *lineage_operations(health),
        *gate_operations(health),
        *flag_operations(health),
        *audit_operations(health, keys),
        *schema_operations(),
        *([] if checks is None else check_operations(checks)),
    ]
    return operation_routes(
        operations,
        pool,
        _POLICY,
        namespace="health.",
        auditing=auditing,
        idempotency=IdempotencyStore(health.store, health.clock, kept_seconds=idempotency_seconds),
        resolve_dataset=health.registered,
        path_types={
            "dataset_urn": DatasetUrn,
            "column_urn": ColumnUrn,
            "spec_id": SpecId,
            "topic_pattern": TopicPattern,
            "signal_type": SignalType,
            "producer_id": ProducerId,
        },
    )
