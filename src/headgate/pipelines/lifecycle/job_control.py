"""Triggering: starts the job of a run, asks after it, and has it end. Every step is a compare-and-swap on the run."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from headgate.errors import IllegalTransitionError, VersionConflictError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.completion import RunEndings, job_entry
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.runs.rows import Run
from headgate.store.model.requests import Write
from headgate.triggers.contract import JobState, StartStatus, TriggerFailedError, TriggerOrder

# Between two looks at a job that takes long.
CHECK_SECONDS_MAX: Final = 300
# The looks become rarer by this much of the time that has passed.
_STRETCH: Final = 0.1
# Where a run keeps that the bus tells of the end of its job.
_TELLS_END: Final = "tells_end"


class Triggering:
    """What the trigger and the run-checker do."""

    def __init__(self, parts: Parts, waiters: Waiters, endings: RunEndings) -> None:
        self._parts = parts
        self._waiters = waiters
        self._endings = endings

    def trigger(self, call: Call) -> Answer:
        """Start the job of a run, once, and say whether it runs or is done already.

        Raises `TriggerFailedError` for what another try may mend; the lifecycle tries again, and the start is
        idempotent. A job that was refused or has failed for good is an answer, not an error.
        """
        parts = self._parts
        run = parts.runs.get(call.run_id)
        pipeline = parts.pipeline_of(run)
        if run.status is RunStatus.PENDING:
            run = parts.runs.move(run, RunStatus.TRIGGERING, lock_token=call.lock_token, also=self._told_state)
        if run.status is not RunStatus.TRIGGERING:
            return _standing(run)
        order = order_of(run, pipeline)
        try:
            started = parts.trigger.start(order)
        except TriggerFailedError as exc:
            return self._not_started(call, run, exc)
        to = RunStatus.RUNNING
        job: dict[str, Json] = {"metadata": started.metadata}
        if started.tells_end:
            job[_TELLS_END] = True
        try:
            parts.runs.move(
                run, to, lock_token=call.lock_token, job_id=started.external_id, job=job, also=self._told_triggered
            )
        except VersionConflictError:
            current = parts.runs.get(run.run_id)
            if not current.status.is_terminal:
                raise
            # Ended while its job was being started: the job is nobody's any more.
            self._cancel(replace(current, job_id=started.external_id, job=job), pipeline)
            return _standing(current)
        is_done = started.status is StartStatus.COMPLETED
        return {
            "status": "completed" if is_done else "running",
            "runId": started.external_id,
            "metadata": started.metadata,
        }

    def _not_started(self, call: Call, run: Run, error: TriggerFailedError) -> Answer:
        parts = self._parts
        category = error.category
        event = JobEvent.FAIL if error.was_started else JobEvent.INFRA_TRIGGER_FAILURE
        noted = parts.runs.change(
            run,
            lock_token=call.lock_token,
            category=category,
            event=event,
            reason=str(error),
            also=lambda changed, _log: [
                parts.job_log.entry_write(job_entry(changed, event, parts.now_ms(), str(error))),
                *parts.tells(EventName.TRIGGER_FAILED, changed.slot, _trouble(changed, str(error))),
            ],
        )
        if category is FailureCategory.PERMANENT or error.was_started:
            return {"status": "failed", "runId": "", "metadata": {}, "reason": noted.reason}
        raise error

    def check_job(self, call: Call) -> Answer:
        """Say how the job is. Without an `event` it is still running; an error in asking is no failure of the job."""
        parts = self._parts
        run = parts.runs.get(call.run_id)
        pipeline = parts.pipeline_of(run)
        begun_ms = run.started_at_ms or run.created_at_ms
        elapsed_seconds = max(0, (parts.now_ms() - begun_ms) // 1000)
        answer: Answer = {"elapsedSeconds": elapsed_seconds, "waitSeconds": _wait_seconds(pipeline, elapsed_seconds)}
        if run.status is RunStatus.CANCELLED:
            self._cancel(run, pipeline)
            return {**answer, "event": JobEvent.CANCELLED.value}
        if run.event is not None and run.event.is_terminal:
            # It was told from outside, or ended by someone else.
            return {**answer, "event": _as_seen(run.event).value}
        if run.status.is_done:
            return {**answer, "event": JobEvent.SUCCESS.value}
        if run.status.is_terminal:
            return {**answer, "event": JobEvent.FAIL.value}
        try:
            polled = parts.trigger.poll(order_of(run, pipeline), _metadata(run))
        except TriggerFailedError as exc:
            parts.tell(EventName.TRIGGER_FAILED, run.slot, **_trouble(run, f"asking after the job: {exc}"))
            return answer
        if polled.state is JobState.RUNNING:
            return answer
        if polled.state is JobState.SUCCEEDED:
            return {**answer, "event": JobEvent.SUCCESS.value}
        category = polled.category
        event = JobEvent.TIMEOUT if category is FailureCategory.TIMEOUT else JobEvent.FAIL
        parts.runs.change(run, event=event, category=category or FailureCategory.TRANSIENT, reason=polled.reason)
        return {**answer, "event": event.value}

    def await_job(self, call: Call) -> Answer:
        """Have the task ended as soon as the job, or someone, says something; at once if that has been."""
        self._waiters.register(call.slot, WaitKind.JOB, call.task_token)
        run = self._parts.runs.get(call.run_id)
        if run.status is not RunStatus.RUNNING or (run.event is not None and run.event.is_terminal):
            self._waiters.wake(call.slot, WaitKind.JOB, "it is over")
        elif run.job.get(_TELLS_END) and self._has_ended(run):
            # Told of before anyone waited for it.
            self._waiters.wake(call.slot, WaitKind.JOB, "the job has ended")
        return {}

    def _has_ended(self, run: Run) -> bool:
        try:
            polled = self._parts.trigger.poll(order_of(run, self._parts.pipeline_of(run)), _metadata(run))
        except TriggerFailedError:
            # Told when the run asks for itself.
            return False
        return polled.state is not JobState.RUNNING

    def complete(
        self, run_id: str, *, is_success: bool, reason: str = "", category: FailureCategory | None = None
    ) -> Run:
        """Take a job's own word for how it ended. Raises `NotFoundError`, `VersionConflictError`."""
        parts = self._parts
        run = parts.runs.get(run_id)
        if run.status.is_terminal or run.status.is_done or (run.event is not None and run.event.is_terminal):
            return run
        event = JobEvent.SUCCESS if is_success else JobEvent.FAIL
        changed = parts.runs.change(
            run,
            event=event,
            category=None if is_success else category or FailureCategory.TRANSIENT,
            reason=reason,
            also=lambda told, _log: parts.tells(
                EventName.CALLBACK_RECEIVED, told.slot, {"run_id": told.run_id, "status": event.value}
            ),
        )
        self._waiters.wake(run.slot, WaitKind.JOB, "the job has ended")
        return changed

    def cancel(self, run_id: str, *, by: str, reason: str) -> Run:
        """End a run, and its job with it. Raises `NotFoundError`, `IllegalTransitionError` if it has ended."""
        parts = self._parts
        run = parts.runs.get(run_id)
        if run.status.is_terminal or run.status.is_done:
            raise IllegalTransitionError(f"run {run_id}: it is {run.status.value}; nothing is left to cancel")
        detail = {"run_id": run.run_id, "by": by, "reason": reason}
        cancelled = self._endings.end(
            run,
            RunStatus.CANCELLED,
            parts.pipeline_of(run),
            also=parts.tells(EventName.RUN_CANCELLED, run.slot, detail),
            event=JobEvent.CANCELLED,
            reason=f"{by}: {reason}",
        )
        for kind in WaitKind:
            self._waiters.wake(run.slot, kind, "the run was cancelled")
        return cancelled

    def _cancel(self, run: Run, pipeline: Pipeline) -> None:
        try:
            self._parts.trigger.cancel(order_of(run, pipeline), _metadata(run))
        except TriggerFailedError as exc:
            self._parts.tell(EventName.TRIGGER_FAILED, run.slot, **_trouble(run, f"cancelling the job: {exc}"))

    def end_job(self, call: Call) -> None:
        """Have the job of a run end that nobody asks after any more."""
        run = self._parts.runs.get(call.run_id)
        self._cancel(run, self._parts.pipeline_of(run))

    def _told_state(self, run: Run, _log: object) -> list[Write]:
        before = run.transitions[-2].status.value if len(run.transitions) > 1 else ""
        detail = {"run_id": run.run_id, "before": before, "after": run.status.value, "attempt": run.attempt}
        return self._parts.tells(EventName.RUN_STATE_CHANGED, run.slot, detail)

    def _told_triggered(self, run: Run, log: object) -> list[Write]:
        trigger = self._parts.pipeline_of(run).trigger
        kind = "" if trigger is None else trigger.type
        detail = {"run_id": run.run_id, "job_id": run.job_id, "attempt": run.attempt, "trigger": kind}
        return [*self._told_state(run, log), *self._parts.tells(EventName.JOB_TRIGGERED, run.slot, detail)]


def order_of(run: Run, pipeline: Pipeline) -> TriggerOrder:
    """Return the order for the job of a run."""
    assert pipeline.trigger is not None, "a pipeline without a trigger begins no run"
    return TriggerOrder(
        type=pipeline.trigger.type,
        config=pipeline.trigger.config,
        pipeline=run.pipeline_id,
        schedule=run.schedule_id,
        date=run.date,
        run_id=run.run_id,
    )


def _metadata(run: Run) -> dict[str, str]:
    return {str(name): str(value) for name, value in run.job.get("metadata", {}).items()}


def _trouble(run: Run, error: str) -> dict[str, Json]:
    return {"run_id": run.run_id, "attempt": run.attempt, "error": error}


def _as_seen(event: JobEvent) -> JobEvent:
    """Return an event as the lifecycle knows it."""
    if event in (JobEvent.SUCCESS, JobEvent.CANCELLED):
        return event
    return JobEvent.TIMEOUT if event in (JobEvent.TIMEOUT, JobEvent.JOB_POLL_EXHAUSTED) else JobEvent.FAIL


def _standing(run: Run) -> Answer:
    metadata = run.job.get("metadata", {})
    if run.status is RunStatus.CANCELLED:
        return {"status": "cancelled", "runId": run.job_id, "metadata": metadata}
    if run.status.is_terminal:
        return {"status": "failed", "runId": run.job_id, "metadata": metadata}
    return {"status": "running", "runId": run.job_id, "metadata": metadata}


def _wait_seconds(pipeline: Pipeline, elapsed_seconds: int) -> int:
    """Return when to look again: soon at first, then ever more rarely, and never after the window has closed."""
    trigger = pipeline.trigger
    interval = 30.0 if trigger is None else float(trigger.check_interval)
    stretched = max(interval, min(CHECK_SECONDS_MAX, elapsed_seconds * _STRETCH))
    window = 3_600.0 if trigger is None or not trigger.poll_window else float(trigger.poll_window)
    left = max(1.0, window - elapsed_seconds)
    return max(1, round(min(stretched, left)))
