"""Readiness: evaluated, told, waited for. What the lifecycle does between beginning a run and starting its job."""

from __future__ import annotations

from typing import Final

from headgate.pipelines.calls import Answer, Call
from headgate.pipelines.definition import Pipeline, Readiness
from headgate.pipelines.endings import RunEndings
from headgate.pipelines.evaluations import Outlook, StoredEvaluation
from headgate.pipelines.event_names import EventName
from headgate.pipelines.parts import Parts
from headgate.pipelines.quarantine import QuarantineRecords
from headgate.pipelines.readiness import ReadinessResult, readiness_of
from headgate.pipelines.rules import CompiledRules, compile_readiness, evaluate
from headgate.pipelines.run_rows import Order, Run
from headgate.pipelines.sla import evaluation_moments, judge
from headgate.pipelines.vocabulary import ExpectationVerdict, FailureCategory, JobEvent, RunStatus, Verdict
from headgate.pipelines.waiting import Waiters, WaitKind
from headgate.store.writes import Write

# Of so many pipelines the rules stay ready to be evaluated.
_RULES_MAX: Final = 10_000
_RESULTS: Final = {ReadinessResult.PROCEED: "passed", ReadinessResult.NOT_READY: "not_ready"}


class ReadinessActions:
    """evaluate, checkReadiness, checkEvaluationSLA, checkValidationTimeout, await-change and validation-exhausted."""

    def __init__(self, parts: Parts, waiters: Waiters, endings: RunEndings) -> None:
        self._parts = parts
        self._waiters = waiters
        self._endings = endings
        self._quarantine = QuarantineRecords(parts.store, parts.clock)
        self._rules: dict[str, tuple[Readiness, CompiledRules]] = {}

    def evaluate(self, call: Call) -> Answer:
        """Look at everything the readiness depends on, decide, and keep what was seen and decided."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        pipeline = parts.pipeline_of(run)
        readiness = pipeline.readiness
        compiled = self._compiled(pipeline)
        now = parts.now()
        spacing = float(readiness.interval) / 2
        memory = parts.evaluations.memory(call.slot, run_id=run.run_id, spacing_seconds=spacing)
        facts = parts.facts.gather(pipeline, call.slot, compiled.needs, now, memory=memory)
        evaluation = evaluate(compiled, facts, now)
        verdict = readiness_of(evaluation, facts.traits, pipeline)
        now_ms = parts.now_ms()
        closes_at_ms = run.created_at_ms + round(1000 * readiness.window)
        wait_seconds = max(1, min(round(readiness.interval), -(-(closes_at_ms - now_ms) // 1000)))
        outlook = Outlook(
            run_id=run.run_id,
            execution=run.execution,
            next_at_ms=None if verdict.may_start else now_ms + 1000 * wait_seconds,
            window_closes_at_ms=closes_at_ms,
        )
        stored = parts.evaluations.make(call.slot, evaluation, verdict, facts=facts, outlook=outlook)
        parts.store.transact([*parts.evaluations.writes(stored), *self._told(stored)])
        return {
            "status": _RESULTS.get(verdict.result, "error"),
            "evaluationId": stored.evaluation_id,
            "reason": verdict.reason,
            "elapsedSeconds": max(0, (now_ms - run.created_at_ms) // 1000),
            "waitSeconds": wait_seconds,
        }

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

    def check_readiness(self, call: Call) -> Answer:
        """Say what the evaluation came to, unless someone has had another say: cancelled, held, or forced."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        if run.status is RunStatus.CANCELLED:
            return {"result": "cancelled", "reason": run.reason}
        log = parts.runs.log(call.slot)
        if log is not None and log.hold is not None:
            return {"result": "not_ready", "reason": f"{log.hold.by} holds it: {log.hold.reason}"}
        pipeline = parts.pipeline_of(run)
        is_forced = log is not None and log.order is not None and log.order.order is Order.FORCE
        if is_forced:
            return self._go(pipeline, "someone forced it")
        stored = parts.evaluations.latest(call.slot)
        if stored is None:
            return {"result": "not_ready", "reason": "nothing was evaluated yet"}
        verdict = stored.verdict
        if verdict.may_start:
            aside = self._quarantine.check(call.pipeline_id, call.date, blocking=pipeline.quarantine.blocking)
            if aside.is_blocked:
                return {"result": "not_ready", "reason": aside.reason}
            return self._go(pipeline, verdict.reason)
        if verdict.result is ReadinessResult.ERROR:
            return {"result": "error", "reason": verdict.reason}
        return {"result": "not_ready", "reason": verdict.reason}

    @staticmethod
    def _go(pipeline: Pipeline, reason: str) -> Answer:
        return {"result": "dry_run" if pipeline.dry_run else "proceed", "reason": reason}

    def check_evaluation_sla(self, call: Call) -> Answer:
        """Say whether the evaluation is later than it should be. Telling of it is the watchdog's, once."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        timetable = parts.timetable(parts.pipeline_of(run), call.schedule_id)
        moments = None if timetable is None else evaluation_moments(timetable, call.date)
        if moments is None:
            return {"breached": False}
        stored = parts.evaluations.latest(call.slot)
        is_done = stored is not None and stored.verdict.may_start
        verdict = judge(moments, parts.now() if is_done else None, parts.now())
        return {"breached": verdict.verdict is ExpectationVerdict.MISSED}

    def check_validation_timeout(self, call: Call) -> Answer:
        """Say whether the hard limit on waiting for readiness has passed."""
        run = self._parts.runs.get(call.run_id)
        limit = self._parts.pipeline_of(run).readiness.timeout
        waited_seconds = (self._parts.now_ms() - run.created_at_ms) / 1000
        return {"timedOut": limit is not None and waited_seconds >= limit}

    def validation_exhausted(self, call: Call) -> Answer:
        """End a run whose window has closed before everything was ready."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        stored = parts.evaluations.latest(call.slot)
        why = "nothing was evaluated" if stored is None else stored.verdict.reason
        if not run.status.is_terminal:
            self._endings.end(
                run,
                RunStatus.FAILED,
                parts.pipeline_of(run),
                lock_token=call.lock_token,
                is_final=True,
                category=FailureCategory.TIMEOUT,
                event=JobEvent.VALIDATION_EXHAUSTED,
                reason=f"not ready in time: {why}",
            )
        return {"retryable": False, "reason": why}

    def await_change(self, call: Call) -> Answer:
        """Have the task ended as soon as something changes that the readiness reads; at once if it has already."""
        parts = self._parts
        self._waiters.register(call.slot, WaitKind.CHANGE, call.task_token)
        stored = parts.evaluations.latest(call.slot)
        run = parts.runs.get(call.run_id)
        if stored is not None and self._has_changed(parts.pipeline_of(run), run, stored):
            self._waiters.wake(call.slot, WaitKind.CHANGE, "changed while it was evaluated")
        return {}

    def _has_changed(self, pipeline: Pipeline, run: Run, stored: StoredEvaluation) -> bool:
        if run.status.is_terminal:
            return True
        parts = self._parts
        compiled = self._compiled(pipeline)
        facts = parts.facts.gather(pipeline, stored.slot, compiled.needs, parts.now())
        seen = parts.evaluations.make(stored.slot, stored.evaluation, stored.verdict, facts=facts)
        return seen.seen != stored.seen or seen.traits != stored.traits

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
