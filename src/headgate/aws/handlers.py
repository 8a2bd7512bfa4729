"""Lambda handlers of the pipeline lifecycle. Each parses its event, makes one call, and returns the response.

The state machine invokes orchestrator, evaluator, trigger, run_checker and sla_monitor; the table's stream invokes
stream_router; EventBridge rules invoke watchdog and clockwork; a deployment invokes definitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headgate.aws.invocation import Context, Event, handle, is_out_of_time
from headgate.aws.lifecycle_container import LifecycleContainer, lifecycle_container
from headgate.errors import TransientError
from headgate.pipelines.watchdog.watchdog import REPORTING

T = TypeVar("T")


def orchestrator(event: Event, context: Context) -> Event:
    """Run an action of the lifecycle."""
    return _call("OrchestratorFunctionArn", event, context)


def evaluator(event: Event, context: Context) -> Event:
    """Evaluate one trait."""
    return _call("EvaluatorFunctionArn", event, context)


def trigger(event: Event, context: Context) -> Event:
    """Start the job of a run."""
    return _call("TriggerFunctionArn", event, context)


def run_checker(event: Event, context: Context) -> Event:
    """Return the status of a run's job."""
    return _call("RunCheckerFunctionArn", event, context)


def sla_monitor(event: Event, context: Context) -> Event:
    """Return the deadlines of an SLA, or judge it; one-shot schedules invoke it at a deadline."""
    return _call("sla_monitor_arn", event, context)


def stream_router(event: Event, context: Context) -> Event:
    """Process changed rows of the pipelines table, and report those that failed."""
    failed = _handle(
        "stream-router", context, lambda container: container.batches(event["Records"], lambda: is_out_of_time(context))
    )
    return {"batchItemFailures": [{"itemIdentifier": number} for number in failed]}


def watchdog(event: Event, context: Context) -> Event:
    """Run one watchdog tick. Findings become events; the tick fails only if they cannot be written."""
    del event

    def tick(container: LifecycleContainer) -> Event:
        report = container.watch()
        if REPORTING in report.failed:
            raise TransientError(f"watchdog: {report.failed[REPORTING]}")
        return {"findings": dict(report.findings), "failed": dict(report.failed)}

    return _handle("watchdog", context, tick)


def clockwork(event: Event, context: Context) -> Event:
    """Start due schedules, advance backfills and deliver alerts."""
    del event
    return _handle(
        "clockwork", context, lambda container: {"delivered": container.run_schedules(lambda: is_out_of_time(context))}
    )


def definitions(event: Event, context: Context) -> Event:
    """Apply the pipeline definitions of the package. With `check`, only open the functions and read the tables."""
    if event.get("check"):
        return _handle("definitions", context, lambda container: {"pipelines": container.check()})
    return _handle("definitions", context, lambda container: {"pipelines": container.apply_definitions()})


def _call(variable: str, event: Event, context: Context) -> Event:
    return _handle(variable, context, lambda container: container.call(variable, event))


def _handle(function: str, context: Context, call: Callable[[LifecycleContainer], T]) -> T:
    def run() -> T:
        container = lifecycle_container()
        with container.metrics.of(function):
            return call(container)

    return handle(function, context, run)
