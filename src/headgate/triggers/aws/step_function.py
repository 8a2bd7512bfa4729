"""Step Functions trigger: starts an execution of a state machine on AWS, named by our key.

Names are unique for 90 days, so that a repeated start is refused and finds the existing execution.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from headgate.triggers.aws.clients import AwsTrigger, answered, aws_call, error_code
from headgate.triggers.config import Config
from headgate.triggers.contract import (
    FailureCategory,
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

_ARN: Final = re.compile(r"arn:(aws[\w-]*):states:([a-z0-9-]+):(\d{12}):stateMachine:([^:*\s]+)(:[^:*\s]+)?")
# Errors of the machine itself, which a retry repeats.
_OF_THE_MACHINE: Final = frozenset(
    {
        "States.BranchFailed",
        "States.DataLimitExceeded",
        "States.IntrinsicFailure",
        "States.NoChoiceMatched",
        "States.ParameterPathFailure",
        "States.Permissions",
        "States.QueryEvaluationError",
        "States.ResultPathMatchFailure",
        "States.Runtime",
    }
)


class StepFunctionConfig(Config, frozen=True):
    """A standard state machine by its ARN, optionally with a version or an alias. `input` is any JSON."""

    state_machine_arn: str
    input: Any = {}

    def __post_init__(self) -> None:
        if not _ARN.fullmatch(self.state_machine_arn):
            raise ValueError(
                f"state_machine_arn {self.state_machine_arn[:120]!r}: use the ARN of one machine, such as "
                "arn:aws:states:eu-west-1:123456789012:stateMachine:load; without '*'"
            )


class StepFunctionKind(AwsTrigger):
    """Executions of state machines on AWS."""

    name: ClassVar[str] = "step-function"
    config_type: ClassVar[type[StepFunctionConfig]] = StepFunctionConfig

    def start(self, job: Job[StepFunctionConfig]) -> Started:
        arn = job.config.state_machine_arn
        states = self._client(job)
        text = msgspec.json.encode(job.config.input).decode()
        try:
            with aws_call(f"state machine {arn}"):
                answer = states.start_execution(stateMachineArn=arn, name=job.key, input=text)
        except TriggerFailedError as exc:
            if exc.__cause__ is None or error_code(_cause(exc)) != "ExecutionAlreadyExists":
                raise
            return running(execution_arn(arn, job.key))
        return running(answered(answer.get("executionArn"), f"state machine {arn}"))

    def poll(self, job: Job[StepFunctionConfig], metadata: Mapping[str, str]) -> PollResult:
        arn = external_id_of(job.order, metadata)
        try:
            with aws_call(f"execution {arn}"):
                execution = self._client(job).describe_execution(executionArn=arn)
        except TriggerFailedError as exc:
            if error_code(_cause(exc)) == "ExecutionDoesNotExist":
                # An execution started just now may not be visible yet.
                raise TriggerFailedError(str(exc), FailureCategory.TRANSIENT) from exc
            raise
        return judge(execution)

    def cancel(self, job: Job[StepFunctionConfig], metadata: Mapping[str, str]) -> None:
        arn = external_id_of(job.order, metadata)
        states = self._client(job)
        with aws_call(f"execution {arn}"):
            if states.describe_execution(executionArn=arn).get("status") == "RUNNING":
                states.stop_execution(executionArn=arn, error="Headgate.Cancelled", cause=f"run {job.key}")

    def _client(self, job: Job[StepFunctionConfig]) -> Any:  # noqa: ANN401 - a client of boto3
        # The ARN contains the region.
        return self._clients.client("stepfunctions", region=job.config.state_machine_arn.split(":")[3])


def judge(execution: Mapping[str, Any]) -> PollResult:
    """Return the state of an execution from its DescribeExecution response."""
    status = str(execution.get("status") or "")
    error, cause = str(execution.get("error") or ""), str(execution.get("cause") or "")
    reason = ": ".join(part for part in (status, error, cause) if part)
    match status:
        case "SUCCEEDED":
            return PollResult(JobState.SUCCEEDED)
        case "TIMED_OUT":
            return failed(FailureCategory.TIMEOUT, reason)
        case "ABORTED":
            return failed(FailureCategory.TRANSIENT, reason)
        case "FAILED" if error in _OF_THE_MACHINE:
            return failed(FailureCategory.PERMANENT, reason)
        case "FAILED" if error in ("States.Timeout", "States.HeartbeatTimeout"):
            return failed(FailureCategory.TIMEOUT, reason)
        case "FAILED":
            return failed(category_of(f"{error} {cause}"), reason)
    return PollResult(JobState.RUNNING, reason=status or "Step Functions has not reported its state")


def execution_arn(machine_arn: str, name: str) -> str:
    """Return the ARN of an execution of a machine."""
    match = _ARN.fullmatch(machine_arn)
    assert match is not None, "the config was checked"
    partition, region, account, machine, _ = match.groups()
    return f"arn:{partition}:states:{region}:{account}:execution:{machine}:{name}"


def _cause(error: TriggerFailedError) -> Exception:
    return error.__cause__ if isinstance(error.__cause__, Exception) else error
