"""Turn handler: advances the executions named by the messages of the FIFO queue."""

from __future__ import annotations

from headgate.aws.app_container import AppContainer, app_container
from headgate.aws.invocation import Context, Event, handle, is_out_of_time
from headgate.durable.serverless.sqs import ReceivedTurn
from headgate.durable.serverless.wakeups import TurnWake, load_due
from headgate.errors import HeadgateError


def turns(event: Event, context: Context) -> Event:
    """Run the turns that messages ask for, and report those whose execution still has unread events."""
    failed = handle("turns", context, lambda: _run_turns(event, context))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _run_turns(event: Event, context: Context) -> list[str]:
    container = app_container()
    with container.metrics.of("turns"):
        return _advance(container, event, context)


def _advance(container: AppContainer, event: Event, context: Context) -> list[str]:
    records, wakes = event["Records"], [_turn(record) for record in event["Records"]]
    try:
        early, unfinished = container.turns(wakes, lambda: is_out_of_time(context))
        container.queues.send(early)
    except HeadgateError:
        container.queues.retry_soon([_received(record) for record in records])
        raise
    failed = [record for record, wake in zip(records, wakes, strict=True) if wake.execution_id in unfinished]
    container.queues.retry_soon([_received(record) for record in failed])
    return [record["messageId"] for record in failed]


def _turn(record: Event) -> TurnWake:
    wake = load_due(record["body"]).wake
    assert isinstance(wake, TurnWake), "this queue only has turn wakeups"
    return wake


def _received(record: Event) -> ReceivedTurn:
    return ReceivedTurn(receipt=record["receiptHandle"], receives=int(record["attributes"]["ApproximateReceiveCount"]))
