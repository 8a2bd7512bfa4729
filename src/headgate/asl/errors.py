"""Failures: what a state can fail with, in the names that Step Functions uses, and who may retry or catch it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ALL: Final = "States.ALL"
TASK_FAILED: Final = "States.TaskFailed"
TIMEOUT: Final = "States.Timeout"
HEARTBEAT_TIMEOUT: Final = "States.HeartbeatTimeout"
RUNTIME: Final = "States.Runtime"
DATA_LIMIT_EXCEEDED: Final = "States.DataLimitExceeded"
PERMISSIONS: Final = "States.Permissions"
PARAMETER_PATH_FAILURE: Final = "States.ParameterPathFailure"
RESULT_PATH_MATCH_FAILURE: Final = "States.ResultPathMatchFailure"
INTRINSIC_FAILURE: Final = "States.IntrinsicFailure"
NO_CHOICE_MATCHED: Final = "States.NoChoiceMatched"
QUERY_EVALUATION_ERROR: Final = "States.QueryEvaluationError"
ITEM_READER_FAILED: Final = "States.ItemReaderFailed"
RESULT_WRITER_FAILED: Final = "States.ResultWriterFailed"
EXCEED_TOLERATED_FAILURE_THRESHOLD: Final = "States.ExceedToleratedFailureThreshold"

# Must be named: States.ALL does not stand for them.
_TERMINAL: Final = frozenset({RUNTIME, DATA_LIMIT_EXCEEDED})
# What a Task fails with is its own business, except when it ran out of time.
_NOT_TASK_FAILED: Final = frozenset({TIMEOUT})
# Running out of heartbeats is one way of running out of time.
_ALSO: Final = {HEARTBEAT_TIMEOUT: TIMEOUT}


class StateError(Exception):
    """A state failed with this error name and this cause.

    `location` is the field whose JSONata failed, until the history has it; None for every other failure.
    """

    def __init__(self, error: str, cause: str = "", location: str | None = None) -> None:
        super().__init__(f"{error}: {cause}" if cause else error)
        self.error = error
        self.cause = cause
        self.location = location

    @property
    def output(self) -> dict[str, str]:
        """What a Catch is given."""
        return {"Error": self.error, "Cause": self.cause}


def runtime(cause: str) -> StateError:
    """Return the error of a definition that does not fit the data it met."""
    return StateError(RUNTIME, cause)


def matches(patterns: Iterable[str], error: str, *, task: bool) -> bool:
    """Whether a Retry or a Catch that names these patterns is meant for `error`.

    Nothing is for States.Runtime, which always ends an execution. States.ALL stands for every other error but
    States.DataLimitExceeded, which must be named; States.TaskFailed for whatever a Task fails with, except a time-out.
    """
    if error == RUNTIME:
        return False
    for pattern in patterns:
        if pattern in (error, _ALSO.get(error)):
            return True
        if pattern == ALL and error not in _TERMINAL:
            return True
        if pattern == TASK_FAILED and task and error not in (*_NOT_TASK_FAILED, *_TERMINAL, HEARTBEAT_TIMEOUT):
            return True
    return False
