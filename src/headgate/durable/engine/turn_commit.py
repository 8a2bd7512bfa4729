"""Drafts: a turn that was computed, as the writes of the one transaction that makes it true.

Deciding only: nothing here touches the store. What does not fit into the transaction, and what may be refused for
reasons of its own (a child's id that is taken, a signal to nobody), is left for `dispatching`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import (
    ActivityOptions,
    AnswerUpdate,
    CancelActivity,
    CancelChild,
    CancelRequested,
    CancelTimer,
    ChildEnded,
    Close,
    Command,
    ContinueAsNew,
    EmitEvent,
    Event,
    Note,
    SendSignal,
    SetTags,
    StartActivity,
    StartChild,
    Started,
    StartTimer,
    Status,
    Turn,
    dump_event,
)
from headgate.durable.model.records import (
    ANSWER,
    ARCHIVE,
    NEVER_MS,
    UNDISPATCHED,
    WATCH,
    Activity,
    Execution,
    Timer,
    activity_id,
    instant,
    message,
    timer_id,
    turn_put,
)
from headgate.durable.model.starts import ANY_RUN, RETRY_SEQ, TIMEOUT_SEQ
from headgate.store.catalogue.tables import ACTIVITIES, INBOXES, TIMERS
from headgate.store.model.requests import Delete, Put, Write
from headgate.store.model.schema import Key

# A transaction takes 100; the rest is for what closing an execution adds.
WRITES_MAX: Final = 94
SOURCES_MAX: Final = 40
# 4 MB is the limit of a transaction; beyond this much payload the rest is dispatched after it.
INLINE_BYTES_MAX: Final = 1_000_000
RETENTION_SECONDS: Final = 7 * 86_400.0
ANSWER_SECONDS: Final = 86_400
FIRST_TOKEN: Final = "0"
ENDED_EVENT: Final = "headgate.execution.ended"

_options_encoder: Final = msgspec.json.Encoder()


class Source(Struct, frozen=True):
    """An event and the write that takes it away from where it was waiting.

    It is meant for this run, and for the life of the id that began with this run; 0 is whichever is current.
    """

    event: Event
    removal: Delete | None
    run: int = 0
    first_run: int = 0


class Draft(Struct):
    """What one turn would change. `writes[0]` is always the execution itself."""

    execution: Execution
    writes: list[Write]
    sources: list[Source]
    turn: Turn | None = None
    claims: list[Activity] = []
    timers_due_ms: list[int] = []
    mail_for: str | None = None
    # The ids of activities that nobody waits for any more.
    cancelled: list[str] = []


class Outlook(Struct, frozen=True):
    """What a draft needs to know of its surroundings."""

    now_ms: int
    worker: str
    # Returns the claimed row if this worker is to run the activity itself.
    claim: Callable[[Activity], Activity | None]
    membership: Callable[[], Write]
    unique: Callable[[], str]
    emit: Callable[[Execution, EmitEvent], list[Write]]


def draft_turn(
    row: Execution,
    sources: Sequence[Source],
    commands: Sequence[Command],
    notes: Sequence[Note],
    outlook: Outlook,
    awaits: tuple[str, ...] = (),
) -> Draft:
    """Return the draft of a turn that consumed `sources`, issued `commands` and now `awaits` signals of these names."""
    turn = Turn(
        row.turn + 1,
        row.run,
        outlook.now_ms,
        tuple([source.event for source in sources]),
        tuple(commands),
        tuple(notes),
        outlook.worker,
    )
    draft = Draft(
        execution=replace(
            row, version=row.version + 1, turn=turn.turn, awaits=awaits, failures=0, failure=None, retry_at_ms=None
        ),
        writes=[],
        sources=list(sources),
        turn=turn,
        claims=[],
        timers_due_ms=[],
    )
    writes = draft.writes
    writes.append(turn_put(row.execution_id, turn))
    writes.extend([source.removal for source in sources if source.removal is not None])
    first = sources[0].event if sources else None
    closing = commands[-1] if commands and isinstance(commands[-1], Close) else None
    if isinstance(first, Started) and closing is None:
        _start_timeout(draft, first)
    if row.tells_end and closing is not None:
        # Before the commands, of which what does not fit may follow.
        writes.extend(outlook.emit(row, _ended(row, closing.status)))
        # Deliveries are found by a look, which is due now.
        draft.timers_due_ms.append(outlook.now_ms)
    dispatched = _dispatch_inline(draft, commands, outlook)
    _apply_to_row(draft, commands, dispatched, outlook)
    if draft.claims:
        writes.append(outlook.membership())
    writes.insert(0, draft.execution.replacing(row.version))
    draft.writes = _once(writes)
    return draft


def _once(writes: list[Write]) -> list[Write]:
    """Return the writes without a second one of the same row.

    A timer that fires and is cancelled in the same turn is removed twice. And who computes a turn from an outdated
    state may remove and make the same row: its transaction is refused by the version, if it gets that far.
    """
    if _is_plain_step(writes):
        return writes
    seen: set[tuple[str, Key]] = set()
    kept: list[Write] = []
    for write in writes:
        key = (write.table.name, write.table.key_of(write.item) if isinstance(write, Put) else write.key)
        if key not in seen:
            seen.add(key)
            kept.append(write)
    return kept


def _is_plain_step(writes: Sequence[Write]) -> bool:
    """Whether no row can be there twice: of rows with a number of their own one is removed, and none of them is made.

    Most turns are of this kind, and quickly seen to be.
    """
    removed: Delete | None = None
    for write in writes:
        if type(write) is Delete:
            if removed is not None or write.key.sort is not None:
                return False
            removed = write
    if removed is None:
        return False
    name, place = removed.table.partition.name, removed.key.partition
    for write in writes:
        if type(write) is Put and write.table is removed.table and write.item[name] == place:
            return False
    return True


def inline_writes(execution: Execution, command: Command, outlook: Outlook, draft: Draft) -> list[Write] | None:
    """Return the writes that carry out a command unconditionally, or None if it needs a transaction of its own."""
    run, owner = execution.run, execution.execution_id
    match command:
        case StartActivity():
            return [_start_activity(execution, command, outlook, draft)]
        case StartTimer():
            draft.timers_due_ms.append(command.due_at_ms)
            identifier = timer_id(owner, run, command.seq)
            return [Timer(identifier, owner, run, command.seq, command.due_at_ms).put()]
        case CancelTimer():
            return [Delete(TIMERS, Key(timer_id(owner, run, command.seq)))]
        case CancelActivity():
            identifier = activity_id(owner, run, command.seq)
            draft.cancelled.append(identifier)
            return [Delete(ACTIVITIES, Key(identifier))]
        case EmitEvent():
            return outlook.emit(execution, command)
        case AnswerUpdate():
            return [_answer(owner, command, outlook.now_ms)]
        case StartChild() | CancelChild() | SendSignal():
            return None
        case _:
            return []


def _dispatch_inline(draft: Draft, commands: Sequence[Command], outlook: Outlook) -> int:
    """Add what can be carried out in this transaction, and return how many commands that are."""
    size = 0
    for place, command in enumerate(commands):
        size += _payload_bytes(command)
        if len(draft.writes) >= WRITES_MAX or size > INLINE_BYTES_MAX:
            return place
        writes = inline_writes(draft.execution, command, outlook, draft)
        if writes is None or len(draft.writes) + len(writes) > WRITES_MAX:
            return place
        draft.writes.extend(writes)
    return len(commands)


def _apply_to_row(draft: Draft, commands: Sequence[Command], dispatched: int, outlook: Outlook) -> None:
    row = draft.execution
    for command in commands:
        if isinstance(command, SetTags):
            merged = {**row.tags, **command.tags}
            row = replace(row, tags={name: value for name, value in merged.items() if value})
    if dispatched < len(commands):
        row = replace(row, dispatched=dispatched, ready_pk=UNDISPATCHED, ready_at_ms=outlook.now_ms)
    elif row.dispatched is not None or row.ready_pk is not None:
        row = replace(row, dispatched=None, ready_pk=None, ready_at_ms=None)
    last = commands[-1] if commands else None
    if isinstance(last, Close):
        row = _close(draft, row, last, outlook)
    elif isinstance(last, ContinueAsNew):
        row = _continue(draft, row, last, outlook)
    draft.execution = row


def _close(draft: Draft, row: Execution, close: Close, outlook: Outlook) -> Execution:
    for seq in (TIMEOUT_SEQ, RETRY_SEQ):
        if seq == RETRY_SEQ or row.timeout_at_ms is not None:
            draft.writes.append(Delete(TIMERS, Key(timer_id(row.execution_id, ANY_RUN, seq))))
    if row.parent_id is not None and row.parent_seq is not None:
        ended = ChildEnded(row.parent_seq, close.status, close.result, close.error)
        told = message(row.parent_id, ended, outlook.now_ms, outlook.unique(), run=row.parent_run or 0)
        draft.writes.append(told.put())
        draft.mail_for = row.parent_id
    retention = row.retention_seconds if row.retention_seconds is not None else RETENTION_SECONDS
    row = replace(
        row,
        status=close.status,
        ended_at=instant(outlook.now_ms),
        result=bytes(close.result).decode() if close.status is Status.SUCCEEDED else None,
        error=None if close.error is None else dump_error(close.error),
    )
    if row.ready_pk is None:
        row = replace(row, ready_pk=ARCHIVE, ready_at_ms=outlook.now_ms + round(retention * 1000))
    return row


def _ended(row: Execution, status: Status) -> EmitEvent:
    facts = {"execution_id": row.execution_id, "workflow": row.workflow, "status": status.value}
    return EmitEvent(0, ENDED_EVENT, Raw(_options_encoder.encode(facts)), row.execution_id)


def _continue(draft: Draft, row: Execution, command: ContinueAsNew, outlook: Outlook) -> Execution:
    started = Started(
        workflow=row.workflow,
        input=command.input,
        run=row.run + 1,
        parent_id=row.parent_id,
        parent_seq=row.parent_seq,
        carried=command.carried,
        memo=Raw(b"null") if row.memo is None else Raw(row.memo.encode()),
        seed=outlook.unique(),
        # Without the time-out: it is the execution's, not the run's, and its timer is there already.
    )
    draft.writes.append(message(row.execution_id, started, outlook.now_ms, outlook.unique()).put())
    draft.mail_for = row.execution_id
    return replace(row, run=row.run + 1, first_turn=row.turn + 1)


def _start_timeout(draft: Draft, started: Started) -> None:
    if started.timeout_at_ms is None:
        return
    row = draft.execution
    event = dump_event(CancelRequested("the time limit of the execution has passed", timed_out=True))
    timer = Timer(
        timer_id(row.execution_id, ANY_RUN, TIMEOUT_SEQ), row.execution_id, ANY_RUN, TIMEOUT_SEQ, started.timeout_at_ms
    )
    draft.writes.append(replace(timer, event=event).put())
    draft.timers_due_ms.append(started.timeout_at_ms)


def _start_activity(execution: Execution, command: StartActivity, outlook: Outlook, draft: Draft) -> Put:
    options = command.options
    row = Activity(
        activity_id=activity_id(execution.execution_id, execution.run, command.seq),
        execution_id=execution.execution_id,
        run=execution.run,
        seq=command.seq,
        name=command.name,
        input=bytes(command.input).decode(),
        options=_dump_options(options),
        token=FIRST_TOKEN,
        scheduled_at_ms=outlook.now_ms,
    )
    claimed = None
    if options.limit_key is None:
        claimed = outlook.claim(row)
    else:
        # A slot is taken by whoever looks for it, which is due now.
        draft.timers_due_ms.append(outlook.now_ms)
    if claimed is not None:
        draft.claims.append(claimed)
        return claimed.put()
    deadline_ms = _first_deadline_ms(outlook.now_ms, options.schedule_to_start, options.schedule_to_close)
    queued = replace(row, queue_pk=queue_partition(options.queue), available_at_ms=outlook.now_ms)
    if deadline_ms < NEVER_MS:
        queued = replace(queued, lease_pk=WATCH, lease_expires_ms=deadline_ms)
    return queued.put()


@lru_cache(maxsize=1024)
def _dump_options(options: ActivityOptions) -> str:
    # The same for every call of an activity, unless a call has options of its own.
    return _options_encoder.encode(options).decode()


def _first_deadline_ms(now_ms: int, *limits_seconds: float | None) -> int:
    return min((now_ms + round(1000 * limit) for limit in limits_seconds if limit is not None), default=NEVER_MS)


def queue_partition(queue: str) -> str:
    """Return the partition of the index in which activities of a queue wait."""
    return f"Q#{queue}"


def _answer(execution_id: str, command: AnswerUpdate, now_ms: int) -> Put:
    body = _options_encoder.encode(command).decode()
    item = {"execution_id": execution_id, "message_id": f"{ANSWER}{command.id}", "body": body}
    return Put(INBOXES, {**item, "ttl": now_ms // 1000 + ANSWER_SECONDS})


def dump_error(error: ErrorInfo) -> str:
    """Return an error as JSON text."""
    return _options_encoder.encode(error).decode()


def _payload_bytes(command: Command) -> int:
    match command:
        case StartActivity() | StartChild():
            return len(memoryview(command.input))
        case SendSignal():
            return len(memoryview(command.payload))
        case EmitEvent():
            return len(memoryview(command.data))
        case _:
            return 0
