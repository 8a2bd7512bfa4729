"""Refusals: what AWS answers to a call that it does not carry out, as errors that say whether to try again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headgate.errors import StoreIOError, TransientError
from headgate.triggers.aws.clients import aws_call
from headgate.triggers.contract import FailureCategory, TriggerFailedError


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Raise what AWS answers within the block as `TransientError`, or `StoreIOError` if trying again is no use."""
    try:
        with aws_call(what):
            yield
    except TriggerFailedError as exc:
        if exc.category is FailureCategory.PERMANENT:
            raise StoreIOError(f"{exc}; check the ARN and what the role of the function may do") from exc
        raise TransientError(str(exc)) from exc
