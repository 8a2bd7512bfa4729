"""Orchestrating: the functions behind the lifecycle, by the actions and modes that its states name.

Each takes an event and returns a document. Locally they are activities of the engine; on AWS each is a Lambda.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from headgate.errors import InvalidPayloadError
from headgate.pipelines.context import Parts
from headgate.pipelines.lifecycle.admission_actions import AdmissionActions
from headgate.pipelines.lifecycle.completion import RunEndings
from headgate.pipelines.lifecycle.downstream import Downstream
from headgate.pipelines.lifecycle.job_control import Triggering
from headgate.pipelines.lifecycle.messages import Answer, Call, read_call
from headgate.pipelines.lifecycle.monitoring_actions import MonitoringActions
from headgate.pipelines.lifecycle.outcome_actions import OutcomeActions
from headgate.pipelines.lifecycle.readiness_actions import ReadinessActions
from headgate.pipelines.runs.locks import evaluation_key, lifetime_seconds
from headgate.pipelines.runs.rerun_rows import Rerun

_RELEASE: Final = "releaseLock"

Action = Callable[[Call], Answer]


class Orchestrator:
    """Carries out what a state of the lifecycle asks for."""

    def __init__(
        self,
        parts: Parts,
        downstream: Downstream,
        triggering: Triggering,
        endings: RunEndings,
        readiness: ReadinessActions,
        pursue: Callable[[Rerun, str], None],
    ) -> None:
        self._parts = parts
        self._triggering = triggering
        admission = AdmissionActions(parts, pursue)
        self._outcomes = OutcomeActions(parts, downstream, endings)
        monitoring = MonitoringActions(parts)
        self._actions: Mapping[str, Action] = {
            "checkExclusion": admission.check_exclusion,
            "acquireLock": admission.acquire_lock,
            "checkRunLog": admission.check_run_log,
            "resolvePipeline": admission.resolve_pipeline,
            "releaseLock": admission.release_lock,
            "checkReadiness": readiness.check_readiness,
            "checkEvaluationSLA": readiness.check_evaluation_sla,
            "checkValidationTimeout": readiness.check_validation_timeout,
            "checkCompletionSLA": lambda _: {},
            "logResult": self._outcomes.log_result,
            "notifyDownstream": self._outcomes.notify_downstream,
            "alertError": self._outcomes.alert_error,
            "dryRun": self._outcomes.dry_run,
            "checkDrift": monitoring.check_drift,
            "handleLateArrival": monitoring.handle_late_arrival,
            "checkMonitoringExpired": monitoring.check_monitoring_expired,
        }
        self._looks: Mapping[str, Callable[[Call], Answer | None]] = {
            "checkExclusion": admission.look_at_exclusion,
            "checkRunLog": admission.look_at_run_log,
            "checkReadiness": readiness.check_readiness,
            "checkEvaluationSLA": readiness.check_evaluation_sla,
            "checkValidationTimeout": readiness.check_validation_timeout,
            "checkCompletionSLA": lambda _: {},
        }
        self._modes: Mapping[str, Action] = {
            "evaluate": readiness.evaluate,
            "await-change": readiness.await_change,
            "await-job": triggering.await_job,
            "trigger": triggering.trigger,
            "check-job": triggering.check_job,
            "validation-exhausted": readiness.validation_exhausted,
            "trigger-exhausted": self._outcomes.trigger_exhausted,
            "job-poll-exhausted": self._job_poll_exhausted,
        }

    def __call__(self, event: dict[str, Any]) -> Answer:
        """Return the answer to an event. Raises `InvalidPayloadError` for one that names no action or mode."""
        call = read_call(event)
        action = self._actions.get(call.action) if call.action else self._modes.get(call.mode)
        if action is None:
            raise InvalidPayloadError(
                f"action {call.action!r}, mode {call.mode!r}: use one of {sorted(self._actions)} "
                f"or {sorted(self._modes)}"
            )
        if call.lock_token and call.action != _RELEASE:
            self._hold_on(call)
        return action(call)

    def look(self, event: dict[str, Any]) -> Answer | None:
        """Return the answer to an event that asks for nothing but a look. None: it may have to change something.

        Raises as an action does; whoever calls it then has done the same.
        """
        look = self._looks.get(str(event.get("action", "")))
        return None if look is None else look(read_call(event))

    def _hold_on(self, call: Call) -> None:
        """Take up a lock again that ran out while no process was there, if nobody has begun the period since."""
        parts, key = self._parts, evaluation_key(call.slot)
        if parts.locks.find(key) is not None:
            return
        log = parts.runs.log(call.slot)
        is_ours = log is None or log.run_id == call.run_id or not (call.run_id or log.is_live)
        if not is_ours:
            return
        pipeline, _ = parts.definitions.newest(call.pipeline_id)
        owner = call.execution_name or ("" if log is None else log.execution)
        parts.locks.take_up(key, owner, call.lock_token, lifetime_seconds(pipeline))

    def _job_poll_exhausted(self, call: Call) -> Answer:
        # The job first: if ending the run is lost, the job is asked to end once more, which changes nothing.
        self._triggering.end_job(call)
        return self._outcomes.job_poll_exhausted(call)
