"""AWS jobs: the calls that start a job and wait for its end (`.sync`): Athena, Batch, ECS and Glue.

A job that fails is States.TaskFailed, with its description as the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.asl.errors import TASK_FAILED, StateError
from headgate.asl.expressions.scope import Json
from headgate.asl.tasks.aws_calls import AwsCalls
from headgate.asl.tasks.integrations import Integration
from headgate.durable.sdk.activity_context import ActivityContext

_GLUE_FAILED: Final = frozenset({"FAILED", "ERROR", "STOPPED", "TIMEOUT", "EXPIRED"})
_STOP_REASON: Final = "The state machine that waits for it was stopped, or its Task timed out."


class AwsJob(Struct, frozen=True):
    """A started job: its id, and what else is needed to describe and to stop it."""

    id: str
    scope: dict[str, str] = {}


class PolledJob(Struct, frozen=True):
    """A job as described. `result` is the result of the Task once it has succeeded."""

    is_ended: bool
    result: Json = None


class _JobKind(Struct, frozen=True):
    """How jobs of a service are started, described and stopped."""

    started: Callable[[Mapping[str, Any], Mapping[str, Any]], AwsJob]
    describe: Callable[[AwsJob], tuple[str, dict[str, Json]]]
    # The description of the job in the response, and whether it has succeeded; None: it runs.
    judge: Callable[[Mapping[str, Any]], tuple[Json, bool | None]]
    stop: Callable[[AwsJob], tuple[str, dict[str, Json]]]


def _failed(description: Json) -> StateError:
    return StateError(TASK_FAILED, msgspec.json.encode(description).decode())


def _glue_started(given: Mapping[str, Any], answer: Mapping[str, Any]) -> AwsJob:
    return AwsJob(str(answer["JobRunId"]), {"JobName": str(given.get("JobName", given.get("jobName", "")))})


def _glue_judged(answer: Mapping[str, Any]) -> tuple[Json, bool | None]:
    run = answer.get("JobRun") or {}
    state = run.get("JobRunState")
    return run, True if state == "SUCCEEDED" else False if state in _GLUE_FAILED else None


def _batch_judged(answer: Mapping[str, Any]) -> tuple[Json, bool | None]:
    job: dict[str, Any] = next(iter(answer.get("Jobs") or ()), {})
    return job, {"SUCCEEDED": True, "FAILED": False}.get(str(job.get("Status")))


def _ecs_started(given: Mapping[str, Any], answer: Mapping[str, Any]) -> AwsJob:
    tasks = answer.get("Tasks") or ()
    if not tasks:
        raise _failed(answer)
    cluster = given.get("Cluster", given.get("cluster"))
    return AwsJob(str(tasks[0]["TaskArn"]), {"Cluster": str(cluster)} if cluster else {})


def _ecs_judged(answer: Mapping[str, Any]) -> tuple[Json, bool | None]:
    task: dict[str, Any] = next(iter(answer.get("Tasks") or ()), {})
    if task.get("LastStatus") != "STOPPED":
        return task, None
    codes = [container.get("ExitCode") for container in task.get("Containers") or ()]
    return task, bool(codes) and all(code == 0 for code in codes)


def _athena_judged(answer: Mapping[str, Any]) -> tuple[Json, bool | None]:
    state = (answer.get("QueryExecution") or {}).get("Status", {}).get("State")
    return dict(answer), {"SUCCEEDED": True, "FAILED": False, "CANCELLED": False}.get(str(state))


_KINDS: Final[Mapping[str, _JobKind]] = {
    "athena": _JobKind(
        lambda _, answer: AwsJob(str(answer["QueryExecutionId"])),
        lambda job: ("getQueryExecution", {"QueryExecutionId": job.id}),
        _athena_judged,
        lambda job: ("stopQueryExecution", {"QueryExecutionId": job.id}),
    ),
    "batch": _JobKind(
        lambda _, answer: AwsJob(str(answer["JobId"])),
        lambda job: ("describeJobs", {"Jobs": [job.id]}),
        _batch_judged,
        lambda job: ("terminateJob", {"JobId": job.id, "Reason": _STOP_REASON}),
    ),
    "ecs": _JobKind(
        _ecs_started,
        lambda job: ("describeTasks", {**job.scope, "Tasks": [job.id]}),
        _ecs_judged,
        lambda job: ("stopTask", {**job.scope, "Task": job.id, "Reason": _STOP_REASON}),
    ),
    "glue": _JobKind(
        _glue_started,
        lambda job: ("getJobRun", {**job.scope, "RunId": job.id}),
        _glue_judged,
        lambda job: ("batchStopJobRun", {**job.scope, "JobRunIds": [job.id]}),
    ),
}


class AwsJobs:
    """Starts, describes and stops jobs of AWS for Tasks."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls

    def start(self, integration: Integration, parameters: Json, context: ActivityContext) -> AwsJob:
        """Start a job. Raises `StateError`."""
        answer = self._calls.call(integration, parameters, context)
        given = parameters if isinstance(parameters, dict) else {}
        return _KINDS[integration.service].started(given, answer)

    def poll(self, integration: Integration, job: AwsJob) -> PolledJob:
        """Describe a job; while AWS does not answer, it counts as running. Raises `StateError` if it has failed."""
        kind = _KINDS[integration.service]
        action, parameters = kind.describe(job)
        answer = self._calls.describe(msgspec.structs.replace(integration, action=action), parameters)
        if answer is None:
            return PolledJob(is_ended=False)
        description, has_succeeded = kind.judge(answer)
        if has_succeeded is False:
            raise _failed(description)
        return PolledJob(is_ended=has_succeeded is True, result=description if has_succeeded else None)

    def stop(self, integration: Integration, job: AwsJob) -> None:
        """Stop a job. Raises `StateError`."""
        action, parameters = _KINDS[integration.service].stop(job)
        self._calls.request(msgspec.structs.replace(integration, action=action), parameters)
