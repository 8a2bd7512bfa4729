"""Stuck policy: records a turn that failed, retries it with growing delays, and then marks the execution as stuck.

A stuck execution keeps its error until an operator redrives it, usually after a fix of the code. Nothing else of a
failed turn is written, so that the execution continues from the turn before.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from headgate.durable.engine.turn_commit import TurnContext, TurnTransaction, dump_error
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import EmitEvent, Status, Woken, dump_event
from headgate.durable.model.records import Execution, Timer, timer_id
from headgate.durable.model.starts import ANY_RUN, RETRY_SEQ

ATTEMPTS_MAX: Final = 5
_FIRST_SECONDS: Final = 0.5
_FACTOR: Final = 4.0
STUCK_EVENT: Final = "headgate.execution.stuck"


def failed_turn(row: Execution, error: ErrorInfo, now_ms: int, context: TurnContext) -> TurnTransaction:
    """Return the transaction that records a failed turn, without any effect of the turn itself."""
    failures = row.failures + 1
    stuck = failures >= ATTEMPTS_MAX
    retry_at_ms = now_ms + round(1000 * _FIRST_SECONDS * _FACTOR ** (failures - 1))
    after = replace(
        row,
        version=row.version + 1,
        status=Status.STUCK if stuck else row.status,
        failures=failures,
        failure=dump_error(error),
        retry_at_ms=None if stuck else retry_at_ms,
    )
    turn = TurnTransaction(
        execution=after, writes=[after.replacing(row.version)], sources=[], claims=[], timers_due_ms=[]
    )
    if stuck:
        turn.writes.extend(context.event_writes(after, _stuck_event(after, error)))
    else:
        identifier = timer_id(row.execution_id, ANY_RUN, RETRY_SEQ)
        event = dump_event(Woken("the turn is tried again"))
        turn.writes.append(Timer(identifier, row.execution_id, ANY_RUN, RETRY_SEQ, retry_at_ms, event=event).put())
        turn.timers_due_ms.append(retry_at_ms)
    return turn


def _stuck_event(row: Execution, error: ErrorInfo) -> EmitEvent:
    facts = {
        "execution_id": row.execution_id,
        "workflow": row.workflow,
        "turn": row.turn + 1,
        "attempts": row.failures,
        "error": {"type": error.type, "message": error.message},
    }
    # Numbered by the row's version, so that each time the execution gets stuck is a separate event.
    return EmitEvent(-row.version, STUCK_EVENT, Raw(msgspec.json.encode(facts)), row.execution_id)
