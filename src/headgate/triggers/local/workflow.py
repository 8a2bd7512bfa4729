"""Workflow trigger: starts an execution of a durable workflow, with the run's key as its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from headgate.durable.client.client import Client
from headgate.durable.client.handle import failure_of
from headgate.durable.model import payload
from headgate.durable.model.duration import Seconds
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import Status
from headgate.durable.model.names import BUILT_IN, is_built_in
from headgate.errors import (
    ConflictError,
    ExecutionClosedError,
    NotFoundError,
    OutcomeUnknownError,
    TransientError,
    UserError,
)
from headgate.triggers.config import Config, check_name
from headgate.triggers.contract import (
    FailureCategory,
    Job,
    JobState,
    PollResult,
    Started,
    TriggerFailedError,
    external_id_of,
    failed,
    running_here,
)

_ERROR_CHARS_MAX: Final = 360
# Errors of the code itself: another attempt with the same code fails in the same way.
_BUGS: Final = frozenset(
    each.__name__
    for each in (
        AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError, RecursionError,
        SyntaxError, TypeError, ZeroDivisionError,
    )
)  # fmt: skip
_PASSED_ON: Final = frozenset({"ActivityFailure", "ChildFailure"})
_RUNNING: Final = {Status.RUNNING: "", Status.STUCK: "it is stuck until its code is fixed and it is redriven"}


class WorkflowConfig(Config, frozen=True):
    """A workflow by name. `input` is its argument; by default, a description of the run."""

    workflow: str
    input: Any = None
    tags: dict[str, str] = {}
    timeout: Seconds | None = None

    def __post_init__(self) -> None:
        check_name("workflow", self.workflow)
        if is_built_in(self.workflow):
            raise ValueError(
                f"workflow {self.workflow[:80]!r}: names that begin with {BUILT_IN!r} are reserved for Headgate; "
                "name a workflow of an app"
            )


class WorkflowKind:
    """Workflow executions."""

    name: ClassVar[str] = "workflow"
    config_type: ClassVar[type[WorkflowConfig]] = WorkflowConfig
    secret_fields: ClassVar[frozenset[str]] = frozenset()
    is_local: ClassVar[bool] = False

    def __init__(self, client: Client) -> None:
        self._client = client

    def start(self, job: Job[WorkflowConfig]) -> Started:
        config, order = job.config, job.order
        given = config.input
        if given is None:
            given = {"pipeline": order.pipeline, "schedule": order.schedule, "date": order.date, "run_id": order.run_id}
        tags = {"pipeline": order.pipeline, "schedule": order.schedule, "date": order.date, **config.tags}
        try:
            handle = self._client.start(
                config.workflow,
                payload.encode(given, what=f"input of workflow {config.workflow}"),
                execution_id=job.key,
                tags=tags,
                timeout_seconds=config.timeout,
                tells_end=True,
            )
        except (TransientError, OutcomeUnknownError) as exc:
            raise TriggerFailedError(str(exc), FailureCategory.TRANSIENT) from exc
        except (UserError, ConflictError) as exc:
            raise TriggerFailedError(str(exc), FailureCategory.PERMANENT) from exc
        return running_here(handle.id)

    def poll(self, job: Job[WorkflowConfig], metadata: Mapping[str, str]) -> PollResult:
        execution_id = external_id_of(job.order, metadata)
        try:
            row = self._client.get(execution_id)
        except NotFoundError as exc:
            return failed(FailureCategory.PERMANENT, str(exc))
        if row.status in _RUNNING:
            return PollResult(JobState.RUNNING, reason=_RUNNING[row.status])
        if row.status is Status.SUCCEEDED:
            return PollResult(JobState.SUCCEEDED)
        failure = failure_of(row)
        is_permanent = not failure.info.retryable or _is_bug(failure.info)
        category = FailureCategory.PERMANENT if is_permanent else FailureCategory.TRANSIENT
        if row.status is Status.TIMED_OUT:
            category = FailureCategory.TIMEOUT
        # The command follows the error, which may be long, and must not be cut off.
        error = f"{row.status.value}: {failure}"[:_ERROR_CHARS_MAX]
        return failed(
            category,
            f"{error}; to complete this run after a fix: headgate execution retry {row.execution_id} --from-failure",
        )

    def cancel(self, job: Job[WorkflowConfig], metadata: Mapping[str, str]) -> None:
        try:
            self._client.cancel(external_id_of(job.order, metadata), f"run {job.key} was cancelled")
        except (ExecutionClosedError, NotFoundError):
            # It has ended already.
            return


def _is_bug(info: ErrorInfo) -> bool:
    """Whether an error is one of the code; an activity's or a child's error is that of its code."""
    while info.type in _PASSED_ON and info.cause is not None:
        info = info.cause
    return not _BUGS.isdisjoint(name.removeprefix("builtins.") for name in info.class_names())
