"""Trials: whether a period would be ready, now or on the day itself. Nothing is started by them."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import Verdict
from headgate.pipelines.readiness.evaluation_log import Purpose, StoredEvaluation
from headgate.pipelines.rules.facts import Facts, Memory
from headgate.pipelines.rules.readiness import ReadinessResult, ReadinessVerdict, readiness_of
from headgate.pipelines.rules.rules import CompiledRules, Evaluation, compile_readiness, compile_trigger, evaluate
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.timetables import Beginning, Timetable

# How often a day is looked at again at most, besides whenever a sensor came.
LOOKS_MAX: Final = 100


class Outcome(enum.StrEnum):
    """What a period would have come to."""

    READY = "ready"
    EXHAUSTED = "exhausted"
    ERROR = "error"
    # Its window has not closed yet.
    WAITING = "waiting"
    # Nothing would have begun it.
    NOT_BEGUN = "not-begun"
    EXCLUDED = "excluded"


class Look(Struct, frozen=True):
    """What an evaluation at one moment would have come to."""

    at_ms: int
    result: ReadinessResult
    reason: str


class Simulation(Struct, frozen=True, kw_only=True):
    """What a period would have come to, and how. `looks` has those at which something changed."""

    outcome: Outcome
    reason: str
    opens_at_ms: int | None = None
    closes_at_ms: int | None = None
    ready_at_ms: int | None = None
    looks: tuple[Look, ...] = ()
    evaluation: Evaluation | None = None
    verdict: ReadinessVerdict | None = None


class Trials:
    """Tries periods out."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def evaluate(self, pipeline: Pipeline, slot: Slot) -> StoredEvaluation:
        """Evaluate a period as it is now, and keep that as a trial, which no run goes by."""
        parts = self._parts
        compiled = compile_readiness(pipeline.readiness)
        now = parts.now()
        facts = parts.facts.gather(pipeline, slot, compiled.needs, now)
        evaluation = evaluate(compiled, facts, now)
        verdict = readiness_of(evaluation, facts.traits, pipeline)
        return parts.evaluations.put(slot, evaluation, verdict, facts=facts, purpose=Purpose.TRIAL)

    def simulate(self, pipeline: Pipeline, slot: Slot, timetable: Timetable) -> Simulation:
        """Return what a period would have come to under this definition, from the sensors that are kept of it.

        A sensor counts from the moment its data came, a trait from the moment it was evaluated. Runs upstream and
        datasets are as they are now.
        """
        excluded = timetable.why_dormant(slot.date)
        if excluded is not None:
            return Simulation(outcome=Outcome.EXCLUDED, reason=excluded)
        opens_at = self._opens_at(timetable, slot)
        if opens_at is None or opens_at > self._parts.now():
            reason = "nothing has begun it: it is not due yet, or what begins it has not come"
            return Simulation(outcome=Outcome.NOT_BEGUN, reason=reason)
        return self._walk(pipeline, slot, opens_at)

    def _walk(self, pipeline: Pipeline, slot: Slot, opens_at: datetime) -> Simulation:
        readiness = pipeline.readiness
        compiled = compile_readiness(readiness)
        closes_at = opens_at + timedelta(seconds=readiness.window)
        spacing_ms = int(readiness.interval * 500)
        looks: list[Look] = []
        memory: Memory | None = None
        evaluation: Evaluation | None = None
        verdict: ReadinessVerdict | None = None
        for at in self._moments(pipeline, slot, compiled, opens_at, min(closes_at, self._parts.now())):
            facts = self._facts_at(pipeline, slot, compiled, at, memory)
            evaluation = evaluate(compiled, facts, at)
            verdict = readiness_of(evaluation, facts.traits, pipeline)
            memory = replace(evaluation.memory, spacing_ms=spacing_ms)
            if not looks or (looks[-1].result, looks[-1].reason) != (verdict.result, verdict.reason):
                looks.append(Look(_ms(at), verdict.result, verdict.reason))
            if verdict.result is not ReadinessResult.NOT_READY:
                break
        assert verdict is not None, "it is looked at when it opens"
        assert evaluation is not None, "as the verdict is"
        return Simulation(
            outcome=_outcome(verdict, is_closed=closes_at <= self._parts.now()),
            reason=verdict.reason,
            opens_at_ms=_ms(opens_at),
            closes_at_ms=_ms(closes_at),
            ready_at_ms=evaluation.at_ms if verdict.may_start else None,
            looks=tuple(looks),
            evaluation=evaluation,
            verdict=verdict,
        )

    def _opens_at(self, timetable: Timetable, slot: Slot) -> datetime | None:
        """Return when the period would have begun to be evaluated."""
        trigger = timetable.schedule.sensor
        if timetable.beginning is not Beginning.DATA or trigger is None:
            return timetable.ready_at(slot.date)
        sensors = self._parts.sensors.read(slot.pipeline_id, [trigger.key], slot.date).sensors
        found = sensors.get(trigger.key)
        if found is None:
            return None
        came_at = datetime.fromtimestamp((found.changed_at_ms or found.updated_at_ms) / 1000, UTC)
        met = evaluate(compile_trigger(trigger), Facts(sensors=sensors), came_at).verdict is Verdict.PASS
        return came_at if met else None

    def _moments(
        self, pipeline: Pipeline, slot: Slot, compiled: CompiledRules, opens_at: datetime, until: datetime
    ) -> Iterator[datetime]:
        """Return when to look, in order: at first, at every interval, and whenever a sensor came."""
        readiness = pipeline.readiness
        step = timedelta(seconds=max(float(readiness.interval), float(readiness.window) / LOOKS_MAX))
        moments = {opens_at}
        at = opens_at + step
        while at < until:
            moments.add(at)
            at += step
        moments.add(max(opens_at, until))
        for sensor in self._parts.sensors.read(slot.pipeline_id, compiled.needs.sensors, slot.date).sensors.values():
            came_at = datetime.fromtimestamp(sensor.changed_at_ms / 1000, UTC)
            if opens_at < came_at <= until:
                moments.add(came_at)
        yield from sorted(moments)

    def _facts_at(
        self, pipeline: Pipeline, slot: Slot, compiled: CompiledRules, at: datetime, memory: Memory | None
    ) -> Facts:
        facts = self._parts.facts.gather(pipeline, slot, compiled.needs, at, memory=memory)
        at_ms = _ms(at)
        return replace(
            facts,
            sensors={key: each for key, each in facts.sensors.items() if each.changed_at_ms <= at_ms},
            traits={name: each for name, each in facts.traits.items() if each.evaluated_at_ms <= at_ms},
        )


def _outcome(verdict: ReadinessVerdict, *, is_closed: bool) -> Outcome:
    match verdict.result:
        case ReadinessResult.PROCEED:
            return Outcome.READY
        case ReadinessResult.ERROR:
            return Outcome.ERROR
        case ReadinessResult.NOT_READY:
            return Outcome.EXHAUSTED if is_closed else Outcome.WAITING


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
