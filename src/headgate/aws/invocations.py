"""Invocations: what all handlers of Lambda have in common: the time that is left, the log, and the names of errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import structlog

from headgate.aws.failures import named
from headgate.errors import HeadgateError
from headgate.telemetry import correlated

# With less time than this nothing more is begun, so that it can end: a call of the store may take ten seconds.
MARGIN_MS: Final = 15_000
_log = structlog.get_logger(__name__)

T = TypeVar("T")
Event = dict[str, Any]


class Context(Protocol):
    """What Lambda tells of an invocation."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int:
        """Return for how long the invocation may go on."""


def is_over(context: Context) -> bool:
    """Whether nothing more should be begun."""
    return context.get_remaining_time_in_millis() < MARGIN_MS


def answered(function: str, context: Context, call: Callable[[], T]) -> T:
    """Return what a call returns. Raises what `failures.named` makes of an error.

    The event is not logged: it holds tokens.
    """
    with correlated(context.aws_request_id):
        try:
            answer = call()
        except HeadgateError as exc:
            _log.error("call failed", function=function, code=exc.code, error=str(exc))
            error = named(exc)
            if error is exc:
                raise
            raise error from exc
        _log.info("call answered", function=function, milliseconds_left=context.get_remaining_time_in_millis())
        return answer
