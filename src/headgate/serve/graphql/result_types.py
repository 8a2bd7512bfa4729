"""GraphQL result types: connections, incident context, gate answers, blast radius and hourly volumes."""

from __future__ import annotations

import strawberry

from headgate.health.gate.decisions import Code, DatasetRuling, Reason, Ruling, Verb
from headgate.health.gate.gate import GateAnswer
from headgate.health.incident_context import Happening, IncidentContext
from headgate.health.lineage import blast_radius
from headgate.health.model.volume_counts import VolumePoint
from headgate.serve.graphql.enums import Moment, maybe_moment, whole
from headgate.serve.graphql.evidence_types import EvidenceType
from headgate.serve.graphql.loaders import Context
from headgate.serve.graphql.types import BlastRadiusType, DatasetType, IncidentType, LineageEntryType, SignalStateType
from headgate.serve.http.views import shown

NAMED_MAX = 100


@strawberry.type(name="PageInfo")
class PageInfoType:
    """Whether there may be more, and the cursor of the next page."""

    has_next_page: bool
    end_cursor: str | None


@strawberry.type(name="IncidentEdge")
class IncidentEdgeType:
    """An incident and its cursor."""

    cursor: str
    node: IncidentType


@strawberry.type(name="IncidentConnection")
class IncidentConnectionType:
    """A page of incidents, newest first. It may be short or empty although `pageInfo` has a next page.

    `totalEstimate` is null unless this is the only page.
    """

    edges: list[IncidentEdgeType]
    page_info: PageInfoType
    total_estimate: int | None


@strawberry.type(name="DatasetEdge")
class DatasetEdgeType:
    """A dataset and its cursor."""

    cursor: str
    node: DatasetType


@strawberry.type(name="DatasetConnection")
class DatasetConnectionType:
    """A page of datasets by URN. It may be short or empty although `pageInfo` has a next page.

    `totalEstimate` is null unless this is the only page.
    """

    edges: list[DatasetEdgeType]
    page_info: PageInfoType
    total_estimate: int | None


@strawberry.type(name="TimelineEntry")
class TimelineEntryType:
    """One entry of an incident's timeline."""

    at: Moment
    kind: Happening
    what: str


@strawberry.type(name="MissingPart")
class MissingPartType:
    """A part of the context that was unavailable, and the reason."""

    part: str
    why: str


@strawberry.type(name="IncidentContext")
class IncidentContextType:
    """Context of an incident. Not `complete`: parts are missing or partial."""

    incident: IncidentType
    dataset: DatasetType | None
    signals: list[SignalStateType]
    evidence: list[EvidenceType]
    first_bad: EvidenceType | None
    last_good: EvidenceType | None
    writers: list[LineageEntryType]
    readers: list[LineageEntryType]
    blast_radius: BlastRadiusType | None
    timeline: list[TimelineEntryType]
    missing: list[MissingPartType]
    complete: bool
    as_of: Moment

    @classmethod
    def of(cls, story: IncidentContext, context: Context) -> IncidentContextType:
        return shown(
            cls,
            story,
            incident=IncidentType.of(story.incident, context),
            dataset=None if story.dataset is None else DatasetType.of(story.dataset),
            signals=[SignalStateType.of(each) for each in story.signals],
            evidence=[EvidenceType.of(each) for each in story.evidence],
            first_bad=None if story.first_bad is None else EvidenceType.of(story.first_bad),
            last_good=None if story.last_good is None else EvidenceType.of(story.last_good),
            writers=[LineageEntryType.of(each) for each in story.writers],
            readers=[LineageEntryType.of(each) for each in story.readers],
            blast_radius=None if story.blast_radius is None else radius_of(story.blast_radius),
            timeline=[shown(TimelineEntryType, each) for each in story.timeline],
            missing=[shown(MissingPartType, each) for each in story.missing],
        )


@strawberry.type(name="GateReason")
class GateReasonType:
    """One reason of a gate decision, and the decision it implies alone."""

    code: Code
    ruling: Ruling
    dataset_urn: str
    message: str
    signal_type: str | None
    incident_id: str | None
    since: Moment | None
    upstream_urn: str | None

    @classmethod
    def of(cls, reason: Reason) -> GateReasonType:
        return shown(cls, reason, since=maybe_moment(reason.since))


@strawberry.type(name="DatasetRuling")
class DatasetRulingType:
    """Gate decision of one dataset. `until` is when it changes by itself, if it does."""

    dataset_urn: str
    ruling: Ruling
    reasons: list[GateReasonType]
    since: Moment | None
    until: Moment | None
    override_id: str | None

    @classmethod
    def of(cls, ruling: DatasetRuling) -> DatasetRulingType:
        return shown(
            cls,
            ruling,
            reasons=[GateReasonType.of(each) for each in ruling.reasons],
            since=maybe_moment(ruling.since),
            until=maybe_moment(ruling.until),
        )


@strawberry.type(name="GateAnswer")
class GateAnswerType:
    """Gate decision of all requested datasets: the worst of each."""

    decision: Ruling
    verb: Verb
    principal: str
    as_of: Moment
    datasets: list[DatasetRulingType]
    reasons: list[GateReasonType]
    since: Moment | None
    until: Moment | None
    override_id: str | None
    overridable_by: list[str]
    ttl_seconds: int
    complete: bool

    @classmethod
    def of(cls, answer: GateAnswer) -> GateAnswerType:
        return shown(
            cls,
            answer,
            datasets=[DatasetRulingType.of(each) for each in answer.datasets],
            reasons=[GateReasonType.of(each) for each in answer.reasons],
            since=maybe_moment(answer.since),
            until=maybe_moment(answer.until),
        )


def radius_of(reached: blast_radius.BlastRadius) -> BlastRadiusType:
    """Return the downstream impact of a dataset, with the nearest and most certain names."""
    return shown(
        BlastRadiusType,
        reached,
        downstream_count=whole(reached.downstream_count),
        downstream_datasets=[each.dataset_urn for each in reached.datasets[:NAMED_MAX]],
        tier_1_count=whole(reached.tier_counts.get("TIER_1", 0)),
    )


@strawberry.type(name="VolumePoint")
class VolumePointType:
    """Event count of an hour. `eventCount` is null if it was not measured, and exact up to 2^53.

    `windowCount` is the number of windows measured in the hour; `isOver` is false for the current hour.
    """

    hour: Moment
    event_count: float | None
    window_count: int
    is_over: bool

    @classmethod
    def of(cls, point: VolumePoint) -> VolumePointType:
        return shown(cls, point)
