"""Stuck policy: records a turn that failed, retries it with growing delays, and then marks the execution as stuck.

A turn that fails with the code of one build is tried with every other build that a live worker has, each once, before
it is retried with delays. A stuck execution keeps its error until a worker with another build joins, or an operator
redrives it. Nothing else of a failed turn is written, so that the execution continues from the turn before.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate.durable.engine.turn_commit import TurnContext, TurnTransaction, dump_error
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import EmitEvent, Status, Woken, dump_event
from headgate.durable.model.records import Execution, Timer, message, timer_id
from headgate.durable.model.starts import ANY_RUN, RETRY_SEQ
from headgate.store.model.requests import Write

ATTEMPTS_MAX: Final = 5
_FIRST_SECONDS: Final = 0.5
_FACTOR: Final = 4.0
STUCK_EVENT: Final = "headgate.execution.stuck"
# Older entries are dropped: each deployment of code that fails adds one.
BUILDS_MAX: Final = 50


class TurnError(Struct, frozen=True):
    """The exception of a turn."""

    type: str
    message: str


class ExecutionStuck(Struct, frozen=True):
    """The data of `headgate.execution.stuck`: a turn failed with every build, and is not tried again."""

    execution_id: str
    workflow: str
    turn: int
    attempts: int
    error: TurnError


def with_failed_build(row: Execution, build: str, *, is_unfit: bool) -> Execution:
    """Return a row that records the failure of a build; with `is_unfit`, for the rest of the run and not one turn."""
    if is_unfit:
        return replace(row, unfit_builds=_with(row.unfit_builds, build))
    return replace(row, failed_builds=_with(row.failed_builds, build))


def _with(builds: tuple[str, ...], build: str) -> tuple[str, ...]:
    return (*[each for each in builds if each != build], build)[-BUILDS_MAX:]


def failed_turn(
    row: Execution, error: ErrorInfo, now_ms: int, context: TurnContext, *, has_untried_build: bool
) -> TurnTransaction:
    """Return the transaction that records a failed turn, without any effect of the turn itself.

    With `has_untried_build`, a live worker has other code, and tries the turn at once.
    """
    if has_untried_build:
        # Not counted: the attempts with delays begin when every build has failed.
        after = replace(row, version=row.version + 1, failure=dump_error(error), retry_at_ms=None)
        woken = message(row.execution_id, Woken("the turn is tried with another build"), now_ms, context.unique())
        return TurnTransaction(
            execution=after,
            writes=[after.replacing(row.version), woken.put()],
            sources=[],
            claims=[],
            timers_due_ms=[],
        )
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


def released(row: Execution, now_ms: int, unique: str, reason: str) -> list[Write]:
    """Return the writes that have the turn of a stuck execution tried again. `row` is the stuck one, as it becomes."""
    freed = replace(row, version=row.version + 1, status=Status.RUNNING, retry_at_ms=None)
    return [freed.replacing(row.version), message(row.execution_id, Woken(reason), now_ms, unique).put()]


def _stuck_event(row: Execution, error: ErrorInfo) -> EmitEvent:
    facts = ExecutionStuck(
        row.execution_id, row.workflow, row.turn + 1, row.failures, TurnError(error.type, error.message)
    )
    # Numbered by the row's version, so that each time the execution gets stuck is a separate event.
    return EmitEvent(-row.version, STUCK_EVENT, Raw(msgspec.json.encode(facts)), row.execution_id)
