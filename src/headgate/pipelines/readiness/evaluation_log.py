"""Evaluations: what rules and traits came to each time they were looked at, kept so that it can be explained later."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

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
# How long a readiness may be gone by without looking again.
CACHE_SECONDS: Final = 300


class Purpose(enum.StrEnum):
    """What an evaluation was made for. It is the first word of its id."""

    READINESS = "readiness"
    POST_RUN = "postrun"
    # Someone wanted to know what would happen.
    TRIAL = "trial"


class SeenSensor(Struct, frozen=True, omit_defaults=True):
    """Which state of a sensor was looked at."""

    version: int = 0
    changed_at_ms: int = 0
    period: str | None = None


class Outlook(Struct, frozen=True, kw_only=True):
    """What an evaluation belongs to, and what comes after it if it is not enough."""

    run_id: str = ""
    execution: str = ""
    next_at_ms: int | None = None
    window_closes_at_ms: int | None = None
    # Whether someone looks again while the execution waits, so that it need not do so by itself.
    is_watched: bool = False


class StoredEvaluation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An evaluation as it is kept."""

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
    is_watched: bool = False

    @property
    def slot(self) -> Slot:
        """The period it was made for."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class CachedReadiness(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last readiness of a pipeline, for whoever only wants to know."""

    pipeline_id: str
    schedule_id: str
    date: str
    evaluation_id: str
    result: ReadinessResult
    reason: str
    at_ms: int
    blocking: tuple[Blocker, ...] = ()


class EvaluationPage(Struct, frozen=True):
    """Some evaluations, the latest first, and the cursor to earlier ones if there are more."""

    evaluations: list[StoredEvaluation]
    cursor: str | None = None


class Evaluations:
    """The evaluations of one store. Safe to use from many threads."""

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
        """Keep an evaluation with all its results, and `also` whatever it causes, in one transaction.

        Raises `ConflictError` for what refused a write of `also`; nothing was kept then.
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
        """Return an evaluation under an id of its own, not yet kept."""
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
            is_watched=outlook.is_watched,
        )

    def writes(self, stored: StoredEvaluation) -> list[Write]:
        """Return the writes that keep an evaluation; for one of readiness also what is kept for quick answers."""
        expires_at = int(self._clock.seconds()) + self._retention_seconds
        writes: list[Write] = [Put(PIPELINES, row(evaluation_key(stored), stored, ttl=expires_at))]
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
            writes.append(Put(PIPELINES, row(READINESS.key(pipeline_id=stored.pipeline_id), cached, ttl=fresh_until)))
        return writes

    def find(self, slot: Slot, evaluation_id: str) -> StoredEvaluation | None:
        """Return one evaluation of a period, or None if it is not kept."""
        key = EVALUATION.key(**slot._asdict(), evaluation_id=evaluation_id)
        item = self._store.get(PIPELINES, key, consistent=True)
        return None if item is None else evaluation_of(item)

    def latest(self, slot: Slot, *, purpose: Purpose = Purpose.READINESS) -> StoredEvaluation | None:
        """Return the last evaluation of a period, or None if there was none."""
        return next(iter(self.ls(slot, purpose=purpose, limit=1).evaluations), None)

    def memory(
        self, slot: Slot, *, purpose: Purpose = Purpose.READINESS, run_id: str = "", spacing_seconds: float = 0.0
    ) -> Memory | None:
        """Return what the next evaluation has to know of the one before.

        With `run_id`, nothing is remembered of another run: what passed yesterday does not count towards passing
        several times today. Evaluations less than `spacing_seconds` apart count once, so that a task which is tried
        again, or a sensor that is pushed twice, proves nothing.
        """
        last = self.latest(slot, purpose=purpose)
        if last is None or (run_id and last.run_id != run_id):
            return None
        memory = last.evaluation.memory
        return Memory(fingerprint=memory.fingerprint, rules=memory.rules, spacing_ms=int(spacing_seconds * 1000))

    def ls(
        self, slot: Slot, *, purpose: Purpose = Purpose.READINESS, limit: int = 100, cursor: str | None = None
    ) -> EvaluationPage:
        """Return the evaluations of a period, the latest first."""
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
        """Return the last readiness of a pipeline, unless it is too old to go by."""
        item = self._store.get(PIPELINES, READINESS.key(pipeline_id=pipeline_id))
        return None if item is None else struct_of(item, CachedReadiness)


def evaluation_key(stored: StoredEvaluation) -> Key:
    """Return where an evaluation is kept."""
    return EVALUATION.key(**stored.slot._asdict(), evaluation_id=stored.evaluation_id)


def evaluation_of(item: Mapping[str, Any]) -> StoredEvaluation:
    """Return the evaluation that a row stands for. Raises `CorruptionError` for another row."""
    return struct_of(item, StoredEvaluation)
