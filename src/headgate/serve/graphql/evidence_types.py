"""GraphQL types of evidence."""

from __future__ import annotations

import strawberry

from headgate.health.evidence import rows as evidence_rows
from headgate.health.evidence.rows import Evidence, Result
from headgate.health.model.enums import Confidence
from headgate.serve.graphql.enums import Moment


@strawberry.type(name="EvidenceProducer")
class EvidenceProducerType:
    """Producer of the record, and the confidence."""

    producer_id: str
    version: str | None
    confidence: Confidence | None


@strawberry.type(name="EvidenceSource")
class EvidenceSourceType:
    """Position of the record. The offset is text, because it may exceed exact GraphQL numbers."""

    topic: str | None
    partition: str | None
    offset: str | None
    timestamp_type: str | None

    @classmethod
    def of(cls, source: evidence_rows.Source) -> EvidenceSourceType:
        return cls(
            topic=source.topic,
            partition=None if source.partition is None else str(source.partition),
            offset=None if source.offset is None else str(source.offset),
            timestamp_type=source.timestamp_type,
        )


@strawberry.type(name="EvidenceGate")
class EvidenceGateType:
    """Result of one validation gate."""

    gate: str
    result: Result
    reason_code: str | None
    details: str


@strawberry.type(name="Evidence")
class EvidenceType:
    """Evidence of one validated record. `payloadRef` locates the record, as the producer sent it."""

    evidence_id: strawberry.ID
    dataset_urn: str
    created_at: Moment
    result: Result
    failed_gates: list[str]
    reason_codes: list[str]
    gates: list[EvidenceGateType]
    producer: EvidenceProducerType | None
    source: EvidenceSourceType | None
    schema_fingerprint: str | None
    payload_hash: str | None
    trace_id: str | None
    span_id: str | None
    run_id: str | None
    dag_id: str | None
    job_id: str | None
    payload_ref: str | None
    payload_size_bytes: float | None
    pinned_by: list[str]
    archived: bool

    @classmethod
    def of(cls, evidence: Evidence) -> EvidenceType:
        said, producer = evidence.validation, evidence.producer
        prints, otel, run = evidence.fingerprints, evidence.otel, evidence.correlation
        size = evidence.payload_size_bytes
        return cls(
            evidence_id=strawberry.ID(evidence.evidence_id),
            dataset_urn=evidence.dataset_urn,
            created_at=Moment(evidence.created_at),
            result=said.result,
            failed_gates=list(said.failed_gates),
            reason_codes=list(said.reason_codes),
            gates=[_gate(each) for each in said.gates],
            producer=None if producer is None else _producer(producer),
            source=None if evidence.source is None else EvidenceSourceType.of(evidence.source),
            schema_fingerprint=None if prints is None else prints.schema_fingerprint,
            payload_hash=None if prints is None else prints.payload_hash,
            trace_id=None if otel is None else otel.trace_id,
            span_id=None if otel is None else otel.span_id,
            run_id=None if run is None else run.run_id,
            dag_id=None if run is None else run.dag_id,
            job_id=None if run is None else run.job_id,
            payload_ref=evidence.payload_ref,
            payload_size_bytes=None if size is None else float(size),
            pinned_by=list(evidence.pinned_by),
            archived=evidence.archived,
        )


def _producer(producer: evidence_rows.Producer) -> EvidenceProducerType:
    return EvidenceProducerType(
        producer_id=producer.producer_id, version=producer.version, confidence=producer.confidence
    )


def _gate(gate: evidence_rows.Gate) -> EvidenceGateType:
    return EvidenceGateType(gate=gate.gate, result=gate.result, reason_code=gate.reason_code, details=gate.details)
