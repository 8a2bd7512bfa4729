"""Chunk handler: decorator that turns a function of a chunk into a handler of queue messages.

    @chunk_handler(tracker)
    def fit(chunk: ActiveChunk) -> None: ...

The result is a Lambda function for an SQS queue. It reports failed messages one by one, so that the event source needs
`ReportBatchItemFailures`. It can also be called with a single message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from headgate.errors import FatalError, HeadgateError, InvalidPayloadError, NotAdmittedError
from headgate.fanout.model.messages import Message, message_of
from headgate.fanout.model.rows import timestamp_ms
from headgate.fanout.model.states import Admission, Disposition
from headgate.fanout.remote.heartbeat import GRACE_SECONDS, Deadline, RemainingMs
from headgate.fanout.remote.sdk import ActiveChunk, ChunkWorker, Delivery
from headgate.fanout.remote.trackers import ChunkTracker

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_log = structlog.get_logger(__name__)

Handler = Callable[[ActiveChunk], Any]
# Changes the visibility of a message: queue URL, receipt handle, seconds until it is delivered again.
Later = Callable[[str, str, float], None]
# A delivery before the end of the lease would find the chunk busy.
_LEASE_GRACE_SECONDS: Final = 2 * GRACE_SECONDS
# A message whose chunk has not begun by then comes again, because its process was killed.
_BEGIN_SECONDS: Final = 60.0
# A chunk that could not begin, because the store did not answer, is delivered again after this, doubled each time.
_RETRY_SECONDS: Final = 30.0
_RETRY_SECONDS_MAX: Final = 900.0
# Each delivery counts, and a pause may be long.
_PAUSED_SECONDS: Final = 5_400.0
_RECEIVE_COUNT: Final = "ApproximateReceiveCount"


def chunk_handler(
    worker: ChunkWorker | ChunkTracker, *, later: Later | None = None, queue_url: str | None = None
) -> Callable[[Handler], ChunkHandler]:
    """Make a function handle chunk messages. Its return value is the chunk's output, unless it called `output`.

    With `later`, a failed chunk is delivered again after the policy's backoff, and one whose process was killed once
    its lease has expired, instead of after the queue's visibility time-out. With `queue_url`, the queue whose messages
    it gets, that is so for a chunk that could not begin, too.
    """
    taken = worker if isinstance(worker, ChunkWorker) else ChunkWorker(worker)
    return lambda function: ChunkHandler(taken, function, later=later, queue_url=queue_url)


class ChunkHandler:
    """A function of chunks, called with queue messages."""

    def __init__(
        self, worker: ChunkWorker, function: Handler, *, later: Later | None = None, queue_url: str | None = None
    ) -> None:
        self._worker = worker
        self._function = function
        self._later = later
        self._queue_url = queue_url
        functools.update_wrapper(self, function)

    def __call__(self, event: Message | Mapping[str, Any], context: object = None) -> Any:  # noqa: ANN401
        """Handle an SQS event of a Lambda function, or one message.

        For an event, the response lists the messages to deliver again. For a message, the result is the chunk as it
        ended, or None if there was nothing to do; errors of the function are recorded and raised, as is
        `NotAdmittedError` for a chunk that must not run yet.
        """
        remaining_ms: RemainingMs | None = getattr(context, "get_remaining_time_in_millis", None)
        name: str | None = getattr(context, "log_stream_name", None)
        if isinstance(event, Mapping) and "Records" in event:
            return {"batchItemFailures": self._unhandled(event["Records"], remaining_ms, name)}
        with self._worker.chunk(event, remaining_ms=remaining_ms, name=name) as chunk:
            self._call(chunk)
        return chunk.ended

    def consume(self, queue_url: str, *, sqs: SQSClient | None = None, until_empty: bool = False) -> int:
        """Receive and handle the messages of a queue, in a process that no event source invokes.

        Consumes until the process ends, or with `until_empty` until the queue has no visible message, and returns the
        number of handled messages. `sqs` is a client of boto3; by default one from the standard AWS configuration.
        A message that is not handled stays in the queue, whose visibility time-out must exceed that of a chunk.
        """
        import boto3

        from headgate.fanout.remote.consumer import QueueConsumer

        client: SQSClient = sqs if sqs is not None else boto3.client("sqs")
        return QueueConsumer(client, queue_url, self._worker.clock).run(self, until_empty=until_empty)

    def _unhandled(
        self, records: Sequence[Mapping[str, Any]], remaining_ms: RemainingMs | None, name: str | None
    ) -> list[dict[str, str]]:
        deadline = Deadline(self._worker.clock, remaining_ms)
        failures: list[dict[str, str]] = []
        for record in records[1:]:
            self._postpone(self._queue_url, record, _after(deadline))
        for record in records:
            message_id = _message_id(record)
            if deadline.is_near():
                # Messages not started are delivered again, to a worker with time left.
                self._postpone(self._queue_url, record, 0.0)
                failures.append({"itemIdentifier": message_id})
            elif not self._is_handled(record, message_id, remaining_ms, name):
                failures.append({"itemIdentifier": message_id})
        return failures

    def _is_handled(
        self, record: Mapping[str, Any], message_id: str, remaining_ms: RemainingMs | None, name: str | None
    ) -> bool:
        """Run the chunk of one message, and return whether the message may be deleted.

        A malformed message is kept: the queue moves it to the dead-letter queue.
        """
        delivery = Delivery(int(record.get("attributes", {}).get(_RECEIVE_COUNT, 0)), message_id)
        self._postpone(self._queue_url, record, _BEGIN_SECONDS)
        active: ActiveChunk | None = None
        try:
            message = message_of(record.get("body", ""))
            active = ActiveChunk(
                self._worker, message, delivery, remaining_ms=remaining_ms, name=name, keeps_errors=True
            )
            with active as chunk:
                if chunk.is_admitted:
                    # If the process is killed, the message comes back once the lease of the chunk has expired.
                    lease_seconds = chunk.seconds_left + _LEASE_GRACE_SECONDS
                    self._postpone(chunk.fanout.queue_url, record, lease_seconds)
                self._call(chunk)
        except FatalError:
            raise
        except NotAdmittedError as exc:
            _log.warning("message not handled", message_id=message_id, error=str(exc))
            # Another function has ended or lost its chunk when it would be over itself.
            seconds = (
                _PAUSED_SECONDS
                if exc.admission == Admission.PAUSED
                else _after(Deadline(self._worker.clock, remaining_ms))
            )
            self._postpone(self._queue_url, record, seconds)
            return False
        except HeadgateError as exc:
            _log.warning("message not handled", message_id=message_id, error=str(exc))
            if active is None or not active.is_admitted:
                self._postpone(self._queue_url, record, _retry_seconds(delivery.receive_count))
            return False
        return not active.is_admitted or self._has_ended(active, record)

    def _call(self, chunk: ActiveChunk) -> None:
        if not chunk.is_admitted:
            return
        value = self._function(chunk)
        if value is not None and not chunk.has_output:
            chunk.output(value)

    def _has_ended(self, active: ActiveChunk, record: Mapping[str, Any]) -> bool:
        ended = active.ended
        if ended is None:
            return False
        if ended.disposition is Disposition.RETRYING and ended.retry_at is not None:
            due_ms = timestamp_ms(ended.retry_at)
            self._postpone(active.fanout.queue_url, record, max(0.0, (due_ms - self._worker.tracker.now_ms()) / 1000))
        return ended.status.is_terminal or active.cancelled

    def _postpone(self, queue_url: str | None, record: Mapping[str, Any], seconds: float) -> None:
        receipt: str | None = record.get("receiptHandle")
        if self._later is None or queue_url is None or receipt is None or seconds == float("inf"):
            return
        try:
            self._later(queue_url, receipt, seconds)
        except HeadgateError as exc:
            # It is delivered again after the queue's visibility time-out.
            _log.warning("message not postponed", message_id=record.get("messageId"), error=str(exc))


def _after(deadline: Deadline) -> float:
    """Return the seconds after which what began in this invocation has ended or lost its lease."""
    return deadline.left_seconds() + _LEASE_GRACE_SECONDS


def _retry_seconds(receives: int) -> float:
    return min(_RETRY_SECONDS_MAX, _RETRY_SECONDS * 2.0 ** min(max(0, receives - 1), 8))


def _message_id(record: Mapping[str, Any]) -> str:
    try:
        return str(record["messageId"])
    except KeyError as exc:
        raise InvalidPayloadError("the event has records without messageId: it is not from a queue of SQS") from exc
