"""Incident pages: the list, and one incident with its context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from headgate.health.model.enums import IncidentStatus, Severity
from headgate.serve.pages.api_calls import ApiCaller, segment, twin
from headgate.serve.pages.datasets import Downstream, reached
from headgate.serve.pages.labels import command, options
from headgate.serve.pages.live_updates import changes_of
from headgate.serve.pages.page import Page, PageRequest, PageRoute

LISTED: Final = 50
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
    """View of an incident, with the timeline newest first."""

    incident: Any
    context: Any
    timeline: list[Any]
    contrast: list[Contrasted]
    downstream: Downstream | None
    actions: tuple[tuple[str, str], ...]
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
    return IncidentPage(
        incident=incident,
        context=context,
        timeline=context["timeline"][::-1],
        contrast=contrast(context["last_good"], context["first_bad"]),
        downstream=None if radius is None else reached(api, radius),
        actions=_actions(incident),
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


def _actions(incident: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the available actions with their commands."""
    name = incident["incident_id"]
    if incident["merged_into"]:
        return (("Show the incident it was merged into", command("incident", "why", incident["merged_into"])),)
    if incident["status"] == IncidentStatus.RESOLVED:
        return (("Reopen", command("incident", "reopen", name, "--reason", "WHY")),)
    acknowledge = (("Acknowledge and assign to you", command("incident", "ack", name, "--assign", "YOU")),)
    return (
        *(acknowledge if incident["status"] == IncidentStatus.OPEN else ()),
        ("Assign", command("incident", "assign", name, "WHO")),
        ("Note the root cause", command("incident", "note", name, "ROOT CAUSE")),
        ("Snooze", command("incident", "snooze", name, "1h")),
        ("Merge into another incident", command("incident", "merge", name, "--into", "OTHER")),
        ("Resolve", command("incident", "resolve", name, "--cause", "ROOT CAUSE")),
    )


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
        title=view.incident["title"],
        crumbs=(("Incidents", "/ui/incidents"),),
        view=view,
        json=twin(f"/incidents/{segment(incident_id)}/context"),
        cli=view.commands[0][1],
        changes=changes_of(dataset_urn=view.incident["primary_dataset_urn"]),
        section="incidents",
    )


PAGES: Final = (
    PageRoute("/incidents", _list, FILTERS, CHOICES),
    PageRoute("/incidents/{incident_id:str}", _one),
)
