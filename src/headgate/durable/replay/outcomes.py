"""Outcomes: the command that ends a run, from the result of its main task."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Raw

from headgate.durable.model import payload
from headgate.durable.model.failures import ErrorInfo, describe
from headgate.durable.model.history import CancelRequested, Close, ContinueAsNew, Signal, Status
from headgate.errors import WorkflowViolationError


class ContinueRequest(BaseException):
    """Unwinds workflow code that continues as new. Not an `Exception`, so that `except Exception` does not catch it."""

    def __init__(self, input: Raw) -> None:
        super().__init__()
        self.input = input


def outcome_of(
    main: asyncio.Task[Any],
    cancel: CancelRequested | None,
    buffered: tuple[Signal, ...],
    headers: dict[str, str] | None = None,
) -> Close | ContinueAsNew:
    """Return the command that ends the run. Raises the `WorkflowViolationError` that ended the code, if one did."""
    if main.cancelled():
        reason = cancel.reason if cancel is not None else "the workflow cancelled itself"
        timed_out = cancel is not None and cancel.timed_out
        status = Status.TIMED_OUT if timed_out else Status.CANCELLED
        return Close(status, error=ErrorInfo(type="Cancelled", message=reason))
    error = main.exception()
    request = _continue_request(error)
    if request is not None:
        return ContinueAsNew(request.input, buffered, headers)
    if isinstance(error, WorkflowViolationError):
        raise error
    if error is not None:
        return Close(Status.FAILED, error=describe(error))
    try:
        return Close(Status.SUCCEEDED, result=payload.encode(main.result(), what="result of the workflow"))
    except Exception as exc:  # noqa: BLE001 - a result that cannot be stored fails the workflow
        return Close(Status.FAILED, error=describe(exc))


def _continue_request(error: BaseException | None) -> ContinueRequest | None:
    """Return the request to continue as new, even if a task group has wrapped it."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, (_continue_request(member) for member in error.exceptions)), None)
    return error if isinstance(error, ContinueRequest) else None
