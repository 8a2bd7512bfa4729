"""Wakes: what a row asks for of those who work only when they are called, and when. Deciding only.

A wake is a hint and never the truth: whoever is called by one looks at the rows. So one that comes twice, too early,
out of order or for something that is over does no harm, and one that is lost is made up for by the sweep.
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

# Long past: to be told at once.
AT_ONCE_MS: Final = 0


class TurnWake(Struct, frozen=True, tag="turn", omit_defaults=True):
    """An execution has something to hear: its mail, or this timer."""

    execution_id: str
    # Why. The same cause told twice within minutes is one message.
    cause: str
    timer_id: str | None = None


class ActivityWake(Struct, frozen=True, tag="activity"):
    """An activity waits in a task queue."""

    activity_id: str
    queue: str


class WorkerWake(Struct, frozen=True, tag="worker", omit_defaults=True):
    """A worker had given so many signs of life when this was sent; if it has given no more, it is dead."""

    worker_id: str
    beats: int
    is_given_up: bool = False


Wake = TurnWake | ActivityWake | WorkerWake


class Due(Struct, frozen=True):
    """A wake, and when it is to come."""

    wake: Wake
    at_ms: int

    def seconds_left(self, now_ms: int) -> int:
        """Return in how many seconds it is due, rounded up: who comes too early comes for nothing."""
        return max(0, math.ceil((self.at_ms - now_ms) / 1000))


_decoder: Final = msgspec.json.Decoder(Due)
_encoder: Final = msgspec.json.Encoder()


def dump_due(due: Due) -> str:
    """Return a wake as the body of a message."""
    return _encoder.encode(due).decode()


def load_due(body: str) -> Due:
    """Return the wake that a message holds. Raises `msgspec.DecodeError` if it is none of ours."""
    return _decoder.decode(body)


def asked_by(table: Table, item: Mapping[str, Any]) -> Due | None:
    """Return what a row asks for that was just written, if anything. Attributes that were spilled are not looked at."""
    if table is INBOXES and item.get("ready_pk") == INBOX:
        return Due(TurnWake(item["execution_id"], item["message_id"]), AT_ONCE_MS)
    if table is TIMERS and item.get("due_pk") == TIMERS_DUE:
        at_ms: int = item["due_at_ms"]
        cause = f"{item['timer_id']}@{at_ms}"
        return Due(TurnWake(item["execution_id"], cause, item["timer_id"]), at_ms)
    if table is ACTIVITIES and item.get("queue_pk") is not None:
        queue = str(item["queue_pk"]).removeprefix(queue_partition(""))
        return Due(ActivityWake(item["activity_id"], queue), item["available_at_ms"])
    return None


def again(wake: TurnWake, at_ms: int, now_ms: int) -> Due:
    """Return a wake of an execution for another time. It has a cause of its own, lest it is taken for the first."""
    cause = wake.cause.partition("~")[0]
    return Due(msgspec.structs.replace(wake, cause=f"{cause}~{now_ms}"), at_ms)
