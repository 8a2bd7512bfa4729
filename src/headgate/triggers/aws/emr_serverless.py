"""EMR Serverless trigger: starts a job run of an application, with our key as its client token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from headgate.triggers.aws.clients import AwsTrigger, answered, aws_call
from headgate.triggers.config import Config, between, check_name
from headgate.triggers.contract import (
    Job,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    external_id_of,
    failed,
    running,
)
from headgate.triggers.failure_patterns import category_of

_DRIVERS: Final = ("sparkSubmit", "hive")
_FAILED: Final = frozenset({"FAILED", "CANCELLED"})
_ENDED: Final = _FAILED | {"SUCCESS"}


class EmrServerlessConfig(Config, frozen=True):
    """A job of an application. `job_driver` is as in the API: sparkSubmit or hive."""

    application_id: str
    execution_role_arn: str
    job_driver: dict[str, Any]
    name: str | None = None
    configuration_overrides: dict[str, Any] | None = None
    execution_timeout_minutes: int | None = None
    tags: dict[str, str] = {}
    region: str | None = None

    def __post_init__(self) -> None:
        check_name("application_id", self.application_id)
        check_name("execution_role_arn", self.execution_role_arn)
        if len(self.job_driver) != 1 or not self.job_driver.keys() <= set(_DRIVERS):
            raise ValueError(f"job_driver: give one of {', '.join(_DRIVERS)}; there is {sorted(self.job_driver)}")
        if self.execution_timeout_minutes is not None:
            between("execution_timeout_minutes", self.execution_timeout_minutes, 0, 1_000_000)


class EmrServerlessKind(AwsTrigger):
    """Job runs of EMR Serverless."""

    name: ClassVar[str] = "emr-serverless"
    config_type: ClassVar[type[EmrServerlessConfig]] = EmrServerlessConfig

    def start(self, job: Job[EmrServerlessConfig]) -> Started:
        config = job.config
        emr = self._clients.client("emr-serverless", region=config.region)
        options: dict[str, Any] = {
            "configurationOverrides": config.configuration_overrides,
            "executionTimeoutMinutes": config.execution_timeout_minutes,
            "tags": config.tags or None,
        }
        what = f"EMR Serverless application {config.application_id}"
        with aws_call(what):
            answer = emr.start_job_run(
                applicationId=config.application_id,
                clientToken=job.key,
                executionRoleArn=config.execution_role_arn,
                jobDriver=config.job_driver,
                name=(config.name or f"{job.order.pipeline} {job.order.date}")[:256],
                **{name: value for name, value in options.items() if value is not None},
            )
        return running(answered(answer.get("jobRunId"), what))

    def poll(self, job: Job[EmrServerlessConfig], metadata: Mapping[str, str]) -> PollResult:
        run = self._run(job, external_id_of(job.order, metadata))
        state, detail = str(run.get("state") or ""), str(run.get("stateDetails") or "")
        if state == "SUCCESS":
            return PollResult(JobState.SUCCEEDED)
        if state in _FAILED:
            return failed(category_of(detail), f"{state}: {detail}" if detail else f"EMR Serverless says {state}")
        return PollResult(JobState.RUNNING, reason=state or "EMR Serverless has not reported its state")

    def cancel(self, job: Job[EmrServerlessConfig], metadata: Mapping[str, str]) -> None:
        run_id = external_id_of(job.order, metadata)
        emr = self._clients.client("emr-serverless", region=job.config.region)
        try:
            with aws_call(f"EMR Serverless run {run_id}"):
                emr.cancel_job_run(applicationId=job.config.application_id, jobRunId=run_id)
        except TriggerFailedError:
            # An ended run cannot be cancelled, and need not be.
            if self._run(job, run_id).get("state") not in _ENDED:
                raise

    def _run(self, job: Job[EmrServerlessConfig], run_id: str) -> dict[str, Any]:
        emr = self._clients.client("emr-serverless", region=job.config.region)
        with aws_call(f"EMR Serverless run {run_id}"):
            answer = emr.get_job_run(applicationId=job.config.application_id, jobRunId=run_id)
        return answer.get("jobRun") or {}
