"""GraphQL types of signals, incidents, datasets and lineage, and the fields that connect them."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import msgspec
import strawberry

from headgate.auth.roles import Permission
from headgate.errors import NotFoundError
from headgate.health.audit.field_encryption import mask
from headgate.health.lineage.rows import LineageEntry
from headgate.health.lineage.specs import EdgeKind
from headgate.health.model import incidents as incident_model
from headgate.health.model import signals as signal_model
from headgate.health.model.datasets import Dataset, DatasetStatus
from headgate.health.model.enums import (
    Confidence,
    EntityType,
    Impact,
    IncidentStatus,
    Phase,
    Severity,
    SignalState,
    Tier,
)
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal, Snapshot
from headgate.serve.graphql.dataset_types import (
    ContractBindingType,
    DatasetGateType,
    DatasetSourceType,
    DatasetVersionType,
    SchemaBindingType,
    SlosType,
    TagType,
)
from headgate.serve.graphql.enums import Moment, maybe_moment, reads, whole
from headgate.serve.graphql.evidence_types import EvidenceType
from headgate.serve.graphql.loaders import Context
from headgate.serve.graphql.paging import page_size
from headgate.serve.http.views import shown

Info = strawberry.Info[Context, None]
VERSIONS_DEFAULT: Final = 10


@strawberry.type(name="SignalMetrics")
class SignalMetricsType:
    """Counts of a window. Counts above 2147483647 are clamped; their `exact` twin is exact up to 2^53.

    `complianceRate` is the share of passed records; without judged records it is the signal's score.
    """

    evidence_count: int
    pass_count: int
    fail_count: int
    compliance_rate: float
    exact_evidence_count: float
    exact_pass_count: float
    exact_fail_count: float

    @classmethod
    def of(cls, value: signal_model.SignalValue) -> SignalMetricsType:
        metrics = value.metrics
        rate = metrics.compliance_rate
        return cls(
            evidence_count=whole(metrics.evidence_count),
            pass_count=whole(metrics.pass_count),
            fail_count=whole(metrics.fail_count),
            compliance_rate=value.score if rate is None else rate,
            exact_evidence_count=float(metrics.evidence_count),
            exact_pass_count=float(metrics.pass_count),
            exact_fail_count=float(metrics.fail_count),
        )


@strawberry.type(name="ProducerInfo")
class ProducerInfoType:
    """The producer thought to be the cause."""

    producer_id: str
    version: str | None
    confidence: Confidence | None
    deployed_at: Moment | None

    @classmethod
    def of(cls, producer: signal_model.Producer | None) -> ProducerInfoType | None:
        if producer is None:
            return None
        moment = maybe_moment(producer.deployed_at)
        return shown(cls, producer, version=producer.version or None, deployed_at=moment)


@strawberry.type(name="SignalState")
class SignalStateType:
    """The current signal of a dataset. `stale`: from the cache while the store was unavailable."""

    dataset_urn: str
    signal_type: str
    state: SignalState
    previous_state: SignalState | None
    score: float
    slo_threshold: float
    breach_start: Moment | None
    window_start: Moment
    window_end: Moment
    metrics: SignalMetricsType
    failure_signature: str | None
    failure_signatures: list[str]
    message: str | None
    top_producer: ProducerInfoType | None
    evidence_sample: list[str]
    incident_id: str | None
    tier: Tier
    owner_team: str
    last_updated: Moment
    state_changed_at: Moment
    detected_at: Moment | None
    last_ok_at: Moment | None
    version: int
    stale: bool

    @classmethod
    def of(cls, signal: Signal) -> SignalStateType:
        value = signal.value
        return shown(
            cls,
            signal,
            value,
            metrics=SignalMetricsType.of(value),
            top_producer=ProducerInfoType.of(value.top_producer),
            version=whole(signal.version),
        )

    @reads("The registered dataset.")
    async def dataset(self, info: Info) -> DatasetType | None:
        return await _dataset(info.context, self.dataset_urn)

    @reads("The incident of the signal.")
    async def incident(self, info: Info) -> IncidentType | None:
        return None if self.incident_id is None else await found_incident(info.context, self.incident_id)


@strawberry.type(name="SignalStateSnapshot")
class SignalStateSnapshotType:
    """A transition of a signal. `late`: its window arrived after a later one, and changed nothing."""

    state: SignalState
    previous_state: SignalState | None
    score: float | None
    window_start: Moment
    window_end: Moment
    changed_at: Moment
    version: int
    failure_signature: str | None
    incident_id: str | None
    late: bool

    @classmethod
    def of(cls, snapshot: Snapshot) -> SignalStateSnapshotType:
        return shown(cls, snapshot, version=whole(snapshot.version))


@strawberry.type(name="BlastRadius")
class BlastRadiusType:
    """Downstream impact. Names at most a hundred services and datasets. Not `complete`: there is more."""

    downstream_count: int
    downstream_services: list[str]
    estimated_impact: Impact
    downstream_datasets: list[str]
    tier_1_count: int
    complete: bool

    @classmethod
    def of(cls, radius: incident_model.BlastRadius | None) -> BlastRadiusType | None:
        if radius is None:
            return None
        counts = {"downstream_count": whole(radius.downstream_count), "tier_1_count": whole(radius.tier_1_count)}
        return shown(cls, radius, **counts)


@strawberry.type(name="NotificationState")
class NotificationStateType:
    """Notification ids. Masked without permission."""

    pagerduty_incident_id: str | None
    slack_thread_ts: str | None
    jira_ticket: str | None

    @classmethod
    def of(cls, notification: incident_model.Notification | None, *, is_open: bool) -> NotificationStateType | None:
        if notification is None:
            return None
        ids: dict[str, str] = msgspec.to_builtins(notification)
        shown = ids if is_open else mask(ids)
        return cls(**{name: shown.get(name) for name in notification.__struct_fields__})


@strawberry.type(name="Incident")
class IncidentType:
    """An incident. `episode` counts how often it recurred after it was resolved.

    `recurrences` also counts how often its failure came back while it was open. `silencedUntil`: it was resolved while
    a signal was still CRITICAL, and the same breach opens nothing before this time.
    """

    incident_id: strawberry.ID
    status: IncidentStatus
    phase: Phase
    severity: Severity
    title: str
    created_at: Moment
    updated_at: Moment
    acknowledged_at: Moment | None
    resolved_at: Moment | None
    primary_dataset_urn: str
    signal_types: list[str]
    failure_signatures: list[str]
    implicated_producer: ProducerInfoType | None
    blast_radius: BlastRadiusType | None
    notification_state: NotificationStateType | None
    evidence_sample: list[str]
    rca_summary: str | None
    tier: Tier
    owner_team: str
    oncall_user: str | None
    assignee: str | None
    episode: int
    recurrences: int
    escalation_level: int
    silenced_until: Moment | None
    merged_into: str | None
    version: int

    @classmethod
    def of(cls, incident: Incident, context: Context) -> IncidentType:
        is_open = context.sees_secrets(incident.primary_dataset_urn)
        return shown(
            cls,
            incident,
            implicated_producer=ProducerInfoType.of(incident.implicated_producer),
            blast_radius=BlastRadiusType.of(incident.blast_radius),
            notification_state=NotificationStateType.of(incident.notification_state, is_open=is_open),
            oncall_user=incident.oncall_user if is_open else mask(incident.oncall_user),
            version=whole(incident.version),
        )

    @reads("The registered dataset.")
    async def dataset(self, info: Info) -> DatasetType | None:
        return await _dataset(info.context, self.primary_dataset_urn)

    @reads("The signals of its dataset that belong to it or have its signal types.")
    async def related_signals(self, info: Info) -> list[SignalStateType]:
        found = await info.context.loaders.signals.load(self.primary_dataset_urn)
        return [
            SignalStateType.of(each)
            for each in info.context.reached(found)
            if each.value.incident_id == self.incident_id or each.signal_type in self.signal_types
        ]

    @reads("Its evidence sample, cached or archived.")
    async def evidence(self, info: Info) -> list[EvidenceType]:
        found = await info.context.loaders.evidence.load_many(self.evidence_sample)
        reaches = info.context.principal.reaches
        return [EvidenceType.of(each) for each in found if each is not None and reaches(each.dataset_urn)]


@strawberry.type(name="LineageEntry")
class LineageEntryType:
    """A writer or reader of a dataset or column."""

    entity_id: str
    entity_name: str
    entity_type: EntityType
    confidence: Confidence
    spec_id: str
    commit: str | None
    updated_at: Moment

    @classmethod
    def of(cls, entry: LineageEntry) -> LineageEntryType:
        return shown(cls, entry)


@strawberry.type(name="Dataset")
class DatasetType:
    """A registered dataset. `stale`: from the cache while the store was unavailable."""

    urn: str
    display_name: str | None
    description: str | None
    tier: Tier
    owner_team: str
    status: DatasetStatus
    source: DatasetSourceType | None
    schema_binding: SchemaBindingType | None
    contract_binding: ContractBindingType | None
    slos: SlosType | None
    gate: DatasetGateType | None
    tags: list[TagType]
    config_version: int
    created_at: Moment | None
    updated_at: Moment | None
    stale: bool

    @classmethod
    def of(cls, dataset: Dataset) -> DatasetType:
        return shown(
            cls,
            dataset,
            urn=dataset.dataset_urn,
            display_name=dataset.display_name or None,
            description=dataset.description or None,
            source=DatasetSourceType.of(dataset.source),
            schema_binding=SchemaBindingType.of(dataset.schema_binding),
            contract_binding=ContractBindingType.of(dataset.contract_binding),
            slos=SlosType.of(dataset.slos),
            gate=DatasetGateType.of(dataset.gate),
            tags=[TagType(key=key, value=value) for key, value in sorted(dataset.tags.items())],
            config_version=whole(dataset.config_version),
            created_at=maybe_moment(dataset.created_at),
            updated_at=maybe_moment(dataset.updated_at),
        )

    @reads("Its current signals.")
    async def signals(self, info: Info) -> list[SignalStateType]:
        found = await info.context.loaders.signals.load(self.urn)
        return [SignalStateType.of(each) for each in found]

    @reads("Its open incidents among the newest twenty.")
    async def open_incidents(self, info: Info) -> list[IncidentType]:
        found = await info.context.loaders.open_incidents.load(self.urn)
        return [IncidentType.of(each, info.context) for each in found]

    @reads("Its writers; at most a hundred.")
    async def writers(self, info: Info) -> list[LineageEntryType]:
        found = await info.context.loaders.entries.load((EdgeKind.DATASET_WRITE, self.urn))
        return [LineageEntryType.of(each) for each in found]

    @reads("Its readers; at most a hundred.")
    async def readers(self, info: Info) -> list[LineageEntryType]:
        found = await info.context.loaders.entries.load((EdgeKind.DATASET_READ, self.urn))
        return [LineageEntryType.of(each) for each in found]

    @reads("Its earlier versions, newest first.")
    async def versions(self, info: Info, first: int = VERSIONS_DEFAULT) -> list[DatasetVersionType]:
        info.context.check_time()
        found = info.context.health.registry.history(self.urn, limit=page_size(first, "first")).versions
        return [shown(DatasetVersionType, each, config_version=whole(each.config_version)) for each in found]


async def found_incident(context: Context, incident_id: str, *, is_named: bool = False) -> IncidentType | None:
    """Return an incident, or None. Raises `ForbiddenError` for a dataset out of scope.

    With `is_named` the caller gave its id, and it may be so new that not every replica has it.
    """
    found = await context.loaders.incidents.load(incident_id)
    if found is None and is_named:
        context.check_time()
        with suppress(NotFoundError):
            found = context.health.incidents.get(incident_id)
    if found is None:
        return None
    context.require(Permission.INCIDENT_READ, found.primary_dataset_urn)
    return IncidentType.of(found, context)


async def _dataset(context: Context, urn: str) -> DatasetType | None:
    found = await context.loaders.datasets.load(urn)
    if found is None:
        return None
    context.require(Permission.DATASET_READ, found.dataset_urn)
    return DatasetType.of(found)
