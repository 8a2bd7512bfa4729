"""Health events: the events that health publishes on the bus when a signal or an incident changes."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from headgate.durable.bus.events import Event
from headgate.health.model.enums import IncidentStatus, Phase, Severity, SignalState, Tier
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal
from headgate.ids import IdMaker
from headgate.store.model.requests import Write

SOURCE: Final = "/headgate/health"

# Returns the writes that publish an event in the caller's transaction, given the event and the current time in ms.
EventWrites = Callable[[Event, int], list[Write]]


def no_event_writes(_event: Event, _now_ms: int) -> list[Write]:
    """Publish nothing."""
    return []


class IncidentEventType(enum.StrEnum):
    """The kind of change of an incident."""

    CREATED = "created"
    UPDATED = "updated"
    RESOLVED = "resolved"


class IncidentChange(enum.StrEnum):
    """What happened to an incident, finer than the event type."""

    OPENED = "opened"
    JOINED = "joined"
    # A worse breach joined it, or a person raised its severity.
    RAISED = "raised"
    REOPENED = "reopened"
    ESCALATED = "escalated"
    ACKNOWLEDGED = "acknowledged"
    SNOOZED = "snoozed"
    MERGED = "merged"
    RESOLVED = "resolved"
    UPDATED = "updated"


class SignalChanged(Struct, frozen=True, kw_only=True):
    """The data of `headgate.signal.state_changed`: a signal changed its state."""

    event_type: str = "SIGNAL_STATE_CHANGED"
    dataset_urn: str
    signal_type: str
    previous_state: SignalState | None
    new_state: SignalState
    failure_signature: str | None
    timestamp: str
    version: int
    score: float
    window_start: str
    window_end: str
    incident_id: str | None
    tier: Tier
    owner_team: str


class IncidentChanged(Struct, frozen=True, kw_only=True):
    """The data of `headgate.incident.created`, `.updated` and `.resolved`: an incident, without encrypted fields."""

    event_type: str
    change: IncidentChange
    incident_id: str
    severity: Severity
    status: IncidentStatus
    phase: Phase
    dataset_urn: str
    signal_types: tuple[str, ...]
    failure_signatures: tuple[str, ...]
    title: str
    owner_team: str
    tier: Tier
    escalation_level: int
    episode: int
    timestamp: str
    version: int
    reason: str


def signal_changed(signal: Signal, ids: IdMaker) -> Event:
    """Return the event of a signal transition."""
    return _event(
        ids,
        "headgate.signal.state_changed",
        signal.dataset_urn,
        SignalChanged(
            dataset_urn=signal.dataset_urn,
            signal_type=signal.signal_type,
            previous_state=signal.previous_state,
            new_state=signal.state,
            failure_signature=signal.value.failure_signature,
            timestamp=signal.last_updated,
            version=signal.version,
            score=signal.value.score,
            window_start=signal.value.window_start,
            window_end=signal.value.window_end,
            incident_id=signal.value.incident_id,
            tier=signal.tier,
            owner_team=signal.owner_team,
        ),
    )


def incident_event(
    incident: Incident, event_type: IncidentEventType, ids: IdMaker, *, change: IncidentChange, reason: str = ""
) -> Event:
    """Return the event of an opened, changed or resolved incident, without its encrypted fields."""
    return _event(
        ids,
        f"headgate.incident.{event_type}",
        incident.incident_id,
        IncidentChanged(
            event_type=f"INCIDENT_{event_type.value.upper()}",
            change=change,
            incident_id=incident.incident_id,
            severity=incident.severity,
            status=incident.status,
            phase=incident.phase,
            dataset_urn=incident.primary_dataset_urn,
            signal_types=tuple(incident.signal_types),
            failure_signatures=tuple(incident.failure_signatures),
            title=incident.title,
            owner_team=incident.owner_team,
            tier=incident.tier,
            escalation_level=incident.escalation_level,
            episode=incident.episode,
            timestamp=incident.updated_at,
            version=incident.version,
            reason=reason,
        ),
    )


def _event(ids: IdMaker, kind: str, subject: str, data: SignalChanged | IncidentChanged) -> Event:
    # Plain values: subscriptions filter by them.
    return Event(id=ids.make("evt"), type=kind, source=SOURCE, subject=subject, data=msgspec.to_builtins(data))
