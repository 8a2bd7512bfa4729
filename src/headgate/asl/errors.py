"""Errors of states: the names that Step Functions uses, and the rule by which Retry and Catch match them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

ALL: Final = "States.ALL"
TASK_FAILED: Final = "States.TaskFailed"
PERMISSIONS: Final = "States.Permissions"
TIMEOUT: Final = "States.Timeout"
HEARTBEAT_TIMEOUT: Final = "States.HeartbeatTimeout"
RUNTIME: Final = "States.Runtime"
DATA_LIMIT_EXCEEDED: Final = "States.DataLimitExceeded"
RESULT_PATH_MATCH_FAILURE: Final = "States.ResultPathMatchFailure"
INTRINSIC_FAILURE: Final = "States.IntrinsicFailure"
NO_CHOICE_MATCHED: Final = "States.NoChoiceMatched"
QUERY_EVALUATION_ERROR: Final = "States.QueryEvaluationError"
ITEM_READER_FAILED: Final = "States.ItemReaderFailed"
RESULT_WRITER_FAILED: Final = "States.ResultWriterFailed"
EXCEED_TOLERATED_FAILURE_THRESHOLD: Final = "States.ExceedToleratedFailureThreshold"

# States.ALL does not match these.
_TERMINAL: Final = frozenset({RUNTIME, DATA_LIMIT_EXCEEDED})
# States.TaskFailed does not match these.
_NOT_TASK_FAILED: Final = frozenset({TIMEOUT, HEARTBEAT_TIMEOUT, *_TERMINAL})
# A more specific error also matches the pattern of the general one.
_GENERAL_ERROR: Final = {HEARTBEAT_TIMEOUT: TIMEOUT}


class StateError(Exception):
    """A state failed with this error name and cause.

    `location` is the field whose JSONata failed, until the history records it; None for every other failure.
    """

    def __init__(self, error: str, cause: str = "", location: str | None = None) -> None:
        super().__init__(f"{error}: {cause}" if cause else error)
        self.error = error
        self.cause = cause
        self.location = location

    @property
    def output(self) -> dict[str, str]:
        """The document that a Catch receives."""
        return {"Error": self.error, "Cause": self.cause}


def runtime_error(cause: str) -> StateError:
    """Return a States.Runtime error: the definition does not fit its data."""
    return StateError(RUNTIME, cause)


def matches(patterns: Iterable[str], error: str, *, task: bool) -> bool:
    """Whether the ErrorEquals of a Retry or Catch matches `error`.

    Nothing matches States.Runtime, which always ends an execution. States.ALL matches every other error except
    States.DataLimitExceeded; States.TaskFailed matches every error of a Task except timeouts.
    """
    if error == RUNTIME:
        return False
    for pattern in patterns:
        if pattern in (error, _GENERAL_ERROR.get(error)):
            return True
        if pattern == ALL and error not in _TERMINAL:
            return True
        if pattern == TASK_FAILED and task and error not in _NOT_TASK_FAILED:
            return True
    return False
