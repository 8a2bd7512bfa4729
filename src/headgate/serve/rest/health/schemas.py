"""JSON Schemas of the health tables: each describes the stored rows of its table and the answers of the API."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from headgate.auth.roles import Permission
from headgate.auth.rules import Rule
from headgate.errors import NotFoundError
from headgate.health.evidence.rows import Evidence
from headgate.health.lineage.rows import LineageEntry
from headgate.health.model.datasets import Dataset
from headgate.health.model.enums import Confidence, EntityType, IncidentStatus, Phase, Severity, SignalState, Tier
from headgate.health.model.incidents import BlastRadius, Incident, Notification, Resolution
from headgate.health.model.signals import Metrics, Producer
from headgate.serve.http.operations import PREFIX, Answer, Call, NoQuery, Operation
from headgate.serve.rest.health.models import SignalView

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Urn = Annotated[str, Meta(pattern="^urn:dp:")]
Instant = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")]
# Encrypted at rest, or from before encryption.
Sealed = str
Seconds = Annotated[int, Meta(ge=0)]


class SignalItem(Struct, kw_only=True):
    """A row of observability-signal-state. A signal in breach is in the breach index and has no `ttl`."""

    PK: Urn
    SK: Annotated[str, Meta(pattern="^[A-Z][A-Z0-9_]{0,63}$")]
    state: SignalState
    state_changed_at: Instant
    score: Annotated[float, Meta(ge=0, le=1)]
    slo_threshold: Annotated[float, Meta(ge=0)]
    window_start: Instant
    window_end: Instant
    window_type: str
    metrics: Metrics
    evidence_sample: list[str]
    tier: Tier
    owner_team: str
    last_updated: Instant
    version: Annotated[int, Meta(ge=1)]
    previous_state: SignalState | None = None
    breach_start: Instant | None = None
    failure_signature: str | None = None
    top_producer: str | None = None
    top_producer_version: str | None = None
    top_producer_confidence: Confidence | None = None
    top_producer_deployed_at: Instant | None = None
    incident_id: str | None = None
    digest: str | None = None
    ok_until: Instant | None = None
    detected_at: Instant | None = None
    breach_pk: Annotated[str, Meta(pattern="^BREACH#")] | None = None
    breach_sk: str | None = None
    ttl: Seconds | None = None


class IncidentItem(Struct, kw_only=True):
    """A row of observability-incident-index. On-call user and notifications are encrypted."""

    PK: Annotated[str, Meta(pattern="^INC#")]
    SK: Literal["META"]
    incident_id: str
    status: IncidentStatus
    severity: Severity
    title: str
    created_at: Instant
    updated_at: Instant
    primary_dataset_urn: Urn
    signal_types: list[str]
    failure_signatures: list[str]
    owner_team: str
    version: Annotated[int, Meta(ge=1)]
    GSI1PK: Annotated[str, Meta(pattern="^DS#")]
    GSI1SK: Instant
    GSI2PK: Annotated[str, Meta(pattern="^STATUS#")]
    GSI2SK: Annotated[str, Meta(pattern="^SEV_[123]#")]
    GSI3PK: Annotated[str, Meta(pattern="^TEAM#")] | None = None
    GSI4PK: Annotated[str, Meta(pattern="^SIG#")] | None = None
    phase: Phase | None = None
    tier: Tier | None = None
    dedup_key: str | None = None
    resolved_at: Instant | None = None
    silenced_until: Instant | None = None
    implicated_producer: Producer | None = None
    blast_radius: BlastRadius | None = None
    notification_state: Notification | Sealed | None = None
    oncall_user: Sealed | None = None
    resolution: Resolution | None = None
    primary_evidence_id: str | None = None
    evidence_sample: list[str] = []
    rca_summary: str | None = None
    ttl: Seconds | None = None


class DatasetItem(Dataset, frozen=True, kw_only=True):
    """A row of observability-dataset-registry: the current configuration of a dataset, or an archived version."""

    PK: Urn
    SK: Annotated[str, Meta(pattern=r"^CONFIG#(LATEST|v\d+)$")]
    previous_version_sk: Annotated[str, Meta(pattern=r"^CONFIG#v\d+$")] | None = None


class DatasetVersionsItem(Struct, kw_only=True):
    """A row of observability-dataset-registry: the versions that a URN without one stands for."""

    PK: Urn
    SK: Literal["ALIAS"]
    registered: list[int]
    discovered: list[int]
    deleted: list[int]
    version: int
    dataset_urn: Urn | None = None


class DatasetNameItem(Struct, kw_only=True):
    """A row of observability-dataset-registry: an external name, by name or by dataset."""

    PK: Annotated[str, Meta(pattern="^(NAME#|urn:dp:)")]
    SK: str
    namespace: str
    name: str
    version: int
    dataset_urn: Urn | None = None


class DatasetChangeItem(Struct, kw_only=True):
    """A row of observability-dataset-registry: the place of a dataset in the change feed."""

    PK: Annotated[str, Meta(pattern="^FEED#")]
    SK: Annotated[str, Meta(pattern=r"^\d{12}$")]
    dataset_urn: Urn
    config_version: int
    changed_fields: list[str]
    updated_by: str
    updated_at: Instant


class FeedEndItem(Struct, kw_only=True):
    """A row of observability-dataset-registry: the end of the change feed."""

    PK: Annotated[str, Meta(pattern="^FEED#")]
    SK: Literal["END"]


class EvidenceItem(Evidence, frozen=True, kw_only=True):
    """A row of observability-evidence-cache. Evidence that an incident pins has no `ttl`."""

    evidence_id: Annotated[str, Meta(pattern="^evd-")]
    ttl: Seconds | None = None


class _EdgeItem(Struct, kw_only=True):
    PK: Annotated[str, Meta(pattern="^urn:(dp|col):")]
    confidence: Confidence
    spec_id: str
    updated_at: Instant
    ttl: Seconds
    commit: str | None = None


class WriterItem(_EdgeItem, kw_only=True):
    """A row of observability-dataset-writers or observability-column-writers."""

    SK: Annotated[str, Meta(pattern="^producer#")]
    producer_id: str
    producer_name: str
    producer_type: EntityType


class ReaderItem(_EdgeItem, kw_only=True):
    """A row of observability-dataset-readers or observability-column-readers."""

    SK: Annotated[str, Meta(pattern="^consumer#")]
    consumer_id: str
    consumer_name: str
    consumer_type: EntityType


# The stored rows of each schema, then what the API answers.
SCHEMAS: Final[dict[str, tuple[type[Struct], ...]]] = {
    "signal-state-schema.json": (SignalItem, SignalView),
    "incident-index-schema.json": (IncidentItem, Incident),
    "dataset-registry-schema.json": (
        DatasetItem,
        DatasetVersionsItem,
        DatasetNameItem,
        DatasetChangeItem,
        FeedEndItem,
        Dataset,
    ),
    "evidence-cache-schema.json": (EvidenceItem, Evidence),
    "lineage-index-schema.json": (WriterItem, ReaderItem, LineageEntry),
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
    """Return a schema by name: any of its rows and answers."""
    kinds, parts = msgspec.json.schema_components(SCHEMAS[name], ref_template="#/$defs/{name}")
    return {"$schema": DIALECT, "$id": f"{PREFIX}/schemas/{name}", "anyOf": list(kinds), "$defs": parts}
