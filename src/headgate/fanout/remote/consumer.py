"""Queue consumer: receives the messages of an SQS queue in a loop, for workers that no event source invokes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from headgate.clock import Clock
from headgate.fanout.remote.sqs import DEADLINE_SECONDS, WAIT_SECONDS_MAX, Calls

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

EMPTY_WAIT_SECONDS: Final = 1
Event = Mapping[str, Any]


class QueueConsumer:
    """Calls a handler of SQS events with one message at a time, and deletes the messages that it has handled.

    One at a time, because the visibility time-out of a message runs from its receipt.
    """

    def __init__(self, client: SQSClient, queue_url: str, clock: Clock) -> None:
        self._client = client
        self._queue_url = queue_url
        self._calls = Calls(clock, DEADLINE_SECONDS)

    def run(self, handler: Callable[[Event], Event], *, until_empty: bool) -> int:
        """Consume until the process ends, or with `until_empty` until the queue has no visible message.

        Returns the number of handled messages. Raises errors of the queue after their retries.
        """
        handled = 0
        while True:
            record = self._received(EMPTY_WAIT_SECONDS if until_empty else WAIT_SECONDS_MAX)
            if record is None:
                if until_empty:
                    return handled
                continue
            if not handler({"Records": [record]})["batchItemFailures"]:
                request = {"QueueUrl": self._queue_url, "ReceiptHandle": record["receiptHandle"]}
                self._calls.call(self._client.delete_message, request, f"queue {self._queue_url}")
                handled += 1

    def _received(self, wait_seconds: int) -> dict[str, Any] | None:
        request = {
            "QueueUrl": self._queue_url,
            "MaxNumberOfMessages": 1,
            "WaitTimeSeconds": wait_seconds,
            "MessageSystemAttributeNames": ["ApproximateReceiveCount"],
        }
        answer = self._calls.call(self._client.receive_message, request, f"queue {self._queue_url}")
        for message in answer.get("Messages", []):
            return {
                "messageId": message["MessageId"],
                "receiptHandle": message["ReceiptHandle"],
                "body": message["Body"],
                "attributes": dict(message.get("Attributes", {})),
                "eventSource": "aws:sqs",
            }
        return None
