"""The queue of a fan-out on SQS: sends a message for each chunk once its row is there, and takes in dead letters.

Whatever is done here may be done twice: a message that comes again changes nothing, because its row says so. So a row
counts as queued only after SQS has accepted its message, and a dead letter is deleted only after it was recorded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import (
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
from headgate.fanout.model.rows import Chunk, Fanout, timestamp
from headgate.fanout.model.states import Disposition
from headgate.fanout.remote.dead_letters import DeadLetters, Ruling
from headgate.store.dynamodb.client import Backoff, Fault, classify
from headgate.store.port import Store
from headgate.store.stats import StoreStats

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient
    from mypy_boto3_sqs.type_defs import MessageTypeDef

# What SQS takes at once.
BATCH_MAX: Final = 10
BATCH_BYTES_MAX: Final = 256 * 1024
# Rows that are read, sent and moved at a time: that many messages are sent twice, at most, after a crash.
WINDOW: Final = 100
DEADLINE_SECONDS: Final = 30.0
# The longest that SQS lets anyone wait for a message, or keep one away.
WAIT_SECONDS_MAX: Final = 20
AWAY_SECONDS_MAX: Final = 43_200
# As long as dead letters that were taken in are nobody else's.
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
    """A message that nobody could handle, as SQS gave it up."""

    body: str
    message_id: str
    receive_count: int
    first_received_at: str | None = None


class Drained(Struct, frozen=True):
    """How many dead letters were recorded, and why others, by the ids of their messages, were left in the queue."""

    recorded: int
    left: dict[str, str]


# Takes note of a dead letter, and returns why it has to stay in the queue, or None if it may be deleted.
Record = Callable[[DeadLetter], str | None]


class Calls:
    """Makes calls that may be repeated at will, and translates what goes wrong."""

    def __init__(self, clock: Clock, deadline_seconds: float) -> None:
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._stats = StoreStats()

    def backoff(self) -> Backoff:
        """Return a deadline that several calls share. It starts now."""
        return Backoff(self._clock, self._stats, self._deadline_seconds)

    def call(
        self, operation: Callable[..., R], request: dict[str, Any], about: str, backoff: Backoff | None = None
    ) -> R:
        """Call until there is an answer. `about` names the queue or function, for messages.

        Raises `NotFoundError`, `ThrottledError` or `StoreBusyError` after the deadline, or `StoreIOError`.
        """
        answer = self.find(operation, request, about, absent="", backoff=backoff)
        assert answer is not None, "only an absent thing has no answer"
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
        """Call as `call` does, and return None for the error code by which AWS says that there is nothing."""
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
    """Queues of fan-outs on SQS. Safe to use from many threads."""

    def __init__(
        self, client: SQSClient, store: Store, clock: Clock, *, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        self._client = client
        self._store = store
        self._queries = FanoutQueries(store, clock)
        self._calls = Calls(clock, deadline_seconds)

    @classmethod
    def connect(cls, *, region: str, endpoint_url: str | None, store: Store, clock: Clock) -> SqsQueue:
        """Build the client, with the credentials AWS finds where it always looks. Nothing is sent yet."""
        try:
            session = boto3.session.Session(region_name=region)
            client = session.client("sqs", endpoint_url=endpoint_url, config=client_config())
        except (BotoCoreError, ValueError) as exc:
            raise StoreIOError(f"SQS in {region}: no client can be built: {exc}; check region and endpoint") from exc
        return cls(client, store, clock)

    def close(self) -> None:
        """Let go of the connections. Closing twice is allowed."""
        self._client.close()

    # Sending.

    def send(self, fanout: Fanout) -> Fanout:
        """Send a message for each chunk that waits for it, and return the fan-out as it was given.

        It may be called again at any time, after a crash or for chunks that were redriven. It stops if the fan-out is
        cancelled. Raises what `Calls.call` raises, `ThrottledError` if SQS does not accept a message for too long, and
        `PayloadTooLargeError` if the parameters do not fit into one.
        """
        if fanout.queue_url is None:
            raise DefinitionError(f"fan-out {fanout.run_id}: it has no queue to send to")
        for is_slow in (False, True):
            cursor: str | None = None
            while True:
                page = self._queries.chunks(fanout.run_id, slow=is_slow, limit=WINDOW, cursor=cursor)
                waiting = [chunk for chunk in page.chunks if chunk.disposition is Disposition.WAITING]
                if waiting and not self._is_wanted(fanout):
                    return fanout
                self._send_all(fanout, fanout.queue_url, waiting)
                cursor = page.cursor
                if cursor is None:
                    break
        return fanout

    def _is_wanted(self, fanout: Fanout) -> bool:
        now = self._queries.find(fanout.run_id)
        return now is not None and now.cancelled_at is None

    def _send_all(self, fanout: Fanout, queue_url: str, chunks: Sequence[Chunk]) -> None:
        accepted: list[Chunk] = []
        try:
            for batch in batches([(chunk, message_about(fanout, chunk)) for chunk in chunks]):
                accepted.extend(self._accepted(queue_url, batch))
        finally:
            # Also of those before one that was not accepted, so that they are not sent again.
            self._move(accepted)

    def _accepted(self, queue_url: str, batch: Sequence[tuple[Chunk, str]]) -> Iterator[Chunk]:
        """Send a batch, and again what SQS did not accept of it. Gives the chunks as they are accepted."""
        left = {str(number): pair for number, pair in enumerate(batch)}
        is_fifo = queue_url.endswith(".fifo")
        backoff = self._calls.backoff()
        while left:
            entries = [
                {"Id": number, "MessageBody": body, **_order(chunk, is_fifo)} for number, (chunk, body) in left.items()
            ]
            request = {"QueueUrl": queue_url, "Entries": entries}
            answer = self._calls.call(self._client.send_message_batch, request, f"queue {queue_url}", backoff)
            for entry in answer.get("Successful", []):
                yield left.pop(entry["Id"])[0]
            for fault in answer.get("Failed", []):
                if fault["SenderFault"]:
                    chunk = left[fault["Id"]][0]
                    raise StoreIOError(
                        f"queue {queue_url}: SQS refused the message of chunk {chunk.chunk_id} of {chunk.run_id} "
                        f"({fault['Code']}: {fault.get('Message', '')})"
                    )
            if left and not backoff.pause():
                raise ThrottledError(
                    f"queue {queue_url}: SQS did not accept {len(left)} messages for {backoff.deadline_seconds:g} s; "
                    "ask for the fan-out again to send the rest"
                )

    def _move(self, chunks: Sequence[Chunk]) -> None:
        """Note that messages were sent. Whoever was refused has been taken by a worker, or was cancelled."""
        now_ms = self._queries.now_ms()
        apply(
            self._store,
            [
                ChunkChange(chunk, with_disposition(chunk, Disposition.QUEUED, timestamp(now_ms), now_ms))
                for chunk in chunks
            ],
        )

    def postpone(self, queue_url: str, receipt: str, seconds: float) -> None:
        """Have a message that was received come again after so many seconds: at once, or after 12 hours at most."""
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
        """Take in dead letters until there are none, and have each recorded; only then is it deleted.

        `record` must bear to be told twice. What it raises is raised, and the letters at hand stay where they are.
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
            # A receipt that is no longer good: the letter comes again, and is recorded to no effect.
            gone += [entry["Id"] for entry in answer.get("Failed", []) if entry["SenderFault"]]
            for number in gone:
                del left[number]
            if left and not backoff.pause():
                return


def recorder(letters: DeadLetters) -> Record:
    """Return what makes dead chunks of dead letters. A letter stays if its chunk runs, or if there is none."""

    def record(letter: DeadLetter) -> str | None:
        found = letters.record(
            letter.body, receive_count=letter.receive_count, first_received_at=letter.first_received_at
        )
        return None if found.ruling in (Ruling.DEAD, Ruling.DUPLICATE) else found.said

    return record


def client_config() -> Config:
    """Return how a client of SQS is to be built: the retries are ours, and it can wait for messages."""
    return Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=2,
        read_timeout=WAIT_SECONDS_MAX + 5,
        max_pool_connections=64,
        tcp_keepalive=True,
    )


def batches(messages: Sequence[tuple[Chunk, str]]) -> Iterator[list[tuple[Chunk, str]]]:
    """Give messages in batches that SQS takes. Raises `PayloadTooLargeError` for one that fits into none."""
    batch: list[tuple[Chunk, str]] = []
    size = 0
    for chunk, body in messages:
        weight = len(body.encode())
        if weight > BATCH_BYTES_MAX:
            raise PayloadTooLargeError(
                f"fan-out {chunk.run_id}: a message has {weight} bytes, at most {BATCH_BYTES_MAX}; "
                "keep large parameters in a bucket, and give their name"
            )
        if len(batch) == BATCH_MAX or size + weight > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append((chunk, body))
        size += weight
    if batch:
        yield batch


def _order(chunk: Chunk, is_fifo: bool) -> dict[str, str]:  # noqa: FBT001 - told apart by the queue's name
    """Return what a FIFO queue wants to know: chunks do not wait for each other, and a message sent twice is one."""
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
    """Return the error that tells the caller what to do."""
    said = f"{_code(exc)}: {exc}" if isinstance(exc, ClientError) else f"{type(exc).__name__}: {exc}"
    if _code(exc) in _ABSENT:
        return NotFoundError(f"{about}: there is none; create it, or correct its name, the region or the account")
    if fault is Fault.FINAL:
        return StoreIOError(f"{about}: AWS refused {operation} ({said}); check the credentials and their policy")
    if fault is Fault.THROTTLED:
        return ThrottledError(f"{about}: AWS throttled {operation} for {waited_seconds:g} s ({said}); try again later")
    return StoreBusyError(
        f"{about}: no answer from AWS to {operation} for {waited_seconds:g} s ({said}); check network and endpoint"
    )


def _code(exc: _Failure) -> str:
    return str(exc.response.get("Error", {}).get("Code", "")) if isinstance(exc, ClientError) else ""
