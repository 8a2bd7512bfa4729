"""Job control: starts, polls, completes and cancels the job of a run. Every step is a compare-and-swap on the run."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from msgspec.structs import replace

from headgate.clock import Clock, epoch_ms
from headgate.errors import IllegalTransitionError, VersionConflictError
from headgate.pipelines.definition.job_times import window_seconds
from headgate.pipelines.definition.model import (
    JOB_CHECK_SECONDS,
    JOB_CHECK_SECONDS_MAX,
    Json,
    Pipeline,
    TriggerSpec,
)
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import FailureCategory, JobEvent, RunStatus
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.callback_tokens import Callback, CallbackTokens
from headgate.pipelines.lifecycle.completion import RunCompletion, job_entry
from headgate.pipelines.lifecycle.messages import Answer, Call
from headgate.pipelines.readiness.waiters import Waiters, WaitKind
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.runs.stores import RunStores
from headgate.store.model.requests import Write
from headgate.triggers.contract import (
    JobState,
    PollResult,
    Started,
    StartStatus,
    Trigger,
    TriggerFailedError,
    TriggerOrder,
)

# The poll interval grows to this fraction of the elapsed time.
_STRETCH: Final = 0.1
# Key in `Run.job`: the bus publishes the end of this job.
REPORTS_END: Final = "tells_end"
_RACES_MAX: Final = 10


class JobControl:
    """The modes trigger, check-job and await-job, and the completion and cancellation of jobs from outside."""

    def __init__(
        self,
        stores: RunStores,
        definitions: DefinitionReader,
        trigger: Trigger,
        events: EventWriter,
        clock: Clock,
        waiters: Waiters,
        completion: RunCompletion,
        callbacks: CallbackTokens,
    ) -> None:
        self._stores = stores
        self._definitions = definitions
        self._trigger = trigger
        self._events = events
        self._clock = clock
        self._waiters = waiters
        self._completion = completion
        self._callbacks = callbacks

    def trigger(self, call: Call) -> Answer:
        """Start the job of a run, once, and return whether it is running or already complete.

        Raises `TriggerFailedError` if a retry may help: the lifecycle retries, and the start is idempotent. A job that
        is refused, or has failed for good, is an answer and not an error.
        """
        run = self._stores.runs.get(call.run_id)
        pipeline, is_from_folder = self._definitions.with_origin(run)
        if run.status is RunStatus.PENDING:
            run = self._stores.runs.move(run, RunStatus.TRIGGERING, lock_token=call.lock_token, also=self._state_events)
        if run.status is not RunStatus.TRIGGERING:
            return _status_answer(run)
        if has_ended(run):
            # The job has reported its end, and the answer to its start was lost: it is not started again.
            return self._on_reported(call, run)
        order = self._order(run, pipeline, is_from_folder=is_from_folder)
        # The time of a synchronous job is that of its request.
        begun_at_ms = epoch_ms(self._clock)
        try:
            if order.callback_url == "":
                raise _no_callback(run)
            started = self._trigger.start(order)
        except TriggerFailedError as exc:
            return self._on_start_failed(call, run, exc)
        return self._on_started(call, run, pipeline, started, begun_at_ms)

    def _on_reported(self, call: Call, run: Run) -> Answer:
        """Let the lifecycle go on to the end that the job has reported."""
        moved = self._stores.runs.move(
            run, RunStatus.RUNNING, lock_token=call.lock_token, job_id=run.run_id, also=self._triggered_events
        )
        return _status_answer(moved)

    def _on_started(self, call: Call, run: Run, pipeline: Pipeline, started: Started, begun_at_ms: int) -> Answer:
        job: dict[str, Json] = {"metadata": started.metadata}
        if started.tells_end:
            job[REPORTS_END] = True
        for _ in range(_RACES_MAX):
            try:
                self._stores.runs.move(
                    run,
                    RunStatus.RUNNING,
                    lock_token=call.lock_token,
                    job_id=started.external_id,
                    job=job,
                    also=self._triggered_events,
                    **_moments(started, begun_at_ms, epoch_ms(self._clock)),
                )
            except VersionConflictError:
                run = self._stores.runs.get(run.run_id)
                if run.status is RunStatus.TRIGGERING:
                    # The job called back before its start was answered.
                    continue
                if not run.status.is_terminal:
                    raise
                # The run ended while its job was starting: no run owns the job, so cancel it.
                self._cancel(replace(run, job_id=started.external_id, job=job), pipeline)
                return _status_answer(run)
            return {
                "status": "completed" if started.status is StartStatus.COMPLETED else "running",
                "runId": started.external_id,
                "metadata": started.metadata,
            }
        raise VersionConflictError(f"run {run.run_id}: concurrent changes keep winning; try again")

    def _on_start_failed(self, call: Call, run: Run, error: TriggerFailedError) -> Answer:
        run = self._stores.runs.get(run.run_id)
        if run.status.is_terminal:
            return _status_answer(run)
        if has_ended(run):
            return self._on_reported(call, run)
        category = error.category
        event = JobEvent.FAIL if error.was_started else JobEvent.INFRA_TRIGGER_FAILURE
        is_final = category is FailureCategory.PERMANENT or error.was_started

        def following_writes(changed: Run, _log: object) -> list[Write]:
            writes: list[Write] = []
            if not is_final:
                # The end of the run has its own entry.
                writes.append(
                    self._stores.job_log.entry_write(job_entry(changed, event, changed.updated_at_ms, str(error)))
                )
            if not error.was_started:
                writes += self._events.writes(
                    EventName.TRIGGER_FAILED, changed.slot, _error_detail(changed, str(error))
                )
            return writes

        failed = self._stores.runs.change(
            run,
            lock_token=call.lock_token,
            category=category,
            event=event,
            reason=str(error),
            also=following_writes,
        )
        if is_final:
            return {"status": "failed", "runId": "", "metadata": {}, "reason": failed.reason}
        raise error

    def check_job(self, call: Call) -> Answer:
        """Poll the job. Without an `event` in the answer it is running; a failed poll is no failure of the job."""
        run = self._stores.runs.get(call.run_id)
        pipeline = self._definitions.of_run(run)
        begun_ms = run.started_at_ms or run.created_at_ms
        elapsed_seconds = max(0, (epoch_ms(self._clock) - begun_ms) // 1000)
        reports_end = bool(run.job.get(REPORTS_END))
        wait_seconds = _wait_seconds(pipeline, elapsed_seconds, reports_end=reports_end)
        answer: Answer = {"elapsedSeconds": elapsed_seconds, "waitSeconds": wait_seconds}
        ended = self._known_end(run, pipeline)
        if ended is not None:
            return {**answer, "event": ended.value}
        silence = _silence(run, pipeline.trigger, epoch_ms(self._clock))
        if silence is not None:
            if silence.seconds_left <= 0:
                return {**answer, "event": self._on_silent(run, pipeline, silence).value}
            answer["waitSeconds"] = min(answer["waitSeconds"], max(1, math.ceil(silence.seconds_left)))
        try:
            polled = self._trigger.poll(self._order(run, pipeline), metadata_of(run))
        except TriggerFailedError as exc:
            self._events.publish(
                EventName.TRIGGER_FAILED, run.slot, **_error_detail(run, f"asking after the job: {exc}")
            )
            return answer
        if polled.state is JobState.RUNNING:
            if polled.check_after_seconds is not None:
                answer["waitSeconds"] = _wait_seconds(pipeline, elapsed_seconds, polled.check_after_seconds)
            return answer
        return {**answer, "event": self._on_polled_end(run, polled).value}

    def _known_end(self, run: Run, pipeline: Pipeline) -> JobEvent | None:
        """Return the end that is stored on the run, or None if the job has to be polled."""
        if run.status is RunStatus.CANCELLED:
            self._cancel(run, pipeline)
            return JobEvent.CANCELLED
        if run.event is not None and run.event.is_terminal:
            # A callback or another process reported the end.
            return _lifecycle_event(run.event)
        if run.status.is_done:
            return JobEvent.SUCCESS
        return JobEvent.FAIL if run.status.is_terminal else None

    def _on_polled_end(self, run: Run, polled: PollResult) -> JobEvent:
        if polled.state is JobState.SUCCEEDED:
            if polled.ended_at_ms is not None:
                self._stores.runs.change(run, job_ended_at_ms=polled.ended_at_ms)
            return JobEvent.SUCCESS
        category = polled.category
        event = JobEvent.TIMEOUT if category is FailureCategory.TIMEOUT else JobEvent.FAIL
        self._stores.runs.change(
            run,
            event=event,
            category=category or FailureCategory.TRANSIENT,
            reason=polled.reason,
            job_ended_at_ms=polled.ended_at_ms,
        )
        return event

    def await_job(self, call: Call) -> Answer:
        """Register a waiter that ends the task when the job ends; end it at once if that has happened."""
        self._waiters.register(call.slot, WaitKind.JOB, call.task_token)
        run = self._stores.runs.get(call.run_id)
        if run.status is not RunStatus.RUNNING or has_ended(run):
            self._waiters.wake(call.slot, WaitKind.JOB, "it is over")
        elif run.job.get(REPORTS_END) and self._has_ended(run):
            # The job's end was published before the waiter was registered.
            self._waiters.wake(call.slot, WaitKind.JOB, "the job has ended")
        return {}

    def _has_ended(self, run: Run) -> bool:
        try:
            polled = self._trigger.poll(self._order(run, self._definitions.of_run(run)), metadata_of(run))
        except TriggerFailedError:
            # check-job polls again and reports the error.
            return False
        return polled.state is not JobState.RUNNING

    def complete(
        self, run_id: str, *, is_success: bool, reason: str = "", category: FailureCategory | None = None
    ) -> Run:
        """Record the end that a job reports itself. Raises `NotFoundError`, `VersionConflictError`."""
        run = self._stores.runs.get(run_id)
        if has_ended(run):
            return run
        event = JobEvent.SUCCESS if is_success else JobEvent.FAIL
        changed = self._stores.runs.change(
            run,
            event=event,
            category=None if is_success else category or FailureCategory.TRANSIENT,
            reason=reason,
            also=lambda changed, _log: self._events.writes(
                EventName.CALLBACK_RECEIVED, changed.slot, {"run_id": changed.run_id, "status": event.value}
            ),
        )
        self._waiters.wake(run.slot, WaitKind.JOB, "the job has ended")
        return changed

    def heartbeat(self, run_id: str) -> Run:
        """Record that the job of a run is alive. Raises `NotFoundError`, `VersionConflictError`."""
        run = self._stores.runs.get(run_id)
        return run if has_ended(run) else self._stores.runs.change(run, heartbeat_at_ms=epoch_ms(self._clock))

    def _on_silent(self, run: Run, pipeline: Pipeline, silence: _Silence) -> JobEvent:
        """End a run whose job sends no heartbeats."""
        reason = f"the job sent no heartbeat for {silence.limit_seconds:g} s; it was asked to end"
        self._stores.runs.change(run, event=JobEvent.TIMEOUT, category=FailureCategory.TIMEOUT, reason=reason)
        self._cancel(run, pipeline)
        return JobEvent.TIMEOUT

    def cancel(self, run_id: str, *, by: str, reason: str) -> Run:
        """Cancel a run and its job. Raises `NotFoundError`, and `IllegalTransitionError` if the run has ended."""
        run = self._stores.runs.get(run_id)
        if run.status.is_terminal or run.status.is_done:
            raise IllegalTransitionError(f"run {run_id}: it is {run.status.value}; nothing is left to cancel")
        detail = {"run_id": run.run_id, "by": by, "reason": reason}
        cancelled = self._completion.end(
            run,
            RunStatus.CANCELLED,
            self._definitions.of_run(run),
            also=self._events.writes(EventName.RUN_CANCELLED, run.slot, detail),
            event=JobEvent.CANCELLED,
            reason=f"{by}: {reason}",
        )
        for kind in WaitKind:
            self._waiters.wake(run.slot, kind, "the run was cancelled")
        return cancelled

    def _cancel(self, run: Run, pipeline: Pipeline) -> None:
        try:
            self._trigger.cancel(self._order(run, pipeline), metadata_of(run))
        except TriggerFailedError as exc:
            self._events.publish(EventName.TRIGGER_FAILED, run.slot, **_error_detail(run, f"cancelling the job: {exc}"))

    def end_job(self, call: Call) -> None:
        """Cancel the job of a run that is no longer polled."""
        run = self._stores.runs.get(call.run_id)
        self._cancel(run, self._definitions.of_run(run))

    def _order(self, run: Run, pipeline: Pipeline, *, is_from_folder: bool = False) -> TriggerOrder:
        trigger = pipeline.trigger
        callback = None if trigger is None or not trigger.callback else self._callbacks.issue(run, trigger)
        return order_of(run, pipeline, is_from_folder=is_from_folder, callback=callback)

    def _state_events(self, run: Run, _log: object) -> list[Write]:
        before = run.transitions[-2].status.value if len(run.transitions) > 1 else ""
        detail = {"run_id": run.run_id, "before": before, "after": run.status.value, "attempt": run.attempt}
        return self._events.writes(EventName.RUN_STATE_CHANGED, run.slot, detail)

    def _triggered_events(self, run: Run, log: object) -> list[Write]:
        trigger = self._definitions.of_run(run).trigger
        kind = "" if trigger is None else trigger.type
        detail = {"run_id": run.run_id, "job_id": run.job_id, "attempt": run.attempt, "trigger": kind}
        return [*self._state_events(run, log), *self._events.writes(EventName.JOB_TRIGGERED, run.slot, detail)]


class _Silence(NamedTuple):
    """How long the job of a run may be silent, and the time that is left of it."""

    limit_seconds: float
    seconds_left: float


def has_ended(run: Run) -> bool:
    """Whether the run is over, or its job has reported its end."""
    return run.status.is_terminal or run.status.is_done or (run.event is not None and run.event.is_terminal)


def order_of(
    run: Run, pipeline: Pipeline, *, is_from_folder: bool = False, callback: Callback | None = None
) -> TriggerOrder:
    """Return the trigger order for the job of a run. `is_from_folder` matters for a start only."""
    assert pipeline.trigger is not None, "a pipeline without a trigger begins no run"
    return TriggerOrder(
        type=pipeline.trigger.type,
        config=pipeline.trigger.config,
        pipeline=run.pipeline_id,
        schedule=run.schedule_id,
        date=run.date,
        run_id=run.run_id,
        attempt=run.attempt,
        is_from_folder=is_from_folder,
        callback_url=None if callback is None else callback.url,
        callback_token=None if callback is None else callback.token,
    )


def _no_callback(run: Run) -> TriggerFailedError:
    return TriggerFailedError(
        f"run {run.run_id}: its trigger has callback: true, and this server's public URL is unknown; set public_url",
        FailureCategory.PERMANENT,
    )


def _silence(run: Run, trigger: TriggerSpec | None, now_ms: int) -> _Silence | None:
    """Return how long a job that owes heartbeats may still be silent; None if it owes none."""
    if trigger is None or not trigger.callback or trigger.heartbeat is None:
        return None
    last_ms = max(run.heartbeat_at_ms or 0, run.started_at_ms or run.created_at_ms)
    return _Silence(trigger.heartbeat, trigger.heartbeat - (now_ms - last_ms) / 1000)


def metadata_of(run: Run) -> dict[str, str]:
    """Return what the trigger of a run stored to poll and cancel its job."""
    return {str(name): str(value) for name, value in run.job.get("metadata", {}).items()}


def _error_detail(run: Run, error: str) -> dict[str, Json]:
    return {"run_id": run.run_id, "attempt": run.attempt, "error": error}


def _lifecycle_event(event: JobEvent) -> JobEvent:
    """Map a job event to one of the four that the state machine knows."""
    if event in (JobEvent.SUCCESS, JobEvent.CANCELLED):
        return event
    return JobEvent.TIMEOUT if event in (JobEvent.TIMEOUT, JobEvent.JOB_POLL_EXHAUSTED) else JobEvent.FAIL


def _status_answer(run: Run) -> Answer:
    metadata = run.job.get("metadata", {})
    if run.status is RunStatus.CANCELLED:
        return {"status": "cancelled", "runId": run.job_id, "metadata": metadata}
    if run.status.is_terminal:
        return {"status": "failed", "runId": run.job_id, "metadata": metadata}
    return {"status": "running", "runId": run.job_id, "metadata": metadata}


def _wait_seconds(
    pipeline: Pipeline, elapsed_seconds: int, at_least_seconds: float = 0, *, reports_end: bool = False
) -> int:
    """Return the time until the next poll: it grows with the elapsed time, and ends with the poll window.

    `at_least_seconds` is what the other side asks for. A job whose end is reported is polled seldom, in case the report
    is lost.
    """
    interval = JOB_CHECK_SECONDS if pipeline.trigger is None else float(pipeline.trigger.check_interval)
    stretched = max(interval, at_least_seconds, min(JOB_CHECK_SECONDS_MAX, elapsed_seconds * _STRETCH))
    if reports_end and interval == JOB_CHECK_SECONDS:
        stretched = JOB_CHECK_SECONDS_MAX
    left = max(1.0, window_seconds(pipeline.trigger) - elapsed_seconds)
    return max(1, round(min(stretched, left)))


def _moments(started: Started, asked_at_ms: int, now_ms: int) -> dict[str, int]:
    """Return when the job of a run began, and when it ended if it is over with its start."""
    moments = {"started_at_ms": started.started_at_ms or asked_at_ms}
    return {**moments, "job_ended_at_ms": now_ms} if started.status is StartStatus.COMPLETED else moments
