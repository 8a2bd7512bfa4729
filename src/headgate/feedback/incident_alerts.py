"""Incident alerts: sends changes of incidents through the alert channels, and acknowledgements in both directions.

Events of incidents arrive over the bus from the transaction of their change, at least once and in any order. Each is a
notice with an id of its own; afterwards the alerts of the incident follow its current state, so that the result does
not depend on order or repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog
from msgspec import Struct

from headgate.clock import Clock, epoch_ms
from headgate.durable.bus.events import Event
from headgate.errors import CorruptionError, IllegalTransitionError, NotFoundError
from headgate.health.model.enums import IncidentStatus
from headgate.health.model.enums import Severity as IncidentSeverity
from headgate.health.model.events import IncidentChange
from headgate.health.model.incidents import Changes, Incident
from headgate.health.service import HealthService
from headgate.ids import made_at_ms
from headgate.notify.alert_rows import Alert
from headgate.notify.alerts import ACKNOWLEDGED, AlertAcknowledged, Alerts
from headgate.notify.enums import INFRASTRUCTURE, AlertStatus, DefaultRoute, Severity
from headgate.notify.notices import Notice, period_thread
from headgate.notify.notifier import Notifier

TYPES: Final = ("headgate.incident.*",)
ACKNOWLEDGED_TYPES: Final = (ACKNOWLEDGED,)
# The evidence of a pipeline names its gate, and the period as its job.
_PIPELINE_GATE: Final = "pipeline"
_LEVELS_MAX: Final = 3
ALERT_SEVERITIES: Final = {
    IncidentSeverity.SEV_1: (Severity.CRITICAL, DefaultRoute.PAGE),
    IncidentSeverity.SEV_2: (Severity.WARNING, DefaultRoute.NOTIFY),
    IncidentSeverity.SEV_3: (Severity.WARNING, DefaultRoute.NOTIFY),
}
ALERT_EVENTS: Final = {
    IncidentChange.OPENED: "INCIDENT_OPENED",
    IncidentChange.REOPENED: "INCIDENT_REOPENED",
    IncidentChange.RAISED: "INCIDENT_ESCALATED",
    IncidentChange.ESCALATED: "INCIDENT_ESCALATED",
}
RESOLVED_EVENT: Final = "INCIDENT_RESOLVED"
_HINT: Final = "'headgate incident show {incident_id}' shows evidence and impact; acknowledge it to stop its escalation"
_log = structlog.get_logger("headgate.feedback")


class IncidentFacts(Struct, frozen=True, kw_only=True):
    """The part of an incident's event that alerts use. Events of earlier builds have no `change`."""

    incident_id: str
    change: str = ""
    escalation_level: int = 0
    reason: str = ""


class Cause(Struct, frozen=True, kw_only=True):
    """The period of a pipeline whose outcome opened an incident; empty for other causes."""

    pipeline_id: str = INFRASTRUCTURE
    schedule_id: str = ""
    date: str = ""
    run_id: str = ""


def notice_for(incident: Incident, facts: IncidentFacts, cause: Cause, event_id: str, at_ms: int) -> Notice | None:
    """Return the notice of a change that people are alerted to, or None. Pure."""
    try:
        event = ALERT_EVENTS.get(IncidentChange(facts.change))
    except ValueError:
        event = None
    if event is None:
        return None
    severity, route = ALERT_SEVERITIES[incident.severity]
    thread = _incident_key(incident.incident_id)
    if cause.date:
        thread = period_thread(cause.pipeline_id, cause.schedule_id, cause.date)
    return Notice(
        event=event,
        event_id=f"incident#{event_id}",
        severity=severity,
        route=route,
        alerts=True,
        is_news=True,
        text=_text(incident, facts),
        dedup_key=_key(incident, facts),
        at_ms=at_ms,
        pipeline_id=cause.pipeline_id,
        schedule_id=cause.schedule_id,
        date=cause.date,
        run_id=cause.run_id,
        message=incident.title,
        hint=_HINT.format(incident_id=incident.incident_id),
        detail={
            "incident": incident.incident_id,
            "dataset": incident.primary_dataset_urn,
            "severity": incident.severity.value,
            "tier": incident.tier.value,
            "team": incident.owner_team,
            "signals": ", ".join(incident.signal_types),
            "signature": ", ".join(incident.failure_signatures[:3]),
            "downstream": 0 if incident.blast_radius is None else incident.blast_radius.downstream_count,
        },
        incident_id=incident.incident_id,
        dataset_urn=incident.primary_dataset_urn,
        tier=incident.tier.value,
        team=incident.owner_team,
        owner=incident.assignee or incident.oncall_user or incident.owner_team,
        thread=thread,
    )


def alert_keys(incident_id: str) -> tuple[str, ...]:
    """Return the dedup keys that alerts of an incident can have."""
    own = _incident_key(incident_id)
    levels = [f"{own}#L{level}" for level in range(1, _LEVELS_MAX + 1)]
    return (own, *levels, *(f"{own}#{severity}" for severity in IncidentSeverity))


class IncidentAlerts:
    """Bus subscriber for incidents and acknowledgements. Idempotent; safe to use from many threads."""

    def __init__(self, health: HealthService, notifier: Notifier, alerts: Alerts, clock: Clock) -> None:
        self._health = health
        self._notifier = notifier
        self._alerts = alerts
        self._clock = clock

    def on_incident(self, event: Event) -> None:
        """Alert people to a change of an incident. Raises `TransientError` for a retry."""
        facts = event.data_as(IncidentFacts)
        try:
            incident = self._health.incidents.get(facts.incident_id)
        except NotFoundError:
            return
        if incident.is_open:
            notice = notice_for(incident, facts, self._cause(incident), event.id, epoch_ms(self._clock))
            if notice is not None:
                self._notifier.take(notice)
        self._follow(self._health.incidents.get(facts.incident_id))

    def on_acknowledged(self, event: Event) -> None:
        """Acknowledge the incident of an alert that was acknowledged, here or in another tool."""
        data = event.data_as(AlertAcknowledged)
        if not data.incident_id:
            return
        try:
            incident = self._health.incidents.get(data.incident_id)
            if incident.status is IncidentStatus.OPEN:
                changes = Changes(status=IncidentStatus.ACKNOWLEDGED.value, reason=data.note)
                self._health.incidents.change(data.incident_id, changes, actor=data.by)
        except (NotFoundError, IllegalTransitionError) as exc:
            # Resolved or deleted meanwhile: there is nothing left to acknowledge.
            _log.info("incident not acknowledged", incident_id=data.incident_id, reason=str(exc))

    def _follow(self, incident: Incident) -> None:
        """Acknowledge or resolve the alerts of an incident as the incident is."""
        if incident.status is IncidentStatus.OPEN:
            return
        for alert in self._open_alerts(alert_keys(incident.incident_id)):
            if incident.is_open:
                by, note = _actor(incident), _reason(incident)
                self._alerts.acknowledge(alert.alert_id, by=by, note=note, is_audited=False)
            else:
                self._alerts.resolve(alert, by=RESOLVED_EVENT)

    def _open_alerts(self, keys: Sequence[str]) -> list[Alert]:
        found = []
        for latest in self._alerts.latest_alerts(keys):
            if latest is not None:
                alert = self._alerts.find(latest.pipeline_id, made_at_ms(latest.alert_id), latest.alert_id)
                if alert is not None and alert.status is not AlertStatus.RESOLVED:
                    found.append(alert)
        return found

    def _cause(self, incident: Incident) -> Cause:
        """Return the period that opened an incident, from its evidence."""
        evidence_id = incident.primary_evidence_id or next(iter(incident.evidence_sample), None)
        if evidence_id is None:
            return Cause()
        try:
            evidence = self._health.evidence.get(evidence_id)
        except CorruptionError:
            return Cause()
        if evidence is None or evidence.correlation is None or evidence.producer is None:
            return Cause()
        gates = () if evidence.validation is None else evidence.validation.gates
        schedule_id, _, date = (evidence.correlation.job_id or "").partition(" ")
        if not date or not any(gate.gate == _PIPELINE_GATE for gate in gates):
            return Cause()
        return Cause(
            pipeline_id=evidence.producer.producer_id or INFRASTRUCTURE,
            schedule_id=schedule_id,
            date=date,
            run_id=evidence.correlation.run_id or "",
        )


def _incident_key(incident_id: str) -> str:
    return f"INCIDENT#{incident_id}"


def _key(incident: Incident, facts: IncidentFacts) -> str:
    own = _incident_key(incident.incident_id)
    if facts.change == IncidentChange.ESCALATED:
        return f"{own}#L{min(facts.escalation_level, _LEVELS_MAX)}"
    return f"{own}#{incident.severity}" if facts.change == IncidentChange.RAISED else own


def _text(incident: Incident, facts: IncidentFacts) -> str:
    what = {
        IncidentChange.OPENED: f"incident opened, {incident.severity}",
        IncidentChange.REOPENED: f"incident reopened, {incident.severity}",
        IncidentChange.RAISED: f"incident raised to {incident.severity}",
        IncidentChange.ESCALATED: f"incident escalated to level {facts.escalation_level}: not acknowledged",
    }[IncidentChange(facts.change)]
    signals = ", ".join(incident.signal_types) or incident.title
    return f"{incident.primary_dataset_urn}: {what} ({signals})"


def _actor(incident: Incident) -> str:
    """Return who acknowledged an incident."""
    steps = [step for step in incident.steps if step.status is IncidentStatus.ACKNOWLEDGED]
    return steps[-1].actor if steps else "unknown"


def _reason(incident: Incident) -> str:
    steps = [step for step in incident.steps if step.status is IncidentStatus.ACKNOWLEDGED]
    return steps[-1].reason if steps else ""
