"""Dispatcher: carries out the commands of a turn that the turn's own transaction could not include.

Each step is one transaction with the execution's row, which counts the commands done. So each step happens once,
whichever worker tries it and however often, and a sparse index finds an execution whose dispatch was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate.durable.engine.activity_store import cancelled_end
from headgate.durable.engine.forks import ForkRequest, fork_writes
from headgate.durable.engine.turn_commit import RETENTION_SECONDS, TurnContext, TurnTransaction, inline_writes
from headgate.durable.model.failures import ErrorInfo, describe
from headgate.durable.model.history import (
    NULL,
    CancelActivity,
    CancelChild,
    CancelRequested,
    ChildEnded,
    Command,
    EmitEvent,
    ResumeChild,
    SendSignal,
    Signal,
    SignalSent,
    StartActivity,
    StartChild,
    Status,
    TerminateRequested,
    Turn,
)
from headgate.durable.model.history_reader import ArchivedHistories, read_life, read_turn
from headgate.durable.model.payload import digest
from headgate.durable.model.records import (
    ARCHIVE,
    OPEN,
    UNDISPATCHED,
    Execution,
    Message,
    activity_id,
    activity_of,
    execution_of,
    message,
)
from headgate.durable.model.starts import StartRequest, same_parent, start_writes
from headgate.durable.replay.fork_plan import failure_point, plan_fork
from headgate.errors import (
    AlreadyStartedError,
    ConflictError,
    ExecutionClosedError,
    HeadgateError,
    NotFoundError,
    UserError,
)
from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS
from headgate.store.model.conditions import equals
from headgate.store.model.requests import Check, Update, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

STEP_WRITES_MAX: Final = 95
# Transactions that share one disk flush.
STEPS_MAX: Final = 200
# How often a step is computed again in a row because the rows that it depends on have changed.
STEP_TRIES_MAX: Final = 8
_log = structlog.get_logger(__name__)
_error_decoder: Final = msgspec.json.Decoder(ErrorInfo)


class Step(Struct):
    """One transaction: its commands, its writes besides the execution's row, and its effects.

    The effects are the executions that get a message, the due times of new timers, and the cancelled activities.
    """

    commands: list[Command]
    writes: list[Write]
    messages_to: list[str]
    timers_due_ms: list[int]
    cancelled: list[str] = []
    # Activities whose cancellation was requested, and whose end the code awaits.
    cancel_requested: list[str] = []
    # Whether the store may refuse it, so that it takes no other command.
    is_alone: bool = False


class Dispatcher:
    """Dispatches the commands of the last turn of an execution, step by step."""

    def __init__(
        self,
        store: Store,
        retention_of: Callable[[str], float | None],
        pins: Callable[[str], bool],
        archive: ArchivedHistories | None = None,
    ) -> None:
        """`pins` tells whether executions of a workflow of this app are pinned."""
        self._store = store
        self._retention_of = retention_of
        self._pins = pins
        self._archive = archive

    def finish(
        self, row: Execution, context: TurnContext, turn: Turn | None, on_dispatched: Callable[[Step], None]
    ) -> Execution:
        """Carry out all remaining commands, and return the execution's row after them.

        `on_dispatched` gets each committed step. Raises `ConflictError` if another worker dispatches it, or if what a
        step depends on changes all the time: a later cycle continues.
        """
        turn = turn if turn is not None else read_turn(self._store, row)
        tries = 0
        while row.dispatched is not None:
            before = row
            row = self._commit(row, turn, self._steps(row, turn, context), context, on_dispatched)
            tries = tries + 1 if row is before else 0
            if tries == STEP_TRIES_MAX:
                raise ConflictError(
                    f"execution {row.execution_id}: command {row.dispatched} of turn {turn.turn} was computed {tries} "
                    "times, and other workers were faster each time; it is tried again"
                )
        return row

    def _steps(self, row: Execution, turn: Turn, context: TurnContext) -> list[Step]:
        assert row.dispatched is not None
        steps: list[Step] = []
        # The commands belong to the run of the turn, even if the execution has continued as new.
        execution = replace(row, run=turn.run)
        for command in turn.commands[row.dispatched :]:
            partial = TurnTransaction(execution=execution, writes=[], sources=[], claims=[], timers_due_ms=[])
            writes = self._inline(execution, command, context, partial)
            if writes is None:
                steps.append(self._effect(execution, command, context))
                steps[-1].is_alone = True
            elif steps and _has_room(steps[-1], writes) and not isinstance(command, EmitEvent):
                last = steps[-1]
                last.commands.append(command)
                last.writes.extend(writes)
                last.timers_due_ms.extend(partial.timers_due_ms)
                last.cancelled.extend(partial.cancelled)
            else:
                steps.append(Step([command], writes, [], partial.timers_due_ms, partial.cancelled))
            if len(steps) == STEPS_MAX:
                break
        return steps

    def _inline(
        self, row: Execution, command: Command, context: TurnContext, partial: TurnTransaction
    ) -> list[Write] | None:
        if isinstance(command, StartActivity):
            # It is not claimed here, and only a poll finds it.
            partial.timers_due_ms.append(context.now_ms)
        try:
            return inline_writes(row, command, replace(context, claim=_no_claim), partial)
        except UserError as exc:
            # Commands are validated when issued, so the rules have changed since; the other commands must go on.
            _log.error("command skipped", execution_id=row.execution_id, seq=getattr(command, "seq", 0), error=str(exc))
            return []

    def _commit(
        self,
        row: Execution,
        turn: Turn,
        steps: Sequence[Step],
        context: TurnContext,
        on_dispatched: Callable[[Step], None],
    ) -> Execution:
        """Commit the steps in one batch, and return the row after the last step that was committed."""
        rows: list[Execution] = []
        transactions: list[list[Write]] = []
        after = row
        for step in steps:
            before, after = after, _progress(after, turn, len(step.commands))
            rows.append(after)
            transactions.append([after.replacing(before.version), *step.writes])
        try:
            outcomes = self._store.transact_many(transactions)
        except UserError as exc:
            # One step can never be written. Committing one by one finds it without blocking the others.
            if len(steps) > 1:
                return self._commit(row, turn, steps[:1], context, on_dispatched)
            return self._skip(row, turn, steps[0], exc, context)
        for place, (step, refusal) in enumerate(zip(steps, outcomes, strict=True)):
            if refusal is not None:
                return self._skip(rows[place - 1] if place else row, turn, step, refusal, context)
            on_dispatched(step)
        return rows[-1]

    def _skip(self, row: Execution, turn: Turn, step: Step, refusal: HeadgateError, context: TurnContext) -> Execution:
        """Skip a command that the store refused, and report that to the execution if it waits for the command."""
        lost_race = isinstance(refusal, ConflictError) and 0 in refusal.failures
        if lost_race or not isinstance(refusal, ConflictError | UserError):
            raise refusal
        (command,) = step.commands
        if isinstance(command, ResumeChild | CancelActivity) and isinstance(refusal, ConflictError):
            return row  # The child or the activity has changed meanwhile: the step is computed again.
        after = _progress(row, turn, 1)
        writes: list[Write] = [after.replacing(row.version)]
        match command:
            case StartChild():
                current = refusal.current if isinstance(refusal, ConflictError) else None
                child = None if current is None else execution_of(current)
                if child is None or not same_parent(child, self._child(row, turn, command)):
                    if child is not None and child.parent_id == row.execution_id and child.parent_run != turn.run:
                        return self._start_again(row, turn, command, child, context)
                    writes.append(_taken(row, turn.run, command, context).put())
            case SendSignal():
                closed = ExecutionClosedError(
                    f"execution {command.execution_id}: none that takes signals; it has ended or never was"
                )
                failed = SignalSent(command.seq, describe(closed))
                notice = message(row.execution_id, failed, context.now_ms, context.unique(), run=turn.run)
                writes.append(notice.put())
            case ResumeChild():
                ended = ChildEnded(command.seq, Status.FAILED, error=describe(refusal))
                writes.append(message(row.execution_id, ended, context.now_ms, context.unique(), run=turn.run).put())
            case _:
                # A child that has already ended needs no cancellation, and a duplicate event is not emitted again.
                pass
        self._store.transact(writes)
        return after

    def _start_again(
        self, row: Execution, turn: Turn, command: StartChild, child: Execution, context: TurnContext
    ) -> Execution:
        """Start a child whose id belongs to a child of an earlier run of this execution, dropped by a reset.

        A child that is still open, such as an abandoned one, becomes the child of this run if its input is the same.
        """
        request = self._child(row, turn, command)
        after = _progress(row, turn, 1)
        writes: list[Write] = [after.replacing(row.version)]
        if child.status.is_closed:
            child = self._with_all_dispatched(child, context)
            writes += start_writes(request, context.now_ms, context.unique(), child)[1]
        elif child.workflow == command.workflow and child.input_digest == digest(command.input):
            adopted = replace(
                child, version=child.version + 1, parent_run=request.parent_run, parent_seq=request.parent_seq
            )
            writes.append(adopted.replacing(child.version))
        else:
            writes.append(_taken(row, turn.run, command, context).put())
        self._store.transact(writes)
        return after

    def _resume_child(self, row: Execution, command: ResumeChild, context: TurnContext) -> Step:
        """Return the step that makes this run wait for a child of an earlier run."""
        child_id = command.child.child_id
        item = self._store.get(EXECUTIONS, Key(child_id), consistent=True)
        if item is None:
            return self._effect(row, command.child, context)
        child = execution_of(item)
        if (child.parent_id, child.parent_seq) != (row.execution_id, command.seq):
            notice = _taken(row, row.run, command.child, context)
            return Step([command], [notice.put()], [row.execution_id], [])
        ours = replace(child, parent_run=row.run)
        if not child.status.is_closed:
            return Step([command], [replace(ours, version=child.version + 1).replacing(child.version)], [], [])
        if command.again and child.status is not Status.SUCCEEDED:
            child = self._with_all_dispatched(child, context)
            ours = replace(child, parent_run=row.run)
            writes = self._fork_child(ours, context)
            if writes:
                return Step([command], writes, [child_id], [])
        error = None if child.error is None else _error_decoder.decode(child.error)
        result = NULL if child.result is None else Raw(child.result.encode())
        ended = ChildEnded(command.seq, child.status, result, error)
        notice = message(row.execution_id, ended, context.now_ms, context.unique(), run=row.run)
        return Step([command], [notice.put()], [row.execution_id], [])

    def _with_all_dispatched(self, child: Execution, context: TurnContext) -> Execution:
        """Carry out the commands of a child's last turn that a crash has left: its new run would drop them."""
        return self.finish(child, context, None, lambda _: None) if child.dispatched is not None else child

    def _fork_child(self, child: Execution, context: TurnContext) -> list[Write]:
        """Return the writes that continue a child from its failure; none if it cannot be continued there."""
        turns = read_life(self._store, child, self._archive)
        try:
            point = failure_point(child.execution_id, turns)
            plan = plan_fork(child.execution_id, turns, point, context.now_ms)
        except (ConflictError, NotFoundError):
            return []
        request = ForkRequest(f"its parent {child.parent_id} was reset", context.unique(), from_failure=True)
        return fork_writes(child, plan, request, context.now_ms, context.unique)[1]

    def _request_cancel(self, row: Execution, command: CancelActivity, context: TurnContext) -> Step:
        """Return the step that requests cancellation of an activity, or ends one that no worker has begun."""
        item = self._store.get(ACTIVITIES, Key(activity_id(row.execution_id, row.run, command.seq)), consistent=True)
        if item is None:
            return Step([command], [], [], [])  # It has ended, and the code gets its result.
        activity = activity_of(item)
        if activity.queue_pk is None:
            request = {"is_cancel_requested": True}
            # A worker may claim, queue or end it meanwhile: then the step is computed again.
            held = equals("token", activity.token)
            write = Update(ACTIVITIES, Key(activity.activity_id), set=request, condition=held)
            return Step([command], [write], [], [], cancel_requested=[activity.activity_id])
        notice = message(
            row.execution_id, cancelled_end(activity, context.now_ms), context.now_ms, context.unique(), run=row.run
        )
        return Step([command], [activity.ended(), notice.put()], [row.execution_id], [])

    def _event(self, row: Execution, command: EmitEvent, context: TurnContext) -> list[Write]:
        try:
            return context.event_writes(row, command)
        except UserError as exc:
            # As in `_inline`: the rules have changed since the event was issued.
            _log.error("command skipped", execution_id=row.execution_id, seq=command.seq, error=str(exc))
            return []

    def _effect(self, row: Execution, command: Command, context: TurnContext) -> Step:
        match command:
            case ResumeChild():
                return self._resume_child(row, command, context)
            case EmitEvent():
                return Step([command], self._event(row, command, context), [], [context.now_ms])
            case StartChild():
                request = replace(self._child(row, None, command), traceparent=context.traceparent)
                _, writes = start_writes(request, context.now_ms, context.unique())
                return Step([command], writes, [command.child_id], [])
            case SendSignal():
                signal = Signal(command.name, command.payload, sender=row.execution_id, headers=command.headers)
                writes = self._message(command.execution_id, signal, context)
                if command.execution_id == row.execution_id:
                    # No check: the transaction writes this very row, and takes one write per row.
                    writes = writes[1:]
                sent = message(row.execution_id, SignalSent(command.seq), context.now_ms, context.unique(), run=row.run)
                return Step([command], [*writes, sent.put()], [command.execution_id, row.execution_id], [])
            case CancelActivity():
                return self._request_cancel(row, command, context)
            case CancelChild():
                reason = f"its parent {row.execution_id} asked for it"
                event = TerminateRequested(reason) if command.terminate else CancelRequested(reason)
                return Step([command], self._message(command.child_id, event, context), [command.child_id], [])
            case _:
                raise AssertionError(f"{command!r} is part of the transaction of its turn")

    def _message(
        self, execution_id: str, event: Signal | TerminateRequested | CancelRequested, context: TurnContext
    ) -> list[Write]:
        return [
            Check(EXECUTIONS, Key(execution_id), OPEN),
            message(execution_id, event, context.now_ms, context.unique(), traceparent=context.traceparent).put(),
        ]

    def _child(self, row: Execution, turn: Turn | None, command: StartChild) -> StartRequest:
        return StartRequest(
            execution_id=command.child_id,
            workflow=command.workflow,
            input=command.input,
            tags=command.tags,
            headers=command.headers,
            timeout_seconds=command.timeout_seconds,
            retry=command.retry,
            retention_seconds=self._retention_of(command.workflow),
            parent_id=row.execution_id,
            parent_run=row.run if turn is None else turn.run,
            parent_seq=command.seq,
            # A pinned child runs on the code that started it.
            pinned_build=row.build if row.is_pinned and self._pins(command.workflow) else "",
        )


def _taken(row: Execution, run: int, command: StartChild, context: TurnContext) -> Message:
    taken = AlreadyStartedError(f"execution {command.child_id}: the id of the child is taken")
    ended = ChildEnded(command.seq, Status.FAILED, error=describe(taken))
    return message(row.execution_id, ended, context.now_ms, context.unique(), run=run)


def _progress(row: Execution, turn: Turn, count: int) -> Execution:
    assert row.dispatched is not None
    done = row.dispatched + count
    if done < len(turn.commands):
        return replace(row, version=row.version + 1, dispatched=done, ready_pk=UNDISPATCHED)
    if not row.status.is_closed:
        return replace(row, version=row.version + 1, dispatched=None, ready_pk=None, ready_at_ms=None)
    retention = row.retention_seconds if row.retention_seconds is not None else RETENTION_SECONDS
    at_ms = (row.ready_at_ms or 0) + round(1000 * retention)
    return replace(row, version=row.version + 1, dispatched=None, ready_pk=ARCHIVE, ready_at_ms=at_ms)


def _has_room(step: Step, writes: Sequence[Write]) -> bool:
    return not step.is_alone and len(step.writes) + len(writes) <= STEP_WRITES_MAX


def _no_claim(_: object) -> None:
    """Claim nothing: a dispatched activity waits in its queue for any worker."""
