"""Ingest effects: the plain values that an OpenLineage event or a dbt artifact is translated into.

Each is idempotent: signals have their window, lineage its timestamp, evidence an id of its own.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Final

from msgspec import Struct

from headgate.health.jobs.model import RunReport
from headgate.health.model.dataset_fields import Observation
from headgate.health.model.datasets import Metadata
from headgate.health.model.enums import Confidence, EntityType, SignalState
from headgate.health.model.signals import ANY_VERSION, Metrics, Producer, SignalUpdate, SignalValue
from headgate.health.model.timestamps import milliseconds
from headgate.health.results.model import Report, ResultKind

_BASE32: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BYTES: Final = 10
_ULID_LENGTH: Final = 26


class RunState(enum.StrEnum):
    """The state of a run in an event."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    ABORT = "ABORT"
    FAIL = "FAIL"
    OTHER = "OTHER"


class DatasetDiscovered(Struct, frozen=True, kw_only=True):
    """A dataset that an event names and that is not registered."""

    dataset_urn: str
    namespace: str
    name: str
    metadata: Metadata | None = None


class MetadataEffect(Struct, frozen=True, kw_only=True):
    """What a tool knows of a dataset: description, owner, tags."""

    dataset_urn: str
    metadata: Metadata


class FieldsEffect(Struct, frozen=True, kw_only=True):
    """The fields of a dataset, as a tool reports them."""

    dataset_urn: str
    observation: Observation


class RunEffect(Struct, frozen=True, kw_only=True):
    """What an event or artifact says about a run of a job."""

    report: RunReport


class AliasEffect(Struct, frozen=True, kw_only=True):
    """An alias of a dataset, and its source."""

    namespace: str
    name: str
    dataset_urn: str
    provenance: str


class LifecycleEffect(Struct, frozen=True, kw_only=True):
    """A lifecycle change of a dataset: DROP, RENAME (from `previous_urn`), TRUNCATE and the like."""

    dataset_urn: str
    change: str
    at: str
    previous_urn: str | None = None


class SpecUpdate(Struct, frozen=True, kw_only=True):
    """What an event says a producer reads and writes. With a run, it is merged with the run's other events."""

    producer_id: str
    producer_name: str
    at: str
    producer_type: EntityType = EntityType.JOB
    confidence: Confidence = Confidence.HIGH
    source: str = "openlineage"
    commit: str | None = None
    run_id: str | None = None
    state: RunState = RunState.OTHER
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    column_reads: frozenset[str] = frozenset()
    column_writes: frozenset[str] = frozenset()


class SignalEffect(Struct, frozen=True, kw_only=True):
    """The value of a signal at a time."""

    dataset_urn: str
    signal_type: str
    state: SignalState
    score: float
    window_start: str
    window_end: str
    window_type: str = ""
    slo_threshold: float = 0.0
    metrics: Metrics = Metrics()
    failure_signature: str | None = None
    message: str | None = None
    producer_id: str | None = None
    producer_version: str = ""
    evidence_ids: tuple[str, ...] = ()

    def update(self) -> SignalUpdate:
        """Return the signal update, without a version check: the order of windows decides."""
        producer = None
        if self.producer_id is not None:
            producer = Producer(producer_id=self.producer_id, version=self.producer_version, confidence=Confidence.HIGH)
        value = SignalValue(
            state=self.state,
            score=self.score,
            window_start=self.window_start,
            window_end=self.window_end,
            window_type=self.window_type,
            slo_threshold=self.slo_threshold,
            metrics=self.metrics,
            failure_signature=self.failure_signature,
            message=self.message,
            top_producer=producer,
            evidence_sample=self.evidence_ids,
        )
        return SignalUpdate(
            dataset_urn=self.dataset_urn, signal_type=self.signal_type, value=value, expected_version=ANY_VERSION
        )


class ResultEffect(Struct, frozen=True, kw_only=True):
    """The result of a test or of a run. Without a dataset it is about every output of the run.

    `detail` is a stack trace or the like, which only the evidence keeps.
    """

    dataset_urn: str | None
    kind: ResultKind
    test_id: str
    state: SignalState
    at: str
    started_at: str
    signature: str
    source: str
    column: str | None = None
    message: str = ""
    detail: str = ""
    failures: int | None = None
    producer_id: str | None = None
    producer_version: str = ""
    run_id: str | None = None
    job: str | None = None
    parent_job: str | None = None

    @property
    def evidence_id(self) -> str | None:
        """The id of the evidence of a failure, the same for a repeated event."""
        if not self.state.is_breach:
            return None
        parts = (self.producer_id or self.source, self.run_id or "", self.dataset_urn or "", self.test_id)
        return evidence_id(milliseconds(self.at), *parts)

    def report(self, dataset_urn: str) -> Report:
        """Return the report about a dataset."""
        return Report(
            dataset_urn=dataset_urn,
            kind=self.kind,
            test_id=self.test_id,
            state=self.state,
            at=self.at,
            started_at=self.started_at,
            signature=self.signature,
            source=self.source,
            column=self.column,
            message=self.message,
            failures=self.failures,
            run_id=self.run_id,
            producer_id=self.producer_id,
            producer_version=self.producer_version,
            evidence_id=self.evidence_id,
        )


class IngestWarning(Struct, frozen=True):
    """A part of the input that was ignored, and why."""

    where: str
    reason: str


Effect = (
    DatasetDiscovered | MetadataEffect | FieldsEffect | AliasEffect | LifecycleEffect | SpecUpdate | SignalEffect
    | ResultEffect | RunEffect | IngestWarning
)  # fmt: skip


def evidence_id(at_ms: int, *parts: str) -> str:
    """Return a deterministic evidence id for these parts: a ULID with the given timestamp."""
    named = "\x00".join(parts).encode(errors="surrogatepass")
    number = at_ms << (8 * _RANDOM_BYTES) | int.from_bytes(hashlib.blake2b(named, digest_size=_RANDOM_BYTES).digest())
    text = "".join(_BASE32[number >> (5 * place) & 31] for place in reversed(range(_ULID_LENGTH)))
    return f"evd-{text}"
