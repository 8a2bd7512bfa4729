"""Activity handler: performs the activities named by the messages of a task queue."""

from __future__ import annotations

from headgate.aws.app_container import AppContainer, app_container
from headgate.aws.invocation import Context, Event, handle, is_out_of_time
from headgate.durable.serverless.wakeups import ActivityWake, load_due


def activities(event: Event, context: Context) -> Event:
    """Perform the activities of a batch one after another, and report those that ran out of time."""
    failed = handle("activities", context, lambda: _perform(event, context))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


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
