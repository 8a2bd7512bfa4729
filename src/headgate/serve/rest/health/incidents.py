"""Incident API: open, list, change, snooze and merge incidents, and show their context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.auth import rules
from headgate.auth.principals import Principal, require
from headgate.auth.roles import Permission
from headgate.auth.rules import Reach, Rule
from headgate.durable.model.duration import seconds
from headgate.errors import InvalidPayloadError
from headgate.health.evidence.rows import Evidence
from headgate.health.incident_context import IncidentContext, Missing, TimelineEntry
from headgate.health.incidents.listing import IncidentFilter, Recovery
from headgate.health.incidents.timers import Escalation
from headgate.health.lineage.blast_radius import BlastRadius as Reached
from headgate.health.lineage.rows import LineageEntry
from headgate.health.model import enums, timestamps, urns
from headgate.health.model.datasets import Dataset
from headgate.health.model.enums import SignalState
from headgate.health.model.incidents import BlastRadius, Changes, Incident, IncidentReport
from headgate.health.service import HealthService
from headgate.serve.http.operations import PREFIX, Answer, Call, NoQuery, Operation
from headgate.serve.http.preconditions import etag, matching
from headgate.serve.http.problem import Problem
from headgate.serve.rest.health.dataset_names import NamedDatasets
from headgate.serve.rest.health.models import (
    Name,
    PageSize,
    ProducerIn,
    SignalView,
    Text,
    complete,
    incident_view,
    signal_view,
)
from headgate.serve.rest.parameters import DatasetUrn, Duration, OptionalUrn, PageToken, SignalType, Timestamp

_ONE: Final = "/incidents/{incident_id}"
_READ: Final = Rule(Permission.INCIDENT_READ, Reach.FOUND)
_WRITE: Final = Rule(Permission.INCIDENT_WRITE, Reach.FOUND)
_LISTED: Final = Rule(Permission.INCIDENT_READ, Reach.FILTERED)


class BlastRadiusIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Downstream impact, as determined by the caller."""

    downstream_count: Annotated[int, Meta(ge=0)] = 0
    downstream_services: list[Name] = []
    estimated_impact: str = "UNKNOWN"

    def read(self) -> BlastRadius:
        return BlastRadius(
            downstream_count=self.downstream_count,
            downstream_services=tuple(self.downstream_services[:100]),
            estimated_impact=enums.impact(self.estimated_impact),
        )


class NewIncident(Struct, forbid_unknown_fields=True, kw_only=True):
    """An incident report. It joins an open incident with the same signature."""

    dataset_urn: OptionalUrn = ""
    # Alias of `dataset_urn`, the name used in incidents.
    primary_dataset_urn: OptionalUrn = ""
    signal_type: str = ""
    signal_types: list[str] = []
    failure_signatures: Annotated[list[Name], Meta(max_length=50)] = []
    severity: str | None = None
    title: Annotated[str, Meta(max_length=1024)] = ""
    implicated_producer: ProducerIn | None = None
    blast_radius: BlastRadiusIn | None = None
    primary_evidence_id: str | None = None
    evidence_sample: Annotated[list[Name], Meta(max_length=50)] = []
    oncall_user: Name | None = None
    trace_id: Name | None = None
    dedup_key: Annotated[str, Meta(max_length=1024)] = ""


class NotificationIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Notification ids; omitted ones stay."""

    pagerduty_incident_id: Name | None = None
    slack_thread_ts: Name | None = None
    jira_ticket: Name | None = None


class ResolutionIn(Struct, forbid_unknown_fields=True, kw_only=True):
    """Resolution of an incident."""

    root_cause: Text = ""
    mitigation: Text = ""
    resolved_by: Name = ""
    false_positive: bool = False
    reason: Text = ""


class IncidentPatch(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Fields to change; omitted ones stay. `reason` explains a change of `status`."""

    status: str | None = None
    severity: str | None = None
    title: str | None = None
    assignee: Name | None = None
    oncall_user: Name | None = None
    rca_summary: Text | None = None
    ticket: Name | None = None
    notification_state: NotificationIn | None = None
    resolution: ResolutionIn | None = None
    reason: Text = ""
    expected_version: Annotated[int, Meta(ge=1)] | None = None


class Snooze(Struct, forbid_unknown_fields=True, kw_only=True):
    """End of the snooze: a time or a duration."""

    until: Timestamp | None = None
    duration: Duration | None = None
    reason: Text = ""


class Merge(Struct, forbid_unknown_fields=True, kw_only=True):
    """The incident to merge into."""

    into: Name
    reason: Text = ""


class IncidentQuery(Struct, forbid_unknown_fields=True, kw_only=True, rename={"since": "from", "until": "to"}):
    """Filter and page of incidents."""

    status: list[str] = []
    severity: list[str] = []
    dataset_urn: DatasetUrn | None = None
    owner_team: Name | None = None
    failure_signature: Name | None = None
    signal_type: SignalType | None = None
    since: Timestamp | None = None
    until: Timestamp | None = None
    page_token: PageToken | None = None
    page_size: PageSize = 50

    def wanted(self) -> IncidentFilter:
        """Return the filter. Raises `InvalidPayloadError` or `InvalidIdError`."""
        since = "" if self.since is None else timestamps.moment(self.since, field="from")
        until = "9999" if self.until is None else timestamps.moment(self.until, field="to")
        if since > until:
            raise InvalidPayloadError(f"from {since} is after to {until}")
        return IncidentFilter(
            statuses=tuple(dict.fromkeys(enums.stage(each).status for each in self.status)),
            severities=tuple(dict.fromkeys(enums.severity(each) for each in self.severity)),
            dataset_urn=None if self.dataset_urn is None else urns.dataset_urn(self.dataset_urn),
            owner_team=self.owner_team,
            failure_signature=self.failure_signature,
            signal_type=None if self.signal_type is None else enums.signal_type(self.signal_type),
            since=since,
            until=until,
        )


class IncidentPage(Struct, frozen=True):
    """A page of incidents, newest first."""

    items: list[Incident]
    next_page_token: str | None = None


class ContextView(Struct, frozen=True, kw_only=True):
    """Context of an incident, and the parts that were unavailable."""

    incident: Incident
    dataset: Dataset | None
    signals: list[SignalView]
    evidence: list[Evidence]
    first_bad: Evidence | None
    last_good: Evidence | None
    writers: list[LineageEntry]
    readers: list[LineageEntry]
    blast_radius: Reached | None
    timeline: list[TimelineEntry]
    missing: list[Missing]
    complete: bool
    as_of: str


class Escalations(Struct, frozen=True):
    """Incidents that are due for escalation."""

    escalations: list[Escalation]


def incident_operations(health: HealthService) -> list[Operation]:
    """Return the operations on incidents."""
    return _Incidents(health).operations()


class _Incidents:
    def __init__(self, health: HealthService) -> None:
        self._health = health
        self._incidents = health.incidents
        self._read = NamedDatasets(health, Permission.INCIDENT_READ)
        self._written = NamedDatasets(health, Permission.INCIDENT_WRITE)

    def operations(self) -> list[Operation]:
        shown, changed = {200: Incident}, {200: Incident, 409: Problem, 412: Problem}
        annotates = Rule(Permission.INCIDENT_ANNOTATE, Reach.FOUND)
        every = Rule(Permission.INCIDENT_READ, Reach.ALL)
        return [
            Operation(
                "GET", "/incidents", "List incidents", self.ls, {200: IncidentPage}, query=IncidentQuery, rule=_LISTED
            ),
            Operation(
                "POST",
                "/incidents",
                "Open or join an incident",
                self.create,
                {201: Incident, 200: Incident},
                body=NewIncident,
                rule=_WRITE,
                repeatable=True,
            ),
            Operation(
                "GET",
                "/incidents/stats",
                "Show incident durations",
                self.stats,
                {200: Recovery},
                query=IncidentQuery,
                rule=every,
            ),
            Operation(
                "GET",
                "/incidents/escalations",
                "List incidents due for escalation",
                self.escalations,
                {200: Escalations},
                rule=every,
            ),
            Operation("GET", _ONE, "Show an incident", self.show, shown, rule=_READ),
            Operation("PATCH", _ONE, "Change an incident", self.patch, changed, body=IncidentPatch, rule=annotates),
            Operation("POST", f"{_ONE}/snooze", "Snooze reminders", self.snooze, changed, body=Snooze, rule=_WRITE),
            Operation(
                "POST", f"{_ONE}/merge", "Merge into another incident", self.merge, changed, body=Merge, rule=_WRITE
            ),
            Operation(
                "GET",
                f"{_ONE}/context",
                "Show the context of an incident",
                self.context,
                {200: ContextView},
                rule=_READ,
            ),
        ]

    def ls(self, call: Call[None, IncidentQuery]) -> Answer:
        query = call.query
        wanted = self._wanted(call)
        page = self._health.incident_listing.ls(wanted, limit=query.page_size, cursor=query.page_token)
        seen = [
            incident_view(each, call.principal)
            for each in page.incidents
            if call.principal.reaches(each.primary_dataset_urn)
        ]
        return Answer(complete(IncidentPage(seen, page.cursor)))

    def create(self, call: Call[NewIncident, NoQuery]) -> Answer:
        body = call.body
        named = {body.dataset_urn, body.primary_dataset_urn} - {""}
        if len(named) != 1:
            raise InvalidPayloadError("dataset_urn: name one dataset, as dataset_urn or as primary_dataset_urn")
        [urn] = named
        self._written.require([urn], call.principal)
        # Evidence is pinned and shown with the incident: the caller must be allowed to read it.
        for evidence in self._health.evidence.get_many(body.evidence_sample).evidence.values():
            require(call.principal, Permission.INCIDENT_WRITE, evidence.dataset_urn)
        opened = self._incidents.open(_trouble(body, urns.dataset_urn(urn)), actor=call.principal.name)
        location = f"{PREFIX}/incidents/{quote(opened.incident.incident_id, safe='')}"
        return _shown(opened.incident, call.principal, 201 if opened.is_new else 200, {"location": location})

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return _shown(self._found(call, Permission.INCIDENT_READ), call.principal)

    def patch(self, call: Call[IncidentPatch, NoQuery]) -> Answer:
        body = call.body
        given = msgspec.to_builtins(body)
        query = given.keys() - {"expected_version", "reason"}
        if not query:
            raise InvalidPayloadError("body: nothing to change; set status, assignee, rca_summary, ticket ...")
        # A root cause summary needs a lesser permission; the route requires the least.
        self._found(call, rules.incident_update(query))
        changes = typed_decode.convert(
            {name: given[name] for name in Changes.__struct_fields__ if name in given}, Changes
        )

        def change(version: int | None) -> Incident:
            return self._incidents.change(
                call.path["incident_id"], changes, actor=call.principal.name, expected_version=version
            )

        return _shown(matching(call.headers, body.expected_version, change), call.principal)

    def snooze(self, call: Call[Snooze, NoQuery]) -> Answer:
        self._found(call, Permission.INCIDENT_WRITE)
        body = call.body
        if (body.until is None) == (body.duration is None):
            raise InvalidPayloadError("until, duration: set one of them, a time or a duration such as 1h")
        if body.until is not None:
            until = timestamps.moment(body.until, field="until")
        else:
            assert body.duration is not None
            until = timestamps.instant(int((self._health.clock.seconds() + seconds(body.duration)) * 1000))

        def change(version: int | None) -> Incident:
            return self._incidents.snooze(
                call.path["incident_id"],
                until,
                actor=call.principal.name,
                reason=body.reason,
                expected_version=version,
            )

        return _shown(matching(call.headers, None, change), call.principal)

    def merge(self, call: Call[Merge, NoQuery]) -> Answer:
        self._found(call, Permission.INCIDENT_WRITE)
        into = self._incidents.get(call.body.into)
        require(call.principal, Permission.INCIDENT_WRITE, into.primary_dataset_urn)

        def change(version: int | None) -> Incident:
            return self._incidents.merge(
                call.path["incident_id"],
                call.body.into,
                actor=call.principal.name,
                reason=call.body.reason,
                expected_version=version,
            )

        return _shown(matching(call.headers, None, change), call.principal)

    def context(self, call: Call[None, NoQuery]) -> Answer:
        self._found(call, Permission.INCIDENT_READ)
        context = self._health.contexts.of(call.path["incident_id"])
        shown = complete(_visible_context(context, call.principal))
        return Answer({**shown, "signals": [signal_view(each) for each in context.signals]})

    def stats(self, call: Call[None, IncidentQuery]) -> Answer:
        return Answer(self._health.incident_listing.recovery(self._wanted(call)))

    def escalations(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(Escalations(self._health.incident_timers.due_escalations()))

    def _wanted(self, call: Call[None, IncidentQuery]) -> IncidentFilter:
        wanted = call.query.wanted()
        if wanted.dataset_urn is None:
            return wanted
        return replace(wanted, dataset_urn=self._read.one(wanted.dataset_urn, call.principal))

    def _found(self, call: Call[Any, Any], permission: Permission) -> Incident:
        """Return the incident of a request, if the caller has the permission on its dataset."""
        incident = self._incidents.get(call.path["incident_id"])
        require(call.principal, permission, incident.primary_dataset_urn)
        return incident


def _trouble(body: NewIncident, dataset_urn: str) -> IncidentReport:
    types = [*([body.signal_type] if body.signal_type else []), *body.signal_types]
    return IncidentReport(
        dataset_urn=dataset_urn,
        signal_types=tuple(dict.fromkeys(enums.signal_type(each) for each in types)),
        failure_signatures=tuple(body.failure_signatures),
        state=SignalState.CRITICAL,
        severity=None if body.severity is None else enums.severity(body.severity),
        title=body.title,
        implicated_producer=None if body.implicated_producer is None else body.implicated_producer.read(),
        blast_radius=None if body.blast_radius is None else body.blast_radius.read(),
        primary_evidence_id=body.primary_evidence_id,
        evidence_sample=tuple(body.evidence_sample),
        oncall_user=body.oncall_user,
        trace_id=body.trace_id,
        dedup_key=body.dedup_key,
    )


def _visible_context(context: IncidentContext, principal: Principal) -> IncidentContext:
    """Return the context as a principal may see it: evidence of other datasets is only named."""
    seen = [each for each in context.evidence if principal.reaches(each.dataset_urn)]
    hidden = [
        Missing("evidence", f"{each.evidence_id} belongs to a dataset out of your scope")
        for each in context.evidence
        if not principal.reaches(each.dataset_urn)
    ]
    return replace(
        context,
        incident=incident_view(context.incident, principal),
        evidence=tuple(seen),
        missing=(*context.missing, *hidden),
        complete=context.complete and not hidden,
    )


def _shown(
    incident: Incident, principal: Principal, status: int = 200, headers: Mapping[str, str] | None = None
) -> Answer:
    return Answer(complete(incident_view(incident, principal)), status, {**etag(incident.version), **(headers or {})})
