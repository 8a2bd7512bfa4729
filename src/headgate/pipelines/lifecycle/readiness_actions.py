"""Readiness actions: evaluate readiness, wait for changes, and end runs that do not become ready in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headgate.clock import Clock, epoch_ms
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import ExpectationVerdict, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.lifecycle.completion import RunCompletion
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.readiness.evaluation_log import Evaluations, StoredEvaluation
from headgate.pipelines.readiness.evaluator import ReadinessEvaluator
from headgate.pipelines.readiness.waiters import PollPlan, Waiters, WaitKind
from headgate.pipelines.rules.readiness import ReadinessResult
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.sla import evaluation_moments, judge
from headgate.store.port import Store

_RESULTS: Final = {ReadinessResult.PROCEED: "passed", ReadinessResult.NOT_READY: "not_ready"}


class ReadinessActions:
    """evaluate, checkReadiness, checkEvaluationSLA, checkValidationTimeout, await-change and validation-exhausted."""

    def __init__(
        self,
        store: Store,
        runs: Runs,
        definitions: DefinitionReader,
        evaluations: Evaluations,
        clock: Clock,
        waiters: Waiters,
        completion: RunCompletion,
        evaluator: ReadinessEvaluator,
        *,
        is_polled: Callable[[Pipeline], bool],
    ) -> None:
        """`is_polled` says whether the readiness poller evaluates again while a run of a pipeline waits."""
        self._store = store
        self._runs = runs
        self._definitions = definitions
        self._evaluations = evaluations
        self._clock = clock
        self._waiters = waiters
        self._completion = completion
        self._evaluator = evaluator
        self._is_polled = is_polled

    def evaluate(self, call: Call) -> Answer:
        """Evaluate the readiness of a run and store the evaluation."""
        snapshot = self._evaluator.evaluate(self._runs.get(call.run_id))
        is_polled = self._is_polled(snapshot.pipeline)
        stored, writes = self._evaluator.storage_writes(snapshot, is_polled=is_polled)
        self._store.transact(writes)
        return {
            "status": _RESULTS.get(snapshot.verdict.result, "error"),
            "evaluationId": stored.evaluation_id,
            "reason": snapshot.verdict.reason,
            "elapsedSeconds": max(0, (snapshot.at_ms - snapshot.run.created_at_ms) // 1000),
            "waitSeconds": snapshot.fallback_seconds if is_polled else snapshot.next_seconds,
        }

    def check_readiness(self, call: Call) -> Answer:
        """Return the verdict of the evaluation, unless the run was cancelled, held or forced."""
        run = self._runs.get(call.run_id)
        stored = self._evaluated(call)
        decision = self._evaluator.decide(run, None if stored is None else stored.verdict)
        return {"result": decision.step.value, "reason": decision.reason}

    def _evaluated(self, call: Call) -> StoredEvaluation | None:
        """Return the evaluation that a call names, or the latest one."""
        evaluations = self._evaluations
        named = evaluations.find(call.slot, call.evaluation_id) if call.evaluation_id else None
        return named or evaluations.latest(call.slot)

    def check_evaluation_sla(self, call: Call) -> Answer:
        """Return whether the evaluation is late. The watchdog publishes the breach, once."""
        run = self._runs.get(call.run_id)
        timetable = self._definitions.timetable(self._definitions.of_run(run), call.schedule_id)
        moments = None if timetable is None else evaluation_moments(timetable, call.date)
        if moments is None:
            return {"breached": False}
        stored = self._evaluations.latest(call.slot)
        is_done = stored is not None and stored.verdict.may_start
        verdict = judge(moments, self._clock.now() if is_done else None, self._clock.now())
        return {"breached": verdict.verdict is ExpectationVerdict.MISSED}

    def check_validation_timeout(self, call: Call) -> Answer:
        """Return whether the hard limit on waiting for readiness has passed."""
        run = self._runs.get(call.run_id)
        limit = self._definitions.of_run(run).readiness.timeout
        waited_seconds = (epoch_ms(self._clock) - run.created_at_ms) / 1000
        return {"timedOut": limit is not None and waited_seconds >= limit}

    def validation_exhausted(self, call: Call) -> Answer:
        """End a run whose evaluation window closed before it was ready."""
        run = self._runs.get(call.run_id)
        stored = self._evaluations.latest(call.slot)
        why = "nothing was evaluated" if stored is None else stored.verdict.reason
        if not run.status.is_terminal:
            self._completion.end(
                run,
                RunStatus.FAILED,
                self._definitions.of_run(run),
                lock_token=call.lock_token,
                is_final=True,
                category=FailureCategory.TIMEOUT,
                event=JobEvent.VALIDATION_EXHAUSTED,
                reason=f"not ready in time: {why}",
            )
        return {"retryable": False, "reason": why}

    def await_change(self, call: Call) -> Answer:
        """Register a waiter that ends the task when an input of the readiness changes; end it at once if one has."""
        stored = self._evaluated(call)
        self._waiters.register(call.slot, WaitKind.CHANGE, call.task_token, self._poll_plan(call, stored))
        # Read after the registration: every later change finds the waiter.
        run = self._runs.get(call.run_id)
        if stored is not None and self._evaluator.has_changed(run, stored):
            self._waiters.wake(call.slot, WaitKind.CHANGE, "changed while it was evaluated")
        return {}

    def _poll_plan(self, call: Call, stored: StoredEvaluation | None) -> PollPlan | None:
        """Return when the poller evaluates for the waiter, if the evaluation was stored as polled."""
        if stored is None or not stored.is_polled:
            return None
        pipeline = self._definitions.of_run(self._runs.get(call.run_id))
        return PollPlan(call.run_id, stored.at_ms + round(1000 * pipeline.readiness.interval))
