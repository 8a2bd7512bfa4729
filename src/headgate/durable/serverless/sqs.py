"""The queues of wakes on SQS: who is to be called, for what, and when.

Turns are called by a FIFO queue, one execution a group, so that at most one call at a time advances an execution. A
FIFO queue takes no delay for a single message. So what is to come within a quarter of an hour waits in a standard
queue, whose messages are passed on when they are due, and what is to come later is a schedule that puts it there in
time. Activities have a standard queue for each task queue: their rows say who runs them, and order is nobody's wish.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

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

# What SQS takes at once, and how long it keeps a message back.
BATCH_MAX: Final = 10
DELAY_SECONDS_MAX: Final = 900
# A schedule fires within the minute that follows its time. It comes this much early, and the queue keeps the rest.
AHEAD_SECONDS: Final = 300
GROUP_CHARS_MAX: Final = 128
_log = structlog.get_logger(__name__)


class Schedules(Protocol):
    """Calls that are made once, at a time that is too far for a queue."""

    def put(self, wish: str, at: datetime, target_arn: str, given: dict[str, Any], /) -> bool:
        """Have a queue given `given` at a time. False: the same wish waits already."""

    def drop(self, wish: str, /) -> None:
        """Take a wish back, if it waits."""


class QueueUrls(Struct, frozen=True, kw_only=True):
    """Where wakes are sent. `later_arn` is what schedules know the queue `later` by."""

    turns: str
    later: str
    later_arn: str
    # By the name of the task queue.
    activities: Mapping[str, str]


class WakeQueues:
    """Sends wakes. Safe to use from many threads, and to be told the same twice."""

    def __init__(self, client: SQSClient, schedules: Schedules, urls: QueueUrls, clock: Clock) -> None:
        self._client = client
        self._schedules = schedules
        self._urls = urls
        self._clock = clock

    @property
    def task_queues(self) -> Sequence[str]:
        """The task queues whose activities are performed by functions."""
        return tuple(self._urls.activities)

    def send(self, dues: Iterable[Due]) -> int:
        """Send all of these, and return how many. Raises `TransientError` or `StoreIOError`, after any number of them.

        Whoever is told so sends all of them again: that changes nothing.
        """
        now_ms = self._now_ms()
        posts: dict[str, list[dict[str, Any]]] = {}
        count = 0
        for due in dues:
            if isinstance(due.wake, ActivityWake) and due.wake.queue not in self._urls.activities:
                # Those of a queue that is not ours wait for a worker that is a process.
                _log.debug("no function takes this queue", queue=due.wake.queue, activity_id=due.wake.activity_id)
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
        """Take back what waits for long in a schedule; what a queue keeps comes for nothing.

        Raises `TransientError`.
        """
        if due.seconds_left(self._now_ms()) > DELAY_SECONDS_MAX:
            with _left_to_the_sweep(due):
                self._schedules.drop(_wish(due))

    def _schedule(self, due: Due) -> None:
        at = datetime.fromtimestamp(due.at_ms / 1000 - AHEAD_SECONDS, UTC)
        given: dict[str, Any] = msgspec.to_builtins(due)
        with _left_to_the_sweep(due):
            self._schedules.put(_wish(due), at, self._urls.later_arn, given)

    def _addressed(self, due: Due, now_ms: int) -> tuple[str, dict[str, Any]]:
        seconds = due.seconds_left(now_ms)
        entry: dict[str, Any] = {"MessageBody": dump_due(due)}
        if isinstance(due.wake, TurnWake) and seconds == 0:
            return self._urls.turns, {**entry, **_order(due.wake)}
        url = self._urls.activities[due.wake.queue] if isinstance(due.wake, ActivityWake) else self._urls.later
        return url, {**entry, "DelaySeconds": seconds}

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
def _left_to_the_sweep(due: Due) -> Iterator[None]:
    """Let a schedule that is refused for good hold up nobody: what it was for is found when it is overdue."""
    try:
        yield
    except StoreIOError as exc:
        _log.error("schedule refused", wish=_wish(due), error=str(exc))


def _wish(due: Due) -> str:
    match due.wake:
        case TurnWake():
            return f"wake-{due.wake.execution_id}-{due.wake.cause}"
        case ActivityWake():
            return f"wake-{due.wake.activity_id}@{due.at_ms}"
        case WorkerWake():
            return f"wake-{due.wake.worker_id}@{due.at_ms}"


def _order(wake: TurnWake) -> dict[str, str]:
    return {
        "MessageGroupId": group_of(wake.execution_id),
        "MessageDeduplicationId": _digest(wake.execution_id, wake.cause),
    }


def group_of(execution_id: str) -> str:
    """Return the message group of an execution: its id, or for one that is too long what stands for it."""
    return execution_id if len(execution_id) <= GROUP_CHARS_MAX and execution_id.isascii() else _digest(execution_id)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _batches(entries: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    left = iter(entries)
    while batch := list(islice(left, BATCH_MAX)):
        yield batch
