"""Orchestrator: dispatches calls of the state machine to the lifecycle actions and modes they name.

Each takes an event and returns a document. Locally they are durable activities; on AWS each is a Lambda.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from headgate.errors import InvalidPayloadError
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.lifecycle.admission_actions import AdmissionActions
from headgate.pipelines.lifecycle.job_control import JobControl
from headgate.pipelines.lifecycle.messages import Answer, Call, read_call
from headgate.pipelines.lifecycle.monitoring_actions import MonitoringActions
from headgate.pipelines.lifecycle.outcome_actions import OutcomeActions
from headgate.pipelines.lifecycle.readiness_actions import ReadinessActions
from headgate.pipelines.runs.locks import evaluation_key, lifetime_seconds
from headgate.pipelines.runs.stores import RunStores
from headgate.telemetry import log_fields, trace_id_of

_RELEASE: Final = "releaseLock"

Action = Callable[[Call], Answer]


class SlaChecks(Protocol):
    """Checks the deadlines of a period, and publishes breaches once."""

    def check_completion(self, call: Call) -> Answer:
        """Publish the breach of a period whose job has ended after its deadline."""

    def peek_completion(self, call: Call) -> Answer | None:
        """Answer `check_completion` without a write. None: it has to run."""

    def check_evaluation(self, call: Call) -> Answer:
        """Publish the breach of a period that was not ready by its evaluation deadline."""


class Orchestrator:
    """Dispatches a call of the state machine to its action."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        *,
        admission: AdmissionActions,
        readiness: ReadinessActions,
        jobs: JobControl,
        outcomes: OutcomeActions,
        monitoring: MonitoringActions,
        slas: SlaChecks,
        hand_over: Action,
    ) -> None:
        self._stores = stores
        self._definitions = definitions
        self._jobs = jobs
        self._outcomes = outcomes
        self._actions: Mapping[str, Action] = {
            "checkExclusion": admission.check_exclusion,
            "acquireLock": admission.acquire_lock,
            "checkRunLog": admission.check_run_log,
            "resolvePipeline": admission.resolve_pipeline,
            "releaseLock": admission.release_lock,
            "checkReadiness": readiness.check_readiness,
            "checkEvaluationSLA": slas.check_evaluation,
            "checkValidationTimeout": readiness.check_validation_timeout,
            "checkCompletionSLA": slas.check_completion,
            "logResult": self._outcomes.log_result,
            "notifyDownstream": self._outcomes.notify_downstream,
            "alertError": self._outcomes.alert_error,
            "dryRun": self._outcomes.dry_run,
            "checkDrift": monitoring.check_drift,
            "handleLateArrival": monitoring.handle_late_arrival,
            "checkMonitoringExpired": monitoring.check_monitoring_expired,
            "handOver": hand_over,
        }
        # Answers that need no write; None means that the action has to run.
        self._peeks: Mapping[str, Callable[[Call], Answer | None]] = {
            "checkExclusion": admission.peek_exclusion,
            "checkRunLog": admission.peek_run_log,
            "checkReadiness": readiness.peek_readiness,
            "checkEvaluationSLA": readiness.peek_evaluation_sla,
            "checkValidationTimeout": readiness.check_validation_timeout,
            "checkCompletionSLA": slas.peek_completion,
        }
        self._modes: Mapping[str, Action] = {
            "evaluate": readiness.evaluate,
            "await-change": readiness.await_change,
            "await-job": jobs.await_job,
            "trigger": jobs.trigger,
            "check-job": jobs.check_job,
            "validation-exhausted": readiness.validation_exhausted,
            "trigger-exhausted": self._outcomes.trigger_exhausted,
            "job-poll-exhausted": self._job_poll_exhausted,
        }

    def __call__(self, event: dict[str, Any]) -> Answer:
        """Run the action or mode that an event names. Raises `InvalidPayloadError` for an unknown one."""
        call = read_call(event)
        action = self._actions.get(call.action) if call.action else self._modes.get(call.mode)
        if action is None:
            raise InvalidPayloadError(
                f"action {call.action!r}, mode {call.mode!r}: use one of {sorted(self._actions)} "
                f"or {sorted(self._modes)}"
            )
        with log_fields(pipeline=call.pipeline_id, run=call.run_id, trace_id=lambda: self._trace_id(call)):
            if call.lock_token and call.action != _RELEASE:
                self._restore_lock(call)
            return action(call)

    def _trace_id(self, call: Call) -> str:
        """Return the trace of a call, for a log line."""
        run = self._stores.runs.find(call.run_id) if call.run_id and not call.traceparent else None
        return trace_id_of(call.traceparent if run is None else run.traceparent)

    def peek(self, event: dict[str, Any]) -> Answer | None:
        """Return the answer to an event if it needs no write. None: the action has to run.

        Raises the same errors as the action.
        """
        peek = self._peeks.get(str(event.get("action", "")))
        return None if peek is None else peek(read_call(event))

    def _restore_lock(self, call: Call) -> None:
        """Take a lock again that expired while no process was running, unless another run has started since."""
        key = evaluation_key(call.slot)
        if self._stores.locks.find(key) is not None:
            return
        log = self._stores.runs.log(call.slot)
        is_ours = log is None or log.run_id == call.run_id or not (call.run_id or log.is_live)
        if not is_ours:
            return
        pipeline, _ = self._definitions.newest(call.pipeline_id)
        owner = call.execution_name or ("" if log is None else log.execution)
        self._stores.locks.restore(key, owner, call.lock_token, lifetime_seconds(pipeline))

    def _job_poll_exhausted(self, call: Call) -> Answer:
        # Cancel the job first: if ending the run fails, the retry cancels again, which is idempotent.
        self._jobs.end_job(call)
        return self._outcomes.job_poll_exhausted(call)
