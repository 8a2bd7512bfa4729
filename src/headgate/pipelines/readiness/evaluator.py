"""Looking: everything a run's readiness depends on, seen at one time, what it comes to, and how that is kept and told.

The lifecycle looks when it evaluates, and the lookout between two evaluations; both see and keep the same.

Dataset holds: which datasets keep a run from starting, and when that is news.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from msgspec import Struct

from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline, Readiness
from headgate.pipelines.enums import RunStatus, Severity, Verdict
from headgate.pipelines.events.names import EventName
from headgate.pipelines.readiness.evaluation_log import Outlook, StoredEvaluation
from headgate.pipelines.readiness.quarantine import QuarantineRecords
from headgate.pipelines.rules.compiler import RuleKind
from headgate.pipelines.rules.facts import Facts
from headgate.pipelines.rules.readiness import ReadinessResult, ReadinessVerdict, readiness_of
from headgate.pipelines.rules.rules import CompiledRules, Evaluation, compile_readiness, evaluate
from headgate.pipelines.runs.rows import Order, Run, RunLog
from headgate.store.model.requests import Write


class HoldNews(NamedTuple):
    """The datasets that hold a run since this evaluation, and those that do no longer."""

    held: tuple[str, ...]
    released: tuple[str, ...]


def holds_of(stored: StoredEvaluation) -> frozenset[str]:
    """Return the datasets whose rules do not hold, where a run has to wait for that."""
    if stored.verdict.may_start:
        return frozenset()
    return frozenset(
        each.subject
        for result in stored.evaluation.results
        if result.severity is Severity.BLOCK and result.verdict is not Verdict.PASS
        for each in result.walk()
        if each.kind is RuleKind.DATASET and each.verdict is not Verdict.PASS
    )


def hold_news(before: StoredEvaluation | None, after: StoredEvaluation) -> HoldNews:
    """Return what is news of an evaluation after the one before. What another run was held by is over with it."""
    held_before = holds_of(before) if before is not None and before.run_id == after.run_id else frozenset()
    held_now = holds_of(after)
    return HoldNews(tuple(sorted(held_now - held_before)), tuple(sorted(held_before - held_now)))


def has_recovered(stored: StoredEvaluation, facts: Facts) -> bool:
    """Whether a dataset that held the run when it was evaluated may be read now."""
    return any(urn in facts.datasets and facts.datasets[urn].verdict is Verdict.PASS for urn in holds_of(stored))


# Who is watched looks by itself this seldom, whatever became of who watches.
OWN_LOOK_SECONDS: Final = 3_600
# Of so many pipelines the rules stay ready to be evaluated.
_RULES_MAX: Final = 10_000


class Step(enum.StrEnum):
    """What follows a look, in the words of the lifecycle."""

    PROCEED = "proceed"
    DRY_RUN = "dry_run"
    NOT_READY = "not_ready"
    ERROR = "error"
    CANCELLED = "cancelled"


class Decision(Struct, frozen=True):
    """What follows a look, and why."""

    step: Step
    reason: str


class Look(Struct, frozen=True, kw_only=True):
    """What was seen for a run, and what it came to."""

    run: Run
    pipeline: Pipeline
    facts: Facts
    evaluation: Evaluation
    verdict: ReadinessVerdict

    @property
    def at_ms(self) -> int:
        """When it was looked."""
        return self.evaluation.at_ms

    @property
    def closes_at_ms(self) -> int:
        """When the window of the run closes."""
        return self.run.created_at_ms + round(1000 * self.pipeline.readiness.window)

    @property
    def ends_at_ms(self) -> int:
        """When waiting ends, whatever is seen: the window closes, or the hard limit is reached."""
        limit = self.pipeline.readiness.timeout
        if limit is None:
            return self.closes_at_ms
        return min(self.closes_at_ms, self.run.created_at_ms + round(1000 * limit))

    @property
    def next_seconds(self) -> int:
        """In how many whole seconds to look again: after the interval, or when waiting ends."""
        return self._within(self.pipeline.readiness.interval)

    @property
    def own_seconds(self) -> int:
        """In how many whole seconds the lifecycle looks by itself, although someone does in its place."""
        return self._within(max(OWN_LOOK_SECONDS, self.pipeline.readiness.interval))

    def _within(self, seconds: float) -> int:
        seconds_left = -(-(self.ends_at_ms - self.at_ms) // 1000)
        return max(1, min(round(seconds), seconds_left))

    @property
    def next_at_ms(self) -> int:
        """When to look again."""
        return self.at_ms + 1000 * self.next_seconds


def decide(
    run: Run, log: RunLog | None, verdict: ReadinessVerdict | None, *, put_aside: str = "", is_dry_run: bool = False
) -> Decision:
    """Return what follows what was evaluated, unless someone has had another say: cancelled, held, or forced.

    `put_aside` is why records in quarantine hold the run back, if they do.
    """
    go = Step.DRY_RUN if is_dry_run else Step.PROCEED
    if run.status is RunStatus.CANCELLED:
        return Decision(Step.CANCELLED, run.reason)
    if log is not None and log.hold is not None:
        return Decision(Step.NOT_READY, f"{log.hold.by} holds it: {log.hold.reason}")
    if log is not None and log.order is not None and log.order.order is Order.FORCE:
        return Decision(go, "someone forced it")
    if verdict is None:
        return Decision(Step.NOT_READY, "nothing was evaluated yet")
    if verdict.may_start:
        return Decision(Step.NOT_READY, put_aside) if put_aside else Decision(go, verdict.reason)
    step = Step.ERROR if verdict.result is ReadinessResult.ERROR else Step.NOT_READY
    return Decision(step, verdict.reason)


def why_wake(look: Look, decision: Decision) -> str:
    """Return why a lifecycle that waits would go on now. Empty: it would evaluate, and wait again."""
    if look.run.status is not RunStatus.PENDING:
        return f"the run is {look.run.status.value}"
    if look.at_ms >= look.ends_at_ms:
        return "its time is over"
    return "" if decision.step is Step.NOT_READY else decision.reason


class Looking:
    """Looks at runs of one store. Safe to use from many threads."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._quarantine = QuarantineRecords(parts.store, parts.clock)
        self._rules: dict[str, tuple[Readiness, CompiledRules]] = {}

    def look(self, run: Run) -> Look:
        """Look at everything the readiness of a run depends on, and decide. Nothing is kept."""
        parts = self._parts
        pipeline = parts.pipeline_of(run)
        compiled = self._compiled(pipeline)
        now = parts.now()
        spacing = float(pipeline.readiness.interval) / 2
        memory = parts.evaluations.memory(run.slot, run_id=run.run_id, spacing_seconds=spacing)
        facts = parts.facts.gather(pipeline, run.slot, compiled.needs, now, memory=memory)
        evaluation = evaluate(compiled, facts, now)
        verdict = readiness_of(evaluation, facts.traits, pipeline)
        return Look(run=run, pipeline=pipeline, facts=facts, evaluation=evaluation, verdict=verdict)

    def decide(self, run: Run, verdict: ReadinessVerdict | None) -> Decision:
        """Return what follows what was evaluated for a run, as everything else stands now."""
        parts = self._parts
        pipeline = parts.pipeline_of(run)
        put_aside = ""
        if verdict is not None and verdict.may_start:
            aside = self._quarantine.check(run.pipeline_id, run.date, blocking=pipeline.quarantine.blocking)
            put_aside = aside.reason if aside.is_blocked else ""
        log = parts.runs.log(run.slot)
        return decide(run, log, verdict, put_aside=put_aside, is_dry_run=pipeline.dry_run)

    def kept(self, look: Look, *, is_watched: bool) -> tuple[StoredEvaluation, list[Write]]:
        """Return a look as it is kept, and the writes that keep it and tell of it."""
        outlook = Outlook(
            run_id=look.run.run_id,
            execution=look.run.execution,
            next_at_ms=None if look.verdict.may_start else look.next_at_ms,
            window_closes_at_ms=look.closes_at_ms,
            is_watched=is_watched,
        )
        evaluations = self._parts.evaluations
        stored = evaluations.make(look.run.slot, look.evaluation, look.verdict, facts=look.facts, outlook=outlook)
        held = self._told_holds(stored) if look.facts.datasets else []
        return stored, [*evaluations.writes(stored), *self._told(stored), *held]

    def has_changed(self, run: Run, stored: StoredEvaluation) -> bool:
        """Whether what an evaluation of a run looked at is not as it was then, or the run is over."""
        if run.status.is_terminal:
            return True
        parts = self._parts
        pipeline = parts.pipeline_of(run)
        facts = parts.facts.gather(pipeline, stored.slot, self._compiled(pipeline).needs, parts.now())
        seen = parts.evaluations.make(stored.slot, stored.evaluation, stored.verdict, facts=facts)
        is_otherwise = seen.seen != stored.seen or seen.traits != stored.traits
        return is_otherwise or has_recovered(stored, facts)

    def _told(self, stored: StoredEvaluation) -> list[Write]:
        verdict = stored.verdict
        detail = {"run_id": stored.run_id, "evaluation_id": stored.evaluation_id, "reason": verdict.reason}
        told = self._parts.tells(EventName.READINESS_CHECKED, stored.slot, {**detail, "status": verdict.result.value})
        if not verdict.may_start:
            return told
        told += self._parts.tells(EventName.VALIDATION_PASSED, stored.slot, detail)
        # Once a run, when it is let go on: what only waits has not failed yet.
        for warning in verdict.warnings:
            if warning.status == Verdict.FAIL.value:
                warned = {**detail, "rule": warning.name, "reason": warning.reason}
                told += self._parts.tells(EventName.RULE_WARNED, stored.slot, warned)
        return told

    def _told_holds(self, stored: StoredEvaluation) -> list[Write]:
        """Return the writes that tell of datasets by which the run is held since now, or no longer."""
        news = hold_news(self._parts.evaluations.latest(stored.slot), stored)
        told = ((EventName.DATASET_HOLD, news.held), (EventName.DATASET_RELEASED, news.released))
        return [
            write
            for name, datasets in told
            if datasets
            for write in self._parts.tells(name, stored.slot, {"run_id": stored.run_id, "dataset": ", ".join(datasets)})
        ]

    def _compiled(self, pipeline: Pipeline) -> CompiledRules:
        """Return the rules of a pipeline, made ready once for as long as they stay the same."""
        known = self._rules.get(pipeline.id)
        if known is not None and known[0] == pipeline.readiness:
            return known[1]
        compiled = compile_readiness(pipeline.readiness)
        if len(self._rules) >= _RULES_MAX:
            self._rules.clear()
        self._rules[pipeline.id] = (pipeline.readiness, compiled)
        return compiled
