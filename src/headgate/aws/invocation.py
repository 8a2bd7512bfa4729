"""Lambda invocation: remaining time, logging and error names, shared by all handlers.

Lambda reports the class name of an exception as its error type. Transient errors have AWS's own names for transient
Lambda errors, which state machines retry by default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import structlog

from headgate.errors import ConflictError, HeadgateError, ThrottledError, TransientError
from headgate.telemetry import correlated

# No new work starts with less time left than this: one store call may take ten seconds.
MARGIN_MS: Final = 15_000
SERVICE: Final = "Lambda.ServiceException"
TOO_MANY_REQUESTS: Final = "Lambda.TooManyRequestsException"
_log = structlog.get_logger(__name__)

T = TypeVar("T")
Event = dict[str, Any]


class Context(Protocol):
    """The part of Lambda's context object that the handlers use."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int:
        """Return the time left before Lambda ends the invocation."""


def is_out_of_time(context: Context) -> bool:
    """Whether too little time is left to start new work."""
    return context.get_remaining_time_in_millis() < MARGIN_MS


def handle(function: str, context: Context, call: Callable[[], T]) -> T:
    """Run a handler's call and log its end. Raises errors as `lambda_error` names them.

    The event is not logged, because it holds tokens.
    """
    with correlated(context.aws_request_id):
        try:
            response = call()
        except HeadgateError as exc:
            _log.error("call failed", function=function, code=exc.code, error=str(exc))
            error = lambda_error(exc)
            if error is exc:
                raise
            raise error from exc
        _log.info("call answered", function=function, milliseconds_left=context.get_remaining_time_in_millis())
        return response


class TransientLambdaError(Exception):
    """A transient error: a retry may succeed."""


class ThrottledLambdaError(Exception):
    """Too many requests: a retry may succeed."""


TransientLambdaError.__name__ = SERVICE
ThrottledLambdaError.__name__ = TOO_MANY_REQUESTS


def lambda_error(error: HeadgateError) -> Exception:
    """Return the exception to raise: a transient error under AWS's name, any other unchanged."""
    text = f"{error.code}: {error.message}"
    if isinstance(error, ThrottledError):
        return ThrottledLambdaError(text)
    if isinstance(error, TransientError | ConflictError):
        return TransientLambdaError(text)
    return error
