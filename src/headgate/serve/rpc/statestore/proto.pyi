import datetime

from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UpdateSignalStateRequest(_message.Message):
    __slots__ = ("dataset_urn", "signal_type", "state", "expected_version")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    signal_type: str
    state: SignalStateValue
    expected_version: int
    def __init__(self, dataset_urn: _Optional[str] = ..., signal_type: _Optional[str] = ..., state: _Optional[_Union[SignalStateValue, _Mapping]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class SignalStateValue(_message.Message):
    __slots__ = ("state", "score", "slo_threshold", "breach_start", "window_start", "window_end", "window_type", "metrics", "failure_signature", "top_producer", "evidence_sample", "incident_id")
    STATE_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SLO_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    BREACH_START_FIELD_NUMBER: _ClassVar[int]
    WINDOW_START_FIELD_NUMBER: _ClassVar[int]
    WINDOW_END_FIELD_NUMBER: _ClassVar[int]
    WINDOW_TYPE_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    state: str
    score: float
    slo_threshold: float
    breach_start: _timestamp_pb2.Timestamp
    window_start: _timestamp_pb2.Timestamp
    window_end: _timestamp_pb2.Timestamp
    window_type: str
    metrics: SignalMetrics
    failure_signature: str
    top_producer: ProducerInfo
    evidence_sample: _containers.RepeatedScalarFieldContainer[str]
    incident_id: str
    def __init__(self, state: _Optional[str] = ..., score: _Optional[float] = ..., slo_threshold: _Optional[float] = ..., breach_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., window_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., window_end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., window_type: _Optional[str] = ..., metrics: _Optional[_Union[SignalMetrics, _Mapping]] = ..., failure_signature: _Optional[str] = ..., top_producer: _Optional[_Union[ProducerInfo, _Mapping]] = ..., evidence_sample: _Optional[_Iterable[str]] = ..., incident_id: _Optional[str] = ...) -> None: ...

class SignalMetrics(_message.Message):
    __slots__ = ("evidence_count", "pass_count", "fail_count")
    EVIDENCE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PASS_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAIL_COUNT_FIELD_NUMBER: _ClassVar[int]
    evidence_count: int
    pass_count: int
    fail_count: int
    def __init__(self, evidence_count: _Optional[int] = ..., pass_count: _Optional[int] = ..., fail_count: _Optional[int] = ...) -> None: ...

class ProducerInfo(_message.Message):
    __slots__ = ("producer_id", "version", "confidence", "deployed_at")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    DEPLOYED_AT_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    version: str
    confidence: str
    deployed_at: _timestamp_pb2.Timestamp
    def __init__(self, producer_id: _Optional[str] = ..., version: _Optional[str] = ..., confidence: _Optional[str] = ..., deployed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class UpdateSignalStateResponse(_message.Message):
    __slots__ = ("success", "new_version", "error_code", "error_message", "current_version", "current", "duplicate")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    NEW_VERSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    success: bool
    new_version: int
    error_code: str
    error_message: str
    current_version: int
    current: SignalState
    duplicate: bool
    def __init__(self, success: _Optional[bool] = ..., new_version: _Optional[int] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ..., current_version: _Optional[int] = ..., current: _Optional[_Union[SignalState, _Mapping]] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class BatchUpdateSignalStateRequest(_message.Message):
    __slots__ = ("updates",)
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    updates: _containers.RepeatedCompositeFieldContainer[UpdateSignalStateRequest]
    def __init__(self, updates: _Optional[_Iterable[_Union[UpdateSignalStateRequest, _Mapping]]] = ...) -> None: ...

class BatchUpdateSignalStateResponse(_message.Message):
    __slots__ = ("results", "success_count", "failure_count")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_COUNT_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[UpdateSignalStateResponse]
    success_count: int
    failure_count: int
    def __init__(self, results: _Optional[_Iterable[_Union[UpdateSignalStateResponse, _Mapping]]] = ..., success_count: _Optional[int] = ..., failure_count: _Optional[int] = ...) -> None: ...

class SignalState(_message.Message):
    __slots__ = ("dataset_urn", "signal_type", "value", "previous_state", "state_changed_at", "tier", "owner_team", "last_updated", "version", "stale", "age_seconds")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    OWNER_TEAM_FIELD_NUMBER: _ClassVar[int]
    LAST_UPDATED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    signal_type: str
    value: SignalStateValue
    previous_state: str
    state_changed_at: _timestamp_pb2.Timestamp
    tier: str
    owner_team: str
    last_updated: _timestamp_pb2.Timestamp
    version: int
    stale: bool
    age_seconds: float
    def __init__(self, dataset_urn: _Optional[str] = ..., signal_type: _Optional[str] = ..., value: _Optional[_Union[SignalStateValue, _Mapping]] = ..., previous_state: _Optional[str] = ..., state_changed_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tier: _Optional[str] = ..., owner_team: _Optional[str] = ..., last_updated: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., version: _Optional[int] = ..., stale: _Optional[bool] = ..., age_seconds: _Optional[float] = ...) -> None: ...

class GetSignalStateRequest(_message.Message):
    __slots__ = ("dataset_urn", "signal_type", "consistent")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONSISTENT_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    signal_type: str
    consistent: bool
    def __init__(self, dataset_urn: _Optional[str] = ..., signal_type: _Optional[str] = ..., consistent: _Optional[bool] = ...) -> None: ...

class GetDatasetSignalsRequest(_message.Message):
    __slots__ = ("dataset_urn", "signal_types", "consistent")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPES_FIELD_NUMBER: _ClassVar[int]
    CONSISTENT_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    signal_types: _containers.RepeatedScalarFieldContainer[str]
    consistent: bool
    def __init__(self, dataset_urn: _Optional[str] = ..., signal_types: _Optional[_Iterable[str]] = ..., consistent: _Optional[bool] = ...) -> None: ...

class GetDatasetSignalsResponse(_message.Message):
    __slots__ = ("signals",)
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    signals: _containers.RepeatedCompositeFieldContainer[SignalState]
    def __init__(self, signals: _Optional[_Iterable[_Union[SignalState, _Mapping]]] = ...) -> None: ...

class WatchSignalsRequest(_message.Message):
    __slots__ = ("dataset_urns", "signal_types", "cursor")
    DATASET_URNS_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPES_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    dataset_urns: _containers.RepeatedScalarFieldContainer[str]
    signal_types: _containers.RepeatedScalarFieldContainer[str]
    cursor: str
    def __init__(self, dataset_urns: _Optional[_Iterable[str]] = ..., signal_types: _Optional[_Iterable[str]] = ..., cursor: _Optional[str] = ...) -> None: ...

class SignalChange(_message.Message):
    __slots__ = ("signal", "cursor", "heartbeat")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    signal: SignalState
    cursor: str
    heartbeat: bool
    def __init__(self, signal: _Optional[_Union[SignalState, _Mapping]] = ..., cursor: _Optional[str] = ..., heartbeat: _Optional[bool] = ...) -> None: ...

class PutEvidenceRequest(_message.Message):
    __slots__ = ("evidence",)
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    evidence: Evidence
    def __init__(self, evidence: _Optional[_Union[Evidence, _Mapping]] = ...) -> None: ...

class Evidence(_message.Message):
    __slots__ = ("evidence_id", "dataset_urn", "created_at", "producer", "source", "validation", "fingerprints", "otel", "payload_ref", "payload_size_bytes", "correlation", "pinned_by", "archived")
    EVIDENCE_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    OTEL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_REF_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_FIELD_NUMBER: _ClassVar[int]
    PINNED_BY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    evidence_id: str
    dataset_urn: str
    created_at: _timestamp_pb2.Timestamp
    producer: ProducerInfo
    source: SourceInfo
    validation: ValidationResult
    fingerprints: Fingerprints
    otel: OtelContext
    payload_ref: str
    payload_size_bytes: int
    correlation: CorrelationInfo
    pinned_by: _containers.RepeatedScalarFieldContainer[str]
    archived: bool
    def __init__(self, evidence_id: _Optional[str] = ..., dataset_urn: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., producer: _Optional[_Union[ProducerInfo, _Mapping]] = ..., source: _Optional[_Union[SourceInfo, _Mapping]] = ..., validation: _Optional[_Union[ValidationResult, _Mapping]] = ..., fingerprints: _Optional[_Union[Fingerprints, _Mapping]] = ..., otel: _Optional[_Union[OtelContext, _Mapping]] = ..., payload_ref: _Optional[str] = ..., payload_size_bytes: _Optional[int] = ..., correlation: _Optional[_Union[CorrelationInfo, _Mapping]] = ..., pinned_by: _Optional[_Iterable[str]] = ..., archived: _Optional[bool] = ...) -> None: ...

class SourceInfo(_message.Message):
    __slots__ = ("topic", "partition", "offset", "timestamp_type")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TYPE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    timestamp_type: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_type: _Optional[str] = ...) -> None: ...

class ValidationResult(_message.Message):
    __slots__ = ("result", "failed_gates", "reason_codes", "gates")
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILED_GATES_FIELD_NUMBER: _ClassVar[int]
    REASON_CODES_FIELD_NUMBER: _ClassVar[int]
    GATES_FIELD_NUMBER: _ClassVar[int]
    result: str
    failed_gates: _containers.RepeatedScalarFieldContainer[str]
    reason_codes: _containers.RepeatedScalarFieldContainer[str]
    gates: _containers.RepeatedCompositeFieldContainer[GateResult]
    def __init__(self, result: _Optional[str] = ..., failed_gates: _Optional[_Iterable[str]] = ..., reason_codes: _Optional[_Iterable[str]] = ..., gates: _Optional[_Iterable[_Union[GateResult, _Mapping]]] = ...) -> None: ...

class GateResult(_message.Message):
    __slots__ = ("gate", "result", "reason_code", "details")
    GATE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    REASON_CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    gate: str
    result: str
    reason_code: str
    details: str
    def __init__(self, gate: _Optional[str] = ..., result: _Optional[str] = ..., reason_code: _Optional[str] = ..., details: _Optional[str] = ...) -> None: ...

class Fingerprints(_message.Message):
    __slots__ = ("schema_fingerprint", "payload_hash")
    SCHEMA_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    schema_fingerprint: str
    payload_hash: str
    def __init__(self, schema_fingerprint: _Optional[str] = ..., payload_hash: _Optional[str] = ...) -> None: ...

class OtelContext(_message.Message):
    __slots__ = ("trace_id", "span_id")
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    SPAN_ID_FIELD_NUMBER: _ClassVar[int]
    trace_id: str
    span_id: str
    def __init__(self, trace_id: _Optional[str] = ..., span_id: _Optional[str] = ...) -> None: ...

class CorrelationInfo(_message.Message):
    __slots__ = ("run_id", "dag_id", "job_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    DAG_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    dag_id: str
    job_id: str
    def __init__(self, run_id: _Optional[str] = ..., dag_id: _Optional[str] = ..., job_id: _Optional[str] = ...) -> None: ...

class PutEvidenceResponse(_message.Message):
    __slots__ = ("stored", "decision", "expires_at", "evidence_id", "error_code", "error_message")
    STORED_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    stored: bool
    decision: str
    expires_at: _timestamp_pb2.Timestamp
    evidence_id: str
    error_code: str
    error_message: str
    def __init__(self, stored: _Optional[bool] = ..., decision: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., evidence_id: _Optional[str] = ..., error_code: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class BatchPutEvidenceRequest(_message.Message):
    __slots__ = ("evidence",)
    EVIDENCE_FIELD_NUMBER: _ClassVar[int]
    evidence: _containers.RepeatedCompositeFieldContainer[Evidence]
    def __init__(self, evidence: _Optional[_Iterable[_Union[Evidence, _Mapping]]] = ...) -> None: ...

class BatchPutEvidenceResponse(_message.Message):
    __slots__ = ("results", "stored", "sampled_out", "failed", "shed")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_OUT_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PutEvidenceResponse]
    stored: int
    sampled_out: int
    failed: int
    shed: int
    def __init__(self, results: _Optional[_Iterable[_Union[PutEvidenceResponse, _Mapping]]] = ..., stored: _Optional[int] = ..., sampled_out: _Optional[int] = ..., failed: _Optional[int] = ..., shed: _Optional[int] = ...) -> None: ...

class GetEvidenceRequest(_message.Message):
    __slots__ = ("evidence_id", "include_archived")
    EVIDENCE_ID_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    evidence_id: str
    include_archived: bool
    def __init__(self, evidence_id: _Optional[str] = ..., include_archived: _Optional[bool] = ...) -> None: ...

class Incident(_message.Message):
    __slots__ = ("incident_id", "status", "severity", "title", "created_at", "updated_at", "resolved_at", "primary_dataset_urn", "signal_types", "failure_signatures", "implicated_producer", "blast_radius", "notification_state", "primary_evidence_id", "evidence_sample", "rca_summary", "owner_team", "oncall_user", "version", "phase", "episode", "snoozed_until", "merged_into", "assignee", "dedup_key", "resolution", "joined", "tier", "acknowledged_at", "trace_id", "escalation_level", "recurrences", "merged_from", "silenced_until")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_AT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    IMPLICATED_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    BLAST_RADIUS_FIELD_NUMBER: _ClassVar[int]
    NOTIFICATION_STATE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_EVIDENCE_ID_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    RCA_SUMMARY_FIELD_NUMBER: _ClassVar[int]
    OWNER_TEAM_FIELD_NUMBER: _ClassVar[int]
    ONCALL_USER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    SNOOZED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    MERGED_INTO_FIELD_NUMBER: _ClassVar[int]
    ASSIGNEE_FIELD_NUMBER: _ClassVar[int]
    DEDUP_KEY_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_AT_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    ESCALATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    RECURRENCES_FIELD_NUMBER: _ClassVar[int]
    MERGED_FROM_FIELD_NUMBER: _ClassVar[int]
    SILENCED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    status: str
    severity: str
    title: str
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    resolved_at: _timestamp_pb2.Timestamp
    primary_dataset_urn: str
    signal_types: _containers.RepeatedScalarFieldContainer[str]
    failure_signatures: _containers.RepeatedScalarFieldContainer[str]
    implicated_producer: ProducerInfo
    blast_radius: BlastRadius
    notification_state: NotificationState
    primary_evidence_id: str
    evidence_sample: _containers.RepeatedScalarFieldContainer[str]
    rca_summary: str
    owner_team: str
    oncall_user: str
    version: int
    phase: str
    episode: int
    snoozed_until: _timestamp_pb2.Timestamp
    merged_into: str
    assignee: str
    dedup_key: str
    resolution: Resolution
    joined: bool
    tier: str
    acknowledged_at: _timestamp_pb2.Timestamp
    trace_id: str
    escalation_level: int
    recurrences: int
    merged_from: _containers.RepeatedScalarFieldContainer[str]
    silenced_until: _timestamp_pb2.Timestamp
    def __init__(self, incident_id: _Optional[str] = ..., status: _Optional[str] = ..., severity: _Optional[str] = ..., title: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., resolved_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., primary_dataset_urn: _Optional[str] = ..., signal_types: _Optional[_Iterable[str]] = ..., failure_signatures: _Optional[_Iterable[str]] = ..., implicated_producer: _Optional[_Union[ProducerInfo, _Mapping]] = ..., blast_radius: _Optional[_Union[BlastRadius, _Mapping]] = ..., notification_state: _Optional[_Union[NotificationState, _Mapping]] = ..., primary_evidence_id: _Optional[str] = ..., evidence_sample: _Optional[_Iterable[str]] = ..., rca_summary: _Optional[str] = ..., owner_team: _Optional[str] = ..., oncall_user: _Optional[str] = ..., version: _Optional[int] = ..., phase: _Optional[str] = ..., episode: _Optional[int] = ..., snoozed_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., merged_into: _Optional[str] = ..., assignee: _Optional[str] = ..., dedup_key: _Optional[str] = ..., resolution: _Optional[_Union[Resolution, _Mapping]] = ..., joined: _Optional[bool] = ..., tier: _Optional[str] = ..., acknowledged_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., trace_id: _Optional[str] = ..., escalation_level: _Optional[int] = ..., recurrences: _Optional[int] = ..., merged_from: _Optional[_Iterable[str]] = ..., silenced_until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class BlastRadius(_message.Message):
    __slots__ = ("downstream_count", "downstream_services", "estimated_impact", "downstream_datasets", "tier_1_count", "incomplete")
    DOWNSTREAM_COUNT_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_SERVICES_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_IMPACT_FIELD_NUMBER: _ClassVar[int]
    DOWNSTREAM_DATASETS_FIELD_NUMBER: _ClassVar[int]
    TIER_1_COUNT_FIELD_NUMBER: _ClassVar[int]
    INCOMPLETE_FIELD_NUMBER: _ClassVar[int]
    downstream_count: int
    downstream_services: _containers.RepeatedScalarFieldContainer[str]
    estimated_impact: str
    downstream_datasets: _containers.RepeatedScalarFieldContainer[str]
    tier_1_count: int
    incomplete: bool
    def __init__(self, downstream_count: _Optional[int] = ..., downstream_services: _Optional[_Iterable[str]] = ..., estimated_impact: _Optional[str] = ..., downstream_datasets: _Optional[_Iterable[str]] = ..., tier_1_count: _Optional[int] = ..., incomplete: _Optional[bool] = ...) -> None: ...

class NotificationState(_message.Message):
    __slots__ = ("pagerduty_incident_id", "slack_thread_ts", "jira_ticket")
    PAGERDUTY_INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    SLACK_THREAD_TS_FIELD_NUMBER: _ClassVar[int]
    JIRA_TICKET_FIELD_NUMBER: _ClassVar[int]
    pagerduty_incident_id: str
    slack_thread_ts: str
    jira_ticket: str
    def __init__(self, pagerduty_incident_id: _Optional[str] = ..., slack_thread_ts: _Optional[str] = ..., jira_ticket: _Optional[str] = ...) -> None: ...

class Resolution(_message.Message):
    __slots__ = ("root_cause", "mitigation", "resolved_by", "false_positive", "reason")
    ROOT_CAUSE_FIELD_NUMBER: _ClassVar[int]
    MITIGATION_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_BY_FIELD_NUMBER: _ClassVar[int]
    FALSE_POSITIVE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    root_cause: str
    mitigation: str
    resolved_by: str
    false_positive: bool
    reason: str
    def __init__(self, root_cause: _Optional[str] = ..., mitigation: _Optional[str] = ..., resolved_by: _Optional[str] = ..., false_positive: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class CreateIncidentRequest(_message.Message):
    __slots__ = ("dataset_urn", "signal_type", "severity", "failure_signatures", "title", "implicated_producer", "blast_radius", "evidence_sample", "primary_evidence_id", "dedup_key", "idempotency_key", "oncall_user", "trace_id")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    IMPLICATED_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    BLAST_RADIUS_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_EVIDENCE_ID_FIELD_NUMBER: _ClassVar[int]
    DEDUP_KEY_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    ONCALL_USER_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    signal_type: str
    severity: str
    failure_signatures: _containers.RepeatedScalarFieldContainer[str]
    title: str
    implicated_producer: ProducerInfo
    blast_radius: BlastRadius
    evidence_sample: _containers.RepeatedScalarFieldContainer[str]
    primary_evidence_id: str
    dedup_key: str
    idempotency_key: str
    oncall_user: str
    trace_id: str
    def __init__(self, dataset_urn: _Optional[str] = ..., signal_type: _Optional[str] = ..., severity: _Optional[str] = ..., failure_signatures: _Optional[_Iterable[str]] = ..., title: _Optional[str] = ..., implicated_producer: _Optional[_Union[ProducerInfo, _Mapping]] = ..., blast_radius: _Optional[_Union[BlastRadius, _Mapping]] = ..., evidence_sample: _Optional[_Iterable[str]] = ..., primary_evidence_id: _Optional[str] = ..., dedup_key: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., oncall_user: _Optional[str] = ..., trace_id: _Optional[str] = ...) -> None: ...

class UpdateIncidentRequest(_message.Message):
    __slots__ = ("incident_id", "update_mask", "incident", "expected_version", "actor", "reason")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTOR_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    update_mask: _field_mask_pb2.FieldMask
    incident: Incident
    expected_version: int
    actor: str
    reason: str
    def __init__(self, incident_id: _Optional[str] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ..., incident: _Optional[_Union[Incident, _Mapping]] = ..., expected_version: _Optional[int] = ..., actor: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class GetIncidentRequest(_message.Message):
    __slots__ = ("incident_id", "consistent")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    CONSISTENT_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    consistent: bool
    def __init__(self, incident_id: _Optional[str] = ..., consistent: _Optional[bool] = ...) -> None: ...

class ResolveIncidentRequest(_message.Message):
    __slots__ = ("incident_id", "resolution", "expected_version")
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    RESOLUTION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    incident_id: str
    resolution: Resolution
    expected_version: int
    def __init__(self, incident_id: _Optional[str] = ..., resolution: _Optional[_Union[Resolution, _Mapping]] = ..., expected_version: _Optional[int] = ...) -> None: ...

class ListIncidentsRequest(_message.Message):
    __slots__ = ("status", "severity", "dataset_urn", "owner_team", "from_time", "to_time", "page_size", "page_token", "failure_signature", "signal_type")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    OWNER_TEAM_FIELD_NUMBER: _ClassVar[int]
    FROM_TIME_FIELD_NUMBER: _ClassVar[int]
    TO_TIME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    FAILURE_SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    status: _containers.RepeatedScalarFieldContainer[str]
    severity: _containers.RepeatedScalarFieldContainer[str]
    dataset_urn: str
    owner_team: str
    from_time: _timestamp_pb2.Timestamp
    to_time: _timestamp_pb2.Timestamp
    page_size: int
    page_token: str
    failure_signature: str
    signal_type: str
    def __init__(self, status: _Optional[_Iterable[str]] = ..., severity: _Optional[_Iterable[str]] = ..., dataset_urn: _Optional[str] = ..., owner_team: _Optional[str] = ..., from_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., to_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., failure_signature: _Optional[str] = ..., signal_type: _Optional[str] = ...) -> None: ...

class ListIncidentsResponse(_message.Message):
    __slots__ = ("incidents", "next_page_token")
    INCIDENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    incidents: _containers.RepeatedCompositeFieldContainer[Incident]
    next_page_token: str
    def __init__(self, incidents: _Optional[_Iterable[_Union[Incident, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchIncidentsRequest(_message.Message):
    __slots__ = ("dataset_urns", "cursor")
    DATASET_URNS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    dataset_urns: _containers.RepeatedScalarFieldContainer[str]
    cursor: str
    def __init__(self, dataset_urns: _Optional[_Iterable[str]] = ..., cursor: _Optional[str] = ...) -> None: ...

class IncidentChange(_message.Message):
    __slots__ = ("event_type", "incident", "cursor", "heartbeat")
    EVENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    event_type: str
    incident: Incident
    cursor: str
    heartbeat: bool
    def __init__(self, event_type: _Optional[str] = ..., incident: _Optional[_Union[Incident, _Mapping]] = ..., cursor: _Optional[str] = ..., heartbeat: _Optional[bool] = ...) -> None: ...

class DatasetLineageEntry(_message.Message):
    __slots__ = ("dataset_urn", "entity_id", "entity_name", "entity_type")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    ENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTITY_NAME_FIELD_NUMBER: _ClassVar[int]
    ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    entity_id: str
    entity_name: str
    entity_type: str
    def __init__(self, dataset_urn: _Optional[str] = ..., entity_id: _Optional[str] = ..., entity_name: _Optional[str] = ..., entity_type: _Optional[str] = ...) -> None: ...

class ColumnLineageEntry(_message.Message):
    __slots__ = ("column_urn", "entity_id", "entity_name", "entity_type")
    COLUMN_URN_FIELD_NUMBER: _ClassVar[int]
    ENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTITY_NAME_FIELD_NUMBER: _ClassVar[int]
    ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    column_urn: str
    entity_id: str
    entity_name: str
    entity_type: str
    def __init__(self, column_urn: _Optional[str] = ..., entity_id: _Optional[str] = ..., entity_name: _Optional[str] = ..., entity_type: _Optional[str] = ...) -> None: ...

class UpdateLineageRequest(_message.Message):
    __slots__ = ("spec_id", "dataset_writes", "dataset_reads", "column_writes", "column_reads", "confidence", "commit", "updated_at", "ttl_seconds", "producer_id", "producer_name", "producer_type", "partial")
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_WRITES_FIELD_NUMBER: _ClassVar[int]
    DATASET_READS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_WRITES_FIELD_NUMBER: _ClassVar[int]
    COLUMN_READS_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_TYPE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    spec_id: str
    dataset_writes: _containers.RepeatedCompositeFieldContainer[DatasetLineageEntry]
    dataset_reads: _containers.RepeatedCompositeFieldContainer[DatasetLineageEntry]
    column_writes: _containers.RepeatedCompositeFieldContainer[ColumnLineageEntry]
    column_reads: _containers.RepeatedCompositeFieldContainer[ColumnLineageEntry]
    confidence: str
    commit: str
    updated_at: _timestamp_pb2.Timestamp
    ttl_seconds: int
    producer_id: str
    producer_name: str
    producer_type: str
    partial: bool
    def __init__(self, spec_id: _Optional[str] = ..., dataset_writes: _Optional[_Iterable[_Union[DatasetLineageEntry, _Mapping]]] = ..., dataset_reads: _Optional[_Iterable[_Union[DatasetLineageEntry, _Mapping]]] = ..., column_writes: _Optional[_Iterable[_Union[ColumnLineageEntry, _Mapping]]] = ..., column_reads: _Optional[_Iterable[_Union[ColumnLineageEntry, _Mapping]]] = ..., confidence: _Optional[str] = ..., commit: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttl_seconds: _Optional[int] = ..., producer_id: _Optional[str] = ..., producer_name: _Optional[str] = ..., producer_type: _Optional[str] = ..., partial: _Optional[bool] = ...) -> None: ...

class UpdateLineageResponse(_message.Message):
    __slots__ = ("outcome", "added", "removed", "spec_id")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ADDED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    outcome: str
    added: int
    removed: int
    spec_id: str
    def __init__(self, outcome: _Optional[str] = ..., added: _Optional[int] = ..., removed: _Optional[int] = ..., spec_id: _Optional[str] = ...) -> None: ...

class GetLineageRequest(_message.Message):
    __slots__ = ("urn", "page_size", "page_token")
    URN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    urn: str
    page_size: int
    page_token: str
    def __init__(self, urn: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class LineageEntry(_message.Message):
    __slots__ = ("entity_id", "entity_name", "entity_type", "confidence", "spec_id", "commit", "updated_at", "urn")
    ENTITY_ID_FIELD_NUMBER: _ClassVar[int]
    ENTITY_NAME_FIELD_NUMBER: _ClassVar[int]
    ENTITY_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    URN_FIELD_NUMBER: _ClassVar[int]
    entity_id: str
    entity_name: str
    entity_type: str
    confidence: str
    spec_id: str
    commit: str
    updated_at: _timestamp_pb2.Timestamp
    urn: str
    def __init__(self, entity_id: _Optional[str] = ..., entity_name: _Optional[str] = ..., entity_type: _Optional[str] = ..., confidence: _Optional[str] = ..., spec_id: _Optional[str] = ..., commit: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., urn: _Optional[str] = ...) -> None: ...

class GetLineageResponse(_message.Message):
    __slots__ = ("entries", "next_page_token")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[LineageEntry]
    next_page_token: str
    def __init__(self, entries: _Optional[_Iterable[_Union[LineageEntry, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListByProducerRequest(_message.Message):
    __slots__ = ("producer_id",)
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    def __init__(self, producer_id: _Optional[str] = ...) -> None: ...

class ListByProducerResponse(_message.Message):
    __slots__ = ("producer_id", "dataset_writes", "dataset_reads", "column_writes", "column_reads", "complete")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    DATASET_WRITES_FIELD_NUMBER: _ClassVar[int]
    DATASET_READS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_WRITES_FIELD_NUMBER: _ClassVar[int]
    COLUMN_READS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    producer_id: str
    dataset_writes: _containers.RepeatedScalarFieldContainer[str]
    dataset_reads: _containers.RepeatedScalarFieldContainer[str]
    column_writes: _containers.RepeatedScalarFieldContainer[str]
    column_reads: _containers.RepeatedScalarFieldContainer[str]
    complete: bool
    def __init__(self, producer_id: _Optional[str] = ..., dataset_writes: _Optional[_Iterable[str]] = ..., dataset_reads: _Optional[_Iterable[str]] = ..., column_writes: _Optional[_Iterable[str]] = ..., column_reads: _Optional[_Iterable[str]] = ..., complete: _Optional[bool] = ...) -> None: ...

class GetLineageSpecRequest(_message.Message):
    __slots__ = ("spec_id",)
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    spec_id: str
    def __init__(self, spec_id: _Optional[str] = ...) -> None: ...

class LineageSpec(_message.Message):
    __slots__ = ("spec_id", "producer_id", "producer_name", "producer_type", "confidence", "commit", "updated_at", "dataset_writes", "dataset_reads", "column_writes", "column_reads", "partial")
    SPEC_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_NAME_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_TYPE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    DATASET_WRITES_FIELD_NUMBER: _ClassVar[int]
    DATASET_READS_FIELD_NUMBER: _ClassVar[int]
    COLUMN_WRITES_FIELD_NUMBER: _ClassVar[int]
    COLUMN_READS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    spec_id: str
    producer_id: str
    producer_name: str
    producer_type: str
    confidence: str
    commit: str
    updated_at: _timestamp_pb2.Timestamp
    dataset_writes: _containers.RepeatedScalarFieldContainer[str]
    dataset_reads: _containers.RepeatedScalarFieldContainer[str]
    column_writes: _containers.RepeatedScalarFieldContainer[str]
    column_reads: _containers.RepeatedScalarFieldContainer[str]
    partial: bool
    def __init__(self, spec_id: _Optional[str] = ..., producer_id: _Optional[str] = ..., producer_name: _Optional[str] = ..., producer_type: _Optional[str] = ..., confidence: _Optional[str] = ..., commit: _Optional[str] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., dataset_writes: _Optional[_Iterable[str]] = ..., dataset_reads: _Optional[_Iterable[str]] = ..., column_writes: _Optional[_Iterable[str]] = ..., column_reads: _Optional[_Iterable[str]] = ..., partial: _Optional[bool] = ...) -> None: ...

class DatasetConfig(_message.Message):
    __slots__ = ("dataset_urn", "display_name", "description", "tier", "owner_team", "owner_email", "oncall_rotation", "source", "schema_binding", "contract_binding", "slos", "pii_policy", "retention_days", "tags", "config_version", "status", "created_at", "updated_at", "updated_by", "archived_at", "gate")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    OWNER_TEAM_FIELD_NUMBER: _ClassVar[int]
    OWNER_EMAIL_FIELD_NUMBER: _ClassVar[int]
    ONCALL_ROTATION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_BINDING_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_BINDING_FIELD_NUMBER: _ClassVar[int]
    SLOS_FIELD_NUMBER: _ClassVar[int]
    PII_POLICY_FIELD_NUMBER: _ClassVar[int]
    RETENTION_DAYS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_FIELD_NUMBER: _ClassVar[int]
    UPDATED_BY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_AT_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    display_name: str
    description: str
    tier: str
    owner_team: str
    owner_email: str
    oncall_rotation: str
    source: DatasetSource
    schema_binding: SchemaBinding
    contract_binding: ContractBinding
    slos: SloConfig
    pii_policy: PiiPolicy
    retention_days: int
    tags: _containers.ScalarMap[str, str]
    config_version: int
    status: str
    created_at: _timestamp_pb2.Timestamp
    updated_at: _timestamp_pb2.Timestamp
    updated_by: str
    archived_at: _timestamp_pb2.Timestamp
    gate: DatasetGate
    def __init__(self, dataset_urn: _Optional[str] = ..., display_name: _Optional[str] = ..., description: _Optional[str] = ..., tier: _Optional[str] = ..., owner_team: _Optional[str] = ..., owner_email: _Optional[str] = ..., oncall_rotation: _Optional[str] = ..., source: _Optional[_Union[DatasetSource, _Mapping]] = ..., schema_binding: _Optional[_Union[SchemaBinding, _Mapping]] = ..., contract_binding: _Optional[_Union[ContractBinding, _Mapping]] = ..., slos: _Optional[_Union[SloConfig, _Mapping]] = ..., pii_policy: _Optional[_Union[PiiPolicy, _Mapping]] = ..., retention_days: _Optional[int] = ..., tags: _Optional[_Mapping[str, str]] = ..., config_version: _Optional[int] = ..., status: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_by: _Optional[str] = ..., archived_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., gate: _Optional[_Union[DatasetGate, _Mapping]] = ...) -> None: ...

class DatasetGate(_message.Message):
    __slots__ = ("upstream", "upstream_hops")
    UPSTREAM_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_HOPS_FIELD_NUMBER: _ClassVar[int]
    upstream: str
    upstream_hops: int
    def __init__(self, upstream: _Optional[str] = ..., upstream_hops: _Optional[int] = ...) -> None: ...

class DatasetSource(_message.Message):
    __slots__ = ("type", "topic", "cluster", "namespace", "name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    type: str
    topic: str
    cluster: str
    namespace: str
    name: str
    def __init__(self, type: _Optional[str] = ..., topic: _Optional[str] = ..., cluster: _Optional[str] = ..., namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class SchemaBinding(_message.Message):
    __slots__ = ("registry", "schema_name", "schema_id", "version_policy", "compatibility")
    REGISTRY_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_POLICY_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    registry: str
    schema_name: str
    schema_id: str
    version_policy: str
    compatibility: str
    def __init__(self, registry: _Optional[str] = ..., schema_name: _Optional[str] = ..., schema_id: _Optional[str] = ..., version_policy: _Optional[str] = ..., compatibility: _Optional[str] = ...) -> None: ...

class ContractBinding(_message.Message):
    __slots__ = ("contract_id", "required_fields", "field_constraints")
    class FieldConstraintsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _struct_pb2.Struct
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...
    CONTRACT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    FIELD_CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    contract_id: str
    required_fields: _containers.RepeatedScalarFieldContainer[str]
    field_constraints: _containers.MessageMap[str, _struct_pb2.Struct]
    def __init__(self, contract_id: _Optional[str] = ..., required_fields: _Optional[_Iterable[str]] = ..., field_constraints: _Optional[_Mapping[str, _struct_pb2.Struct]] = ...) -> None: ...

class SloConfig(_message.Message):
    __slots__ = ("freshness", "volume", "contract_compliance")
    FRESHNESS_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    CONTRACT_COMPLIANCE_FIELD_NUMBER: _ClassVar[int]
    freshness: FreshnessSlo
    volume: VolumeSlo
    contract_compliance: ComplianceSlo
    def __init__(self, freshness: _Optional[_Union[FreshnessSlo, _Mapping]] = ..., volume: _Optional[_Union[VolumeSlo, _Mapping]] = ..., contract_compliance: _Optional[_Union[ComplianceSlo, _Mapping]] = ...) -> None: ...

class FreshnessSlo(_message.Message):
    __slots__ = ("max_delay_seconds", "warning_delay_seconds", "evaluation_window", "on_silence")
    MAX_DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WARNING_DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_WINDOW_FIELD_NUMBER: _ClassVar[int]
    ON_SILENCE_FIELD_NUMBER: _ClassVar[int]
    max_delay_seconds: float
    warning_delay_seconds: float
    evaluation_window: str
    on_silence: str
    def __init__(self, max_delay_seconds: _Optional[float] = ..., warning_delay_seconds: _Optional[float] = ..., evaluation_window: _Optional[str] = ..., on_silence: _Optional[str] = ...) -> None: ...

class VolumeSlo(_message.Message):
    __slots__ = ("min_events_per_window", "max_deviation_percent", "baseline_window_days")
    MIN_EVENTS_PER_WINDOW_FIELD_NUMBER: _ClassVar[int]
    MAX_DEVIATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    BASELINE_WINDOW_DAYS_FIELD_NUMBER: _ClassVar[int]
    min_events_per_window: int
    max_deviation_percent: float
    baseline_window_days: int
    def __init__(self, min_events_per_window: _Optional[int] = ..., max_deviation_percent: _Optional[float] = ..., baseline_window_days: _Optional[int] = ...) -> None: ...

class ComplianceSlo(_message.Message):
    __slots__ = ("min_compliance_rate", "warning_compliance_rate")
    MIN_COMPLIANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    WARNING_COMPLIANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    min_compliance_rate: float
    warning_compliance_rate: float
    def __init__(self, min_compliance_rate: _Optional[float] = ..., warning_compliance_rate: _Optional[float] = ...) -> None: ...

class PiiPolicy(_message.Message):
    __slots__ = ("scan_enabled", "fields_to_scan", "action_on_detection")
    SCAN_ENABLED_FIELD_NUMBER: _ClassVar[int]
    FIELDS_TO_SCAN_FIELD_NUMBER: _ClassVar[int]
    ACTION_ON_DETECTION_FIELD_NUMBER: _ClassVar[int]
    scan_enabled: bool
    fields_to_scan: _containers.RepeatedScalarFieldContainer[str]
    action_on_detection: str
    def __init__(self, scan_enabled: _Optional[bool] = ..., fields_to_scan: _Optional[_Iterable[str]] = ..., action_on_detection: _Optional[str] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ("dataset_urn", "version", "fallback_on_miss")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_ON_MISS_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    version: int
    fallback_on_miss: str
    def __init__(self, dataset_urn: _Optional[str] = ..., version: _Optional[int] = ..., fallback_on_miss: _Optional[str] = ...) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("config", "stale", "age_seconds", "is_fallback", "warning", "cache_ttl_seconds")
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_FALLBACK_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    CACHE_TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    config: DatasetConfig
    stale: bool
    age_seconds: float
    is_fallback: bool
    warning: str
    cache_ttl_seconds: int
    def __init__(self, config: _Optional[_Union[DatasetConfig, _Mapping]] = ..., stale: _Optional[bool] = ..., age_seconds: _Optional[float] = ..., is_fallback: _Optional[bool] = ..., warning: _Optional[str] = ..., cache_ttl_seconds: _Optional[int] = ...) -> None: ...

class ResolveDatasetRequest(_message.Message):
    __slots__ = ("topic", "payload", "headers", "schema_id", "payload_json", "explain")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_JSON_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    topic: str
    payload: _struct_pb2.Struct
    headers: _containers.ScalarMap[str, str]
    schema_id: str
    payload_json: bytes
    explain: bool
    def __init__(self, topic: _Optional[str] = ..., payload: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., headers: _Optional[_Mapping[str, str]] = ..., schema_id: _Optional[str] = ..., payload_json: _Optional[bytes] = ..., explain: _Optional[bool] = ...) -> None: ...

class ResolveDatasetResponse(_message.Message):
    __slots__ = ("dataset_urn", "unmapped", "rule_topic_pattern", "rule_name", "snapshot_id", "warning", "explanation")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    UNMAPPED_FIELD_NUMBER: _ClassVar[int]
    RULE_TOPIC_PATTERN_FIELD_NUMBER: _ClassVar[int]
    RULE_NAME_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_ID_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    unmapped: bool
    rule_topic_pattern: str
    rule_name: str
    snapshot_id: str
    warning: str
    explanation: _containers.RepeatedCompositeFieldContainer[ResolutionStep]
    def __init__(self, dataset_urn: _Optional[str] = ..., unmapped: _Optional[bool] = ..., rule_topic_pattern: _Optional[str] = ..., rule_name: _Optional[str] = ..., snapshot_id: _Optional[str] = ..., warning: _Optional[str] = ..., explanation: _Optional[_Iterable[_Union[ResolutionStep, _Mapping]]] = ...) -> None: ...

class ResolutionStep(_message.Message):
    __slots__ = ("rule_topic_pattern", "rule_name", "outcome", "why")
    RULE_TOPIC_PATTERN_FIELD_NUMBER: _ClassVar[int]
    RULE_NAME_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    rule_topic_pattern: str
    rule_name: str
    outcome: str
    why: str
    def __init__(self, rule_topic_pattern: _Optional[str] = ..., rule_name: _Optional[str] = ..., outcome: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class ListDatasetsRequest(_message.Message):
    __slots__ = ("tier", "owner_team", "page_size", "page_token", "status", "source_type", "search")
    TIER_FIELD_NUMBER: _ClassVar[int]
    OWNER_TEAM_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TYPE_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    tier: str
    owner_team: str
    page_size: int
    page_token: str
    status: str
    source_type: str
    search: str
    def __init__(self, tier: _Optional[str] = ..., owner_team: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., status: _Optional[str] = ..., source_type: _Optional[str] = ..., search: _Optional[str] = ...) -> None: ...

class ListDatasetsResponse(_message.Message):
    __slots__ = ("datasets", "next_page_token")
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetConfig]
    next_page_token: str
    def __init__(self, datasets: _Optional[_Iterable[_Union[DatasetConfig, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class WatchConfigRequest(_message.Message):
    __slots__ = ("dataset_urns", "cursor")
    DATASET_URNS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    dataset_urns: _containers.RepeatedScalarFieldContainer[str]
    cursor: str
    def __init__(self, dataset_urns: _Optional[_Iterable[str]] = ..., cursor: _Optional[str] = ...) -> None: ...

class ConfigChange(_message.Message):
    __slots__ = ("dataset_urn", "changed_fields", "config_version", "updated_by", "timestamp", "cursor", "heartbeat", "status")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELDS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATED_BY_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    changed_fields: _containers.RepeatedScalarFieldContainer[str]
    config_version: int
    updated_by: str
    timestamp: _timestamp_pb2.Timestamp
    cursor: str
    heartbeat: bool
    status: str
    def __init__(self, dataset_urn: _Optional[str] = ..., changed_fields: _Optional[_Iterable[str]] = ..., config_version: _Optional[int] = ..., updated_by: _Optional[str] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., cursor: _Optional[str] = ..., heartbeat: _Optional[bool] = ..., status: _Optional[str] = ...) -> None: ...

class CheckRequest(_message.Message):
    __slots__ = ("principal", "verb", "dataset_urn", "on_unknown", "age_seconds_max")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    ON_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_MAX_FIELD_NUMBER: _ClassVar[int]
    principal: str
    verb: str
    dataset_urn: _containers.RepeatedScalarFieldContainer[str]
    on_unknown: str
    age_seconds_max: float
    def __init__(self, principal: _Optional[str] = ..., verb: _Optional[str] = ..., dataset_urn: _Optional[_Iterable[str]] = ..., on_unknown: _Optional[str] = ..., age_seconds_max: _Optional[float] = ...) -> None: ...

class CheckResponse(_message.Message):
    __slots__ = ("decision", "reasons", "since", "until", "overridable_by", "override_id", "ttl_seconds", "complete", "datasets", "as_of")
    DECISION_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    OVERRIDABLE_BY_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    decision: str
    reasons: _containers.RepeatedCompositeFieldContainer[GateReason]
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    overridable_by: _containers.RepeatedScalarFieldContainer[str]
    override_id: str
    ttl_seconds: int
    complete: bool
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetRuling]
    as_of: _timestamp_pb2.Timestamp
    def __init__(self, decision: _Optional[str] = ..., reasons: _Optional[_Iterable[_Union[GateReason, _Mapping]]] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., overridable_by: _Optional[_Iterable[str]] = ..., override_id: _Optional[str] = ..., ttl_seconds: _Optional[int] = ..., complete: _Optional[bool] = ..., datasets: _Optional[_Iterable[_Union[DatasetRuling, _Mapping]]] = ..., as_of: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GateReason(_message.Message):
    __slots__ = ("code", "dataset_urn", "signal_type", "incident_id", "since", "message", "decision", "upstream_urn")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_TYPE_FIELD_NUMBER: _ClassVar[int]
    INCIDENT_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    UPSTREAM_URN_FIELD_NUMBER: _ClassVar[int]
    code: str
    dataset_urn: str
    signal_type: str
    incident_id: str
    since: _timestamp_pb2.Timestamp
    message: str
    decision: str
    upstream_urn: str
    def __init__(self, code: _Optional[str] = ..., dataset_urn: _Optional[str] = ..., signal_type: _Optional[str] = ..., incident_id: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., message: _Optional[str] = ..., decision: _Optional[str] = ..., upstream_urn: _Optional[str] = ...) -> None: ...

class DatasetRuling(_message.Message):
    __slots__ = ("dataset_urn", "decision", "since", "until", "override_id")
    DATASET_URN_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    OVERRIDE_ID_FIELD_NUMBER: _ClassVar[int]
    dataset_urn: str
    decision: str
    since: _timestamp_pb2.Timestamp
    until: _timestamp_pb2.Timestamp
    override_id: str
    def __init__(self, dataset_urn: _Optional[str] = ..., decision: _Optional[str] = ..., since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., override_id: _Optional[str] = ...) -> None: ...
