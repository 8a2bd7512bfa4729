"""Turn handler: advances the executions named by the messages of the FIFO queue."""

from __future__ import annotations

from headgate.aws.app_container import AppContainer, app_container
from headgate.aws.invocation import Context, Event, handle, is_out_of_time
from headgate.durable.serverless.wakeups import TurnWake, load_due


def turns(event: Event, context: Context) -> Event:
    """Run the turns that messages ask for, and report those whose execution still has unread events."""
    failed = handle("turns", context, lambda: _run_turns(event, context))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _run_turns(event: Event, context: Context) -> list[str]:
    container = app_container()
    with container.metrics.of("turns"):
        return _advance(container, event, context)


def _advance(container: AppContainer, event: Event, context: Context) -> list[str]:
    wakes: dict[str, TurnWake] = {}
    for record in event["Records"]:
        wake = load_due(record["body"]).wake
        assert isinstance(wake, TurnWake), "this queue only has turn wakeups"
        wakes[record["messageId"]] = wake
    early, unfinished = container.turns(list(wakes.values()), lambda: is_out_of_time(context))
    container.queues.send(early)
    return [message_id for message_id, wake in wakes.items() if wake.execution_id in unfinished]
