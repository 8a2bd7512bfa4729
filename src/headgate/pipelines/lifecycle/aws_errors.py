"""AWS error mapping: turns failed AWS calls into retryable and permanent errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headgate.errors import StoreIOError, TransientError
from headgate.triggers.aws.clients import aws_call
from headgate.triggers.contract import FailureCategory, TriggerFailedError


@contextmanager
def aws_request(subject: str) -> Iterator[None]:
    """Raise failures of AWS calls in the block as `TransientError`, or as `StoreIOError` if a retry cannot help."""
    try:
        with aws_call(subject):
            yield
    except TriggerFailedError as exc:
        if exc.category is FailureCategory.PERMANENT:
            raise StoreIOError(f"{exc}; check the ARN and what the role of the function may do") from exc
        raise TransientError(str(exc)) from exc
