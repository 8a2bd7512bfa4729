"""Callback reports: what the holder of a callback token says about its job: a heartbeat, or the end."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct

from headgate.errors import IllegalTransitionError, UnauthenticatedError, VersionConflictError
from headgate.pipelines.enums import FailureCategory, JobEvent
from headgate.pipelines.lifecycle.callback_tokens import CallbackToken
from headgate.pipelines.lifecycle.job_control import JobControl, has_ended
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.runs.store import Runs

_RACES_MAX: Final = 10


class ReportedStatus(enum.StrEnum):
    """The state of a job as it reports itself."""

    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"


class JobReport(Struct, frozen=True, kw_only=True):
    """A report. For a failure, `category` says whether a retry may help."""

    status: ReportedStatus
    reason: str = ""
    category: FailureCategory | None = None


class CallbackReports:
    """Applies reports to runs. The first end counts; the same end reported again changes nothing."""

    def __init__(self, runs: Runs, jobs: JobControl) -> None:
        self._runs = runs
        self._jobs = jobs

    def apply(self, token: CallbackToken, report: JobReport) -> Run:
        """Apply the report of a verified token.

        Raises `NotFoundError`, and `IllegalTransitionError` if the run has ended in another way.
        """
        run = self._runs.get(token.run_id)
        if run.attempt != token.attempt:
            raise UnauthenticatedError(f"callback of run {run.run_id}: the token is of another attempt")
        for _ in range(_RACES_MAX):
            try:
                changed = self._apply_once(token.run_id, report)
            except VersionConflictError:
                # The lifecycle changed the run in between; the report still holds.
                continue
            if not _agrees(changed, report):
                raise IllegalTransitionError(
                    f"run {changed.run_id}: it is {changed.status.value}"
                    f"{'' if changed.event is None else f' ({changed.event.value})'}; the report {report.status.value} "
                    "came too late and changes nothing"
                )
            return changed
        raise VersionConflictError(f"run {token.run_id}: concurrent changes keep winning; try again")

    def _apply_once(self, run_id: str, report: JobReport) -> Run:
        if report.status is ReportedStatus.RUNNING:
            return self._jobs.heartbeat(run_id)
        is_success = report.status is ReportedStatus.SUCCESS
        return self._jobs.complete(run_id, is_success=is_success, reason=report.reason, category=report.category)


def _agrees(run: Run, report: JobReport) -> bool:
    """Whether the run is as the report says, after it was applied."""
    match report.status:
        case ReportedStatus.RUNNING:
            return not has_ended(run)
        case ReportedStatus.SUCCESS:
            return run.status.is_done or (not run.status.is_terminal and run.event is JobEvent.SUCCESS)
        case ReportedStatus.FAILED:
            return run.event is JobEvent.FAIL
