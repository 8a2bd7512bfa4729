"""Turns on Lambda: called by the FIFO queue of wakes, advances the executions that its messages name."""

from __future__ import annotations

from headgate.aws.app_container import app_container
from headgate.aws.invocations import Context, Event, answered, is_over
from headgate.durable.serverless.wakeups import TurnWake, load_due


def turns(event: Event, context: Context) -> Event:
    """Take the turns that messages ask for, and report those whose execution was left with something to hear."""
    failed = answered("turns", context, lambda: _taken(event, context))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _taken(event: Event, context: Context) -> list[str]:
    opened = app_container()
    wakes: dict[str, TurnWake] = {}
    for record in event["Records"]:
        wake = load_due(record["body"]).wake
        assert isinstance(wake, TurnWake), "nothing else is sent to this queue"
        wakes[record["messageId"]] = wake
    early, left = opened.turns(list(wakes.values()), lambda: is_over(context))
    opened.queues.send(early)
    return [message_id for message_id, wake in wakes.items() if wake.execution_id in left]
