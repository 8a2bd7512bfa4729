"""Job of a run: the execution, fan-out or outside job that it started, its log, and why it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.pipelines.enums import JobEvent, RunStatus
from headgate.serve.pages.api_calls import ApiCaller, Section
from headgate.serve.pages.work.fanouts import Bar, buckets
from headgate.serve.pages.work.fanouts import sentence as fanout_sentence

COMMAND, WORKFLOW, FAN_OUT = "command", "workflow", "fan-out"
LOG_LINES_MAX: Final = 200
_ERROR_GROUPS_MAX: Final = 5


class Failure(Struct, frozen=True):
    """Why a job failed: the kind of error, its message, and the traceback if the job gave one."""

    kind: str
    message: str
    trace: str


class Chunks(Struct, frozen=True):
    """The chunks of a fan-out by state, and the errors of those that failed."""

    fanout: Any
    sentence: str
    bars: list[Bar]
    errors: list[Any]


class RunJob(Struct, frozen=True, kw_only=True):
    """What the job of a run reports. A part that its kind does not have is empty."""

    failure: Failure | None
    execution: Section
    log: Section
    chunks: Chunks | None
    chunks_missing: str


def run_job(api: ApiCaller, run: Mapping[str, Any], trigger: str, entries: Sequence[Mapping[str, Any]]) -> RunJob:
    """Return the job of a run. `entries` are its events in the log of the period, latest first."""
    job, status = {"id": run["job_id"]}, RunStatus(run["status"])
    is_workflow, is_fan_out = (bool(run["job_id"]) and trigger == kind for kind in (WORKFLOW, FAN_OUT))
    execution = api.section("GET /executions/{id}", path=job) if is_workflow else Section()
    log = (
        api.section("GET /executions/{id}/logs", path=job, query={"limit": LOG_LINES_MAX}) if is_workflow else Section()
    )
    fanout = api.section("GET /fanouts/{id}", path=job) if is_fan_out else Section()
    return RunJob(
        failure=failure_of(run, execution.value, entries) if status is RunStatus.FAILED else None,
        execution=execution,
        log=log,
        chunks=None if fanout.value is None else _chunks(api, fanout.value),
        chunks_missing=fanout.missing,
    )


def failure_of(
    run: Mapping[str, Any], execution: Mapping[str, Any] | None, entries: Sequence[Mapping[str, Any]]
) -> Failure:
    """Return why the job of a failed run failed: as its workflow reports it, or as the run does."""
    for reported in () if execution is None else (execution["failure"], execution["error"]):
        if reported:
            return Failure(reported["type"], reported["message"], reported.get("trace") or "")
    errors = [each["error"] for each in entries if each["event"] == JobEvent.FAIL and each["error"]]
    return Failure(run["category"] or "", next(iter(errors), run["reason"]), "")


def _chunks(api: ApiCaller, fanout: Mapping[str, Any]) -> Chunks:
    errors = api.section("GET /fanouts/{id}/errors", path={"id": fanout["run_id"]}).items("groups")
    bars = buckets(fanout["counts"], fanout["chunks"]["total"])
    return Chunks(fanout, fanout_sentence(fanout), bars, errors[:_ERROR_GROUPS_MAX])
