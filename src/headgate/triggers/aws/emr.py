"""EMR trigger: adds a step to a running EMR cluster.

The API has no idempotency token, so that our key is part of the step's name, and is searched for before a step is
added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from headgate.triggers.aws.clients import AwsTrigger, answered, aws_call
from headgate.triggers.config import Config, check_name
from headgate.triggers.contract import Job, JobState, PollResult, Started, external_id_of, failed, running
from headgate.triggers.failure_patterns import category_of

_PAGES_MAX: Final = 4
_NAME_CHARS_MAX: Final = 256
_FAILED: Final = frozenset({"FAILED", "CANCELLED", "INTERRUPTED"})


class EmrConfig(Config, frozen=True):
    """A step: a JAR with its arguments, by default the one that runs commands such as spark-submit."""

    cluster_id: str
    args: list[str] = []
    jar: str = "command-runner.jar"
    main_class: str | None = None
    properties: dict[str, str] = {}
    step_name: str | None = None
    action_on_failure: Literal["CONTINUE", "CANCEL_AND_WAIT", "TERMINATE_CLUSTER"] = "CONTINUE"
    execution_role_arn: str | None = None
    region: str | None = None

    def __post_init__(self) -> None:
        check_name("cluster_id", self.cluster_id)
        check_name("jar", self.jar)


class EmrKind(AwsTrigger):
    """Steps of EMR clusters."""

    name: ClassVar[str] = "emr"
    config_type: ClassVar[type[EmrConfig]] = EmrConfig

    def start(self, job: Job[EmrConfig]) -> Started:
        config = job.config
        emr = self._clients.client("emr", region=config.region)
        what = f"EMR cluster {config.cluster_id}"
        # Without retries: the client would repeat the call without searching for the first step.
        adder = self._clients.client("emr", region=config.region, tries=1)
        with aws_call(what):
            found = _found(emr, config.cluster_id, job.key)
            if found is not None:
                return running(found)
            role = {} if config.execution_role_arn is None else {"ExecutionRoleArn": config.execution_role_arn}
            answer = adder.add_job_flow_steps(JobFlowId=config.cluster_id, Steps=[_step(job)], **role)
        return running(answered(next(iter(answer.get("StepIds") or []), None), what))

    def poll(self, job: Job[EmrConfig], metadata: Mapping[str, str]) -> PollResult:
        config, step_id = job.config, external_id_of(job.order, metadata)
        emr = self._clients.client("emr", region=config.region)
        with aws_call(f"EMR step {step_id}"):
            step: dict[str, Any] = emr.describe_step(ClusterId=config.cluster_id, StepId=step_id).get("Step") or {}
        status: dict[str, Any] = step.get("Status") or {}
        state = str(status.get("State") or "")
        if state == "COMPLETED":
            return PollResult(JobState.SUCCEEDED)
        if state not in _FAILED:
            return PollResult(JobState.RUNNING, reason=state or "EMR has not reported its state")
        reason = _reason(status)
        return failed(category_of(reason), f"{state}: {reason}" if reason else f"EMR says {state}")

    def cancel(self, job: Job[EmrConfig], metadata: Mapping[str, str]) -> None:
        config, step_id = job.config, external_id_of(job.order, metadata)
        emr = self._clients.client("emr", region=config.region)
        with aws_call(f"EMR step {step_id}"):
            emr.cancel_steps(ClusterId=config.cluster_id, StepIds=[step_id], StepCancellationOption="TERMINATE_PROCESS")


def _step(job: Job[EmrConfig]) -> dict[str, Any]:
    config = job.config
    jar: dict[str, Any] = {"Jar": config.jar, "Args": config.args}
    if config.main_class is not None:
        jar["MainClass"] = config.main_class
    if config.properties:
        jar["Properties"] = [{"Key": name, "Value": value} for name, value in config.properties.items()]
    suffix = f" {job.key}"
    name = (config.step_name or job.order.pipeline)[: _NAME_CHARS_MAX - len(suffix)] + suffix
    return {"Name": name, "ActionOnFailure": config.action_on_failure, "HadoopJarStep": jar}


def _found(emr: Any, cluster_id: str, key: str) -> str | None:  # noqa: ANN401 - a client of boto3
    """Return the step that was added for this key, if it is among the latest."""
    more: dict[str, str] = {}
    for _ in range(_PAGES_MAX):
        page = emr.list_steps(ClusterId=cluster_id, **more)
        for step in page.get("Steps") or []:
            if str(step.get("Name") or "").endswith(f" {key}"):
                return str(step["Id"])
        if not page.get("Marker"):
            break
        more = {"Marker": page["Marker"]}
    return None


def _reason(status: Mapping[str, Any]) -> str:
    details: dict[str, Any] = status.get("FailureDetails") or {}
    change: dict[str, Any] = status.get("StateChangeReason") or {}
    parts = (details.get("Reason"), details.get("Message"), change.get("Message"), details.get("LogFile"))
    return "; ".join(str(part) for part in parts if part)
