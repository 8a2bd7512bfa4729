"""Lambda errors: give transient errors the names that the lifecycle state machine retries.

Lambda reports the class name of an exception as its error type. Every state of the lifecycle retries AWS's own names
for transient Lambda errors; states that wait for a token retry no other name.
"""

from __future__ import annotations

from typing import Final

from headgate.errors import ConflictError, HeadgateError, ThrottledError, TransientError

SERVICE: Final = "Lambda.ServiceException"
TOO_MANY_REQUESTS: Final = "Lambda.TooManyRequestsException"


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
