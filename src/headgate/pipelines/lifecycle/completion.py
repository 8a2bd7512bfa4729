"""Endings: how a run comes to its end, with everything that goes with it, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headgate.errors import ConflictError, StaleClaimError, VersionConflictError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.enums import ControlState, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.drift import RunBaselines
from headgate.pipelines.runs.controls import Control
from headgate.pipelines.runs.retries import RetryDecision, decide_retry
from headgate.pipelines.runs.rows import JobLogEntry, Run, RunLog
from headgate.store.model.requests import Write

_RACES_MAX: Final = 10
_FINAL: Final = RetryDecision(is_retryable=False, reason="no attempt follows")


class RunEndings:
    """Ends runs: the run and its log, the job log, the events, the rerun it was for, and the breaker."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._baselines = RunBaselines(parts)

    def retry(self, pipeline: Pipeline, log: RunLog) -> RetryDecision:
        """Return what follows the failure that a log stands at."""
        control = self._parts.controls.get(pipeline.id)
        if control.state_at(self._parts.now_ms()) is not ControlState.ACTIVE:
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
        """Move a run to its end, with its entry, its events, its rerun and the breaker, in one transaction.

        With `is_final` no attempt follows, whatever the retry policy says.
        """
        parts = self._parts

        def retry(log: RunLog) -> RetryDecision:
            return _FINAL if is_final else self.retry(pipeline, log)

        for _ in range(_RACES_MAX):
            control, control_writes = parts.controls.outcome_writes(
                pipeline.id, to, run.run_id, pipeline.budgets.breaker
            )

            def goes_with(ended: Run, log: RunLog) -> Sequence[Write]:
                return [
                    *control_writes,  # noqa: B023 - used before the next round
                    *also,
                    *self._told(ended, log, retry(log)),
                    *(self._baselines.writes(ended, pipeline) if ended.status.is_done else ()),
                    *self._rerun_ended(ended, retry(log)),
                    *self._breaker_told(ended, control),  # noqa: B023
                ]

            try:
                return parts.runs.move(run, to, lock_token=lock_token, also=goes_with, **changes)
            except VersionConflictError:
                run = parts.runs.get(run.run_id)
                if run.status.is_terminal:
                    return run
            except StaleClaimError:
                raise
            except ConflictError:
                continue
        raise ConflictError(f"run {run.run_id}: what goes with its end keeps changing; try again")

    def _told(self, run: Run, log: RunLog, retry: RetryDecision) -> list[Write]:
        parts = self._parts
        event = run.event or JobEvent.FAIL
        entry = parts.job_log.entry_write(job_entry(run, event, parts.now_ms(), run.reason))
        detail: dict[str, Json] = {
            "run_id": run.run_id,
            "attempt": run.attempt,
            "attempts": log.attempts,
            "error": run.reason,
            "reason": run.reason,
            "category": (run.category or FailureCategory.TRANSIENT).value,
            "job_seconds": (run.duration_ms or 0) / 1000,
            "before": _before(run),
            "after": run.status.value,
        }
        names = [EventName.RUN_STATE_CHANGED, *(self._good_news(run) if run.status.is_done else [])]
        if run.status.is_done:
            until_ms = run.monitor_until_ms or parts.now_ms()
            detail["duration_seconds"] = (until_ms - parts.now_ms()) / 1000
        elif run.status is RunStatus.FAILED:
            is_window = event is JobEvent.VALIDATION_EXHAUSTED and retry is _FINAL
            names.append(EventName.VALIDATION_EXHAUSTED if is_window else _FAILURES.get(event, EventName.JOB_FAILED))
            detail["delay_seconds"] = retry.backoff_seconds
            if retry.is_retryable:
                names.append(EventName.RETRY_SCHEDULED)
            else:
                names += [EventName.PIPELINE_FAILED, *([EventName.RETRY_EXHAUSTED] if retry.is_exhausted else [])]
        return [entry, *(write for name in names for write in parts.tells(name, run.slot, detail))]

    @staticmethod
    def _good_news(run: Run) -> list[EventName]:
        watched = [EventName.MONITORING_STARTED] if run.status is RunStatus.COMPLETED_MONITORING else []
        return [EventName.JOB_COMPLETED, EventName.PIPELINE_COMPLETED, *watched]

    def _rerun_ended(self, run: Run, retry: RetryDecision) -> list[Write]:
        """Return the writes that end the rerun with its last attempt."""
        rerun = self._parts.reruns.find(run.rerun_id) if run.rerun_id else None
        is_tried_again = run.status is RunStatus.FAILED and retry.is_retryable
        if rerun is None or is_tried_again:
            return []
        ended = self._parts.reruns.ending_writes(rerun, run_id=run.run_id, is_success=run.status.is_done)
        detail = {"rerun_id": rerun.rerun_id, "run_id": run.run_id, "status": run.status.value}
        return [*ended, *self._parts.tells(EventName.RERUN_COMPLETED, run.slot, detail)] if ended else []

    def _breaker_told(self, run: Run, control: Control) -> list[Write]:
        # It says which run was the last: what had stopped the pipeline before is not told again.
        if control.state is not ControlState.TRIPPED or run.run_id not in control.reason:
            return []
        detail = {"run_id": run.run_id, "failures": control.failures_in_a_row}
        return self._parts.tells(EventName.CIRCUIT_BREAKER_TRIPPED, run.slot, detail)


def _before(run: Run) -> str:
    return run.transitions[-2].status.value if len(run.transitions) > 1 else "no run"


def job_entry(run: Run, event: JobEvent, at_ms: int, error: str = "") -> JobLogEntry:
    """Return the entry of the job log for something that happened to a run."""
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
