"""Readiness: evaluated, told, waited for. What the lifecycle does between beginning a run and starting its job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import ExpectationVerdict, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.lifecycle.completion import RunEndings
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.readiness.evaluation_log import StoredEvaluation
from headgate.pipelines.readiness.evaluator import Looking
from headgate.pipelines.readiness.waiters import Waiters, WaitKind, Watch
from headgate.pipelines.rules.readiness import ReadinessResult
from headgate.pipelines.schedule.sla import evaluation_moments, judge

_RESULTS: Final = {ReadinessResult.PROCEED: "passed", ReadinessResult.NOT_READY: "not_ready"}


class ReadinessActions:
    """evaluate, checkReadiness, checkEvaluationSLA, checkValidationTimeout, await-change and validation-exhausted."""

    def __init__(
        self,
        parts: Parts,
        waiters: Waiters,
        endings: RunEndings,
        looking: Looking,
        watches: Callable[[Pipeline], bool],
    ) -> None:
        """Take `watches`, which says whether someone looks again while a run of a pipeline waits."""
        self._parts = parts
        self._waiters = waiters
        self._endings = endings
        self._looking = looking
        self._watches = watches

    def evaluate(self, call: Call) -> Answer:
        """Look at everything the readiness depends on, decide, and keep what was seen and decided."""
        look = self._looking.look(self._parts.runs.get(call.run_id))
        is_watched = self._watches(look.pipeline)
        stored, writes = self._looking.kept(look, is_watched=is_watched)
        self._parts.store.transact(writes)
        return {
            "status": _RESULTS.get(look.verdict.result, "error"),
            "evaluationId": stored.evaluation_id,
            "reason": look.verdict.reason,
            "elapsedSeconds": max(0, (look.at_ms - look.run.created_at_ms) // 1000),
            "waitSeconds": look.own_seconds if is_watched else look.next_seconds,
        }

    def check_readiness(self, call: Call) -> Answer:
        """Say what the evaluation came to, unless someone has had another say: cancelled, held, or forced."""
        run = self._parts.runs.get(call.run_id)
        stored = self._evaluated(call)
        decision = self._looking.decide(run, None if stored is None else stored.verdict)
        return {"result": decision.step.value, "reason": decision.reason}

    def _evaluated(self, call: Call) -> StoredEvaluation | None:
        """Return the evaluation that a call is about: its own, whoever has looked since."""
        evaluations = self._parts.evaluations
        named = evaluations.find(call.slot, call.evaluation_id) if call.evaluation_id else None
        return named or evaluations.latest(call.slot)

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
        stored = self._evaluated(call)
        self._waiters.register(call.slot, WaitKind.CHANGE, call.task_token, self._watch(call, stored))
        # Read after that: whoever brings a change from now on finds who waits.
        run = self._parts.runs.get(call.run_id)
        if stored is not None and self._looking.has_changed(run, stored):
            self._waiters.wake(call.slot, WaitKind.CHANGE, "changed while it was evaluated")
        return {}

    def _watch(self, call: Call, stored: StoredEvaluation | None) -> Watch | None:
        """Return when to look in place of whoever waits. As the evaluation has it, by which the wait was chosen."""
        if stored is None or not stored.is_watched:
            return None
        pipeline = self._parts.pipeline_of(self._parts.runs.get(call.run_id))
        return Watch(call.run_id, stored.at_ms + round(1000 * pipeline.readiness.interval))
