"""Activity handlers: perform the activities that messages of a task queue, or asynchronous events, name.

`invoked` is the handler of each activity that has a function of its own. What Lambda gives up on arrives at `lost`.
"""

from __future__ import annotations

import structlog

from headgate.aws.app_container import AppContainer, app_container
from headgate.aws.invocation import Context, Event, handle, is_out_of_time
from headgate.durable.serverless.activity_functions import invoked_wake
from headgate.durable.serverless.lost_invocations import load_record
from headgate.durable.serverless.wakeups import ActivityWake, load_due
from headgate.errors import HeadgateError

_log = structlog.get_logger(__name__)


def activities(event: Event, context: Context) -> Event:
    """Perform the activities of a batch one after another, and report those that ran out of time."""
    failed = handle("activities", context, lambda: _perform(event, context))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def invoked(event: Event, context: Context) -> Event:
    """Perform the activity that an asynchronous event names."""
    return {"activity": handle("activities", context, lambda: _perform_invoked(event, context))}


def lost(event: Event, context: Context) -> Event:
    """Count the invocations that Lambda gave up on, and report the records that could not be processed."""
    failed = handle("lost-activities", context, lambda: _count(event, context))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _perform_invoked(event: Event, context: Context) -> str:
    container = app_container()
    with container.metrics.of("activities"):
        wake = invoked_wake(event)
        due = container.activities(wake, lambda: is_out_of_time(context))
        container.queues.send([] if due is None else [due])
        return wake.activity_id


def _count(event: Event, context: Context) -> list[str]:
    container = app_container()
    failed: list[str] = []
    for record in event["Records"]:
        if is_out_of_time(context):
            failed.append(record["messageId"])
            continue
        try:
            check = container.lost_invocations.count(load_record(record["body"]))
            container.queues.send([] if check is None else [check])
        except HeadgateError as exc:
            # The other records are not held up; this one is delivered again, and then put aside.
            _log.error("record not processed", message_id=record["messageId"], code=exc.code, error=str(exc))
            failed.append(record["messageId"])
    return failed


def _perform(event: Event, context: Context) -> list[str]:
    container = app_container()
    with container.metrics.of("activities"):
        return _perform_all(container, event, context)


def _perform_all(container: AppContainer, event: Event, context: Context) -> list[str]:
    unstarted: list[str] = []
    for record in event["Records"]:
        if is_out_of_time(context):
            unstarted.append(record["messageId"])
            continue
        wake = load_due(record["body"]).wake
        assert isinstance(wake, ActivityWake), "this queue only has activity wakeups"
        due = container.activities(wake, lambda: is_out_of_time(context))
        container.queues.send([] if due is None else [due])
    return unstarted
