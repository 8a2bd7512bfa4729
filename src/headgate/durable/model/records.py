"""Records: the rows that durable execution keeps, and how they look in the tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.history import (
    Event,
    Started,
    Status,
    TerminateRequested,
    Turn,
    Woken,
    dump_event,
    dump_turn,
)
from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, INBOXES, TIMERS, TURNS
from headgate.store.model.conditions import Compare, Comparison, Condition, exists, one_of, version_is
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key
from headgate.store.model.values import Item, vouched

# Partitions of the sparse indexes that say what there is to do.
INBOX: Final = "INBOX"
UNDISPATCHED: Final = "UNDISPATCHED"
ARCHIVE: Final = "ARCHIVE"
TIMERS_DUE: Final = "TIMERS"
WATCH: Final = "WATCH"
# What precedes the id of a message, of a signal's id that was seen, and of an update's answer in an inbox.
MESSAGES: Final = "M"
# What must not wait behind everything else sorts before it: the start, and what ends or frees an execution.
URGENT: Final = "M!"
MESSAGE: Final = "M#"
SEEN: Final = "S#"
ANSWER: Final = "U#"
# What is true of an execution that still takes messages.
OPEN: Final[Condition] = one_of("status", Status.RUNNING.value, Status.STUCK.value)
# Activities without a limit of time sort after all that have one.
NEVER_MS: Final = 2**53
_encoder: Final = msgspec.json.Encoder()


class Execution(Struct, frozen=True, omit_defaults=True):
    """The present state of an execution. Every change of it moves `version`."""

    execution_id: str
    workflow: str
    status: Status
    started_at: str
    version: int
    # The run with which this life of the id began: an id can be used again once its execution has ended.
    first_run: int
    # A run can also continue as new. Turns are numbered through.
    run: int = 1
    turn: int = 0
    first_turn: int = 1
    input_digest: str = ""
    ended_at: str = ""
    result: str | None = None
    error: str | None = None
    parent_id: str | None = None
    parent_seq: int | None = None
    parent_run: int | None = None
    tags: dict[str, str] = {}
    memo: str | None = None
    timeout_at_ms: int | None = None
    retention_seconds: float | None = None
    # Whether the bus is told of its end.
    tells_end: bool = False
    # Names of signals that the code waits for since its last turn, for whoever wonders why it does not go on.
    awaits: tuple[str, ...] = ()
    # How many commands of the last turn are carried out; None when all are.
    dispatched: int | None = None
    ready_pk: str | None = None
    ready_at_ms: int | None = None
    # How often in a row the next turn could not be computed, and why.
    failures: int = 0
    failure: str | None = None
    retry_at_ms: int | None = None
    # Where turns up to this one are kept after retention.
    archive: str | None = None
    archived_through: int = 0
    ttl: int | None = None

    def put(self, condition: Condition) -> Put:
        """Return the write that stores this row."""
        item = item_of(self)
        # Seconds that happen to be whole, and a tuple, have another form in the store, which sees to that itself.
        if self.retention_seconds is None and not self.awaits:
            item = _own_row(self, item)
        return Put(EXECUTIONS, item, condition)

    def replacing(self, version: int) -> Put:
        """Return the write that stores this row if the stored one is at `version`."""
        return self.put(version_is(version))


class Activity(Struct, frozen=True, omit_defaults=True):
    """An activity that has not ended. It is deleted by whoever ends it; its outcome is in the history.

    `token` is the fence: every change of the row gives it a new one, and whoever holds an old one has lost it.
    """

    activity_id: str
    name: str
    input: str
    options: str
    token: str
    scheduled_at_ms: int
    execution_id: str = ""
    run: int = 0
    seq: int = 0
    attempt: int = 0
    # Queued: waiting for a worker from this moment on.
    queue_pk: str | None = None
    available_at_ms: int | None = None
    # Claimed: by this worker. Or watched: for a time limit, when no worker has it.
    lease_pk: str | None = None
    lease_expires_ms: int | None = None
    worker: str = ""
    started_at_ms: int = 0
    is_external: bool = False
    heartbeat_at_ms: int = 0
    details: str | None = None
    last_error: str | None = None
    notes: str | None = None
    limit_slot: str | None = None
    # Deliveries of events are activities without an execution.
    subscription: str | None = None

    def put(self, token: str | None = None) -> Put:
        """Return the write that stores this row; with `token`, only over the row that has it."""
        # The key of a delivery has in it what others call their events.
        item = _own_row(self, item_of(self)) if self.subscription is None else item_of(self)
        return Put(ACTIVITIES, item, None if token is None else _has_token(token))

    def ended(self) -> Delete:
        """Return the write that removes this row, if it is still this very claim."""
        return Delete(ACTIVITIES, Key(self.activity_id), _has_token(self.token))


class Timer(Struct, frozen=True, omit_defaults=True):
    """Something that is to happen to an execution at a time."""

    timer_id: str
    execution_id: str
    run: int
    seq: int
    due_at_ms: int
    due_pk: str = ""
    # What is put into the inbox when it is not a timer of the workflow's own.
    event: str | None = None

    def put(self) -> Put:
        """Return the write that stores this row."""
        return Put(TIMERS, item_of(msgspec.structs.replace(self, due_pk=TIMERS_DUE)))

    def fired(self) -> Delete:
        """Return the write that removes this row, if nobody did before."""
        return Delete(TIMERS, Key(self.timer_id), exists())


class Message(Struct, frozen=True, omit_defaults=True):
    """An event on its way to an execution."""

    execution_id: str
    message_id: str
    body: str
    at_ms: int
    # The run it is meant for, and the run with which the life of the id began that it is meant for; 0 for any.
    run: int = 0
    first_run: int = 0
    ready_pk: str = ""

    def put(self) -> Put:
        """Return the write that stores this row."""
        return Put(INBOXES, item_of(msgspec.structs.replace(self, ready_pk=INBOX)))

    def consumed(self) -> Delete:
        """Return the write that removes this row, if nobody did before: a message is heard once."""
        return Delete(INBOXES, Key(self.execution_id, self.message_id), exists())


def message(execution_id: str, event: Event, at_ms: int, unique: str, *, run: int = 0, first_run: int = 0) -> Message:
    """Return a message that sorts after all that came before; `unique` is an id of its own."""
    prefix = URGENT if isinstance(event, Started | TerminateRequested | Woken) else MESSAGE
    return Message(execution_id, f"{prefix}{at_ms:013d}#{unique}", dump_event(event), at_ms, run, first_run)


def turn_put(execution_id: str, turn: Turn) -> Put:
    """Return the write that adds a turn to the history."""
    body = dump_turn(turn)
    item = {"execution_id": execution_id, "turn": turn.turn, "run": turn.run, "at_ms": turn.at_ms, "body": body}
    return Put(TURNS, _own_row(item, item))


def _own_row(made: Struct | Item, item: Item) -> Item:
    """Return the item of a row that is of our own making, so that the store need not look through its values again.

    Its names, ids and numbers were checked when they came in. Only a store says which text beyond ASCII it can keep.
    """
    text = _encoder.encode(made).decode()
    return vouched(item, text) if text.isascii() else item


def _has_token(token: str) -> Compare:
    # Not `equals`, which looks at what it is given: a token is of our own making.
    return Compare("token", Comparison.EQUALS, token)


def activity_id(execution_id: str, run: int, seq: int) -> str:
    """Return the key of an activity. What is due at the same moment sorts in the order it was asked for."""
    return f"{execution_id}#{run}#{seq:06d}"


def timer_id(execution_id: str, run: int, seq: int) -> str:
    """Return the key of a timer, which sorts as that of an activity does."""
    return f"{execution_id}#{run}#{seq:06d}"


def item_of(record: Struct) -> dict[str, Any]:
    """Return a record as an item: what is at its default is not stored."""
    item: dict[str, Any] = msgspec.to_builtins(record)
    return item


def execution_of(item: dict[str, Any]) -> Execution:
    """Return the execution that an item holds."""
    return typed_decode.convert(item, Execution)


def activity_of(item: dict[str, Any]) -> Activity:
    """Return the activity that an item holds."""
    return typed_decode.convert(item, Activity)


def timer_of(item: dict[str, Any]) -> Timer:
    """Return the timer that an item holds."""
    return typed_decode.convert(item, Timer)


def message_of(item: dict[str, Any]) -> Message:
    """Return the message that an item holds."""
    return typed_decode.convert(item, Message)


def instant(ms: int) -> str:
    """Return a moment as people and indexes read it: UTC, to the millisecond, and sortable."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
