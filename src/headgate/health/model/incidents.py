"""Incident values: an incident, the report that opens one, and the changes that people make."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.health.model.enums import Impact, IncidentStatus, Phase, Severity, SignalState, Tier
from headgate.health.model.signals import Producer

# Limits that keep an incident and its companion rows within one transaction.
SAMPLES_MAX: Final = 20
LINKS_MAX: Final = 30
KEYS_MAX: Final = 5
SIGNATURES_MAX: Final = 50
STEPS_MAX: Final = 50
TEXT_MAX: Final = 16_384
TITLE_MAX: Final = 1_024


class BlastRadius(Struct, frozen=True, kw_only=True):
    """The datasets and services downstream. `complete` is false if the lineage was too large or unknown."""

    downstream_count: int = 0
    downstream_services: tuple[str, ...] = ()
    estimated_impact: Impact = Impact.UNKNOWN
    downstream_datasets: tuple[str, ...] = ()
    tier_1_count: int = 0
    complete: bool = True


class Notification(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """References to notifications that other tools sent. Encrypted at rest."""

    pagerduty_incident_id: str | None = None
    slack_thread_ts: str | None = None
    jira_ticket: str | None = None


class Resolution(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why and by whom an incident was resolved."""

    root_cause: str = ""
    mitigation: str = ""
    resolved_by: str = ""
    false_positive: bool = False
    reason: str = ""


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of status or phase, in the incident's own log."""

    at: str
    actor: str
    status: IncidentStatus
    phase: Phase
    reason: str = ""


class Link(Struct, frozen=True, order=True):
    """A signal that is linked to an incident."""

    dataset_urn: str
    signal_type: str


class Incident(Struct, frozen=True, kw_only=True):
    """An incident. `episode` counts how often it reopened after a resolution, `recurrences` how often its failure came
    back, after a resolution or while it was open.

    `links` are its signals. `links_complete` is false if there were more than it can hold; then it never resolves
    automatically. `merged_keys` are the deduplication keys of incidents that were merged into it. `severity_is_set`: a
    person or a report gave the severity; otherwise it follows the tier of the dataset. `silenced_until`: a person
    resolved it while a signal was still CRITICAL, and the same breach opens nothing before this time.
    """

    incident_id: str
    status: IncidentStatus
    phase: Phase
    severity: Severity
    title: str
    created_at: str
    updated_at: str
    primary_dataset_urn: str
    dedup_key: str
    tier: Tier
    owner_team: str
    version: int
    resolved_at: str | None = None
    acknowledged_at: str | None = None
    signal_types: tuple[str, ...] = ()
    failure_signatures: tuple[str, ...] = ()
    implicated_producer: Producer | None = None
    blast_radius: BlastRadius | None = None
    notification_state: Notification | None = None
    primary_evidence_id: str | None = None
    evidence_sample: tuple[str, ...] = ()
    rca_summary: str | None = None
    oncall_user: str | None = None
    assignee: str | None = None
    trace_id: str | None = None
    resolution: Resolution | None = None
    episode: int = 1
    episode_started_at: str = ""
    recurrences: int = 0
    escalation_level: int = 0
    snoozed_until: str | None = None
    merged_into: str | None = None
    merged_from: tuple[str, ...] = ()
    merged_keys: tuple[str, ...] = ()
    merged_datasets: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    links_complete: bool = True
    steps: tuple[Step, ...] = ()
    severity_is_set: bool = False
    silenced_until: str | None = None

    @property
    def is_open(self) -> bool:
        return self.status is not IncidentStatus.RESOLVED

    @property
    def is_closed(self) -> bool:
        """Whether it can no longer reopen."""
        return self.phase is Phase.CLOSED or self.merged_into is not None

    @property
    def keys(self) -> tuple[str, ...]:
        """Every deduplication key of the incident."""
        return (self.dedup_key, *self.merged_keys)

    @property
    def dataset_urns(self) -> tuple[str, ...]:
        """Every dataset of the incident, the primary one first."""
        linked = (link.dataset_urn for link in self.links)
        return tuple(dict.fromkeys((self.primary_dataset_urn, *self.merged_datasets, *linked)))


class IncidentReport(Struct, frozen=True, kw_only=True):
    """A request for an incident. It joins the open incident with the same `dedup_key`, if there is one."""

    dataset_urn: str
    signal_types: tuple[str, ...]
    failure_signatures: tuple[str, ...] = ()
    state: SignalState = SignalState.CRITICAL
    severity: Severity | None = None
    title: str = ""
    implicated_producer: Producer | None = None
    blast_radius: BlastRadius | None = None
    primary_evidence_id: str | None = None
    evidence_sample: tuple[str, ...] = ()
    oncall_user: str | None = None
    trace_id: str | None = None
    dedup_key: str = ""


class Changes(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes to an incident. None leaves a field as it is."""

    status: str | None = None
    severity: str | None = None
    title: str | None = None
    assignee: str | None = None
    oncall_user: str | None = None
    rca_summary: str | None = None
    ticket: str | None = None
    notification_state: Notification | None = None
    resolution: Resolution | None = None
    reason: str = ""
