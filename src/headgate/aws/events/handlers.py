"""Event handlers: the stream of the event log invokes `event_sink`, rules of an EventBridge bus `bus_handler`."""

from __future__ import annotations

from headgate.aws.events.containers import event_container
from headgate.aws.invocation import Context, Event, handle, is_out_of_time


def event_sink(event: Event, context: Context) -> Event:
    """Publish the events of stream records to SNS and EventBridge. With `redrive`, publish failed events again."""
    if event.get("redrive"):
        return handle("event-sink", context, lambda: _redrive(context))
    left = handle("event-sink", context, lambda: _publish(event, context))
    return {"batchItemFailures": [{"itemIdentifier": number} for number in left]}


def bus_handler(event: Event, context: Context) -> Event:
    """Put an event of an EventBridge bus on the bus of Headgate, for the subscriptions of the app."""
    return handle("bus-handler", context, lambda: {"event_id": event_container().receive(event)})


def _publish(event: Event, context: Context) -> list[str]:
    return event_container().sink(event["Records"], lambda: is_out_of_time(context))


def _redrive(context: Context) -> Event:
    done = event_container().redrive(lambda: is_out_of_time(context))
    return {"published": done.published, "refused": done.refused, "missing": done.missing}
