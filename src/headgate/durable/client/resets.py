"""Resets: an execution goes back to a turn, or on from its failure, under its id and with its history so far."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.engine.forks import OPEN_ACTIVITIES_MAX, ForkRequest, fork_writes
from headgate.durable.model.archive import Archive
from headgate.durable.model.history import Event, Reset, ResumeChild, Status, Turn, load_event
from headgate.durable.model.history_reader import read_life
from headgate.durable.model.names import is_built_in
from headgate.durable.model.observer import DurableObserver
from headgate.durable.model.records import MESSAGES, Execution, execution_of, is_repaired_by, message_of
from headgate.durable.replay.fork_plan import (
    ForkPlan,
    ForkPoint,
    activity_point,
    failure_point,
    live_turns,
    plan_fork,
    runs_of,
)
from headgate.durable.replay.open_work import open_work
from headgate.errors import ConflictError, InvalidPayloadError, NotFoundError, OutcomeUnknownError
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import EXECUTIONS, INBOXES
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.schema import Key
from headgate.store.port import Store

REASON_CHARACTERS_MAX: Final = 1000
_PAGE: Final = 500
_TURN: Final = re.compile("[0-9]{1,18}")
# An execution that runs may change between the read and the write.
_ATTEMPTS_MAX: Final = 20


class Messages(enum.StrEnum):
    """What a reset does with the signals and updates that the dropped turns received."""

    KEEP = "keep"
    DROP = "drop"


class ResetResult(Struct, frozen=True):
    """A reset execution: its new run, and the turn that is computed again. `is_new` is False for a repeated request."""

    execution_id: str
    workflow: str
    run: int
    to: int
    is_new: bool = True


class Resets:
    """Resets executions of one store."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, archive: Archive, observer: DurableObserver) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._archive = archive
        self._observer = observer

    def reset(
        self,
        execution_id: str,
        to: int | str,
        *,
        messages: Messages = Messages.KEEP,
        reason: str = "",
        request_id: str = "",
    ) -> ResetResult:
        """Compute an execution again from a turn, or from the end of an activity, which then runs again.

        `to` is a turn, or an activity as NAME or NAME#SEQ; the last one of a name counts. `request_id` is an
        idempotency key. Raises `NotFoundError`, and `ConflictError` if the execution cannot be reset now.
        """

        def point(row: Execution, turns: list[Turn]) -> ForkPoint:
            if isinstance(to, int) or _TURN.fullmatch(to):
                return ForkPoint(int(to), is_new_work=True)
            return activity_point(execution_id, turns, to, is_closed=row.status.is_closed)

        request = ForkRequest(reason[:REASON_CHARACTERS_MAX], request_id or self._ids.ulid())
        return self._fork(execution_id, request, point, messages)

    def retry_from_failure(self, execution_id: str, *, reason: str = "", request_id: str = "") -> ResetResult:
        """Continue a closed execution that did not succeed from where it failed, with today's code.

        Completed activities are not repeated. Raises `NotFoundError`, and `ConflictError` if it has not failed, or its
        code handled the failure.
        """

        def point(row: Execution, turns: list[Turn]) -> ForkPoint:
            if not row.status.is_closed or row.status is Status.SUCCEEDED:
                raise ConflictError(
                    f"execution {execution_id}: it is {row.status.value} and has not failed; nothing was changed"
                )
            return failure_point(execution_id, turns)

        request = ForkRequest(reason[:REASON_CHARACTERS_MAX], request_id or self._ids.ulid(), from_failure=True)
        return self._fork(execution_id, request, point, Messages.KEEP)

    def _fork(
        self,
        execution_id: str,
        request: ForkRequest,
        point: Callable[[Execution, list[Turn]], ForkPoint],
        messages: Messages,
    ) -> ResetResult:
        for _ in range(_ATTEMPTS_MAX):
            row = self._row(execution_id)
            turns = [] if row.turn == 0 else read_life(self._store, row, self._archive)
            if is_repaired_by(row, request.request_id):
                marks = (e for t in reversed(turns) for e in t.events if isinstance(e, Reset))
                mark = next((each for each in marks if each.request_id == request.request_id), None)
                # A redrive of a stuck execution computes the next turn and has no event of its own.
                to = row.turn + 1 if mark is None else mark.to
                return ResetResult(execution_id, row.workflow, row.run, to, is_new=False)
            self._check(row, turns)
            now_ms = int(self._clock.seconds() * 1000)
            plan = plan_fork(
                execution_id,
                turns,
                point(row, turns),
                now_ms,
                keeps_messages=messages is Messages.KEEP,
                unconsumed=() if row.status.is_closed else self._unconsumed(row),
            )
            self._check_plan(row, plan)
            after, writes = fork_writes(row, plan, request, now_ms, self._ids.ulid)
            try:
                self._store.transact(writes)
            except OutcomeUnknownError:
                raise
            except ConflictError:
                continue  # It has advanced, or an activity has ended: read again, and decide anew.
            self._observer.on_message_stored(execution_id)
            return ResetResult(execution_id, row.workflow, after.run, plan.point.turn)
        raise ConflictError(f"execution {execution_id}: it advances too fast to be reset; end it first, or try again")

    def _row(self, execution_id: str) -> Execution:
        item = self._store.get(EXECUTIONS, Key(execution_id), consistent=True)
        if item is None:
            raise NotFoundError(f"execution {execution_id}: there is none of this id; see 'headgate execution ls'")
        return execution_of(item)

    def _check(self, row: Execution, turns: list[Turn]) -> None:
        if is_built_in(row.workflow):
            raise InvalidPayloadError(
                f"execution {row.execution_id}: its workflow {row.workflow} is part of Headgate and cannot be reset; "
                "redrive the state machine instead: 'headgate asl redrive'"
            )
        if row.dispatched is not None:
            raise ConflictError(
                f"execution {row.execution_id}: the commands of its last turn are still being dispatched; try again"
            )
        runs = runs_of(live_turns(turns))
        has_begun = bool(runs) and row.turn >= row.first_turn and open_work(runs[-1]).has_begun
        if not row.status.is_closed and not has_begun:
            raise ConflictError(f"execution {row.execution_id}: its run has not begun; try again, or end it")

    def _check_plan(self, row: Execution, plan: ForkPlan) -> None:
        if len(plan.cancelled) > OPEN_ACTIVITIES_MAX:
            raise ConflictError(
                f"execution {row.execution_id}: {len(plan.cancelled)} activities are open, and a reset cancels at most "
                f"{OPEN_ACTIVITIES_MAX}; terminate it first, then use 'headgate execution retry --from-failure'"
            )
        resumed = [each.child.child_id for each in plan.commands if isinstance(each, ResumeChild) and each.again]
        for child_id in [*resumed, *plan.later_children]:
            item = self._store.get(EXECUTIONS, Key(child_id), consistent=True)
            if item is not None and item.get("parent_id") == row.execution_id and _is_open(execution_of(item)):
                raise ConflictError(
                    f"execution {row.execution_id}: its child {child_id}, started at turn {plan.point.turn} or later, "
                    "is still open; terminate it, or wait for its end, and try again"
                )

    def _unconsumed(self, row: Execution) -> list[Event]:
        """Return the stored events that are for the current run alone. Signals are for the execution, and stay."""
        events: list[Event] = []
        cursor = None
        while True:
            page = self._store.query(
                Query(
                    table=INBOXES,
                    partition=row.execution_id,
                    sort=Sort(Range.BEGINS_WITH, MESSAGES),
                    limit=_PAGE,
                    cursor=cursor,
                    consistent=True,
                )
            )
            stored = [message_of(item) for item in page.items]
            events += [load_event(each.body) for each in stored if each.run == row.run]
            cursor = page.cursor
            if cursor is None:
                return events


def _is_open(row: Execution) -> bool:
    return not row.status.is_closed
