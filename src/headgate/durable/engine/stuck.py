"""Setbacks: what becomes of an execution whose next turn cannot be computed.

The turn is tried again with growing pauses, and then the execution is stuck: visible as such, with the error, until
someone mends the code and redrives it. Nothing of a failed turn is written, so that it can go on where it was.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from headgate.durable.engine.turn_commit import Draft, Outlook, dump_error
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import EmitEvent, Status, Woken, dump_event
from headgate.durable.model.records import Execution, Timer, timer_id
from headgate.durable.model.starts import ANY_RUN, RETRY_SEQ

ATTEMPTS_MAX: Final = 5
_FIRST_SECONDS: Final = 0.5
_FACTOR: Final = 4.0
STUCK_EVENT: Final = "headgate.execution.stuck"


def setback(row: Execution, error: ErrorInfo, now_ms: int, outlook: Outlook) -> Draft:
    """Return the draft that records a failed turn, without any of what it would have done."""
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
    draft = Draft(execution=after, writes=[after.replacing(row.version)], sources=[], claims=[], timers_due_ms=[])
    if stuck:
        draft.writes.extend(outlook.emit(after, _alert(after, error)))
    else:
        identifier = timer_id(row.execution_id, ANY_RUN, RETRY_SEQ)
        event = dump_event(Woken("the turn is tried again"))
        draft.writes.append(Timer(identifier, row.execution_id, ANY_RUN, RETRY_SEQ, retry_at_ms, event=event).put())
        draft.timers_due_ms.append(retry_at_ms)
    return draft


def _alert(row: Execution, error: ErrorInfo) -> EmitEvent:
    facts = {
        "execution_id": row.execution_id,
        "workflow": row.workflow,
        "turn": row.turn + 1,
        "attempts": row.failures,
        "error": {"type": error.type, "message": error.message},
    }
    # Numbered by the row's version: each time it gets stuck is an event of its own.
    return EmitEvent(-row.version, STUCK_EVENT, Raw(msgspec.json.encode(facts)), row.execution_id)
