"""Activities on Lambda: called by the queue of a task queue, performs the activity that a message names."""

from __future__ import annotations

from headgate.aws.app_container import app_container
from headgate.aws.invocations import Context, Event, answered, is_over
from headgate.durable.serverless.wakeups import ActivityWake, load_due


def activities(event: Event, context: Context) -> Event:
    """Perform the activities that messages ask for, one after the other, and report those that were not come to."""
    failed = answered("activities", context, lambda: _performed(event, context))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _performed(event: Event, context: Context) -> list[str]:
    opened = app_container()
    left: list[str] = []
    for record in event["Records"]:
        if is_over(context):
            left.append(record["messageId"])
            continue
        wake = load_due(record["body"]).wake
        assert isinstance(wake, ActivityWake), "nothing else is sent to this queue"
        due = opened.activities(wake, lambda: is_over(context))
        opened.queues.send([] if due is None else [due])
    return left
