"""Dispatching: carries out what a turn asked for and its own transaction could not take.

Each step is one transaction with the execution's row, which counts how far it has come. So a step happens once,
whoever takes it and however often it is tried, and an execution that was left halfway is found by a sparse index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.durable.engine.turn_commit import RETENTION_SECONDS, Draft, Outlook, inline_writes
from headgate.durable.model.failures import describe
from headgate.durable.model.history import (
    CancelChild,
    CancelRequested,
    ChildEnded,
    Command,
    EmitEvent,
    SendSignal,
    Signal,
    SignalSent,
    StartActivity,
    StartChild,
    Status,
    TerminateRequested,
    Turn,
)
from headgate.durable.model.history_reader import read_turn
from headgate.durable.model.records import ARCHIVE, OPEN, UNDISPATCHED, Execution, execution_of, message
from headgate.durable.model.starts import StartRequest, same_parent, start_writes
from headgate.errors import AlreadyStartedError, ConflictError, ExecutionClosedError, HeadgateError, UserError
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.requests import Check, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

STEP_WRITES_MAX: Final = 95
# Transactions that are tried with one wait for the disk.
STEPS_MAX: Final = 200
_log = structlog.get_logger(__name__)


class Step(Struct):
    """One transaction: the commands it carries out, and what it writes besides the execution's row.

    Then who gets mail, when timers are due that it makes, and which activities it takes back.
    """

    commands: list[Command]
    writes: list[Write]
    mail_for: list[str]
    timers_due_ms: list[int]
    cancelled: list[str] = []


class Dispatcher:
    """Takes the commands of the last turn one step after the other."""

    def __init__(self, store: Store, retention_of: Callable[[str], float | None]) -> None:
        self._store = store
        self._retention_of = retention_of

    def finish(self, row: Execution, outlook: Outlook, turn: Turn | None, told: Callable[[Step], None]) -> Execution:
        """Carry out everything that is left, and return the execution as it then is.

        `told` is given each step that was taken. Raises `ConflictError` if someone else is at it.
        """
        turn = turn if turn is not None else read_turn(self._store, row)
        while row.dispatched is not None:
            steps = self._steps(row, turn, outlook)
            row = self._take(row, turn, steps, outlook, told)
        return row

    def _steps(self, row: Execution, turn: Turn, outlook: Outlook) -> list[Step]:
        assert row.dispatched is not None
        steps: list[Step] = []
        # The commands are those of the turn's run, also after it continued as new.
        context = replace(row, run=turn.run)
        for command in turn.commands[row.dispatched :]:
            draft = Draft(execution=context, writes=[], sources=[], claims=[], timers_due_ms=[])
            writes = self._inline(context, command, outlook, draft)
            if writes is None:
                steps.append(self._effect(context, command, outlook))
            elif steps and _has_room(steps[-1], writes) and not isinstance(command, EmitEvent):
                last = steps[-1]
                last.commands.append(command)
                last.writes.extend(writes)
                last.timers_due_ms.extend(draft.timers_due_ms)
                last.cancelled.extend(draft.cancelled)
            else:
                steps.append(Step([command], writes, [], draft.timers_due_ms, draft.cancelled))
            if len(steps) == STEPS_MAX:
                break
        return steps

    def _inline(self, row: Execution, command: Command, outlook: Outlook, draft: Draft) -> list[Write] | None:
        if isinstance(command, StartActivity):
            # Nobody has claimed it, and only a look finds it.
            draft.timers_due_ms.append(outlook.now_ms)
        try:
            return inline_writes(row, command, replace(outlook, claim=_nobody), draft)
        except UserError as exc:
            # Checked when it was asked for, so that this is a change of the rules since; nothing else may wait for it.
            _log.error("command skipped", execution_id=row.execution_id, seq=getattr(command, "seq", 0), error=str(exc))
            return []

    def _take(
        self, row: Execution, turn: Turn, steps: Sequence[Step], outlook: Outlook, told: Callable[[Step], None]
    ) -> Execution:
        """Try the steps in one go, and return the row after the last that was taken."""
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
            # One of them can never be written. Alone it shows which, and the others are not held up by it.
            if len(steps) > 1:
                return self._take(row, turn, steps[:1], outlook, told)
            return self._refused(row, turn, steps[0], exc, outlook)
        for place, (step, refusal) in enumerate(zip(steps, outcomes, strict=True)):
            if refusal is not None:
                return self._refused(rows[place - 1] if place else row, turn, step, refusal, outlook)
            told(step)
        return rows[-1]

    def _refused(self, row: Execution, turn: Turn, step: Step, refusal: HeadgateError, outlook: Outlook) -> Execution:
        """Go past a command that cannot be carried out, telling the execution if it waits for it."""
        lost_race = isinstance(refusal, ConflictError) and 0 in refusal.failures
        if lost_race or not isinstance(refusal, ConflictError | UserError):
            raise refusal
        (command,) = step.commands
        after = _progress(row, turn, 1)
        writes: list[Write] = [after.replacing(row.version)]
        match command:
            case StartChild():
                current = refusal.current if isinstance(refusal, ConflictError) else None
                if current is None or not same_parent(execution_of(current), self._child(row, turn, command)):
                    taken = AlreadyStartedError(f"execution {command.child_id}: the id of the child is taken")
                    ended = ChildEnded(command.seq, Status.FAILED, error=describe(taken))
                    told = message(row.execution_id, ended, outlook.now_ms, outlook.unique(), run=turn.run)
                    writes.append(told.put())
            case SendSignal():
                nobody = ExecutionClosedError(
                    f"execution {command.execution_id}: none that takes signals; it has ended or never was"
                )
                failed = SignalSent(command.seq, describe(nobody))
                told = message(row.execution_id, failed, outlook.now_ms, outlook.unique(), run=turn.run)
                writes.append(told.put())
            case _:
                # A child that has ended by itself needs no ending.
                writes = writes[:1]
        self._store.transact(writes)
        return after

    def _effect(self, row: Execution, command: Command, outlook: Outlook) -> Step:
        match command:
            case StartChild():
                request = self._child(row, None, command)
                _, writes = start_writes(request, outlook.now_ms, outlook.unique())
                return Step([command], writes, [command.child_id], [])
            case SendSignal():
                signal = Signal(command.name, command.payload, sender=row.execution_id)
                writes = self._message(command.execution_id, signal, outlook)
                if command.execution_id == row.execution_id:
                    # The transaction changes its own row, which says better than a look that it is there.
                    writes = writes[1:]
                sent = message(row.execution_id, SignalSent(command.seq), outlook.now_ms, outlook.unique(), run=row.run)
                return Step([command], [*writes, sent.put()], [command.execution_id, row.execution_id], [])
            case CancelChild():
                reason = f"its parent {row.execution_id} asked for it"
                event = TerminateRequested(reason) if command.terminate else CancelRequested(reason)
                return Step([command], self._message(command.child_id, event, outlook), [command.child_id], [])
            case _:
                raise AssertionError(f"{command!r} is carried out with its turn")

    def _message(
        self, execution_id: str, event: Signal | TerminateRequested | CancelRequested, outlook: Outlook
    ) -> list[Write]:
        return [
            Check(EXECUTIONS, Key(execution_id), OPEN),
            message(execution_id, event, outlook.now_ms, outlook.unique()).put(),
        ]

    def _child(self, row: Execution, turn: Turn | None, command: StartChild) -> StartRequest:
        return StartRequest(
            execution_id=command.child_id,
            workflow=command.workflow,
            input=command.input,
            tags=command.tags,
            timeout_seconds=command.timeout_seconds,
            retention_seconds=self._retention_of(command.workflow),
            parent_id=row.execution_id,
            parent_run=row.run if turn is None else turn.run,
            parent_seq=command.seq,
        )


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
    return not step.mail_for and len(step.writes) + len(writes) <= STEP_WRITES_MAX


def _nobody(_: object) -> None:
    """Claim nothing: what is dispatched later waits in its queue for whoever is free."""
