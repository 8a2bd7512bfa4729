"""Wake-up queues on SQS: send the wake-ups that invoke functions, at once or at a later time.

Turns use a FIFO queue with one message group per execution, so that at most one invocation advances an execution. A
FIFO queue has no delay per message, so a wake-up that is due within 15 minutes waits in a standard queue and is passed
on when due; a later one is a one-time schedule that sends it to that queue. Activities use a standard queue for each
task queue: their rows are fenced, and they need no order. Those with a function of their own go through the delay
queue, too, whose consumer invokes the function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec
import structlog
from botocore.exceptions import BotoCoreError, ClientError
from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.serverless.wakeups import ActivityWake, Due, TurnWake, WorkerWake, dump_due
from headgate.errors import StoreIOError, TransientError
from headgate.store.dynamodb.client import Fault, classify

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

# Limits of SQS: messages in a batch, and the longest delay.
BATCH_MAX: Final = 10
DELAY_SECONDS_MAX: Final = 900
# A schedule fires up to a minute late. It is set this much early, and the delay of the queue covers the rest.
AHEAD_SECONDS: Final = 300
GROUP_CHARS_MAX: Final = 128
# A turn that could not be taken is delivered again after this, doubled with each delivery.
RETRY_SECONDS_MAX: Final = 120
_log = structlog.get_logger(__name__)

T = TypeVar("T")


class OneTimeSchedules(Protocol):
    """Schedules that fire once, for times beyond the delay of a queue."""

    def put(self, name: str, at: datetime, target_arn: str, body: dict[str, Any], /) -> bool:
        """Send `body` to a queue at a time. False if a schedule of this name exists already."""

    def drop(self, name: str, /) -> None:
        """Delete a schedule, if it exists."""


class QueueUrls(Struct, frozen=True, kw_only=True):
    """The queues. `later_arn` is the ARN of the queue `later`, the target of schedules."""

    turns: str
    later: str
    later_arn: str
    # By the name of the task queue.
    activities: Mapping[str, str]


class ReceivedTurn(Struct, frozen=True, kw_only=True):
    """A message of the queue of turns: `receives` counts its deliveries, this one included."""

    receipt: str
    receives: int

    @property
    def retry_seconds(self) -> int:
        """Return the back-off before the next delivery."""
        return min(RETRY_SECONDS_MAX, 1 << min(self.receives - 1, 7))


class WakeQueues:
    """Sends wake-ups. Safe to use from many threads, and idempotent."""

    def __init__(
        self,
        client: SQSClient,
        schedules: OneTimeSchedules,
        urls: QueueUrls,
        clock: Clock,
        invoked: Collection[str] = (),
    ) -> None:
        """`invoked` are the activities that have functions of their own."""
        self._invoked = invoked
        self._client = client
        self._schedules = schedules
        self._urls = urls
        self._clock = clock

    @property
    def task_queues(self) -> Sequence[str]:
        """The task queues whose activities run in functions."""
        return tuple(self._urls.activities)

    def send(self, dues: Iterable[Due]) -> int:
        """Send wake-ups, and return how many. Raises `TransientError` or `StoreIOError`, after any number of them.

        After an error, the caller may send all of them again.
        """
        now_ms = self._now_ms()
        posts: dict[str, list[dict[str, Any]]] = {}
        count = 0
        for due in dues:
            if isinstance(due.wake, ActivityWake) and self._url_of(due.wake) is None:
                # Activities of other queues wait for a worker process.
                _log.debug("no function serves this queue", queue=due.wake.queue, activity_id=due.wake.activity_id)
                continue
            count += 1
            if due.seconds_left(now_ms) > DELAY_SECONDS_MAX:
                self._schedule(due)
            else:
                url, entry = self._addressed(due, now_ms)
                posts.setdefault(url, []).append(entry)
        for url, entries in posts.items():
            for batch in _batches(entries):
                self._send_batch(url, batch)
        return count

    def drop(self, due: Due) -> None:
        """Delete the schedule of a wake-up; one that is in a queue already is delivered and does nothing.

        Raises `TransientError`.
        """
        if due.seconds_left(self._now_ms()) > DELAY_SECONDS_MAX:
            with _refusal_logged(due):
                self._schedules.drop(_schedule_name(due))

    def retry_soon(self, messages: Sequence[ReceivedTurn]) -> None:
        """Deliver turns that were not taken again after a back-off, instead of after the visibility time-out.

        Until then their executions would wait, since a FIFO queue holds back the messages of their groups. Messages
        that SQS refuses to change come back after the visibility time-out.
        """
        for batch in _batches(messages):
            entries: Any = [
                {"Id": str(number), "ReceiptHandle": each.receipt, "VisibilityTimeout": each.retry_seconds}
                for number, each in enumerate(batch)
            ]
            try:
                failed = self._client.change_message_visibility_batch(QueueUrl=self._urls.turns, Entries=entries).get(
                    "Failed", []
                )
            except (ClientError, BotoCoreError) as exc:
                _log.warning("turns come back after the visibility time-out", count=len(batch), error=str(exc))
                continue
            if failed:
                _log.warning(
                    "turns come back after the visibility time-out", count=len(failed), error=failed[0].get("Code")
                )

    def _schedule(self, due: Due) -> None:
        at = datetime.fromtimestamp(due.at_ms / 1000 - AHEAD_SECONDS, UTC)
        body: dict[str, Any] = msgspec.to_builtins(due)
        with _refusal_logged(due):
            self._schedules.put(_schedule_name(due), at, self._urls.later_arn, body)

    def _addressed(self, due: Due, now_ms: int) -> tuple[str, dict[str, Any]]:
        seconds = due.seconds_left(now_ms)
        entry: dict[str, Any] = {"MessageBody": dump_due(due)}
        if isinstance(due.wake, TurnWake) and seconds == 0:
            return self._urls.turns, {
                **entry,
                "MessageGroupId": group_of(due.wake.execution_id),
                "MessageDeduplicationId": _digest(due.wake.execution_id, due.wake.cause),
            }
        url = self._url_of(due.wake) if isinstance(due.wake, ActivityWake) else self._urls.later
        assert url is not None, "wake-ups of other queues are not sent"
        return url, {**entry, "DelaySeconds": seconds}

    def _url_of(self, wake: ActivityWake) -> str | None:
        """Return the queue of an activity; None if no function serves it."""
        return self._urls.later if wake.name in self._invoked else self._urls.activities.get(wake.queue)

    def _send_batch(self, url: str, entries: Sequence[dict[str, Any]]) -> None:
        numbered: Any = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
        try:
            answer = self._client.send_message_batch(QueueUrl=url, Entries=numbered)
        except (ClientError, BotoCoreError) as exc:
            if classify(exc) is Fault.FINAL:
                raise StoreIOError(
                    f"queue {url}: {exc}; check the queue and what the role of the function may do"
                ) from exc
            raise TransientError(f"queue {url}: {exc}; it is tried again") from exc
        failed = answer.get("Failed", [])
        if failed:
            raise TransientError(
                f"queue {url}: SQS did not take {len(failed)} of {len(entries)} messages ({failed[0]['Code']})"
            )

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


@contextmanager
def _refusal_logged(due: Due) -> Iterator[None]:
    """Log a schedule that is refused for good, and go on: the sweep finds the overdue work."""
    try:
        yield
    except StoreIOError as exc:
        _log.error("schedule refused", schedule=_schedule_name(due), error=str(exc))


def _schedule_name(due: Due) -> str:
    match due.wake:
        case TurnWake():
            return f"wake-{due.wake.execution_id}-{due.wake.cause}"
        case ActivityWake():
            return f"wake-{due.wake.activity_id}@{due.at_ms}"
        case WorkerWake():
            return f"wake-{due.wake.worker_id}@{due.at_ms}"


def group_of(execution_id: str) -> str:
    """Return the message group of an execution: its id, or a digest if the id is too long."""
    return execution_id if len(execution_id) <= GROUP_CHARS_MAX and execution_id.isascii() else _digest(execution_id)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _batches(entries: Iterable[T]) -> Iterator[list[T]]:
    left = iter(entries)
    while batch := list(islice(left, BATCH_MAX)):
        yield batch
