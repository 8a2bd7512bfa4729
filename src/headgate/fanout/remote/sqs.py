"""SQS queue: sends a message for each chunk of a fan-out, and drains dead-letter queues.

Every operation may be repeated: a duplicate message changes nothing, because the chunk's row decides. A row is QUEUED
only after SQS has accepted its message, and a dead letter is deleted only after it was recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import (
    ConflictError,
    DefinitionError,
    HeadgateError,
    NotFoundError,
    PayloadTooLargeError,
    StoreBusyError,
    StoreIOError,
    ThrottledError,
)
from headgate.fanout.core.attempts import with_disposition
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange, apply
from headgate.fanout.model.messages import message_about
from headgate.fanout.model.rows import Chunk, Fanout, is_unsent_since_split, timestamp
from headgate.fanout.model.states import Disposition
from headgate.fanout.remote.dead_letters import DeadLetters, Ruling
from headgate.store.dynamodb.client import Backoff, Fault, classify
from headgate.store.port import Store
from headgate.store.stats import StoreStats

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

# Limits of an SQS batch.
BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 256 * 1024
# Rows read, sent and updated at a time: the upper bound of messages sent twice after a crash.
WINDOW: Final = 100
# The fan-out's row stores how far messages were sent, after so many windows.
WINDOWS_STORED: Final = 100
STORE_TRIES_MAX: Final = 5
# How often, and how long after the first time, an index is read that does not show all unsent chunks yet.
INDEX_READS_MAX: Final = 4
INDEX_LAG_SECONDS: Final = 0.2
DEADLINE_SECONDS: Final = 30.0
# SQS limits of long polling and of the visibility time-out.
WAIT_SECONDS_MAX: Final = 20
AWAY_SECONDS_MAX: Final = 43_200
# Visibility time-out of dead letters while they are recorded.
DRAIN_SECONDS: Final = 120
_THROTTLES: Final = frozenset({"KmsThrottled", "KMS.ThrottlingException", "OverLimit"})
_ABSENT: Final = frozenset(
    {
        "AWS.SimpleQueueService.NonExistentQueue",
        "NoSuchBucket",
        "QueueDoesNotExist",
        "ResourceNotFoundException",
        "TableNotFoundException",
    }
)
_Failure = ClientError | BotoCoreError | ResponseParserError
R = TypeVar("R")


class DeadLetter(Struct, frozen=True):
    """A message of a dead-letter queue."""

    body: str
    message_id: str
    receive_count: int
    first_received_at: str | None = None


class Drained(Struct, frozen=True):
    """The number of recorded dead letters, and the reason for each message left in the queue, by message id."""

    recorded: int
    left: dict[str, str]


# Records a dead letter; returns the reason to keep it in the queue, or None if it may be deleted.
Record = Callable[[DeadLetter], str | None]


class Calls:
    """Calls AWS with retries and backoff, and translates errors. For idempotent operations only."""

    def __init__(self, clock: Clock, deadline_seconds: float) -> None:
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._stats = StoreStats()

    def backoff(self) -> Backoff:
        """Return a backoff whose deadline several calls share. It starts now."""
        return Backoff(self._clock, self._stats, self._deadline_seconds)

    def call(
        self, operation: Callable[..., R], request: dict[str, Any], about: str, backoff: Backoff | None = None
    ) -> R:
        """Call until there is a response. `about` names the queue or function in error messages.

        Raises `NotFoundError`, `StoreIOError`, and after the deadline `ThrottledError` or `StoreBusyError`.
        """
        answer = self.find(operation, request, about, absent="", backoff=backoff)
        assert answer is not None, "no error code counts as absent"
        return answer

    def find(
        self,
        operation: Callable[..., R],
        request: dict[str, Any],
        about: str,
        *,
        absent: str,
        backoff: Backoff | None = None,
    ) -> R | None:
        """Call as `call` does, and return None for the error code `absent`."""
        backoff = backoff or self.backoff()
        while True:
            try:
                return operation(**request)
            except (ClientError, BotoCoreError, ResponseParserError) as exc:
                if absent and _code(exc) == absent:
                    return None
                fault = Fault.THROTTLED if _code(exc) in _THROTTLES else classify(exc)
                if fault is Fault.FINAL or not backoff.pause():
                    raise _translated(exc, fault, operation.__name__, about, backoff.deadline_seconds) from exc


class SqsQueue:
    """The SQS queues of fan-outs. Safe to use from many threads."""

    def __init__(
        self, client: SQSClient, store: Store, clock: Clock, *, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        self._client = client
        self._store = store
        self._clock = clock
        self._queries = FanoutQueries(store, clock)
        self._calls = Calls(clock, deadline_seconds)

    @classmethod
    def connect(cls, *, region: str, endpoint_url: str | None, store: Store, clock: Clock) -> SqsQueue:
        """Build the client with credentials from the standard AWS sources. Sends nothing."""
        try:
            session = boto3.session.Session(region_name=region)
            client = session.client("sqs", endpoint_url=endpoint_url, config=client_config())
        except (BotoCoreError, ValueError) as exc:
            raise StoreIOError(f"SQS in {region}: no client can be built: {exc}; check region and endpoint") from exc
        return cls(client, store, clock)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._client.close()

    # Sending.

    def check(self, queue_url: str) -> None:
        """Raise `DefinitionError` if there is no such queue or AWS refuses access, and transient errors."""
        request = {"QueueUrl": queue_url, "AttributeNames": ["QueueArn"]}
        self._call(self._client.get_queue_attributes, request, queue_url)

    def send(self, fanout: Fanout) -> Fanout:
        """Send a message for each WAITING chunk, and return the fan-out.

        Safe to repeat after a crash, or for redriven chunks. Stops if the fan-out is cancelled. Raises
        `DefinitionError` for a queue that is missing or refused, `StoreBusyError` if it cannot be reached,
        `ThrottledError` if it keeps refusing a message, and `PayloadTooLargeError` if the parameters do not fit into a
        message.
        """
        if fanout.queue_url is None:
            raise DefinitionError(f"fan-out {fanout.run_id}: it has no queue to send to")
        for _ in range(INDEX_READS_MAX):
            if not self._send_unsent(fanout, fanout.queue_url, self._queries.every_unsent(fanout)):
                break
            counts = self._queries.counts(fanout)
            if not counts.waiting + counts.slow_waiting:
                break
            # The index does not show all of them yet.
            self._clock.sleep(INDEX_LAG_SECONDS)
        else:
            # It lags for longer, or lacks a row that an earlier build has written.
            self._send_unsent(fanout, fanout.queue_url, self._queries.every_unsent_row(fanout.run_id))
        return fanout

    def _send_unsent(self, fanout: Fanout, queue_url: str, unsent: Iterator[Chunk]) -> bool:
        """Send the messages of WAITING chunks. False if the fan-out was cancelled."""
        for number in count(1):
            window = list(islice(unsent, WINDOW))
            if not window:
                break
            if not self._is_open(fanout):
                return False
            self._send_all(fanout, queue_url, window)
            if number % WINDOWS_STORED == 0 and is_unsent_since_split(window[-1]):
                self._store_sent_through(fanout.run_id, window[-1].start + window[-1].items)
        self._store_sent_through(fanout.run_id, fanout.split_through)
        return True

    def _store_sent_through(self, run_id: str, sent_through: int) -> None:
        """Store how far messages were sent. If the row keeps changing, the next call reads more rows."""
        for _ in range(STORE_TRIES_MAX):
            fanout = self._queries.find(run_id)
            if fanout is None or not fanout.lists_unsent or fanout.sent_through >= sent_through:
                return
            after = replace(fanout, sent_through=sent_through, version=fanout.version + 1)
            try:
                self._store.transact([after.replacing(fanout.version)])
            except ConflictError:
                continue
            return

    def _is_open(self, fanout: Fanout) -> bool:
        now = self._queries.find(fanout.run_id)
        return now is not None and now.cancelled_at is None

    def _send_all(self, fanout: Fanout, queue_url: str, chunks: Sequence[Chunk]) -> None:
        accepted: list[Chunk] = []
        try:
            for batch in batches([(chunk, message_about(fanout, chunk)) for chunk in chunks]):
                accepted.extend(self._accepted(queue_url, batch))
        finally:
            # Also if a later message was refused, so that accepted ones are not sent again.
            self._mark_queued(accepted)

    def _accepted(self, queue_url: str, batch: Sequence[tuple[Chunk, str]]) -> Iterator[Chunk]:
        """Send a batch, repeating entries that SQS did not accept. Yields the chunks as they are accepted."""
        left = {str(number): pair for number, pair in enumerate(batch)}
        is_fifo = queue_url.endswith(".fifo")
        backoff = self._calls.backoff()
        while left:
            entries = [
                {"Id": number, "MessageBody": body, **_fifo_attributes(chunk, is_fifo)}
                for number, (chunk, body) in left.items()
            ]
            request = {"QueueUrl": queue_url, "Entries": entries}
            answer = self._call(self._client.send_message_batch, request, queue_url, backoff)
            for entry in answer.get("Successful", []):
                yield left.pop(entry["Id"])[0]
            for fault in answer.get("Failed", []):
                if fault["SenderFault"]:
                    chunk = left[fault["Id"]][0]
                    raise DefinitionError(
                        f"queue_url {queue_url}: SQS refused the message of chunk {chunk.chunk_id} of {chunk.run_id} "
                        f"({fault['Code']}: {fault.get('Message', '')})"
                    )
            if left and not backoff.pause():
                raise ThrottledError(
                    f"queue {queue_url}: SQS did not accept {len(left)} messages for {backoff.deadline_seconds:g} s; "
                    "the rest is sent later"
                )

    def _call(
        self, operation: Callable[..., R], request: dict[str, Any], queue_url: str, backoff: Backoff | None = None
    ) -> R:
        """Call SQS about the queue of a fan-out. The order is at fault for a queue that is missing or refused."""
        try:
            return self._calls.call(operation, request, f"queue_url {queue_url}", backoff)
        except (NotFoundError, StoreIOError) as exc:
            raise DefinitionError(str(exc)) from exc

    def _mark_queued(self, chunks: Sequence[Chunk]) -> None:
        """Mark the chunks as QUEUED. Refused ones were claimed by a worker meanwhile, or cancelled."""
        now_ms = self._queries.now_ms()
        apply(
            self._store,
            [
                ChunkChange(chunk, with_disposition(chunk, Disposition.QUEUED, timestamp(now_ms), now_ms))
                for chunk in chunks
            ],
        )

    def postpone(self, queue_url: str, receipt: str, seconds: float) -> None:
        """Deliver a received message again after so many seconds, up to 12 hours."""
        request = {
            "QueueUrl": queue_url,
            "ReceiptHandle": receipt,
            "VisibilityTimeout": min(AWAY_SECONDS_MAX, max(0, round(seconds))),
        }
        self._calls.call(self._client.change_message_visibility, request, f"queue {queue_url}")

    # Dead letters.

    def drain(
        self,
        queue_url: str,
        record: Record,
        *,
        letters_max: int | None = None,
        wait_seconds: int = 1,
    ) -> Drained:
        """Record and delete dead letters until the queue is empty.

        `record` must be idempotent. Its errors are raised, and the received letters stay in the queue.
        """
        recorded, left = 0, dict[str, str]()
        while letters_max is None or recorded + len(left) < letters_max:
            room = BATCH_MAX if letters_max is None else min(BATCH_MAX, letters_max - recorded - len(left))
            messages = self._received(queue_url, room, wait_seconds)
            if not messages:
                break
            done: list[MessageTypeDef] = []
            for message in messages:
                why = record(_letter(message))
                if why is None:
                    done.append(message)
                else:
                    left[message["MessageId"]] = why
            self._delete(queue_url, done)
            recorded += len(done)
        return Drained(recorded, left)

    def _received(self, queue_url: str, count: int, wait_seconds: int) -> Sequence[MessageTypeDef]:
        request = {
            "QueueUrl": queue_url,
            "MaxNumberOfMessages": count,
            "WaitTimeSeconds": min(WAIT_SECONDS_MAX, wait_seconds),
            "VisibilityTimeout": DRAIN_SECONDS,
            "MessageSystemAttributeNames": ["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"],
        }
        answer = self._calls.call(self._client.receive_message, request, f"queue {queue_url}")
        return answer.get("Messages", [])

    def _delete(self, queue_url: str, messages: Sequence[MessageTypeDef]) -> None:
        left = {str(number): message["ReceiptHandle"] for number, message in enumerate(messages)}
        backoff = self._calls.backoff()
        while left:
            entries = [{"Id": number, "ReceiptHandle": receipt} for number, receipt in left.items()]
            request = {"QueueUrl": queue_url, "Entries": entries}
            answer = self._calls.call(self._client.delete_message_batch, request, f"queue {queue_url}", backoff)
            gone = [entry["Id"] for entry in answer.get("Successful", [])]
            # An expired receipt: the letter is delivered again, and recorded without effect.
            gone += [entry["Id"] for entry in answer.get("Failed", []) if entry["SenderFault"]]
            for number in gone:
                del left[number]
            if left and not backoff.pause():
                return


def recorder(letters: DeadLetters) -> Record:
    """Return a function that records dead letters on their chunks. A letter is kept if its chunk runs or is unknown."""

    def record(letter: DeadLetter) -> str | None:
        found = letters.record(
            letter.body, receive_count=letter.receive_count, first_received_at=letter.first_received_at
        )
        return None if found.ruling in (Ruling.DEAD, Ruling.DUPLICATE) else found.reason

    return record


def client_config() -> Config:
    """Return the client configuration for SQS: no retries of boto's own, and time-outs that allow long polling."""
    return Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=2,
        read_timeout=WAIT_SECONDS_MAX + 5,
        max_pool_connections=64,
        tcp_keepalive=True,
    )


def batches(messages: Sequence[tuple[Chunk, str]]) -> Iterator[list[tuple[Chunk, str]]]:
    """Yield messages in batches within the SQS limits. Raises `PayloadTooLargeError` for one that exceeds them."""
    batch: list[tuple[Chunk, str]] = []
    size = 0
    for chunk, body in messages:
        weight = len(body.encode())
        if weight > BATCH_BYTES_MAX:
            raise PayloadTooLargeError(
                f"fan-out {chunk.run_id}: a message has {weight} bytes, at most {BATCH_BYTES_MAX}; "
                "store large parameters in a bucket, and pass the object's name"
            )
        if len(batch) == BATCH_MAX or size + weight > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append((chunk, body))
        size += weight
    if batch:
        yield batch


def _fifo_attributes(chunk: Chunk, is_fifo: bool) -> dict[str, str]:  # noqa: FBT001 - decided by the queue's name
    """Return the FIFO attributes: a message group per chunk, and a deduplication id per redrive."""
    if not is_fifo:
        return {}
    sent = f"{chunk.run_id}#{chunk.sk}#{chunk.redrives}#{chunk.heals}"
    digest = hashlib.sha256(sent.encode()).hexdigest()
    return {"MessageGroupId": digest, "MessageDeduplicationId": digest}


def _letter(message: MessageTypeDef) -> DeadLetter:
    attributes = message.get("Attributes", {})
    first_ms = attributes.get("ApproximateFirstReceiveTimestamp")
    return DeadLetter(
        body=message["Body"],
        message_id=message["MessageId"],
        receive_count=int(attributes.get("ApproximateReceiveCount", 0)),
        first_received_at=None if first_ms is None else timestamp(int(first_ms)),
    )


def _translated(exc: _Failure, fault: Fault, operation: str, about: str, waited_seconds: float) -> HeadgateError:
    """Return our error for an AWS error."""
    detail = f"{_code(exc)}: {exc}" if isinstance(exc, ClientError) else f"{type(exc).__name__}: {exc}"
    if _code(exc) in _ABSENT:
        return NotFoundError(f"{about}: it does not exist; create it, or correct its name, the region or the account")
    if fault is Fault.FINAL:
        return StoreIOError(f"{about}: AWS refused {operation} ({detail}); check the credentials and their policy")
    if fault is Fault.THROTTLED:
        return ThrottledError(
            f"{about}: AWS throttled {operation} for {waited_seconds:g} s ({detail}); try again later"
        )
    return StoreBusyError(
        f"{about}: no answer from AWS to {operation} for {waited_seconds:g} s ({detail}); check network and endpoint"
    )


def _code(exc: _Failure) -> str:
    return str(exc.response.get("Error", {}).get("Code", "")) if isinstance(exc, ClientError) else ""
