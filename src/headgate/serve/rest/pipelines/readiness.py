"""Readiness API: last verdict, explanation, evaluations, trial evaluation and simulation. Starts nothing."""

from __future__ import annotations

from msgspec import Struct

from headgate.errors import NotFoundError
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.readiness.evaluation_log import CachedReadiness, Purpose
from headgate.pipelines.readiness.explain import Explainer, Line, PeriodState
from headgate.pipelines.readiness.simulation import Simulation, SimulationOutcome
from headgate.pipelines.rules.readiness import ReadinessResult
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.due_checks import due_of, slot_named, timetable_named
from headgate.pipelines.service import PipelineService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.views import shown
from headgate.serve.rest.parameters import Cursor, Limit
from headgate.serve.rest.pipelines.models import (
    BlockerView,
    Date,
    EvaluationView,
    RuleView,
    ScheduleName,
    blocker_view,
    evaluation_view,
    rule_view,
)
from headgate.serve.rest.pipelines.permissions import PUSH, READ


class PeriodQuery(Struct, forbid_unknown_fields=True):
    """Period; without a date the current or last evaluated one."""

    date: Date | None = None
    schedule: ScheduleName | None = None


class EvaluationsQuery(Struct, forbid_unknown_fields=True):
    """Filter of evaluations by period and purpose."""

    date: Date
    schedule: ScheduleName | None = None
    purpose: Purpose = Purpose.READINESS
    limit: Limit = 100
    cursor: Cursor | None = None


class TryPeriod(Struct, forbid_unknown_fields=True):
    """Period to evaluate; without a date the current one."""

    date: Date | None = None
    schedule: ScheduleName | None = None


class SimulatePeriod(Struct, forbid_unknown_fields=True):
    """Period to simulate."""

    date: Date
    schedule: ScheduleName | None = None


class ReadinessView(Struct, frozen=True, kw_only=True):
    """Whether a period may start. `is_cached`: from a cache, a few minutes old at most."""

    pipeline_id: str
    schedule_id: str
    date: str
    evaluation_id: str
    result: ReadinessResult
    reason: str
    at: str | None
    blocking: list[BlockerView]
    is_cached: bool


class ExplanationView(Struct, frozen=True, kw_only=True):
    """Explanation of a period's state, as a sentence and as a tree."""

    pipeline_id: str
    schedule_id: str
    date: str
    standing: PeriodState
    sentence: str
    tree: Line


class LookView(Struct, frozen=True):
    """Result of a simulated evaluation at one time."""

    at: str | None
    result: ReadinessResult
    reason: str


class SimulationView(Struct, frozen=True, kw_only=True):
    """Result of a simulation; upstream runs and datasets are taken in their current state."""

    pipeline_id: str
    schedule_id: str
    date: str
    outcome: SimulationOutcome
    reason: str
    opens_at: str | None
    closes_at: str | None
    ready_at: str | None
    looks: list[LookView]
    rules: list[RuleView]
    blocking: list[BlockerView]


class EvaluationPage(Struct, frozen=True):
    """A page of evaluations, latest first."""

    evaluations: list[EvaluationView]
    cursor: str | None = None


def readiness_operations(pipelines: PipelineService) -> list[Operation]:
    """Return the operations on readiness."""
    return _Readiness(pipelines).operations()


class _Readiness:
    def __init__(self, pipelines: PipelineService) -> None:
        self._definitions = pipelines.definitions
        self._clock = pipelines.clock
        self._calendars = pipelines.reader.calendars
        self._evaluations = pipelines.evaluations
        self._simulator = pipelines.simulator
        self._explainer = Explainer(
            pipelines.store,
            pipelines.clock,
            evaluations=pipelines.evaluations,
            controls=pipelines.stores.controls,
            locks=pipelines.stores.locks,
            pool_wait=pipelines.pools.wait_of,
            reruns=pipelines.stores.reruns,
        )

    def operations(self) -> list[Operation]:
        one = "/pipelines/{id}"
        return [
            Operation(
                "GET", f"{one}/readiness", "Show the last readiness verdict", self.readiness,
                {200: ReadinessView}, query=PeriodQuery, rule=READ,
            ),
            Operation(
                "GET", f"{one}/why", "Explain the state of a period", self.why, {200: ExplanationView},
                query=PeriodQuery, rule=READ,
            ),
            Operation(
                "GET", f"{one}/evaluations", "List the evaluations of a period", self.ls, {200: EvaluationPage},
                query=EvaluationsQuery, rule=READ,
            ),
            Operation(
                "POST", f"{one}/evaluate", "Evaluate without starting a run", self.evaluate, {200: EvaluationView},
                body=TryPeriod, rule=PUSH, repeatable=True,
            ),
            Operation(
                "POST", f"{one}/simulate", "Simulate a past day", self.simulate, {200: SimulationView},
                body=SimulatePeriod, rule=READ,
            ),
        ]  # fmt: skip

    def readiness(self, call: Call[None, PeriodQuery]) -> Answer:
        pipeline, query = self._pipeline(call.path["id"]), call.query
        if query.date is None:
            cached = self._evaluations.cached(pipeline.id)
            if cached is None or query.schedule not in (None, cached.schedule_id):
                raise NotFoundError(f"pipeline {pipeline.id}: no recent evaluation; set a date, or evaluate it")
            return Answer(_cached_view(cached))
        slot = slot_named(pipeline, query.date, query.schedule)
        stored = self._evaluations.latest(slot)
        if stored is None:
            raise NotFoundError(f"{slot}: no evaluation; request the explanation, or evaluate it")
        verdict = stored.verdict
        blocking = [blocker_view(each) for each in verdict.blocking]
        more = {"result": verdict.result, "reason": verdict.reason, "blocking": blocking, "is_cached": False}
        return Answer(shown(ReadinessView, stored, **more))

    def why(self, call: Call[None, PeriodQuery]) -> Answer:
        pipeline = self._pipeline(call.path["id"])
        slot = self._slot(pipeline, call.query.date, call.query.schedule)
        explained = self._explainer.why(pipeline, slot, due_of(pipeline, slot, self._calendars()))
        return Answer(
            ExplanationView(
                **slot._asdict(), standing=explained.state, sentence=explained.sentence, tree=explained.tree
            )
        )

    def ls(self, call: Call[None, EvaluationsQuery]) -> Answer:
        query = call.query
        slot = slot_named(self._pipeline(call.path["id"]), query.date, query.schedule)
        page = self._evaluations.ls(slot, purpose=query.purpose, limit=query.limit, cursor=query.cursor)
        return Answer(EvaluationPage([evaluation_view(each) for each in page.evaluations], page.cursor))

    def evaluate(self, call: Call[TryPeriod, NoQuery]) -> Answer:
        pipeline = self._pipeline(call.path["id"])
        slot = self._slot(pipeline, call.body.date, call.body.schedule)
        return Answer(evaluation_view(self._simulator.evaluate(pipeline, slot)))

    def simulate(self, call: Call[SimulatePeriod, NoQuery]) -> Answer:
        pipeline = self._pipeline(call.path["id"])
        slot = slot_named(pipeline, call.body.date, call.body.schedule)
        timetable = timetable_named(pipeline, slot.schedule_id, self._calendars())
        return Answer(_simulation_view(slot, self._simulator.simulate(pipeline, slot, timetable)))

    def _pipeline(self, pipeline_id: str) -> Pipeline:
        return self._definitions.get(pipeline_id).pipeline

    def _slot(self, pipeline: Pipeline, date: str | None, schedule: str | None) -> Slot:
        if date is None:
            # The period that a slot at this time stands for: an hourly period is due when it is over.
            date = timetable_named(pipeline, schedule, {}).date_of(self._clock.now())
        return slot_named(pipeline, date, schedule)


def _cached_view(cached: CachedReadiness) -> ReadinessView:
    return shown(ReadinessView, cached, blocking=[blocker_view(each) for each in cached.blocking], is_cached=True)


def _simulation_view(slot: Slot, simulation: Simulation) -> SimulationView:
    evaluation, verdict = simulation.evaluation, simulation.verdict
    return shown(
        SimulationView,
        simulation,
        **slot._asdict(),
        looks=[shown(LookView, each) for each in simulation.evaluations],
        rules=[] if evaluation is None else [rule_view(each) for each in evaluation.results],
        blocking=[] if verdict is None else [blocker_view(each) for each in verdict.blocking],
    )
