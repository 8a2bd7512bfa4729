"""Glue trigger: starts a run of a Glue job.

The API has no idempotency token, so that our key is one of the run's arguments, and is searched for before a run is
started. Glue reports SUCCEEDED for runs whose Spark application failed, so that the logs are checked after a success.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from headgate.triggers.aws.clients import AwsTrigger, answered, aws_call
from headgate.triggers.aws.glue_logs import GlueLogs
from headgate.triggers.config import Config, between, check_name
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    PollResult,
    Started,
    external_id_of,
    failed,
    running,
)
from headgate.triggers.failure_patterns import category_of

RUN_ARGUMENT: Final = "--headgate_run_id"
_RUNS_LOOKED_AT: Final = 200
_FAILED: Final = frozenset({"FAILED", "ERROR", "STOPPED"})
_OUT_OF_TIME: Final = frozenset({"TIMEOUT", "EXPIRED"})


class GlueConfig(Config, frozen=True):
    """A Glue job, and the overrides of this run."""

    job_name: str
    arguments: dict[str, str] = {}
    region: str | None = None
    timeout_minutes: int | None = None
    worker_type: str | None = None
    number_of_workers: int | None = None
    execution_class: Literal["STANDARD", "FLEX"] | None = None
    # Whether the logs are checked after a success, and their log group if it is not the one Glue reports.
    verify_logs: bool = True
    log_group: str | None = None

    def __post_init__(self) -> None:
        check_name("job_name", self.job_name)
        for name in self.arguments:
            if not name.startswith("--") or name == RUN_ARGUMENT:
                raise ValueError(f"arguments: {name[:60]!r}: names begin with --, and {RUN_ARGUMENT} is set for you")
        if self.timeout_minutes is not None:
            between("timeout_minutes", self.timeout_minutes, 1, 10_080)


class GlueKind(AwsTrigger):
    """Runs of Glue jobs."""

    name: ClassVar[str] = "glue"
    config_type: ClassVar[type[GlueConfig]] = GlueConfig

    def start(self, job: Job[GlueConfig]) -> Started:
        config = job.config
        glue = self._clients.client("glue", region=config.region)
        what = f"Glue job {config.job_name}"
        # Without retries: the client would repeat the call without searching for the first run.
        starter = self._clients.client("glue", region=config.region, tries=1)
        with aws_call(what):
            found = _found(glue, config.job_name, job.key)
            if found is not None:
                return running(found)
            answer = starter.start_job_run(
                JobName=config.job_name, Arguments={**config.arguments, RUN_ARGUMENT: job.key}, **_options(config)
            )
        return running(answered(answer.get("JobRunId"), what))

    def poll(self, job: Job[GlueConfig], metadata: Mapping[str, str]) -> PollResult:
        config, run_id = job.config, external_id_of(job.order, metadata)
        glue = self._clients.client("glue", region=config.region)
        with aws_call(f"Glue job {config.job_name}, run {run_id}"):
            run: dict[str, Any] = glue.get_job_run(JobName=config.job_name, RunId=run_id).get("JobRun") or {}
        state, detail = str(run.get("JobRunState") or ""), str(run.get("ErrorMessage") or "")
        if state in _OUT_OF_TIME:
            return failed(FailureCategory.TIMEOUT, detail or f"Glue says {state}")
        if state in _FAILED:
            return failed(category_of(detail), f"{state}: {detail}" if detail else f"Glue says {state}")
        if state != "SUCCEEDED":
            return PollResult(JobState.RUNNING, reason=state or "Glue has not reported its state")
        if not config.verify_logs:
            return PollResult(JobState.SUCCEEDED)
        logs = GlueLogs(self._clients.client("logs", region=config.region))
        return logs.verdict(run_id, _log_group(config, run))

    def cancel(self, job: Job[GlueConfig], metadata: Mapping[str, str]) -> None:
        config, run_id = job.config, external_id_of(job.order, metadata)
        glue = self._clients.client("glue", region=config.region)
        with aws_call(f"Glue job {config.job_name}, run {run_id}"):
            # Errors about ended runs are in the response, and are ignored.
            glue.batch_stop_job_run(JobName=config.job_name, JobRunIds=[run_id])


def _found(glue: Any, job_name: str, key: str) -> str | None:  # noqa: ANN401 - a client of boto3
    """Return the run that was started for this key, if it is among the latest."""
    answer = glue.get_job_runs(JobName=job_name, MaxResults=_RUNS_LOOKED_AT)
    runs = answer.get("JobRuns") or []
    return next((run["Id"] for run in runs if (run.get("Arguments") or {}).get(RUN_ARGUMENT) == key), None)


def _options(config: GlueConfig) -> dict[str, Any]:
    options = {
        "Timeout": config.timeout_minutes,
        "WorkerType": config.worker_type,
        "NumberOfWorkers": config.number_of_workers,
        "ExecutionClass": config.execution_class,
    }
    return {name: value for name, value in options.items() if value is not None}


def _log_group(config: GlueConfig, run: Mapping[str, Any]) -> str:
    """Return the log group of a run's driver."""
    named = (run.get("Arguments") or {}).get("--continuous-log-logGroup")
    detail = str(run.get("LogGroupName") or "")
    # The default group lacks the suffix of continuous logs.
    usual = "" if detail in ("", "/aws-glue/jobs") else detail
    return config.log_group or named or usual or "/aws-glue/jobs/logs-v2"
