"""Evaluation log: stores the result of every readiness evaluation, so that it can be explained later."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from headgate.clock import Clock
from headgate.ids import IdMaker
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.rules.facts import Facts, Memory, TraitFact
from headgate.pipelines.rules.readiness import Blocker, ReadinessResult, ReadinessVerdict
from headgate.pipelines.rules.rules import Evaluation
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import EVALUATION, PIPELINES, READINESS
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

RETENTION_SECONDS: Final = 30 * 86_400
# How long the cached readiness of a pipeline is served without a new evaluation.
CACHE_SECONDS: Final = 300


class Purpose(enum.StrEnum):
    """The purpose of an evaluation, and the prefix of its id."""

    READINESS = "readiness"
    POST_RUN = "postrun"
    # An operator's trial: no run acts on it.
    TRIAL = "trial"


class SeenSensor(Struct, frozen=True, omit_defaults=True):
    """The state of a sensor that an evaluation has read."""

    version: int = 0
    changed_at_ms: int = 0
    period: str | None = None


class Outlook(Struct, frozen=True, kw_only=True):
    """The run that an evaluation belongs to, and when the next one follows."""

    run_id: str = ""
    execution: str = ""
    next_at_ms: int | None = None
    window_closes_at_ms: int | None = None
    # Whether the readiness poller evaluates again while the execution waits.
    is_polled: bool = False


class StoredEvaluation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An evaluation as stored."""

    evaluation_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    purpose: Purpose
    at_ms: int
    evaluation: Evaluation
    verdict: ReadinessVerdict
    seen: dict[str, SeenSensor] = {}
    traits: dict[str, TraitFact] = {}
    run_id: str = ""
    execution: str = ""
    next_at_ms: int | None = None
    window_closes_at_ms: int | None = None
    is_polled: bool = field(default=False, name="is_watched")

    @property
    def slot(self) -> Slot:
        """The evaluated period."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class CachedReadiness(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last readiness of a pipeline, for cheap reads."""

    pipeline_id: str
    schedule_id: str
    date: str
    evaluation_id: str
    result: ReadinessResult
    reason: str
    at_ms: int
    blocking: tuple[Blocker, ...] = ()


class EvaluationPage(Struct, frozen=True):
    """A page of evaluations, latest first, with the cursor to earlier ones."""

    evaluations: list[StoredEvaluation]
    cursor: str | None = None


class Evaluations:
    """Stores and reads evaluations. Thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        retention_seconds: int = RETENTION_SECONDS,
        cache_seconds: int = CACHE_SECONDS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._retention_seconds = retention_seconds
        self._cache_seconds = cache_seconds

    def put(
        self,
        slot: Slot,
        evaluation: Evaluation,
        verdict: ReadinessVerdict,
        *,
        facts: Facts | None = None,
        purpose: Purpose = Purpose.READINESS,
        outlook: Outlook | None = None,
        also: Sequence[Write] = (),
    ) -> StoredEvaluation:
        """Store an evaluation together with the writes of `also`, in one transaction.

        Raises `ConflictError` if a write of `also` is refused; then nothing is stored.
        """
        stored = self.make(slot, evaluation, verdict, facts=facts, purpose=purpose, outlook=outlook)
        self._store.transact([*self.writes(stored), *also])
        return stored

    def make(
        self,
        slot: Slot,
        evaluation: Evaluation,
        verdict: ReadinessVerdict,
        *,
        facts: Facts | None = None,
        purpose: Purpose = Purpose.READINESS,
        outlook: Outlook | None = None,
    ) -> StoredEvaluation:
        """Return an evaluation with a new id, not yet stored."""
        facts = facts if facts is not None else Facts()
        outlook = outlook if outlook is not None else Outlook()
        return StoredEvaluation(
            evaluation_id=self._ids.make(purpose.value),
            pipeline_id=slot.pipeline_id,
            schedule_id=slot.schedule_id,
            date=slot.date,
            purpose=purpose,
            at_ms=evaluation.at_ms,
            evaluation=evaluation,
            verdict=verdict,
            seen={
                key: SeenSensor(sensor.version, sensor.changed_at_ms, sensor.period)
                for key, sensor in facts.sensors.items()
            },
            traits=dict(facts.traits),
            run_id=outlook.run_id,
            execution=outlook.execution,
            next_at_ms=outlook.next_at_ms,
            window_closes_at_ms=outlook.window_closes_at_ms,
            is_polled=outlook.is_polled,
        )

    def writes(self, stored: StoredEvaluation) -> list[Write]:
        """Return the writes that store an evaluation; one of readiness also updates the pipeline's cached readiness."""
        expires_at = int(self._clock.seconds()) + self._retention_seconds
        writes: list[Write] = [Put(PIPELINES, row(evaluation_key(stored), stored, ttl=expires_at), quiet=True)]
        if stored.purpose is Purpose.READINESS:
            cached = CachedReadiness(
                pipeline_id=stored.pipeline_id,
                schedule_id=stored.schedule_id,
                date=stored.date,
                evaluation_id=stored.evaluation_id,
                result=stored.verdict.result,
                reason=stored.verdict.reason,
                at_ms=stored.at_ms,
                blocking=stored.verdict.blocking,
            )
            fresh_until = int(self._clock.seconds()) + self._cache_seconds
            writes.append(
                Put(PIPELINES, row(READINESS.key(pipeline_id=stored.pipeline_id), cached, ttl=fresh_until), quiet=True)
            )
        return writes

    def find(self, slot: Slot, evaluation_id: str) -> StoredEvaluation | None:
        """Return one evaluation of a period, or None."""
        key = EVALUATION.key(**slot._asdict(), evaluation_id=evaluation_id)
        item = self._store.get(PIPELINES, key, consistent=True)
        return None if item is None else evaluation_of(item)

    def latest(self, slot: Slot, *, purpose: Purpose = Purpose.READINESS) -> StoredEvaluation | None:
        """Return the latest evaluation of a period, or None."""
        return next(iter(self.ls(slot, purpose=purpose, limit=1).evaluations), None)

    def memory(
        self, slot: Slot, *, purpose: Purpose = Purpose.READINESS, run_id: str = "", spacing_seconds: float = 0.0
    ) -> Memory | None:
        """Return the rule memory that the next evaluation continues from.

        With `run_id`, the memory of another run is ignored: passes of yesterday do not count towards consecutive passes
        today. Evaluations less than `spacing_seconds` apart count once, so that a retried task or a sensor pushed twice
        does not count double.
        """
        last = self.latest(slot, purpose=purpose)
        if last is None or (run_id and last.run_id != run_id):
            return None
        memory = last.evaluation.memory
        return Memory(fingerprint=memory.fingerprint, rules=memory.rules, spacing_ms=int(spacing_seconds * 1000))

    def ls(
        self, slot: Slot, *, purpose: Purpose = Purpose.READINESS, limit: int = 100, cursor: str | None = None
    ) -> EvaluationPage:
        """Return the evaluations of a period, latest first."""
        key = EVALUATION.key(**slot._asdict(), evaluation_id=f"{purpose.value}_")
        page = self._store.query(
            Query(
                table=PIPELINES,
                partition=key.partition,
                sort=Sort(Range.BEGINS_WITH, key.sort if key.sort is not None else ""),
                limit=limit,
                cursor=cursor,
                descending=True,
                consistent=True,
            )
        )
        return EvaluationPage([evaluation_of(item) for item in page.items], page.cursor)

    def cached(self, pipeline_id: str) -> CachedReadiness | None:
        """Return the last readiness of a pipeline, or None if it has expired."""
        item = self._store.get(PIPELINES, READINESS.key(pipeline_id=pipeline_id))
        return None if item is None else struct_of(item, CachedReadiness)


def evaluation_key(stored: StoredEvaluation) -> Key:
    """Return the key of an evaluation's row."""
    return EVALUATION.key(**stored.slot._asdict(), evaluation_id=stored.evaluation_id)


def evaluation_of(item: Mapping[str, Any]) -> StoredEvaluation:
    """Decode an evaluation from its row. Raises `CorruptionError` for another row."""
    return struct_of(item, StoredEvaluation)
