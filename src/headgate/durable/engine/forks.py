"""Forks: the writes of the transaction that resets an execution.

The execution keeps its id. Its new run refers to the kept turns instead of copying them, so that a reset is one
transaction however long the history is: a crash leaves the execution as it was, or reset. The first turn of the run
lists what was open at that point, and the dispatcher opens it step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.durable.model.history import CancelRequested, Reapplied, Reset, Status, Turn, dump_event
from headgate.durable.model.history_reader import range_text
from headgate.durable.model.records import (
    UNDISPATCHED,
    Execution,
    Timer,
    activity_id,
    message,
    timer_id,
    turn_put,
    with_repair,
)
from headgate.durable.model.starts import ANY_RUN, RETRY_SEQ, TIMEOUT_SEQ
from headgate.durable.replay.fork_plan import ForkPlan
from headgate.store.catalogue.tables import ACTIVITIES, TIMERS
from headgate.store.model.conditions import exists
from headgate.store.model.requests import Delete, Write
from headgate.store.model.schema import Key

# A reset cancels the open activities of an execution in its transaction, which takes 100 writes.
OPEN_ACTIVITIES_MAX: Final = 80


class ForkRequest(Struct, frozen=True):
    """Why an execution is reset. `request_id` is an idempotency key."""

    reason: str
    request_id: str
    from_failure: bool = False


def fork_writes(
    row: Execution, plan: ForkPlan, request: ForkRequest, now_ms: int, unique: Callable[[], str]
) -> tuple[Execution, list[Write]]:
    """Return the execution after a reset, and the writes of the transaction.

    The transaction is refused if the row has changed, or if an activity that is to run again has ended meanwhile.
    """
    run, number = row.run + 1, row.turn + 1
    point = plan.point
    kept = range_text(plan.kept)
    mark = Reset(point.turn, kept, request.reason, request.request_id, point.repeated, request.from_failure)
    turn = Turn(number, run, now_ms, (mark,), plan.commands)
    timeout_at_ms = _timeout_at_ms(row, plan, now_ms)
    after = replace(
        with_repair(row, request.request_id),
        version=row.version + 1,
        status=Status.RUNNING,
        run=run,
        turn=number,
        first_turn=number,
        kept_turns=kept,
        reset_id=request.request_id,
        patches=plan.patches,
        awaits=(),
        ended_at="",
        result=None,
        error=None,
        timeout_at_ms=timeout_at_ms,
        dispatched=0 if plan.commands else None,
        ready_pk=UNDISPATCHED if plan.commands else None,
        ready_at_ms=now_ms if plan.commands else None,
        failures=0,
        failure=None,
        retry_at_ms=None,
        failed_builds=(),
        unfit_builds=(),
        ttl=None,
    )
    owner = row.execution_id
    writes: list[Write] = [after.replacing(row.version), turn_put(owner, turn)]
    if plan.started is not None:
        started = replace(plan.started, run=run, timeout_at_ms=timeout_at_ms)
        writes.append(message(owner, started, now_ms, unique(), run=run).put())
    writes.append(message(owner, Reapplied(plan.events), now_ms, unique(), run=run).put())
    writes.append(Delete(TIMERS, Key(timer_id(owner, ANY_RUN, RETRY_SEQ))))
    if timeout_at_ms is not None:
        event = dump_event(CancelRequested("the time limit of the execution has passed", timed_out=True))
        timer = timer_id(owner, ANY_RUN, TIMEOUT_SEQ)
        writes.append(Timer(timer, owner, ANY_RUN, TIMEOUT_SEQ, timeout_at_ms, event=event).put())
    writes += [Delete(ACTIVITIES, Key(activity_id(owner, row.run, seq)), exists()) for seq in plan.cancelled]
    return after, writes


def _timeout_at_ms(row: Execution, plan: ForkPlan, now_ms: int) -> int | None:
    """Return the end of the execution's time limit, which begins again."""
    if plan.first_timeout_at_ms is None:
        return None
    started_ms = round(datetime.fromisoformat(row.started_at).timestamp() * 1000)
    return now_ms + plan.first_timeout_at_ms - started_ms
