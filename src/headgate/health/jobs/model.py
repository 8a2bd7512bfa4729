"""Jobs outside Headgate: the folding of reports about their runs, which may arrive in any order."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.health.model.timestamps import milliseconds

RUNS_MAX: Final = 50
DATASETS_MAX: Final = 100
MESSAGE_MAX: Final = 300


class JobState(enum.StrEnum):
    """The state of a run, and of a job: that of its latest run."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABORTED = "ABORTED"

    @property
    def is_ended(self) -> bool:
        return self is not JobState.RUNNING


class RunReport(Struct, frozen=True, kw_only=True):
    """What an event says about a run of a job. `state` None: it says nothing about the state."""

    job_id: str
    namespace: str
    name: str
    run_id: str
    at: str
    state: JobState | None = None
    started_at: str | None = None
    integration: str = ""
    job_type: str = ""
    nominal_at: str | None = None
    message: str = ""
    parent_job: str | None = None
    parent_run_id: str | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    # Names of the facets that the events of the run and its job had.
    facets: tuple[str, ...] = ()
    code_version: str = ""
    query: str = ""


class OutsideRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of a job."""

    run_id: str
    state: JobState
    at: str
    started_at: str | None = None
    ended_at: str | None = None
    nominal_at: str | None = None
    message: str = ""
    parent_job: str | None = None
    parent_run_id: str | None = None

    @property
    def duration_seconds(self) -> float | None:
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, (milliseconds(self.ended_at) - milliseconds(self.started_at)) / 1000)


class OutsideJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job with the state of its latest run, and what that run read and wrote."""

    job_id: str
    namespace: str
    name: str
    state: JobState
    at: str
    run_id: str
    integration: str = ""
    job_type: str = ""
    message: str = ""
    duration_seconds: float | None = None
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    facets: tuple[str, ...] = ()
    code_version: str = ""
    query: str = ""
    version: int = 1


class JobHistory(Struct, frozen=True, kw_only=True):
    """A job and its last runs, the latest first."""

    job: OutsideJob
    runs: tuple[OutsideRun, ...] = ()


def folded(known: JobHistory | None, report: RunReport) -> JobHistory | None:
    """Return a job with one more report of a run. The same object if it says nothing new, None if it says nothing."""
    runs = {each.run_id: each for each in (known.runs if known is not None else ())}
    before = runs.get(report.run_id)
    run = _run(before, report)
    if run is None or (run == before and known is not None):
        return known
    runs[report.run_id] = run
    latest_first = tuple(
        sorted(runs.values(), key=lambda each: (each.started_at or each.at, each.run_id), reverse=True)
    )
    kept = latest_first[:RUNS_MAX]
    latest = kept[0]
    is_latest = latest.run_id == report.run_id
    job = _job(None if known is None else known.job, report, latest, is_latest=is_latest)
    return JobHistory(job=job, runs=kept)


def _run(before: OutsideRun | None, report: RunReport) -> OutsideRun | None:
    """Return a run with one more report. A run that ended stays so: its start may be reported late."""
    state = report.state
    if before is None and state is None:
        return None
    started_at = report.started_at or (report.at if state is JobState.RUNNING else None)
    if before is None:
        assert state is not None
        return OutsideRun(
            run_id=report.run_id,
            state=state,
            at=report.at,
            started_at=started_at,
            ended_at=report.at if state.is_ended else None,
            nominal_at=report.nominal_at,
            message=report.message[:MESSAGE_MAX],
            parent_job=report.parent_job,
            parent_run_id=report.parent_run_id,
        )
    ends = state is not None and state.is_ended and (before.ended_at is None or report.at >= before.ended_at)
    starts = [each for each in (before.started_at, started_at) if each is not None]
    return replace(
        before,
        state=state if ends and state is not None else before.state,
        at=max(before.at, report.at),
        started_at=min(starts) if starts else None,
        ended_at=report.at if ends else before.ended_at,
        nominal_at=before.nominal_at or report.nominal_at,
        message=report.message[:MESSAGE_MAX] if ends else before.message,
        parent_job=before.parent_job or report.parent_job,
        parent_run_id=before.parent_run_id or report.parent_run_id,
    )


def _job(known: OutsideJob | None, report: RunReport, latest: OutsideRun, *, is_latest: bool) -> OutsideJob:
    is_same_run = known is not None and known.run_id == latest.run_id
    inputs, outputs = report.inputs, report.outputs
    if known is not None and not is_latest:
        inputs, outputs = known.inputs, known.outputs
    elif known is not None and (is_same_run or not latest.state.is_ended or not (inputs or outputs)):
        # The events of a run add up; until it has ended, what the run before read and wrote stays.
        inputs, outputs = (*known.inputs, *inputs), (*known.outputs, *outputs)
    return OutsideJob(
        job_id=report.job_id,
        namespace=report.namespace,
        name=report.name,
        state=latest.state,
        at=latest.at,
        run_id=latest.run_id,
        integration=report.integration or (known.integration if known else ""),
        job_type=report.job_type or (known.job_type if known else ""),
        message=latest.message,
        duration_seconds=latest.duration_seconds,
        inputs=tuple(sorted({*inputs})[:DATASETS_MAX]),
        outputs=tuple(sorted({*outputs})[:DATASETS_MAX]),
        facets=tuple(sorted({*report.facets, *(known.facets if known else ())})[:DATASETS_MAX]),
        code_version=report.code_version or (known.code_version if known else ""),
        query=report.query or (known.query if known else ""),
        version=1 if known is None else known.version + 1,
    )
