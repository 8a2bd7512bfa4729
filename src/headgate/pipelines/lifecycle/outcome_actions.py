"""Outcome actions: record the end of a run, notify dependents, and report errors of the lifecycle."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headgate.clock import Clock, epoch_ms
from headgate.pipelines.definition.job_times import window_seconds
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.completion import RunCompletion
from headgate.pipelines.lifecycle.downstream import DownstreamNotifier
from headgate.pipelines.lifecycle.drift import RunBaselines
from headgate.pipelines.lifecycle.messages import Answer, Call, error_text
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.runs.stores import RunStores
from headgate.pipelines.schedule.sla import completion_moments


class OutcomeActions:
    """logResult, trigger-exhausted, job-poll-exhausted, notifyDownstream, alertError and dryRun."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        events: EventWriter,
        clock: Clock,
        downstream: DownstreamNotifier,
        completion: RunCompletion,
        baselines: RunBaselines,
    ) -> None:
        self._stores = stores
        self._definitions = definitions
        self._events = events
        self._clock = clock
        self._downstream = downstream
        self._completion = completion
        self._baselines = baselines

    def log_result(self, call: Call) -> Answer:
        """Record the end of a run, and return whether a retry follows. Repeating it returns the same."""
        if call.status is RunStatus.COMPLETED:
            return self._completed(call)
        run = self._stores.runs.get(call.run_id) if call.run_id else None
        if run is None:
            return {"retryable": False, "retryBackoffSeconds": 0, "monitor": False}
        event = call.job_event or run.event or JobEvent.FAIL
        category = call.failure_category or run.category or FailureCategory.TRANSIENT
        return self._failed(call, run, event, category, call.reason or run.reason)

    def _completed(self, call: Call) -> Answer:
        run = self._stores.runs.get(call.run_id)
        pipeline = self._definitions.of_run(run)
        monitoring = pipeline.post_run.monitoring
        is_monitored = monitoring.enabled and bool(pipeline.readiness.traits)
        to = RunStatus.COMPLETED_MONITORING if is_monitored else RunStatus.COMPLETED
        if not run.status.is_done and not run.status.is_terminal:
            until_ms = epoch_ms(self._clock) + round(1000 * monitoring.duration) if is_monitored else None
            run = self._completion.end(
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
        """End a run whose job could not be started within its retries."""
        run = self._stores.runs.get(call.run_id)
        reason = f"the job could not be started: {error_text(call.error)}"
        category = run.category or FailureCategory.TRANSIENT
        return self._failed(call, run, JobEvent.INFRA_TRIGGER_EXHAUSTED, category, reason)

    def job_poll_exhausted(self, call: Call) -> Answer:
        """End a run whose job is still running after its poll window."""
        run = self._stores.runs.get(call.run_id)
        seconds = round(window_seconds(self._definitions.of_run(run).trigger))
        reason = f"the job was still running after {seconds} s; it was asked to end"
        return self._failed(call, run, JobEvent.JOB_POLL_EXHAUSTED, FailureCategory.TIMEOUT, reason)

    def _failed(self, call: Call, run: Run, event: JobEvent, category: FailureCategory, reason: str) -> Answer:
        pipeline = self._definitions.of_run(run)
        if not run.status.is_terminal:
            run = self._completion.end(
                run,
                RunStatus.FAILED,
                pipeline,
                lock_token=call.lock_token,
                event=event,
                category=category,
                reason=reason,
            )
        log = self._stores.runs.log(run.slot)
        if run.status is not RunStatus.FAILED or log is None or log.run_id != run.run_id:
            return {"retryable": False, "retryBackoffSeconds": 0, "monitor": False, "reason": run.reason}
        decision = self._completion.retry(pipeline, log)
        return {
            "retryable": decision.is_retryable,
            "retryBackoffSeconds": round(decision.backoff_seconds),
            "monitor": False,
            "reason": decision.reason,
        }

    def notify_downstream(self, call: Call) -> Answer:
        """Request the periods of dependent pipelines."""
        return {"notified": self._downstream.notify(self._stores.runs.get(call.run_id))}

    def alert_error(self, call: Call) -> Answer:
        """Publish an error of the lifecycle itself. A final one also ends the run."""
        reason = error_text(call.error) or call.reason
        name = _KINDS.get(call.kind, EventName.INFRA_FAILURE)
        self._events.publish(name, call.slot, kind=call.kind, error=reason, run_id=call.run_id, trait="", downstream="")
        run = self._stores.runs.find(call.run_id) if call.final and call.run_id else None
        if run is not None and not run.status.is_terminal and not run.status.is_done:
            self._completion.end(
                run,
                RunStatus.FAILED,
                self._definitions.of_run(run),
                is_final=True,
                event=JobEvent.FAIL,
                category=FailureCategory.TRANSIENT,
                reason=f"the lifecycle failed: {reason}",
            )
        return {"alerted": True}

    def _projected_sla(self, run: Run, pipeline: Pipeline) -> str:
        """Return whether a job that starts now would meet its deadline, by its expected duration."""
        sla = pipeline.sla
        timetable = self._definitions.timetable(pipeline, run.schedule_id)
        moments = None if timetable is None else completion_moments(timetable, run.date)
        if sla is None or moments is None or sla.expected_duration is None:
            return _NO_SLA
        done_at = self._clock.now() + timedelta(seconds=sla.expected_duration)
        return "met" if done_at < moments.breach_at else "breach"

    def dry_run(self, call: Call) -> Answer:
        """Publish what a run would have started, and start nothing."""
        run = self._stores.runs.get(call.run_id)
        pipeline = self._definitions.of_run(run)
        detail = {"run_id": run.run_id, "trigger": "" if pipeline.trigger is None else pipeline.trigger.type}
        if not run.status.is_terminal:
            projected = self._projected_sla(run, pipeline)
            writes = self._events.writes(EventName.DRY_RUN_WOULD_TRIGGER, run.slot, detail)
            if projected != _NO_SLA:
                writes += self._events.writes(
                    EventName.DRY_RUN_SLA_PROJECTION, run.slot, {**detail, "status": projected}
                )
            # Later sensor changes are compared with this baseline, as after a real run.
            writes += self._baselines.writes(run, pipeline)
            writes += self._events.writes(EventName.DRY_RUN_COMPLETED, run.slot, {**detail, "sla_status": projected})
            self._completion.end(
                run,
                RunStatus.CANCELLED,
                pipeline,
                lock_token=call.lock_token,
                also=writes,
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
