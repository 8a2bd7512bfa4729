"""Wake-ups: messages that invoke a function for a turn, an activity or a worker check. Pure functions.

A wake-up is a hint: the invoked function reads the rows. So a duplicate, early, reordered or outdated wake-up does no
harm, and the sweep makes up for a lost one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.durable.engine.turn_commit import queue_partition
from headgate.durable.model.records import INBOX, TIMERS_DUE
from headgate.store.catalogue.tables import ACTIVITIES, INBOXES, TIMERS
from headgate.store.model.schema import Table

# In the past: due at once.
AT_ONCE_MS: Final = 0


class TurnWake(Struct, frozen=True, tag="turn", omit_defaults=True):
    """An execution has a message in its inbox, or this timer is due."""

    execution_id: str
    # Deduplicates: two wake-ups with one cause within minutes are one message.
    cause: str
    timer_id: str | None = None


class ActivityWake(Struct, frozen=True, tag="activity", omit_defaults=True):
    """An activity waits in a task queue."""

    activity_id: str
    queue: str
    # Its name; empty for the delivery of an event, whose row has the name of its subscription.
    name: str = ""
    # The attempt that it waits for.
    attempt: int = 0


class WorkerWake(Struct, frozen=True, tag="worker", omit_defaults=True):
    """A worker had this heartbeat count when the message was sent; if it has not changed, the worker is dead."""

    worker_id: str
    beats: int
    is_revoked: bool = msgspec.field(default=False, name="is_given_up")
    # Why it may be dead, if that is known.
    reason: str = ""


Wake = TurnWake | ActivityWake | WorkerWake


class Due(Struct, frozen=True):
    """A wake-up, and when it is due."""

    wake: Wake
    at_ms: int

    def seconds_left(self, now_ms: int) -> int:
        """Return the seconds until it is due, rounded up: an early wake-up is wasted."""
        return max(0, math.ceil((self.at_ms - now_ms) / 1000))


_decoder: Final = msgspec.json.Decoder(Due)
_encoder: Final = msgspec.json.Encoder()


def dump_due(due: Due) -> str:
    """Return a wake-up as the body of a message."""
    return _encoder.encode(due).decode()


def load_due(body: str) -> Due:
    """Return the wake-up in the body of a message. Raises `msgspec.DecodeError` if it is not one."""
    return _decoder.decode(body)


def wake_for(table: Table, item: Mapping[str, Any]) -> Due | None:
    """Return the wake-up for a row that was just written, if any. Spilled attributes are not needed."""
    if table is INBOXES and item.get("ready_pk") == INBOX:
        return Due(TurnWake(item["execution_id"], item["message_id"]), AT_ONCE_MS)
    if table is TIMERS and item.get("due_pk") == TIMERS_DUE:
        at_ms: int = item["due_at_ms"]
        cause = f"{item['timer_id']}@{at_ms}"
        return Due(TurnWake(item["execution_id"], cause, item["timer_id"]), at_ms)
    if table is ACTIVITIES and item.get("queue_pk") is not None:
        return Due(activity_wake(item), item["available_at_ms"])
    return None


def activity_wake(item: Mapping[str, Any]) -> ActivityWake:
    """Return the wake-up for the row of a queued activity."""
    queue = str(item["queue_pk"]).removeprefix(queue_partition(""))
    name = "" if item.get("subscription") is not None else str(item["name"])
    return ActivityWake(item["activity_id"], queue, name, int(item.get("attempt", 0)) + 1)


def again(wake: TurnWake, at_ms: int, now_ms: int) -> Due:
    """Return a wake-up for a later time. A new cause keeps it from being deduplicated with the first."""
    cause = wake.cause.partition("~")[0]
    return Due(msgspec.structs.replace(wake, cause=f"{cause}~{now_ms}"), at_ms)
