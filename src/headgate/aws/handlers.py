"""Handlers: what Lambda calls. Each reads its event, makes one call, and answers.

The machine knows orchestrator, evaluator, trigger, run-checker and SLA monitor by the variables of its definition; the
others are called by the stream of the table, by a rule of EventBridge, or when a package was deployed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headgate.aws.container import Container, container
from headgate.aws.invocations import Context, Event, answered, is_over
from headgate.errors import TransientError
from headgate.pipelines.watchdog.watchdog import REPORTING

T = TypeVar("T")


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
        "stream-router", context, lambda opened: opened.batches(event["Records"], lambda: is_over(context))
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
    return _answered("clockwork", context, lambda opened: {"delivered": opened.keep_time(lambda: is_over(context))})


def definitions(event: Event, context: Context) -> Event:
    """Make the definitions in the package the current ones."""
    del event
    return _answered("definitions", context, lambda opened: {"pipelines": opened.define()})


def _called(variable: str, event: Event, context: Context) -> Event:
    return _answered(variable, context, lambda opened: opened.call(variable, event))


def _answered(function: str, context: Context, call: Callable[[Container], T]) -> T:
    return answered(function, context, lambda: call(container()))
