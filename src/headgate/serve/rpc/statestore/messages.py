"""Signals and incidents: conversion between domain structs and protobuf messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from headgate.errors import InvalidPayloadError
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.model import enums, urns
from headgate.health.model.incidents import BlastRadius, Changes, Incident, IncidentReport, Notification, Resolution
from headgate.health.model.signals import Metrics, Producer, Signal, SignalUpdate, SignalValue, UpdateResult
from headgate.health.model.timestamps import instant, milliseconds
from headgate.serve.rpc.statestore import proto as pb
from headgate.telemetry import correlation_id

# The last second of the year 8999: sort keys have four-digit years.
_SECONDS_MAX: Final = 221_845_391_999
_NANOS_MAX: Final = 999_999_999


def timestamp_of(message: Any, field: str) -> str | None:  # noqa: ANN401 - any message that has the field
    """Return a timestamp in the stored form, or None if it is not set. Raises `InvalidPayloadError`."""
    if not message.HasField(field):
        return None
    value = getattr(message, field)
    if not 0 <= value.seconds <= _SECONDS_MAX or not 0 <= value.nanos <= _NANOS_MAX:
        raise InvalidPayloadError(
            f"{field}: {value.seconds} s and {value.nanos} ns are not a valid timestamp since 1970"
        )
    return instant(value.seconds * 1000 + value.nanos // 1_000_000)


def set_timestamp(message: Any, field: str, text: str | None) -> None:  # noqa: ANN401
    """Set a timestamp field, unless `text` is empty."""
    if text:
        seconds, ms = divmod(milliseconds(text), 1000)
        target = getattr(message, field)
        target.seconds, target.nanos = seconds, ms * 1_000_000


# Signals.


def signal_message(signal: Signal) -> pb.SignalState:
    message = pb.SignalState(
        dataset_urn=signal.dataset_urn,
        signal_type=signal.signal_type,
        tier=signal.tier,
        owner_team=signal.owner_team,
        version=signal.version,
        previous_state=signal.previous_state or "",
    )
    if signal.stale:
        message.stale = True
        message.age_seconds = signal.age_seconds
    set_timestamp(message, "state_changed_at", signal.state_changed_at)
    set_timestamp(message, "last_updated", signal.last_updated)
    _fill_value(message.value, signal.value)
    return message


def _fill_value(message: pb.SignalStateValue, value: SignalValue) -> None:
    message.state = value.state
    message.score = value.score
    message.slo_threshold = value.slo_threshold
    message.window_type = value.window_type
    metrics = value.metrics
    message.metrics.evidence_count = metrics.evidence_count
    message.metrics.pass_count = metrics.pass_count
    message.metrics.fail_count = metrics.fail_count
    set_timestamp(message, "window_start", value.window_start)
    set_timestamp(message, "window_end", value.window_end)
    set_timestamp(message, "breach_start", value.breach_start)
    if value.failure_signature:
        message.failure_signature = value.failure_signature
    if value.incident_id:
        message.incident_id = value.incident_id
    if value.evidence_sample:
        message.evidence_sample.extend(value.evidence_sample)
    if value.top_producer is not None:
        fill_producer(message.top_producer, value.top_producer)


def update_of(message: pb.UpdateSignalStateRequest) -> SignalUpdate:
    """Parse a signal update. Raises `InvalidPayloadError`."""
    if not message.HasField("state"):
        raise InvalidPayloadError("state: missing; set at least state.state, window_start and window_end")
    return SignalUpdate(
        dataset_urn=message.dataset_urn,
        signal_type=message.signal_type,
        value=_value_of(message.state),
        expected_version=message.expected_version,
        is_counted=message.state.HasField("metrics"),
        correlation_id=correlation_id(),
    )


def _value_of(message: pb.SignalStateValue) -> SignalValue:
    started, ended = timestamp_of(message, "window_start"), timestamp_of(message, "window_end")
    if started is None or ended is None:
        field = "window_start" if started is None else "window_end"
        raise InvalidPayloadError(f"state.{field}: missing; a state belongs to a window")
    metrics = message.metrics
    return SignalValue(
        state=enums.signal_state(message.state),
        score=message.score,
        window_start=started,
        window_end=ended,
        slo_threshold=message.slo_threshold,
        window_type=message.window_type,
        metrics=Metrics(
            evidence_count=metrics.evidence_count, pass_count=metrics.pass_count, fail_count=metrics.fail_count
        ),
        breach_start=timestamp_of(message, "breach_start"),
        failure_signature=message.failure_signature or None,
        top_producer=producer_of(message.top_producer) if message.HasField("top_producer") else None,
        evidence_sample=tuple(message.evidence_sample),
        incident_id=message.incident_id or None,
    )


def result_message(result: UpdateResult) -> pb.UpdateSignalStateResponse:
    """Return the outcome of an update."""
    signal = result.signal
    version = 0 if signal is None else signal.version
    if result.is_success:
        return pb.UpdateSignalStateResponse(
            success=True,
            new_version=version,
            current_version=version,
            duplicate=result.verdict is result.verdict.DUPLICATE,
        )
    return pb.UpdateSignalStateResponse(
        error_code=result.verdict,
        error_message=result.message,
        current_version=version,
        current=None if signal is None else signal_message(signal),
    )


def producer_of(message: pb.ProducerInfo) -> Producer | None:
    """Return a producer, or None for one without an id. Raises `InvalidPayloadError`."""
    if not message.producer_id:
        return None
    return Producer(
        producer_id=message.producer_id,
        version=message.version,
        confidence=enums.confidence(message.confidence) if message.confidence else None,
        deployed_at=timestamp_of(message, "deployed_at"),
    )


def fill_producer(message: pb.ProducerInfo, producer: Producer) -> None:
    message.producer_id = producer.producer_id
    message.version = producer.version
    message.confidence = producer.confidence or ""
    set_timestamp(message, "deployed_at", producer.deployed_at)


# Incidents.


def incident_message(incident: Incident, *, joined: bool = False) -> pb.Incident:
    message = pb.Incident(
        incident_id=incident.incident_id,
        status=incident.status,
        severity=incident.severity,
        title=incident.title,
        primary_dataset_urn=incident.primary_dataset_urn,
        signal_types=incident.signal_types,
        failure_signatures=incident.failure_signatures,
        primary_evidence_id=incident.primary_evidence_id or "",
        evidence_sample=incident.evidence_sample,
        rca_summary=incident.rca_summary or "",
        owner_team=incident.owner_team,
        oncall_user=incident.oncall_user or "",
        version=incident.version,
        phase=incident.phase,
        episode=incident.episode,
        merged_into=incident.merged_into or "",
        assignee=incident.assignee or "",
        dedup_key=incident.dedup_key,
        joined=joined,
        tier=incident.tier,
        trace_id=incident.trace_id or "",
        escalation_level=incident.escalation_level,
        recurrences=incident.recurrences,
        merged_from=incident.merged_from,
    )
    for field in ("created_at", "updated_at", "resolved_at", "acknowledged_at", "snoozed_until", "silenced_until"):
        set_timestamp(message, field, getattr(incident, field))
    _fill_parts(message, incident)
    return message


def _fill_parts(message: pb.Incident, incident: Incident) -> None:
    if incident.implicated_producer is not None:
        fill_producer(message.implicated_producer, incident.implicated_producer)
    radius = incident.blast_radius
    if radius is not None:
        message.blast_radius.downstream_count = radius.downstream_count
        message.blast_radius.downstream_services.extend(radius.downstream_services)
        message.blast_radius.estimated_impact = radius.estimated_impact
        message.blast_radius.downstream_datasets.extend(radius.downstream_datasets)
        message.blast_radius.tier_1_count = radius.tier_1_count
        message.blast_radius.incomplete = not radius.complete
    notified = incident.notification_state
    if notified is not None:
        message.notification_state.pagerduty_incident_id = notified.pagerduty_incident_id or ""
        message.notification_state.slack_thread_ts = notified.slack_thread_ts or ""
        message.notification_state.jira_ticket = notified.jira_ticket or ""
    resolution = incident.resolution
    if resolution is not None:
        message.resolution.root_cause = resolution.root_cause
        message.resolution.mitigation = resolution.mitigation
        message.resolution.resolved_by = resolution.resolved_by
        message.resolution.false_positive = resolution.false_positive
        message.resolution.reason = resolution.reason


def report_of(message: pb.CreateIncidentRequest) -> IncidentReport:
    """Parse the report of a new incident. Raises `InvalidIdError` or `InvalidPayloadError`."""
    severity = enums.severity(message.severity) if message.severity else None
    return IncidentReport(
        dataset_urn=urns.dataset_urn(message.dataset_urn),
        signal_types=(enums.signal_type(message.signal_type),),
        failure_signatures=tuple(message.failure_signatures),
        severity=severity,
        title=message.title,
        implicated_producer=producer_of(message.implicated_producer),
        blast_radius=_blast_radius_of(message.blast_radius) if message.HasField("blast_radius") else None,
        primary_evidence_id=message.primary_evidence_id or None,
        evidence_sample=tuple(message.evidence_sample),
        oncall_user=message.oncall_user or None,
        trace_id=message.trace_id or None,
        dedup_key=message.dedup_key,
    )


def _blast_radius_of(message: pb.BlastRadius) -> BlastRadius:
    impact = message.estimated_impact
    return BlastRadius(
        downstream_count=message.downstream_count,
        downstream_services=tuple(message.downstream_services),
        estimated_impact=enums.impact(impact) if impact else enums.Impact.UNKNOWN,
        downstream_datasets=tuple(message.downstream_datasets),
        tier_1_count=message.tier_1_count,
        complete=not message.incomplete,
    )


# Incident fields that a request can change.
_CHANGEABLE: Final = (
    "status",
    "severity",
    "title",
    "assignee",
    "oncall_user",
    "rca_summary",
    "notification_state",
    "resolution",
)


def changes_of(message: pb.UpdateIncidentRequest) -> Changes:
    """Parse the changes. Raises `InvalidPayloadError` for a read-only field."""
    fields = _masked_fields(message)
    incident = message.incident
    changes: dict[str, Any] = {field: getattr(incident, field) for field in fields if field not in _PARTS}
    if "notification_state" in fields:
        changes["notification_state"] = _notification_of(incident.notification_state)
    if "resolution" in fields:
        changes["resolution"] = resolution_of(incident.resolution)
    # The phase, a finer status, applies if the mask has no status.
    if "phase" in changes:
        changes.setdefault("status", changes.pop("phase"))
    actor = f"for {message.actor}: " if message.actor else ""
    return Changes(**changes, reason=f"{actor}{message.reason}" if actor or message.reason else "")


_PARTS: Final = ("notification_state", "resolution")


def _masked_fields(message: pb.UpdateIncidentRequest) -> list[str]:
    if not message.HasField("update_mask"):
        return [field.name for field, _ in message.incident.ListFields() if field.name in (*_CHANGEABLE, "phase")]
    fields = list(dict.fromkeys(path.partition(".")[0] for path in message.update_mask.paths))
    for field in fields:
        if field not in (*_CHANGEABLE, "phase"):
            raise InvalidPayloadError(f"update_mask: {field[:40]!r} cannot be changed; {', '.join(_CHANGEABLE)} can")
    return fields


def _notification_of(message: pb.NotificationState) -> Notification:
    return Notification(
        pagerduty_incident_id=message.pagerduty_incident_id or None,
        slack_thread_ts=message.slack_thread_ts or None,
        jira_ticket=message.jira_ticket or None,
    )


def resolution_of(message: pb.Resolution) -> Resolution:
    return Resolution(
        root_cause=message.root_cause,
        mitigation=message.mitigation,
        resolved_by=message.resolved_by,
        false_positive=message.false_positive,
        reason=message.reason,
    )


def filter_of(message: pb.ListIncidentsRequest) -> IncidentFilter:
    """Parse the incident filter. Raises `InvalidIdError` or `InvalidPayloadError`."""
    return IncidentFilter(
        statuses=_distinct(enums.stage(each).status for each in message.status),
        severities=_distinct(enums.severity(each) for each in message.severity),
        dataset_urn=urns.dataset_urn(message.dataset_urn) if message.dataset_urn else None,
        owner_team=message.owner_team or None,
        failure_signature=message.failure_signature or None,
        signal_type=enums.signal_type(message.signal_type) if message.signal_type else None,
        since=timestamp_of(message, "from_time") or "",
        until=timestamp_of(message, "to_time") or "9999",
    )


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))
