"""GraphQL types of evidence."""

from __future__ import annotations

import strawberry

from headgate.health.evidence import rows as evidence_rows
from headgate.health.evidence.rows import Evidence, Result
from headgate.health.model.enums import Confidence
from headgate.serve.graphql.enums import Moment
from headgate.serve.http.views import shown


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
        return shown(
            cls,
            source,
            partition=None if source.partition is None else str(source.partition),
            offset=None if source.offset is None else str(source.offset),
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
        producer, source, size = evidence.producer, evidence.source, evidence.payload_size_bytes
        return shown(
            cls,
            evidence,
            evidence.validation,
            evidence.fingerprints,
            evidence.otel,
            evidence.correlation,
            gates=[shown(EvidenceGateType, each) for each in evidence.validation.gates],
            producer=None if producer is None else shown(EvidenceProducerType, producer),
            source=None if source is None else EvidenceSourceType.of(source),
            payload_size_bytes=None if size is None else float(size),
        )
