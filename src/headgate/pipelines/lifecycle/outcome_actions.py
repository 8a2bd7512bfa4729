"""Outcomes: what a run came to, what follows from it, and who hears of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.completion import RunEndings
from headgate.pipelines.lifecycle.downstream import Downstream
from headgate.pipelines.lifecycle.drift import RunBaselines
from headgate.pipelines.lifecycle.messages import Answer, Call, cause_of
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.schedule.sla import completion_moments


class OutcomeActions:
    """logResult, trigger-exhausted, job-poll-exhausted, notifyDownstream, alertError and dryRun."""

    def __init__(self, parts: Parts, downstream: Downstream, endings: RunEndings) -> None:
        self._parts = parts
        self._downstream = downstream
        self._endings = endings
        self._baselines = RunBaselines(parts)

    def log_result(self, call: Call) -> Answer:
        """Record how a run ended, and say whether another attempt follows. Asked again it says the same."""
        if call.status is RunStatus.COMPLETED:
            return self._completed(call)
        run = self._parts.runs.get(call.run_id) if call.run_id else None
        if run is None:
            return {"retryable": False, "retryBackoffSeconds": 0, "monitor": False}
        event = call.job_event or run.event or JobEvent.FAIL
        category = call.failure_category or run.category or FailureCategory.TRANSIENT
        return self._failed(call, run, event, category, call.reason or run.reason)

    def _completed(self, call: Call) -> Answer:
        parts = self._parts
        run = parts.runs.get(call.run_id)
        pipeline = parts.pipeline_of(run)
        monitoring = pipeline.post_run.monitoring
        is_watched = monitoring.enabled and bool(pipeline.readiness.traits)
        to = RunStatus.COMPLETED_MONITORING if is_watched else RunStatus.COMPLETED
        if not run.status.is_done and not run.status.is_terminal:
            until_ms = parts.now_ms() + round(1000 * monitoring.duration) if is_watched else None
            run = self._endings.end(
                run,
                to,
                pipeline,
                lock_token=call.lock_token,
                event=JobEvent.SUCCESS,
                category=None,
                reason="",
                monitor_until_ms=until_ms,
            )
        return {"retryable": False, "retryBackoffSeconds": 0, "monitor": run.status is RunStatus.COMPLETED_MONITORING}

    def trigger_exhausted(self, call: Call) -> Answer:
        """End a run whose job could not be started, although it was tried again and again."""
        run = self._parts.runs.get(call.run_id)
        reason = f"the job could not be started: {cause_of(call.error)}"
        category = run.category or FailureCategory.TRANSIENT
        return self._failed(call, run, JobEvent.INFRA_TRIGGER_EXHAUSTED, category, reason)

    def job_poll_exhausted(self, call: Call) -> Answer:
        """End a run whose job took longer than it is asked after, and have the job end too."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        window = parts.pipeline_of(run).trigger
        seconds = 0 if window is None else round(window.poll_window)
        reason = f"the job was still running after {seconds} s; it was asked to end"
        return self._failed(call, run, JobEvent.JOB_POLL_EXHAUSTED, FailureCategory.TIMEOUT, reason)

    def _failed(self, call: Call, run: Run, event: JobEvent, category: FailureCategory, reason: str) -> Answer:
        parts = self._parts
        pipeline = parts.pipeline_of(run)
        if not run.status.is_terminal:
            run = self._endings.end(
                run,
                RunStatus.FAILED,
                pipeline,
                lock_token=call.lock_token,
                event=event,
                category=category,
                reason=reason,
            )
        log = parts.runs.log(run.slot)
        if run.status is not RunStatus.FAILED or log is None or log.run_id != run.run_id:
            return {"retryable": False, "retryBackoffSeconds": 0, "monitor": False, "reason": run.reason}
        decision = self._endings.retry(pipeline, log)
        return {
            "retryable": decision.is_retryable,
            "retryBackoffSeconds": round(decision.backoff_seconds),
            "monitor": False,
            "reason": decision.reason,
        }

    def notify_downstream(self, call: Call) -> Answer:
        """Ask for the periods of other pipelines that wait for this one."""
        return {"notified": self._downstream.notify(self._parts.runs.get(call.run_id))}

    def alert_error(self, call: Call) -> Answer:
        """Tell that the lifecycle itself met an error. If it is the end of the run, that is recorded too."""
        parts = self._parts
        reason = cause_of(call.error) or call.reason
        name = _KINDS.get(call.kind, EventName.INFRA_FAILURE)
        parts.tell(name, call.slot, kind=call.kind, error=reason, run_id=call.run_id, trait="", downstream="")
        run = parts.runs.find(call.run_id) if call.final and call.run_id else None
        if run is not None and not run.status.is_terminal and not run.status.is_done:
            self._endings.end(
                run,
                RunStatus.FAILED,
                parts.pipeline_of(run),
                is_final=True,
                event=JobEvent.FAIL,
                category=FailureCategory.TRANSIENT,
                reason=f"the lifecycle failed: {reason}",
            )
        return {"alerted": True}

    def _projected(self, run: Run, pipeline: Pipeline) -> str:
        """Return whether a job that began now would keep its deadline, by how long it is expected to take."""
        sla = pipeline.sla
        timetable = self._parts.timetable(pipeline, run.schedule_id)
        moments = None if timetable is None else completion_moments(timetable, run.date)
        if sla is None or moments is None or sla.expected_duration is None:
            return _NO_SLA
        done_at = self._parts.now() + timedelta(seconds=sla.expected_duration)
        return "met" if done_at < moments.breach_at else "breach"

    def dry_run(self, call: Call) -> Answer:
        """Say what would have been started, and start nothing."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        pipeline = parts.pipeline_of(run)
        detail = {"run_id": run.run_id, "trigger": "" if pipeline.trigger is None else pipeline.trigger.type}
        if not run.status.is_terminal:
            projected = self._projected(run, pipeline)
            told = parts.tells(EventName.DRY_RUN_WOULD_TRIGGER, run.slot, detail)
            if projected != _NO_SLA:
                told += parts.tells(EventName.DRY_RUN_SLA_PROJECTION, run.slot, {**detail, "status": projected})
            # What comes after is compared with it, as it would be after a run.
            told += self._baselines.writes(run, pipeline)
            told += parts.tells(EventName.DRY_RUN_COMPLETED, run.slot, {**detail, "sla_status": projected})
            self._endings.end(
                run,
                RunStatus.CANCELLED,
                pipeline,
                lock_token=call.lock_token,
                also=told,
                event=JobEvent.CANCELLED,
                reason="a dry run: nothing was started",
            )
        return {"dryRun": True}


_NO_SLA: Final = "n/a"
_KINDS: Final = {
    "EVALUATOR_ERROR": EventName.EVALUATOR_FAILED,
    "LOCK_NOT_RELEASED": EventName.LOCK_NOT_RELEASED,
    "CASCADE_FAILED": EventName.CASCADE_FAILED,
}
