"""Incident reports: validation of a report, and the audit entry and event type of a change."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from headgate.auth.audit_entry import AuditEntry
from headgate.errors import InvalidPayloadError
from headgate.health.model import enums, urns
from headgate.health.model.enums import IncidentStatus
from headgate.health.model.events import IncidentChange, IncidentEventType
from headgate.health.model.incidents import TITLE_MAX, Incident, IncidentReport
from headgate.health.model.signals import is_signature
from headgate.health.model.urns import is_evidence_id

TYPES_MAX: Final = 50


def checked(report: IncidentReport) -> IncidentReport:
    """Return a report in canonical form. Raises `InvalidIdError` or `InvalidPayloadError`, naming the field."""
    urns.dataset_urn(report.dataset_urn)
    types = tuple(dict.fromkeys(enums.signal_type(each) for each in report.signal_types))
    about = f"incident of {report.dataset_urn}"
    if not types and not report.failure_signatures and not report.title:
        raise InvalidPayloadError(f"{about}: give signal_types, failure_signatures or a title")
    if len(types) > TYPES_MAX:
        raise InvalidPayloadError(f"{about}: signal_types names {len(types)}; name at most {TYPES_MAX}")
    wrong = next((each for each in report.failure_signatures if not is_signature(each)), None)
    if wrong is not None:
        raise InvalidPayloadError(f"{about}: failure_signatures {wrong[:40]!r}: write REASON_CODE:FIELD")
    if len(report.title) > TITLE_MAX:
        raise InvalidPayloadError(f"{about}: title is longer than {TITLE_MAX:,} characters")
    named = (*report.evidence_sample, *([report.primary_evidence_id] if report.primary_evidence_id else []))
    wrong = next((each for each in named if not is_evidence_id(each)), None)
    if wrong is not None:
        raise InvalidPayloadError(f"{about}: evidence_sample {wrong[:40]!r} is not an evidence id")
    return replace(report, signal_types=types)


def verb_of(before: Incident, after: Incident) -> str:
    """Return the audit verb of a change."""
    if before.status is not after.status:
        return {"OPEN": "reopen", "ACKNOWLEDGED": "acknowledge", "RESOLVED": "resolve"}[after.status]
    return "snooze" if before.snoozed_until != after.snoozed_until else "update"


def change_of(before: Incident, after: Incident) -> IncidentChange:
    """Return what a change made of an incident."""
    if before.status is not after.status:
        return {
            IncidentStatus.OPEN: IncidentChange.REOPENED,
            IncidentStatus.ACKNOWLEDGED: IncidentChange.ACKNOWLEDGED,
            IncidentStatus.RESOLVED: IncidentChange.RESOLVED,
        }[after.status]
    if after.severity < before.severity:
        # SEV_1 is the worst.
        return IncidentChange.RAISED
    return IncidentChange.SNOOZED if before.snoozed_until != after.snoozed_until else IncidentChange.UPDATED


def event_type_of(before: Incident, after: Incident) -> IncidentEventType:
    """Return the type of the event that a change publishes."""
    resolves = before.is_open and not after.is_open
    return IncidentEventType.RESOLVED if resolves else IncidentEventType.UPDATED


def audit_entry(actor: str, action: str, before: Incident | None, after: Incident, reason: str) -> AuditEntry:
    """Return the audit entry of a change."""
    changed = tuple(
        name
        for name in after.__struct_fields__
        if name not in ("version", "updated_at", "steps") and getattr(before, name, None) != getattr(after, name)
    )
    return AuditEntry(
        actor=actor,
        action=action,
        entity=after.incident_id,
        before_version=None if before is None else before.version,
        after_version=after.version,
        changed=changed,
        reason=reason,
    )
