"""Handlers: what Lambda calls. Each reads its event, makes one call, and answers.

The machine knows orchestrator, evaluator, trigger, run-checker and SLA monitor by the variables of its definition; the
others are called by the stream of the table, by a rule of EventBridge, or when a package was deployed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import structlog

from headgate.aws.container import Container, container
from headgate.aws.failures import named
from headgate.errors import HeadgateError, TransientError
from headgate.pipelines.watchdog import REPORTING
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


def orchestrator(event: Event, context: Context) -> Event:
    """Answer to an action or mode of the lifecycle."""
    return _called("OrchestratorFunctionArn", event, context)


def evaluator(event: Event, context: Context) -> Event:
    """Evaluate one trait."""
    return _called("EvaluatorFunctionArn", event, context)


def trigger(event: Event, context: Context) -> Event:
    """Start the job of a run."""
    return _called("TriggerFunctionArn", event, context)


def run_checker(event: Event, context: Context) -> Event:
    """Say how the job of a run is."""
    return _called("RunCheckerFunctionArn", event, context)


def sla_monitor(event: Event, context: Context) -> Event:
    """Say when an SLA is due, or judge it; schedules call it too, when one is."""
    return _called("sla_monitor_arn", event, context)


def stream_router(event: Event, context: Context) -> Event:
    """Act on changed rows of the table of pipelines, and report those that have to come again."""
    failed = _answered(
        "stream-router", context, lambda opened: opened.batches(event["Records"], lambda: _is_over(context))
    )
    return {"batchItemFailures": [{"itemIdentifier": number} for number in failed]}


def watchdog(event: Event, context: Context) -> Event:
    """Make one tick. What a check met is told as an event; only a tick that could not tell it fails."""
    del event

    def tick(opened: Container) -> Event:
        report = opened.watch()
        if REPORTING in report.failed:
            raise TransientError(f"watchdog: {report.failed[REPORTING]}")
        return {"findings": dict(report.findings), "failed": dict(report.failed)}

    return _answered("watchdog", context, tick)


def clockwork(event: Event, context: Context) -> Event:
    """Begin what is due by the clock, and deliver alerts."""
    del event
    return _answered("clockwork", context, lambda opened: {"delivered": opened.keep_time(lambda: _is_over(context))})


def definitions(event: Event, context: Context) -> Event:
    """Make the definitions in the package the current ones."""
    del event
    return _answered("definitions", context, lambda opened: {"pipelines": opened.define()})


def _called(variable: str, event: Event, context: Context) -> Event:
    return _answered(variable, context, lambda opened: opened.call(variable, event))


def _is_over(context: Context) -> bool:
    return context.get_remaining_time_in_millis() < MARGIN_MS


def _answered(function: str, context: Context, call: Callable[[Container], T]) -> T:
    """Return what a call returns. Raises what `failures.named` makes of an error.

    The event is not logged: it holds tokens.
    """
    with correlated(context.aws_request_id):
        try:
            answer = call(container())
        except HeadgateError as exc:
            _log.error("call failed", function=function, code=exc.code, error=str(exc))
            error = named(exc)
            if error is exc:
                raise
            raise error from exc
        _log.info("call answered", function=function, milliseconds_left=context.get_remaining_time_in_millis())
        return answer
