"""Simulator: evaluates a period as a trial, now or replayed over its window, without starting anything."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import Verdict
from headgate.pipelines.readiness.evaluation_log import Evaluations, Purpose, StoredEvaluation
from headgate.pipelines.rules.facts import FactReader, Facts, Memory
from headgate.pipelines.rules.readiness import ReadinessResult, ReadinessVerdict, readiness_of
from headgate.pipelines.rules.rules import CompiledRules, Evaluation, compile_readiness, compile_trigger, evaluate
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.timetables import StartCondition, Timetable
from headgate.pipelines.sensors import Sensors

# Most evaluations at regular intervals; sensor arrivals add more.
EVALUATIONS_MAX: Final = 100


class SimulationOutcome(enum.StrEnum):
    """The outcome of a simulated period."""

    READY = "ready"
    EXHAUSTED = "exhausted"
    ERROR = "error"
    # The window is still open.
    WAITING = "waiting"
    # The start condition was not met.
    NOT_BEGUN = "not-begun"
    EXCLUDED = "excluded"


class SimulatedEvaluation(Struct, frozen=True):
    """The result of an evaluation at one time of a simulation."""

    at_ms: int
    result: ReadinessResult
    reason: str


class Simulation(Struct, frozen=True, kw_only=True):
    """A simulated period. `evaluations` holds those whose result differs from the one before."""

    outcome: SimulationOutcome
    reason: str
    opens_at_ms: int | None = None
    closes_at_ms: int | None = None
    ready_at_ms: int | None = None
    evaluations: tuple[SimulatedEvaluation, ...] = ()
    evaluation: Evaluation | None = None
    verdict: ReadinessVerdict | None = None


class Simulator:
    """Evaluates periods as trials."""

    def __init__(self, clock: Clock, sensors: Sensors, evaluations: Evaluations, facts: FactReader) -> None:
        self._clock = clock
        self._sensors = sensors
        self._evaluations = evaluations
        self._facts = facts

    def evaluate(self, pipeline: Pipeline, slot: Slot) -> StoredEvaluation:
        """Evaluate a period now, and store the result as a trial, which no run acts on."""
        compiled = compile_readiness(pipeline.readiness)
        now = self._clock.now()
        facts = self._facts.gather(pipeline, slot, compiled.needs, now)
        evaluation = evaluate(compiled, facts, now)
        verdict = readiness_of(evaluation, facts.traits, pipeline)
        return self._evaluations.put(slot, evaluation, verdict, facts=facts, purpose=Purpose.TRIAL)

    def simulate(self, pipeline: Pipeline, slot: Slot, timetable: Timetable) -> Simulation:
        """Replay the window of a period under this definition, with the stored sensors and traits.

        A sensor counts from its arrival, a trait from its evaluation. Upstream runs and datasets are as they are
        now.
        """
        excluded = timetable.exclusion_reason(slot.date)
        if excluded is not None:
            return Simulation(outcome=SimulationOutcome.EXCLUDED, reason=excluded)
        opens_at = self._opens_at(timetable, slot)
        if opens_at is None or opens_at > self._clock.now():
            reason = "nothing has started it: it is not due yet, or the data that starts it has not arrived"
            return Simulation(outcome=SimulationOutcome.NOT_BEGUN, reason=reason)
        return self._walk(pipeline, slot, opens_at)

    def _walk(self, pipeline: Pipeline, slot: Slot, opens_at: datetime) -> Simulation:
        readiness = pipeline.readiness
        compiled = compile_readiness(readiness)
        closes_at = opens_at + timedelta(seconds=readiness.window)
        spacing_ms = int(readiness.interval * 500)
        evaluations: list[SimulatedEvaluation] = []
        memory: Memory | None = None
        evaluation: Evaluation | None = None
        verdict: ReadinessVerdict | None = None
        for at in self._moments(pipeline, slot, compiled, opens_at, min(closes_at, self._clock.now())):
            facts = self._facts_at(pipeline, slot, compiled, at, memory)
            evaluation = evaluate(compiled, facts, at)
            verdict = readiness_of(evaluation, facts.traits, pipeline)
            memory = replace(evaluation.memory, spacing_ms=spacing_ms)
            if not evaluations or (evaluations[-1].result, evaluations[-1].reason) != (verdict.result, verdict.reason):
                evaluations.append(SimulatedEvaluation(_ms(at), verdict.result, verdict.reason))
            if verdict.result is not ReadinessResult.NOT_READY:
                break
        assert verdict is not None, "the opening time is always evaluated"
        assert evaluation is not None, "set together with the verdict"
        return Simulation(
            outcome=_outcome(verdict, is_closed=closes_at <= self._clock.now()),
            reason=verdict.reason,
            opens_at_ms=_ms(opens_at),
            closes_at_ms=_ms(closes_at),
            ready_at_ms=evaluation.at_ms if verdict.may_start else None,
            evaluations=tuple(evaluations),
            evaluation=evaluation,
            verdict=verdict,
        )

    def _opens_at(self, timetable: Timetable, slot: Slot) -> datetime | None:
        """Return when the evaluation window of the period opens."""
        trigger = timetable.schedule.sensor
        if timetable.start_condition is not StartCondition.DATA or trigger is None:
            return timetable.ready_at(slot.date)
        sensors = self._sensors.read(slot.pipeline_id, [trigger.key], slot.date).sensors
        sensor = sensors.get(trigger.key)
        if sensor is None:
            return None
        arrived_at = datetime.fromtimestamp((sensor.changed_at_ms or sensor.updated_at_ms) / 1000, UTC)
        is_met = evaluate(compile_trigger(trigger), Facts(sensors=sensors), arrived_at).verdict is Verdict.PASS
        return arrived_at if is_met else None

    def _moments(
        self, pipeline: Pipeline, slot: Slot, compiled: CompiledRules, opens_at: datetime, until: datetime
    ) -> Iterator[datetime]:
        """Yield evaluation times in order: the opening, every interval, and each sensor arrival."""
        readiness = pipeline.readiness
        step = timedelta(seconds=max(float(readiness.interval), float(readiness.window) / EVALUATIONS_MAX))
        moments = {opens_at}
        at = opens_at + step
        while at < until:
            moments.add(at)
            at += step
        moments.add(max(opens_at, until))
        needs = compiled.needs
        read = self._sensors.read(slot.pipeline_id, needs.sensors, slot.date, any_period=needs.any_period)
        for sensor in read.sensors.values():
            arrived_at = datetime.fromtimestamp(sensor.changed_at_ms / 1000, UTC)
            if opens_at < arrived_at <= until:
                moments.add(arrived_at)
        yield from sorted(moments)

    def _facts_at(
        self, pipeline: Pipeline, slot: Slot, compiled: CompiledRules, at: datetime, memory: Memory | None
    ) -> Facts:
        facts = self._facts.gather(pipeline, slot, compiled.needs, at, memory=memory)
        at_ms = _ms(at)
        return replace(
            facts,
            sensors={key: each for key, each in facts.sensors.items() if each.changed_at_ms <= at_ms},
            traits={name: each for name, each in facts.traits.items() if each.evaluated_at_ms <= at_ms},
        )


def _outcome(verdict: ReadinessVerdict, *, is_closed: bool) -> SimulationOutcome:
    match verdict.result:
        case ReadinessResult.PROCEED:
            return SimulationOutcome.READY
        case ReadinessResult.ERROR:
            return SimulationOutcome.ERROR
        case ReadinessResult.NOT_READY:
            return SimulationOutcome.EXHAUSTED if is_closed else SimulationOutcome.WAITING


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
