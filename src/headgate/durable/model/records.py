"""Records: the rows of executions, activities, timers and messages, and the writes that store them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.durable.model.history import (
    Event,
    Reapplied,
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
from headgate.store.model.values import Item, TrustedItem

# Partitions of the sparse indexes of pending work.
INBOX: Final = "INBOX"
UNDISPATCHED: Final = "UNDISPATCHED"
ARCHIVE: Final = "ARCHIVE"
TIMERS_DUE: Final = "TIMERS"
WATCH: Final = "WATCH"
# Key prefixes in an inbox: messages, ids of received signals, and answers to updates.
MESSAGES: Final = "M"
# Urgent messages sort first: the start, a termination, the wake-up of a failed execution, and events after a reset.
URGENT: Final = "M!"
MESSAGE: Final = "M#"
SEEN: Final = "S#"
ANSWER: Final = "U#"
# The condition for an execution to accept messages.
OPEN: Final[Condition] = one_of("status", Status.RUNNING.value, Status.STUCK.value)
# Activities without a time limit sort last.
NEVER_MS: Final = 2**53
# Idempotency keys that an execution remembers.
REPAIRS_KEPT_MAX: Final = 32
_encoder: Final = msgspec.json.Encoder()


class Execution(Struct, frozen=True, omit_defaults=True):
    """The current state of an execution. Every change increments `version`."""

    execution_id: str
    workflow: str
    status: Status
    started_at: str
    version: int
    # The first run of this life of the id: an id can be reused once its execution is closed.
    first_run: int
    # A run can also continue as new. Turns are numbered across runs.
    run: int = 1
    turn: int = 0
    first_turn: int = 1
    # The turns of earlier runs that this run begins with after a reset, such as "1-6,9-12".
    kept_turns: str = ""
    # The idempotency key of the last reset.
    reset_id: str = ""
    # Those of the last resets and redrives, one a line.
    repair_ids: str = ""
    input_digest: str = ""
    ended_at: str = ""
    result: str | None = None
    error: str | None = None
    parent_id: str | None = None
    parent_seq: int | None = None
    parent_run: int | None = None
    tags: dict[str, str] = {}
    # The patches that this run has marked, and whether each was deprecated by then.
    patches: dict[str, bool] = {}
    memo: str | None = None
    # The W3C trace context that it belongs to.
    traceparent: str = ""
    timeout_at_ms: int | None = None
    # The retry policy that it was started with, as JSON; None for the one that its workflow declares.
    retry: str | None = None
    retention_seconds: float | None = None
    # Whether its end emits an event.
    tells_end: bool = False
    # Names of the signals that the code awaits after its last turn, for the blocked-on report.
    awaits: tuple[str, ...] = ()
    # How many commands of the last turn are dispatched; None if all are.
    dispatched: int | None = None
    ready_pk: str | None = None
    ready_at_ms: int | None = None
    # How often in a row the next turn has failed, and the last error.
    failures: int = 0
    failure: str | None = None
    retry_at_ms: int | None = None
    # The build of the worker that took the last turn; of a pinned execution, the build that takes every turn.
    build: str = ""
    is_pinned: bool = False
    # The builds whose code failed at the next turn, and those whose code does not fit the history of this run.
    failed_builds: tuple[str, ...] = ()
    unfit_builds: tuple[str, ...] = ()
    # The archive of the turns up to `archived_through`.
    archive: str | None = None
    archived_through: int = 0
    ttl: int | None = None

    def put(self, condition: Condition) -> Put:
        """Return the write that stores this row."""
        item: Item = msgspec.to_builtins(self)
        # The store normalizes whole floats and tuples itself, so that such a row is not vouched for.
        if self.retention_seconds is None and not (self.awaits or self.failed_builds or self.unfit_builds):
            item = _own_row(self, item)
        return Put(EXECUTIONS, item, condition)

    def replacing(self, version: int) -> Put:
        """Return the write that stores this row if the stored one is at `version`."""
        return self.put(version_is(version))


class Activity(Struct, frozen=True, omit_defaults=True):
    """An activity that has not ended. The transaction that ends it deletes the row; its result is in the history.

    `token` is the fence: every change of the row sets a new one, and a write with an old one is refused.
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
    # The id of the activity before a reset, which stays its idempotency key.
    key: str | None = None
    # Queued: available to workers from this time on.
    queue_pk: str | None = None
    available_at_ms: int | None = None
    # Claimed by this worker; or `WATCH`, with a deadline, if no worker holds it.
    lease_pk: str | None = None
    lease_expires_ms: int | None = None
    worker: str = ""
    started_at_ms: int = 0
    is_external: bool = False
    # Whether the code has cancelled it and waits for its end.
    is_cancel_requested: bool = False
    heartbeat_at_ms: int = 0
    details: str | None = None
    last_error: str | None = None
    # The last failed attempts, as JSON.
    failed_attempts: str | None = None
    notes: str | None = None
    limit_slot: str | None = None
    # The delivery of an event is an activity without an execution.
    subscription: str | None = None
    # Of the call, from the execution.
    headers: dict[str, str] | None = None
    # The W3C trace context of the turn that started it.
    traceparent: str = ""

    def put(self, token: str | None = None) -> Put:
        """Return the write that stores this row; with `token`, only if the stored row has that token."""
        # The key of a delivery contains an event id of the producer's choice.
        item: Item = msgspec.to_builtins(self)
        if self.subscription is None:
            item = _own_row(self, item)
        return Put(ACTIVITIES, item, None if token is None else _has_token(token))

    def ended(self) -> Delete:
        """Return the write that deletes this row, if it is still this claim."""
        return Delete(ACTIVITIES, Key(self.activity_id), _has_token(self.token))


class Timer(Struct, frozen=True, omit_defaults=True):
    """An event that is added to an execution at a time."""

    timer_id: str
    execution_id: str
    run: int
    seq: int
    due_at_ms: int
    due_pk: str = ""
    # The event, unless it is a timer of the workflow itself.
    event: str | None = None

    def put(self) -> Put:
        """Return the write that stores this row."""
        return Put(TIMERS, item_of(msgspec.structs.replace(self, due_pk=TIMERS_DUE)))

    def fired(self) -> Delete:
        """Return the write that deletes this row, if it exists."""
        return Delete(TIMERS, Key(self.timer_id), exists())


class Message(Struct, frozen=True, omit_defaults=True):
    """An event in the inbox of an execution."""

    execution_id: str
    message_id: str
    body: str
    at_ms: int
    # The run, and the first run of the life of the id, that it is for; 0 for any.
    run: int = 0
    first_run: int = 0
    ready_pk: str = ""
    # The W3C trace context of its sender.
    traceparent: str = ""

    def put(self) -> Put:
        """Return the write that stores this row."""
        return Put(INBOXES, item_of(msgspec.structs.replace(self, ready_pk=INBOX)))

    def consumed(self) -> Delete:
        """Return the write that deletes this row, if it exists: a message is consumed once."""
        return Delete(INBOXES, Key(self.execution_id, self.message_id), exists())


def with_repair(row: Execution, request_id: str) -> Execution:
    """Return a row that remembers the idempotency key of a reset or a redrive."""
    known = [each for each in row.repair_ids.split("\n") if each and each != request_id]
    return msgspec.structs.replace(row, repair_ids="\n".join([*known, request_id][-REPAIRS_KEPT_MAX:]))


def is_repaired_by(row: Execution, request_id: str) -> bool:
    """Whether a reset or redrive with this idempotency key was done."""
    return bool(request_id) and (request_id == row.reset_id or request_id in row.repair_ids.split("\n"))


def message(
    execution_id: str,
    event: Event,
    at_ms: int,
    unique: str,
    *,
    run: int = 0,
    first_run: int = 0,
    traceparent: str = "",
) -> Message:
    """Return a message that sorts after all earlier ones; `unique` distinguishes those of the same millisecond."""
    prefix = URGENT if isinstance(event, Started | TerminateRequested | Woken | Reapplied) else MESSAGE
    message_id = f"{prefix}{at_ms:013d}#{unique}"
    return Message(execution_id, message_id, dump_event(event), at_ms, run, first_run, traceparent=traceparent)


def turn_put(execution_id: str, turn: Turn) -> Put:
    """Return the write that adds a turn to the history."""
    body = dump_turn(turn)
    item = {"execution_id": execution_id, "turn": turn.turn, "run": turn.run, "at_ms": turn.at_ms, "body": body}
    return Put(TURNS, _own_row(item, item))


def _own_row(source: Struct | Item, item: Item) -> Item:
    """Return the item of a row whose values the engine has made, so that the store need not validate them again.

    Names, ids and numbers were validated at the API. Text beyond ASCII is left to the store's own validation.
    """
    text = _encoder.encode(source).decode()
    if not text.isascii():
        return item
    trusted = TrustedItem(item)
    trusted.text = text
    return trusted


def _has_token(token: str) -> Compare:
    # Not `equals`, which validates its argument: tokens are made by the engine.
    return Compare("token", Comparison.EQUALS, token)


def activity_id(execution_id: str, run: int, seq: int) -> str:
    """Return the key of an activity. Keys of one run sort in the order of the commands."""
    return f"{execution_id}#{run}#{seq:06d}"


def timer_id(execution_id: str, run: int, seq: int) -> str:
    """Return the key of a timer. Keys of one run sort in the order of the commands."""
    return f"{execution_id}#{run}#{seq:06d}"


def item_of(record: Struct) -> dict[str, Any]:
    """Return a record as an item, without fields at their defaults."""
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
    """Return a time as sortable ISO 8601 text: UTC, in milliseconds."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
