"""Readiness evaluator: gathers the facts of a run, evaluates its rules and traits, and decides whether it may start.

The lifecycle calls it at each evaluation and the readiness poller between two; both store the same.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from msgspec import Struct

from headgate.clock import Clock
from headgate.pipelines.definition.model import Pipeline, Readiness
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import RunStatus, Severity, Verdict
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.readiness.evaluation_log import Evaluations, Outlook, StoredEvaluation
from headgate.pipelines.readiness.quarantine import QuarantineRecords
from headgate.pipelines.rules.compiler import RuleKind
from headgate.pipelines.rules.facts import FactReader, Facts
from headgate.pipelines.rules.readiness import ReadinessResult, ReadinessVerdict, readiness_of
from headgate.pipelines.rules.rules import CompiledRules, Evaluation, compile_readiness, evaluate
from headgate.pipelines.runs.rows import Order, Run, RunLog
from headgate.pipelines.runs.store import Runs
from headgate.store.model.requests import Write
from headgate.store.port import Store


class HoldChange(NamedTuple):
    """The datasets that newly hold a run, and those that no longer do."""

    held: tuple[str, ...]
    released: tuple[str, ...]


def holds_of(stored: StoredEvaluation) -> frozenset[str]:
    """Return the datasets whose failing rules block a run."""
    if stored.verdict.may_start:
        return frozenset()
    return frozenset(
        each.subject
        for result in stored.evaluation.results
        if result.severity is Severity.BLOCK and result.verdict is not Verdict.PASS
        for each in result.walk()
        if each.kind is RuleKind.DATASET and each.verdict is not Verdict.PASS
    )


def _announced_holds(stored: StoredEvaluation) -> frozenset[str]:
    """Return the datasets that hold a run, without those whose verdict is about to be known."""
    walked = (each for result in stored.evaluation.results for each in result.walk())
    return holds_of(stored) - {each.subject for each in walked if each.is_pending}


def hold_change(before: StoredEvaluation | None, after: StoredEvaluation) -> HoldChange:
    """Return the datasets that started or stopped to hold a run. Holds of another run do not count."""
    held_before = _announced_holds(before) if before is not None and before.run_id == after.run_id else frozenset()
    held_now = _announced_holds(after)
    return HoldChange(tuple(sorted(held_now - held_before)), tuple(sorted(held_before - held_now)))


def has_recovered(stored: StoredEvaluation, facts: Facts) -> bool:
    """Whether a dataset that held the run at its evaluation passes now."""
    return any(urn in facts.datasets and facts.datasets[urn].verdict is Verdict.PASS for urn in holds_of(stored))


# A polled execution still evaluates by itself at this interval, in case the poller is gone.
FALLBACK_SECONDS: Final = 3_600
# Number of pipelines whose compiled rules are cached.
_RULES_MAX: Final = 10_000


class ReadinessStep(enum.StrEnum):
    """The next step of the lifecycle, with the values that the state machine reads."""

    PROCEED = "proceed"
    DRY_RUN = "dry_run"
    NOT_READY = "not_ready"
    ERROR = "error"
    CANCELLED = "cancelled"


class ReadinessDecision(Struct, frozen=True):
    """The next step of a run, and its reason."""

    step: ReadinessStep
    reason: str


class ReadinessSnapshot(Struct, frozen=True, kw_only=True):
    """The facts of a run at one time, their evaluation and the verdict."""

    run: Run
    pipeline: Pipeline
    facts: Facts
    evaluation: Evaluation
    verdict: ReadinessVerdict

    @property
    def at_ms(self) -> int:
        """The time of the evaluation."""
        return self.evaluation.at_ms

    @property
    def closes_at_ms(self) -> int:
        """When the evaluation window of the run closes."""
        return self.run.created_at_ms + round(1000 * self.pipeline.readiness.window)

    @property
    def ends_at_ms(self) -> int:
        """When waiting ends: the window closes, or the hard limit is reached."""
        limit = self.pipeline.readiness.timeout
        if limit is None:
            return self.closes_at_ms
        return min(self.closes_at_ms, self.run.created_at_ms + round(1000 * limit))

    @property
    def next_seconds(self) -> int:
        """Whole seconds until the next evaluation: the interval, or the end of waiting if earlier."""
        return self._within(self.pipeline.readiness.interval)

    @property
    def fallback_seconds(self) -> int:
        """Whole seconds until a polled execution evaluates by itself."""
        return self._within(max(FALLBACK_SECONDS, self.pipeline.readiness.interval))

    def _within(self, seconds: float) -> int:
        seconds_left = -(-(self.ends_at_ms - self.at_ms) // 1000)
        return max(1, min(round(seconds), seconds_left))

    @property
    def next_at_ms(self) -> int:
        """When the next evaluation is due."""
        return self.at_ms + 1000 * self.next_seconds


def decide(
    run: Run, log: RunLog | None, verdict: ReadinessVerdict | None, *, quarantined: str = "", is_dry_run: bool = False
) -> ReadinessDecision:
    """Decide the next step of a run. A cancellation, hold or force order overrides the verdict.

    `quarantined` is the reason why records in quarantine block the run, if they do.
    """
    go = ReadinessStep.DRY_RUN if is_dry_run else ReadinessStep.PROCEED
    if run.status is RunStatus.CANCELLED:
        return ReadinessDecision(ReadinessStep.CANCELLED, run.reason)
    if log is not None and log.hold is not None:
        return ReadinessDecision(ReadinessStep.NOT_READY, f"{log.hold.by} holds it: {log.hold.reason}")
    if log is not None and log.order is not None and log.order.order is Order.FORCE:
        return ReadinessDecision(go, "someone forced it")
    if verdict is None:
        return ReadinessDecision(ReadinessStep.NOT_READY, "nothing was evaluated yet")
    if verdict.may_start:
        return (
            ReadinessDecision(ReadinessStep.NOT_READY, quarantined)
            if quarantined
            else ReadinessDecision(go, verdict.reason)
        )
    step = ReadinessStep.ERROR if verdict.result is ReadinessResult.ERROR else ReadinessStep.NOT_READY
    return ReadinessDecision(step, verdict.reason)


def wake_reason(snapshot: ReadinessSnapshot, decision: ReadinessDecision) -> str:
    """Return why a waiting execution would go on now. Empty: it would evaluate and wait again."""
    if snapshot.run.status is not RunStatus.PENDING:
        return f"the run is {snapshot.run.status.value}"
    if snapshot.at_ms >= snapshot.ends_at_ms:
        return "its time is over"
    return "" if decision.step is ReadinessStep.NOT_READY else decision.reason


class ReadinessEvaluator:
    """Evaluates the readiness of runs. Thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        runs: Runs,
        definitions: DefinitionReader,
        evaluations: Evaluations,
        facts: FactReader,
        events: EventWriter,
    ) -> None:
        self._clock = clock
        self._runs = runs
        self._definitions = definitions
        self._evaluations = evaluations
        self._facts = facts
        self._events = events
        self._quarantine = QuarantineRecords(store, clock)
        self._rules: dict[str, tuple[Readiness, CompiledRules]] = {}

    def evaluate(self, run: Run) -> ReadinessSnapshot:
        """Gather all facts of a run's readiness and evaluate them. Nothing is stored."""
        pipeline = self._definitions.of_run(run)
        compiled = self._compiled(pipeline)
        now = self._clock.now()
        spacing = float(pipeline.readiness.interval) / 2
        memory = self._evaluations.memory(run.slot, run_id=run.run_id, spacing_seconds=spacing)
        facts = self._facts.gather(pipeline, run.slot, compiled.needs, now, memory=memory)
        evaluation = evaluate(compiled, facts, now)
        verdict = readiness_of(evaluation, facts.traits, pipeline)
        return ReadinessSnapshot(run=run, pipeline=pipeline, facts=facts, evaluation=evaluation, verdict=verdict)

    def decide(self, run: Run, verdict: ReadinessVerdict | None) -> ReadinessDecision:
        """Decide the next step of a run from a verdict and its current hold, orders and quarantine."""
        pipeline = self._definitions.of_run(run)
        quarantined = ""
        if verdict is not None and verdict.may_start:
            check = self._quarantine.check(run.pipeline_id, run.date, blocking=pipeline.quarantine.blocking)
            quarantined = check.reason if check.is_blocked else ""
        log = self._runs.log(run.slot)
        return decide(run, log, verdict, quarantined=quarantined, is_dry_run=pipeline.dry_run)

    def storage_writes(self, snapshot: ReadinessSnapshot, *, is_polled: bool) -> tuple[StoredEvaluation, list[Write]]:
        """Return the evaluation as stored, and the writes that store it and publish its events."""
        outlook = Outlook(
            run_id=snapshot.run.run_id,
            execution=snapshot.run.execution,
            next_at_ms=None if snapshot.verdict.may_start else snapshot.next_at_ms,
            window_closes_at_ms=snapshot.closes_at_ms,
            is_polled=is_polled,
        )
        evaluations = self._evaluations
        stored = evaluations.make(
            snapshot.run.slot, snapshot.evaluation, snapshot.verdict, facts=snapshot.facts, outlook=outlook
        )
        holds = self._hold_events(stored) if snapshot.facts.datasets else []
        return stored, [*evaluations.writes(stored), *self._evaluation_events(stored), *holds]

    def has_changed(self, run: Run, stored: StoredEvaluation) -> bool:
        """Whether a sensor, trait or dataset changed since an evaluation, or the run ended."""
        if run.status.is_terminal:
            return True
        pipeline = self._definitions.of_run(run)
        facts = self._facts.gather(pipeline, stored.slot, self._compiled(pipeline).needs, self._clock.now())
        current = self._evaluations.make(stored.slot, stored.evaluation, stored.verdict, facts=facts)
        is_different = current.seen != stored.seen or current.traits != stored.traits
        return is_different or has_recovered(stored, facts)

    def _evaluation_events(self, stored: StoredEvaluation) -> list[Write]:
        verdict = stored.verdict
        detail = {"run_id": stored.run_id, "evaluation_id": stored.evaluation_id, "reason": verdict.reason}
        writes = self._events.writes(
            EventName.READINESS_CHECKED, stored.slot, {**detail, "status": verdict.result.value}
        )
        if not verdict.may_start:
            return writes
        writes += self._events.writes(EventName.VALIDATION_PASSED, stored.slot, detail)
        # Warnings are published once a run, when it proceeds: a rule that is still pending has not failed.
        for warning in verdict.warnings:
            if warning.status == Verdict.FAIL.value:
                warned = {**detail, "rule": warning.name, "reason": warning.reason}
                writes += self._events.writes(EventName.RULE_WARNED, stored.slot, warned)
        return writes

    def _hold_events(self, stored: StoredEvaluation) -> list[Write]:
        """Return the writes that publish datasets which started or stopped to hold the run."""
        change = hold_change(self._evaluations.latest(stored.slot), stored)
        events = ((EventName.DATASET_HOLD, change.held), (EventName.DATASET_RELEASED, change.released))
        return [
            write
            for name, datasets in events
            if datasets
            for write in self._events.writes(
                name, stored.slot, {"run_id": stored.run_id, "dataset": ", ".join(datasets)}
            )
        ]

    def _compiled(self, pipeline: Pipeline) -> CompiledRules:
        """Return the compiled rules of a pipeline, cached until they change."""
        known = self._rules.get(pipeline.id)
        if known is not None and known[0] == pipeline.readiness:
            return known[1]
        compiled = compile_readiness(pipeline.readiness)
        if len(self._rules) >= _RULES_MAX:
            self._rules.clear()
        self._rules[pipeline.id] = (pipeline.readiness, compiled)
        return compiled
