"""Incident pages: the list, and one incident with its context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.auth.roles import Permission
from headgate.health.model.enums import IncidentStatus, Severity
from headgate.health.model.timestamps import instant
from headgate.serve.pages.api_calls import ApiCaller, Section, segment, twin
from headgate.serve.pages.health.datasets import Downstream, reached
from headgate.serve.pages.health.holds import held_section
from headgate.serve.pages.health.incident_actions import incident_actions
from headgate.serve.pages.health.incident_timeline import IncidentTimeline, incident_timeline
from headgate.serve.pages.health.lineage import Graph, graph_or_reason
from headgate.serve.pages.labels import command, headline, options
from headgate.serve.pages.live_updates import changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute

LISTED: Final = 50
# Steps of lineage that the graph of the blast radius shows.
BLAST_STEPS_MAX: Final = 6
ALERTS_READ_MAX: Final = 200
FILTERS: Final = ("status", "severity", "dataset_urn", "owner_team", "signal_type")
# Multi-value filters.
CHOICES: Final = frozenset({"status", "severity"})

# Facts that are normally equal between records; other facts differ anyway.
_SUSPECT: Final = frozenset({"Producer", "Producer version", "Schema", "Run"})


class IncidentList(Struct, frozen=True, kw_only=True):
    """A page of the list."""

    incidents: list[Any]
    next_page_token: str | None
    filters: Mapping[str, Any]
    cli: str
    statuses: tuple[str, ...] = tuple(each.value for each in IncidentStatus)
    severities: tuple[str, ...] = tuple(each.value for each in Severity)


class Contrasted(Struct, frozen=True):
    """One fact of the last good and the first bad record."""

    name: str
    good: str
    bad: str

    @property
    def differs(self) -> bool:
        """Whether both values are known and differ: a possible cause."""
        return self.name in _SUSPECT and bool(self.good) and bool(self.bad) and self.good != self.bad


class IncidentPage(Struct, frozen=True, kw_only=True):
    """View of an incident."""

    incident: Any
    context: Any
    timeline: IncidentTimeline
    contrast: list[Contrasted]
    downstream: Downstream | None
    graph: Graph | None
    graph_missing: str
    held: Section
    # The writers and readers that are pipelines here.
    pipelines: frozenset[str]
    alerts: Section
    next_escalation: str | None
    silenced_until: str | None
    commands: tuple[tuple[str, str], ...]


def incident_list(api: ApiCaller, query: Mapping[str, Any]) -> IncidentList:
    """Return a page of the list. Raises as the API operation."""
    found = api.call("GET /incidents", query={**query, "page_size": LISTED})
    filters = {name: query.get(name, [] if name in CHOICES else "") for name in FILTERS}
    given = (
        ("--status", filters["status"]),
        ("--severity", filters["severity"]),
        ("--dataset", filters["dataset_urn"]),
        ("--team", filters["owner_team"]),
    )
    every = [] if filters["status"] else ["--all"]
    return IncidentList(
        incidents=found["items"],
        next_page_token=found["next_page_token"],
        filters=filters,
        cli=command("incident", "ls", *options(given), *every),
    )


def incident_page(api: ApiCaller, incident_id: str) -> IncidentPage:
    """Return the page of an incident. Raises `NotFoundError`, and as the API operation."""
    context = api.call("GET /incidents/{incident_id}/context", path={"incident_id": incident_id})
    incident, radius = context["incident"], context["blast_radius"]
    is_open = incident["status"] != IncidentStatus.RESOLVED
    graph, graph_missing = graph_or_reason(api, incident["primary_dataset_urn"], up_steps=0, down_steps=BLAST_STEPS_MAX)
    now_ms = int(api.health.clock.seconds() * 1000)
    escalation = api.health.incident_timers.next_escalations([incident_id]).get(incident_id) if is_open else None
    alerts = _alerts(api, incident)
    return IncidentPage(
        incident=incident,
        context=context,
        timeline=incident_timeline(api, context, alerts.value or []),
        contrast=contrast(context["last_good"], context["first_bad"]),
        downstream=None if radius is None else reached(api, radius),
        graph=graph,
        graph_missing=graph_missing,
        held=held_section(api, datasets_of(incident)) if is_open else Section([]),
        pipelines=frozenset(
            name
            for each in (*context["writers"], *context["readers"])
            if api.may(Permission.PIPELINE_READ) and api.has_pipeline(name := each["entity_name"])
        ),
        alerts=alerts,
        silenced_until=_future(incident["silenced_until"], now_ms),
        next_escalation=None if escalation is None else instant(escalation.due_at_ms),
        commands=(
            ("This page", command("incident", "why", incident["incident_id"])),
            ("Its dataset", command("dataset", "show", incident["primary_dataset_urn"])),
            ("Follow incidents", command("incident", "watch")),
        ),
    )


def contrast(good: Mapping[str, Any] | None, bad: Mapping[str, Any] | None) -> list[Contrasted]:
    """Return the facts of both records side by side; none without records."""
    if good is None and bad is None:
        return []
    left, right = _facts(good), _facts(bad)
    return [Contrasted(name, left.get(name, ""), right.get(name, "")) for name in dict.fromkeys((*right, *left))]


def _facts(evidence: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the comparable facts of a record."""
    if evidence is None:
        return {}
    producer, source = evidence.get("producer") or {}, evidence.get("source") or {}
    prints, said = evidence.get("fingerprints") or {}, evidence["validation"]
    place = ":".join(str(source[part]) for part in ("topic", "partition", "offset") if source.get(part) is not None)
    facts = {
        "Evidence": evidence["evidence_id"],
        "At": evidence["created_at"],
        "Result": said["result"],
        "Reasons": ", ".join((said.get("reason_codes") or ()) or (said.get("failed_gates") or ())),
        "Producer": producer.get("producer_id"),
        "Producer version": producer.get("version"),
        "Record": place,
        "Schema": prints.get("schema_fingerprint"),
        "Run": (evidence.get("correlation") or {}).get("run_id"),
        "Trace": (evidence.get("otel") or {}).get("trace_id"),
        "Payload": evidence.get("payload_ref"),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _future(moment: str | None, now_ms: int) -> str | None:
    """Return a time that is not over, or None."""
    return moment if moment is not None and moment > instant(now_ms) else None


def datasets_of(incident: Mapping[str, Any]) -> list[str]:
    """Return the datasets that an incident is about, and those downstream as known when it was opened."""
    linked = [each["dataset_urn"] for each in incident["links"]]
    downstream = (incident["blast_radius"] or {}).get("downstream_datasets") or ()
    urns = (incident["primary_dataset_urn"], *linked, *incident["merged_datasets"], *downstream)
    return list(dict.fromkeys(urns))


def _alerts(api: ApiCaller, incident: Mapping[str, Any]) -> Section:
    """Return the alerts about an incident, latest first."""
    found = api.section("GET /alerts", query={"since": incident["created_at"], "limit": ALERTS_READ_MAX})
    if found.value is None:
        return found
    return Section([each for each in found.items("alerts") if each["incident_id"] == incident["incident_id"]])


def _list(api: ApiCaller, request: PageRequest) -> Page:
    view = incident_list(api, request.query)
    return Page(
        template="incidents.html",
        title="Incidents",
        view=view,
        json=twin("/incidents", request.query),
        cli=view.cli,
        changes=changes_of(),
        section="incidents",
    )


def _one(api: ApiCaller, request: PageRequest) -> Page:
    incident_id = request.path["incident_id"]
    view = incident_page(api, incident_id)
    return Page(
        template="incident.html",
        title=headline(view.incident["title"]),
        crumbs=(("Incidents", "/ui/incidents"),),
        view=view,
        actions=incident_actions(api, view.incident),
        json=twin(f"/incidents/{segment(incident_id)}/context"),
        cli=view.commands[0][1],
        changes=changes_of(dataset_urn=view.incident["primary_dataset_urn"]),
        section="incidents",
    )


PAGES: Final = (
    PageRoute("/incidents", _list, FILTERS, CHOICES),
    PageRoute("/incidents/{incident_id:str}", _one),
)
