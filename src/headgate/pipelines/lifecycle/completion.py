"""Run completion: moves a run to a final status together with all writes that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headgate.clock import Clock, epoch_ms
from headgate.errors import ConflictError, IllegalTransitionError, StaleClaimError, VersionConflictError
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.enums import ControlState, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.drift import RunBaselines
from headgate.pipelines.runs.controls import Control
from headgate.pipelines.runs.retries import RetryDecision, decide_retry
from headgate.pipelines.runs.rows import JobLogEntry, Run, RunLog
from headgate.pipelines.runs.stores import RunStores
from headgate.store.model.requests import Write

_RACES_MAX: Final = 10
_FINAL: Final = RetryDecision(is_retryable=False, reason="no attempt follows")


class RunCompletion:
    """Ends a run in one transaction: run, run log, job log, events, its rerun, and the circuit breaker."""

    def __init__(self, stores: RunStores, events: EventWriter, clock: Clock, baselines: RunBaselines) -> None:
        self._stores = stores
        self._events = events
        self._clock = clock
        self._baselines = baselines

    def retry(self, pipeline: Pipeline, log: RunLog) -> RetryDecision:
        """Decide whether the latest failure in a log is retried."""
        control = self._stores.controls.get(pipeline.id)
        if control.state_at(epoch_ms(self._clock)) is not ControlState.ACTIVE:
            return RetryDecision(is_retryable=False, reason="the pipeline is stopped")
        return decide_retry(pipeline.retry, log)

    def end(
        self,
        run: Run,
        to: RunStatus,
        pipeline: Pipeline,
        *,
        lock_token: str = "",
        also: Sequence[Write] = (),
        is_final: bool = False,
        **changes: object,
    ) -> Run:
        """Move a run to a final status, with all writes that follow, in one transaction.

        With `is_final` no retry follows, regardless of the retry policy.
        """

        def retry(log: RunLog) -> RetryDecision:
            return _FINAL if is_final else self.retry(pipeline, log)

        for _ in range(_RACES_MAX):
            control, control_writes = self._stores.controls.outcome_writes(
                pipeline.id, to, run.run_id, pipeline.budgets.breaker
            )

            def following_writes(ended: Run, log: RunLog) -> Sequence[Write]:
                return [
                    *control_writes,  # noqa: B023 - used before the next iteration
                    *also,
                    *self._end_writes(ended, log, retry(log)),
                    *(self._success_writes(ended, pipeline) if ended.status.is_done else ()),
                    *self._rerun_writes(ended, retry(log)),
                    *self._breaker_writes(ended, control),  # noqa: B023
                ]

            try:
                return self._stores.runs.move(run, to, lock_token=lock_token, also=following_writes, **changes)
            except VersionConflictError:
                run = self._stores.runs.get(run.run_id)
                if run.status.is_terminal:
                    return run
            except StaleClaimError:
                raise
            except ConflictError:
                continue
        raise ConflictError(f"run {run.run_id}: concurrent changes prevent its completion; try again")

    def recover(self, run: Run, pipeline: Pipeline, *, refuses: Callable[[RunLog], str]) -> Run:
        """Complete a failed run whose job was repaired, with all writes that follow, in one transaction.

        Raises `IllegalTransitionError` if `refuses` gives a reason, and `VersionConflictError` if the run has changed.
        """
        for _ in range(_RACES_MAX):
            control, control_writes = self._stores.controls.outcome_writes(
                pipeline.id, RunStatus.COMPLETED, run.run_id, pipeline.budgets.breaker
            )

            def following_writes(ended: Run, log: RunLog) -> Sequence[Write]:
                detail: dict[str, Json] = {"run_id": ended.run_id, "failure": ended.recovered_from}
                return [
                    *control_writes,  # noqa: B023 - used before the next iteration
                    *self._end_writes(ended, log, _FINAL),
                    *self._events.writes(EventName.RUN_RECOVERED, ended.slot, detail),
                    *self._success_writes(ended, pipeline),
                    *self._rerun_writes(ended, _FINAL),
                    *self._breaker_writes(ended, control),  # noqa: B023
                ]

            try:
                return self._stores.runs.recover(
                    run,
                    refuses=refuses,
                    also=following_writes,
                    event=JobEvent.SUCCESS,
                    category=None,
                    reason="",
                    recovered_from=run.reason or "it failed without a reason",
                )
            except (VersionConflictError, IllegalTransitionError):
                raise
            except ConflictError:
                continue
        raise ConflictError(f"run {run.run_id}: concurrent changes prevent its completion; try again")

    def _success_writes(self, run: Run, pipeline: Pipeline) -> list[Write]:
        return [*self._baselines.writes(run, pipeline), *self._stores.dataset_writes.writes(run, pipeline)]

    def _end_writes(self, run: Run, log: RunLog, retry: RetryDecision) -> list[Write]:
        event = run.event or JobEvent.FAIL
        now_ms = epoch_ms(self._clock)
        entry = self._stores.job_log.entry_write(job_entry(run, event, now_ms, run.reason))
        detail: dict[str, Json] = {
            "run_id": run.run_id,
            "attempt": run.attempt,
            "attempts": log.attempts,
            "error": run.reason,
            "reason": run.reason,
            "job_seconds": (run.duration_ms or 0) / 1000,
            "before": run.transitions[-2].status.value if len(run.transitions) > 1 else "no run",
            "after": run.status.value,
        }
        names = [EventName.RUN_STATE_CHANGED]
        monitoring: list[Write] = []
        if run.status.is_done:
            names += [EventName.JOB_COMPLETED, EventName.PIPELINE_COMPLETED]
            detail["duration_seconds"] = (now_ms - run.created_at_ms) / 1000
            if run.status is RunStatus.COMPLETED_MONITORING:
                watched = {**detail, "duration_seconds": ((run.monitor_until_ms or now_ms) - now_ms) / 1000}
                monitoring = self._events.writes(EventName.MONITORING_STARTED, run.slot, watched)
        elif run.status is RunStatus.FAILED:
            detail["category"] = (run.category or FailureCategory.TRANSIENT).value
            is_window = event is JobEvent.VALIDATION_EXHAUSTED and retry is _FINAL
            names.append(EventName.VALIDATION_EXHAUSTED if is_window else _FAILURES.get(event, EventName.JOB_FAILED))
            detail["delay_seconds"] = retry.backoff_seconds
            if retry.is_retryable:
                names.append(EventName.RETRY_SCHEDULED)
            else:
                names += [EventName.PIPELINE_FAILED, *([EventName.RETRY_EXHAUSTED] if retry.is_exhausted else [])]
        ended = (write for name in names for write in self._events.writes(name, run.slot, detail))
        return [entry, *ended, *monitoring]

    def _rerun_writes(self, run: Run, retry: RetryDecision) -> list[Write]:
        """Return the writes that end the rerun after its last attempt."""
        rerun = self._stores.reruns.find(run.rerun_id) if run.rerun_id else None
        is_retried = run.status is RunStatus.FAILED and retry.is_retryable
        if rerun is None or is_retried:
            return []
        ended = self._stores.reruns.ending_writes(rerun, run_id=run.run_id, is_success=run.status.is_done)
        detail = {"rerun_id": rerun.rerun_id, "run_id": run.run_id, "status": run.status.value}
        return [*ended, *self._events.writes(EventName.RERUN_COMPLETED, run.slot, detail)] if ended else []

    def _breaker_writes(self, run: Run, control: Control) -> list[Write]:
        # The reason names the run that tripped the breaker: publish the event for that run only.
        if control.state is not ControlState.TRIPPED or run.run_id not in control.reason:
            return []
        detail = {"run_id": run.run_id, "failures": control.failures_in_a_row}
        return self._events.writes(EventName.CIRCUIT_BREAKER_TRIPPED, run.slot, detail)


def job_entry(run: Run, event: JobEvent, at_ms: int, error: str = "") -> JobLogEntry:
    """Return a job log entry for an event of a run."""
    return JobLogEntry(
        **run.slot._asdict(),
        event=event,
        at_ms=at_ms,
        run_id=run.run_id,
        attempt=run.attempt,
        job_id=run.job_id,
        category=run.category,
        error="" if event is JobEvent.SUCCESS else error,
        duration_ms=run.duration_ms,
    )


_FAILURES: Final = {
    JobEvent.TIMEOUT: EventName.JOB_TIMEOUT,
    JobEvent.JOB_POLL_EXHAUSTED: EventName.JOB_POLL_EXHAUSTED,
    JobEvent.INFRA_TRIGGER_EXHAUSTED: EventName.TRIGGER_EXHAUSTED,
    JobEvent.VALIDATION_EXHAUSTED: EventName.VALIDATION_TIMEOUT,
}
