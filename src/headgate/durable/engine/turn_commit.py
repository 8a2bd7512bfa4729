"""Turn transaction: turns the commands of one turn into the writes of one transaction.

Nothing here reads or writes the store. Commands that do not fit into the transaction, or that can be refused by
themselves (the id of a child is taken, a signal has no receiver), are left to the dispatcher.
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
    ActivityEnded,
    ActivityOptions,
    AnswerUpdate,
    CancelActivity,
    CancelChild,
    Cancellation,
    CancelRequested,
    CancelTimer,
    ChildEnded,
    Close,
    Command,
    ContinueAsNew,
    EmitEvent,
    Event,
    MarkPatch,
    Note,
    ResumeChild,
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
from headgate.durable.model.retry import load_retry
from headgate.durable.model.starts import ANY_RUN, RETRY_SEQ, START_SEQ, TIMEOUT_SEQ
from headgate.store.catalogue.tables import ACTIVITIES, INBOXES, TIMERS
from headgate.store.model.requests import Delete, Put, Write
from headgate.store.model.schema import Key

# A transaction takes 100 writes; the difference is for the writes that close an execution.
WRITES_MAX: Final = 94
SOURCES_MAX: Final = 40
# A transaction takes 4 MB; commands beyond this much payload are dispatched after it.
INLINE_BYTES_MAX: Final = 1_000_000
RETENTION_SECONDS: Final = 7 * 86_400.0
ANSWER_SECONDS: Final = 86_400
FIRST_TOKEN: Final = "0"
ENDED_EVENT: Final = "headgate.execution.ended"

_options_encoder: Final = msgspec.json.Encoder()


class ExecutionEnded(Struct, frozen=True):
    """The data of `headgate.execution.ended`: an execution ended in any way."""

    execution_id: str
    workflow: str
    status: Status


class Source(Struct, frozen=True):
    """An event, and the write that removes it from the table where it waited.

    `run` and `first_run` limit it to one run, and to one life of the execution id; 0 is the current one. `at_ms` is
    when a timer was due or a message was stored; 0 if unknown.
    """

    event: Event
    removal: Delete | None
    run: int = 0
    first_run: int = 0
    at_ms: int = 0
    # The W3C trace context of its sender.
    traceparent: str = ""


class TurnTransaction(Struct):
    """The writes of one turn. `writes[0]` is always the execution's row."""

    execution: Execution
    writes: list[Write]
    sources: list[Source]
    turn: Turn | None = None
    # Whether the writes are those of `StepWrites`.
    is_step: bool = False
    claims: list[Activity] = []
    timers_due_ms: list[int] = []
    # The execution that gets a message by this turn.
    message_to: str | None = None
    # The ids of activities that the turn cancels.
    cancelled: list[str] = []


class TurnContext(Struct, frozen=True):
    """The time, the worker and the host that a turn is computed with."""

    now_ms: int
    worker: str
    # Returns the claimed row if this worker is to run the activity itself.
    claim: Callable[[Activity], Activity | None]
    membership: Callable[[], Write]
    unique: Callable[[], str]
    event_writes: Callable[[Execution, EmitEvent], list[Write]]
    # The W3C trace context of the turn, for what it starts and sends.
    traceparent: str = ""


def turn_transaction(
    row: Execution,
    sources: Sequence[Source],
    commands: Sequence[Command],
    notes: Sequence[Note],
    context: TurnContext,
    awaits: tuple[str, ...] = (),
) -> TurnTransaction:
    """Return the transaction of a turn that consumed `sources`, issued `commands` and now awaits signals `awaits`."""
    turn = Turn(
        row.turn + 1,
        row.run,
        context.now_ms,
        (sources[0].event,) if len(sources) == 1 else tuple([source.event for source in sources]),
        tuple(commands),
        tuple(notes),
        context.worker,
    )
    transaction = TurnTransaction(
        execution=replace(
            row,
            version=row.version + 1,
            turn=turn.turn,
            awaits=awaits,
            failures=0,
            failure=None,
            retry_at_ms=None,
            failed_builds=(),
        ),
        writes=[],
        sources=list(sources),
        turn=turn,
    )
    if _is_plain_step(row, sources, commands):
        _write_plain_step(transaction, row.version, context)
        return transaction
    writes = transaction.writes
    writes.append(turn_put(row.execution_id, turn))
    writes.extend([source.removal for source in sources if source.removal is not None])
    first = sources[0].event if sources else None
    closing = commands[-1] if commands and isinstance(commands[-1], Close) else None
    if isinstance(first, Started) and closing is None:
        _start_timeout(transaction, first)
    if row.tells_end and closing is not None:
        # Before the commands, which may continue in later transactions.
        writes.extend(context.event_writes(row, _ended_event(row, closing.status)))
        # Deliveries are found by a poll, which is due now.
        transaction.timers_due_ms.append(context.now_ms)
    dispatched = _dispatch_inline(transaction, commands, context)
    _apply_to_row(transaction, commands, dispatched, context)
    if transaction.claims:
        writes.append(context.membership())
    writes.insert(0, transaction.execution.replacing(row.version))
    transaction.writes = _once(writes)
    return transaction


def _once(writes: list[Write]) -> list[Write]:
    """Return the writes with one write for each row.

    A timer that fires and is cancelled in the same turn is removed twice. A turn computed from an outdated state may
    remove and create the same row; the check of the row's version refuses its transaction.
    """
    seen: set[tuple[str, Key]] = set()
    unique: list[Write] = []
    for write in writes:
        key = (write.table.name, write.table.key_of(write.item) if isinstance(write, Put) else write.key)
        if key not in seen:
            seen.add(key)
            unique.append(write)
    return unique


def _is_plain_step(row: Execution, sources: Sequence[Source], commands: Sequence[Command]) -> bool:
    """Whether a turn consumes the end of one activity and starts another, and nothing else. Most turns do."""
    if len(sources) != 1 or len(commands) != 1 or row.dispatched is not None or row.ready_pk is not None:
        return False
    source, command = sources[0], commands[0]
    event = source.event
    return (
        type(event) is ActivityEnded
        and type(command) is StartActivity
        and source.removal is not None
        # Otherwise one row would be written twice, by a turn computed from an outdated state.
        and event.seq != command.seq
        and len(memoryview(command.input)) <= INLINE_BYTES_MAX
    )


def _write_plain_step(transaction: TurnTransaction, version: int, context: TurnContext) -> None:
    """Add the writes of a plain step: what the general path would write, without its checks for other turns."""
    row, turn = transaction.execution, transaction.turn
    assert turn is not None, "a turn that consumes events has a row"
    removal, command = transaction.sources[0].removal, turn.commands[0]
    assert removal is not None
    assert isinstance(command, StartActivity)
    started = _start_activity(row, command, context, transaction)
    transaction.writes = [row.replacing(version), turn_put(row.execution_id, turn), removal, started]
    if transaction.claims:
        transaction.writes.append(context.membership())
        # A result that came by the inbox has its message removed.
        transaction.is_step = removal.table is ACTIVITIES


def inline_writes(
    execution: Execution, command: Command, context: TurnContext, transaction: TurnTransaction
) -> list[Write] | None:
    """Return the writes of a command that cannot be refused, or None if it needs its own transaction."""
    run, owner = execution.run, execution.execution_id
    match command:
        case StartActivity():
            return [_start_activity(execution, command, context, transaction)]
        case StartTimer():
            transaction.timers_due_ms.append(command.due_at_ms)
            identifier = timer_id(owner, run, command.seq)
            return [Timer(identifier, owner, run, command.seq, command.due_at_ms).put()]
        case CancelTimer():
            return [Delete(TIMERS, Key(timer_id(owner, command.run or run, command.seq)))]
        case CancelActivity():
            return _cancel_activity(activity_id(owner, run, command.seq), command.cancellation, transaction)
        case EmitEvent():
            # One with an id may be a duplicate, which the store refuses.
            return None if command.id else context.event_writes(execution, command)
        case AnswerUpdate():
            return [_answer(owner, command, context.now_ms)]
        case StartChild() | CancelChild() | ResumeChild() | SendSignal():
            return None
        case _:
            return []


def _cancel_activity(identifier: str, cancellation: Cancellation, transaction: TurnTransaction) -> list[Write] | None:
    if cancellation is Cancellation.WAIT:
        # It depends on the state of the activity, which the dispatcher reads.
        return None
    if cancellation is Cancellation.ABANDON:
        return []
    transaction.cancelled.append(identifier)
    return [Delete(ACTIVITIES, Key(identifier))]


def _dispatch_inline(transaction: TurnTransaction, commands: Sequence[Command], context: TurnContext) -> int:
    """Add the commands that fit into this transaction, and return how many they are."""
    size = 0
    for place, command in enumerate(commands):
        size += _payload_bytes(command)
        if len(transaction.writes) >= WRITES_MAX or size > INLINE_BYTES_MAX:
            return place
        writes = inline_writes(transaction.execution, command, context, transaction)
        if writes is None or len(transaction.writes) + len(writes) > WRITES_MAX:
            return place
        transaction.writes.extend(writes)
    return len(commands)


def _apply_to_row(
    transaction: TurnTransaction, commands: Sequence[Command], dispatched: int, context: TurnContext
) -> None:
    row = transaction.execution
    for command in commands:
        if isinstance(command, SetTags):
            merged = {**row.tags, **command.tags}
            row = replace(row, tags={name: value for name, value in merged.items() if value})
        elif isinstance(command, MarkPatch):
            row = replace(row, patches={**row.patches, command.patch: command.is_deprecated})
    if dispatched < len(commands):
        row = replace(row, dispatched=dispatched, ready_pk=UNDISPATCHED, ready_at_ms=context.now_ms)
    elif row.dispatched is not None or row.ready_pk is not None:
        row = replace(row, dispatched=None, ready_pk=None, ready_at_ms=None)
    last = commands[-1] if commands else None
    if isinstance(last, Close):
        row = _close(transaction, row, last, context)
    elif isinstance(last, ContinueAsNew):
        row = _continue(transaction, row, last, context)
    transaction.execution = row


def _close(transaction: TurnTransaction, row: Execution, close: Close, context: TurnContext) -> Execution:
    for seq in (TIMEOUT_SEQ, RETRY_SEQ):
        if seq == RETRY_SEQ or row.timeout_at_ms is not None:
            transaction.writes.append(Delete(TIMERS, Key(timer_id(row.execution_id, ANY_RUN, seq))))
    if row.parent_id is not None and row.parent_seq is not None:
        ended = ChildEnded(row.parent_seq, close.status, close.result, close.error)
        notice = message(row.parent_id, ended, context.now_ms, context.unique(), run=row.parent_run or 0)
        transaction.writes.append(notice.put())
        transaction.message_to = row.parent_id
    retention = row.retention_seconds if row.retention_seconds is not None else RETENTION_SECONDS
    row = replace(
        row,
        status=close.status,
        ended_at=instant(context.now_ms),
        result=bytes(close.result).decode() if close.status is Status.SUCCEEDED else None,
        error=None if close.error is None else dump_error(close.error),
    )
    if row.ready_pk is None:
        row = replace(row, ready_pk=ARCHIVE, ready_at_ms=context.now_ms + round(retention * 1000))
    return row


def _ended_event(row: Execution, status: Status) -> EmitEvent:
    facts = ExecutionEnded(row.execution_id, row.workflow, status)
    return EmitEvent(0, ENDED_EVENT, Raw(_options_encoder.encode(facts)), row.execution_id)


def _continue(transaction: TurnTransaction, row: Execution, command: ContinueAsNew, context: TurnContext) -> Execution:
    started = Started(
        workflow=row.workflow,
        input=command.input,
        run=row.run + 1,
        parent_id=row.parent_id,
        parent_seq=row.parent_seq,
        carried=command.carried,
        memo=Raw(b"null") if row.memo is None else Raw(row.memo.encode()),
        seed=context.unique(),
        headers=command.headers,
        attempt=command.attempt,
        retry=load_retry(row.retry),
        # Without the time-out: it belongs to the execution, not to the run, and its timer exists already.
    )
    if command.delay_ms:
        due_ms = context.now_ms + command.delay_ms
        # Under the number of the run: this turn may have consumed the start of its own run, and removes that timer.
        timer = timer_id(row.execution_id, started.run, START_SEQ)
        event = dump_event(started)
        transaction.writes.append(Timer(timer, row.execution_id, started.run, START_SEQ, due_ms, event=event).put())
        transaction.timers_due_ms.append(due_ms)
    else:
        transaction.writes.append(message(row.execution_id, started, context.now_ms, context.unique()).put())
        transaction.message_to = row.execution_id
    # The new run has an empty history, which fits every build, and marks its patches again.
    return replace(row, run=row.run + 1, first_turn=row.turn + 1, kept_turns="", patches={}, unfit_builds=())


def _start_timeout(transaction: TurnTransaction, started: Started) -> None:
    if started.timeout_at_ms is None:
        return
    row = transaction.execution
    event = dump_event(CancelRequested("the time limit of the execution has passed", timed_out=True))
    timer = Timer(
        timer_id(row.execution_id, ANY_RUN, TIMEOUT_SEQ), row.execution_id, ANY_RUN, TIMEOUT_SEQ, started.timeout_at_ms
    )
    transaction.writes.append(replace(timer, event=event).put())
    transaction.timers_due_ms.append(started.timeout_at_ms)


def _start_activity(
    execution: Execution, command: StartActivity, context: TurnContext, transaction: TurnTransaction
) -> Put:
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
        scheduled_at_ms=context.now_ms,
        headers=command.headers,
        key=command.key or None,
        traceparent=context.traceparent,
    )
    claimed = None
    if options.limit_key is None:
        claimed = context.claim(row)
    else:
        # A worker claims it with a slot of its limit, by a poll that is due now.
        transaction.timers_due_ms.append(context.now_ms)
    if claimed is not None:
        transaction.claims.append(claimed)
        return claimed.put()
    deadline_ms = _first_deadline_ms(context.now_ms, options.schedule_to_start, options.schedule_to_close)
    queued = replace(row, queue_pk=queue_partition(options.queue), available_at_ms=context.now_ms)
    if deadline_ms < NEVER_MS:
        queued = replace(queued, lease_pk=WATCH, lease_expires_ms=deadline_ms)
    return queued.put()


@lru_cache(maxsize=1024)
def _dump_options(options: ActivityOptions) -> str:
    # Calls of one activity share their options, unless a call overrides them.
    return _options_encoder.encode(options).decode()


def _first_deadline_ms(now_ms: int, *limits_seconds: float | None) -> int:
    return min((now_ms + round(1000 * limit) for limit in limits_seconds if limit is not None), default=NEVER_MS)


def queue_partition(queue: str) -> str:
    """Return the index partition of the activities that wait in a queue."""
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
