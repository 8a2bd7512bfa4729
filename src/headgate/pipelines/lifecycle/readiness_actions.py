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
from headgate.pipelines.lifecycle.pool_admission import PoolAdmission
from headgate.pipelines.readiness.evaluation_log import Evaluations, StoredEvaluation
from headgate.pipelines.readiness.evaluator import ReadinessDecision, ReadinessEvaluator, ReadinessStep
from headgate.pipelines.readiness.waiters import PollPlan, Waiters, WaitKind
from headgate.pipelines.rules.readiness import ReadinessResult
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.sla import evaluation_moments, judge
from headgate.store.port import Store

_RESULTS: Final = {ReadinessResult.PROCEED: "passed", ReadinessResult.NOT_READY: "not_ready"}


class ReadinessActions:
    """evaluate, checkReadiness, checkValidationTimeout, await-change and validation-exhausted."""

    def __init__(  # noqa: PLR0913 - each is one of the stores and deciders that an evaluation needs
        self,
        store: Store,
        runs: Runs,
        definitions: DefinitionReader,
        evaluations: Evaluations,
        clock: Clock,
        waiters: Waiters,
        completion: RunCompletion,
        evaluator: ReadinessEvaluator,
        pools: PoolAdmission,
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
        self._pools = pools
        self._is_polled = is_polled

    def evaluate(self, call: Call) -> Answer:
        """Evaluate the readiness of a run and store the evaluation."""
        snapshot = self._evaluator.evaluate(self._runs.get(call.run_id))
        is_polled = self._is_polled(snapshot.pipeline)
        stored, writes = self._evaluator.storage_writes(snapshot, is_polled=is_polled)
        self._store.transact(writes)
        wait_seconds = snapshot.fallback_seconds if is_polled else snapshot.next_seconds
        until_ms = snapshot.at_ms
        queued_at_ms = self._queued_at_ms(snapshot.run, snapshot.pipeline) if snapshot.verdict.may_start else None
        if queued_at_ms is not None:
            # The window limits the wait for readiness. The wait for a pool has no limit.
            until_ms = min(queued_at_ms, snapshot.closes_at_ms - 1000)
            wait_seconds = max(1, round(snapshot.pipeline.readiness.interval))
        return {
            "status": _RESULTS.get(snapshot.verdict.result, "error"),
            "evaluationId": stored.evaluation_id,
            "reason": snapshot.verdict.reason,
            "elapsedSeconds": max(0, (until_ms - snapshot.run.created_at_ms) // 1000),
            "waitSeconds": wait_seconds,
        }

    def check_readiness(self, call: Call) -> Answer:
        """Return the verdict of the evaluation, unless the run was cancelled, held or forced.

        A run that may start takes the slots of its pools first. While they are full it is not ready.
        """
        run = self._runs.get(call.run_id)
        decision = self._decide(call, run)
        pipeline = self._definitions.of_run(run)
        if self._pools.needs(pipeline):
            if decision.step is not ReadinessStep.PROCEED:
                # A run that is not ready any more must not keep slots from others.
                self._pools.leave(run, pipeline)
            elif reason := self._pools.admit(run, pipeline):
                return {"result": ReadinessStep.NOT_READY.value, "reason": f"ready, but {reason}"}
        return {"result": decision.step.value, "reason": decision.reason}

    def peek_readiness(self, call: Call) -> Answer | None:
        """Answer checkReadiness without a write. None: the run needs slots of a pool, which are stored."""
        run = self._runs.get(call.run_id)
        if self._pools.needs(self._definitions.of_run(run)):
            return None
        decision = self._decide(call, run)
        return {"result": decision.step.value, "reason": decision.reason}

    def _decide(self, call: Call, run: Run) -> ReadinessDecision:
        stored = self._evaluated(call)
        return self._evaluator.decide(run, None if stored is None else stored.verdict)

    def _queued_at_ms(self, run: Run, pipeline: Pipeline) -> int | None:
        """Return when a run entered the queue of a pool that it still waits for."""
        wait = self._pools.wait_of(run, pipeline)
        return None if wait is None else wait.queued_at_ms

    def _evaluated(self, call: Call) -> StoredEvaluation | None:
        """Return the evaluation that a call names, or the latest one."""
        evaluations = self._evaluations
        named = evaluations.find(call.slot, call.evaluation_id) if call.evaluation_id else None
        return named or evaluations.latest(call.slot)

    def peek_evaluation_sla(self, call: Call) -> Answer | None:
        """Answer checkEvaluationSLA without a write. None: the deadline has passed, which is published."""
        run = self._runs.get(call.run_id)
        timetable = self._definitions.timetable(self._definitions.of_run(run), call.schedule_id)
        moments = None if timetable is None else evaluation_moments(timetable, call.date)
        if moments is None:
            return {"breached": False}
        stored = self._evaluations.latest(call.slot)
        is_done = stored is not None and stored.verdict.may_start
        verdict = judge(moments, self._clock.now() if is_done else None, self._clock.now())
        return None if verdict.verdict is ExpectationVerdict.MISSED else {"breached": False}

    def check_validation_timeout(self, call: Call) -> Answer:
        """Return whether the hard limit on waiting for readiness has passed."""
        run = self._runs.get(call.run_id)
        pipeline = self._definitions.of_run(run)
        limit = pipeline.readiness.timeout
        if limit is None:
            return {"timedOut": False}
        until_ms = self._queued_at_ms(run, pipeline) or epoch_ms(self._clock)
        return {"timedOut": (until_ms - run.created_at_ms) / 1000 >= limit}

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
        elif self._pools.is_offered(run, self._definitions.of_run(run)):
            self._waiters.wake(call.slot, WaitKind.CHANGE, "its pool offers a slot")
        return {}

    def _poll_plan(self, call: Call, stored: StoredEvaluation | None) -> PollPlan | None:
        """Return when the poller evaluates for the waiter, if the evaluation was stored as polled."""
        if stored is None or not stored.is_polled:
            return None
        pipeline = self._definitions.of_run(self._runs.get(call.run_id))
        return PollPlan(call.run_id, stored.at_ms + round(1000 * pipeline.readiness.interval))
