"""Failed attempts: the errors of activities with their tracebacks, from the history and the open rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from headgate.durable.engine.activity_store import failed_attempts_of
from headgate.durable.model.failures import ErrorInfo
from headgate.durable.model.history import ActivityEnded, FailedAttempt, StartActivity, Turn
from headgate.durable.model.records import Activity

# Turns that are searched, the last ones.
TURNS_MAX: Final = 2_000


class AttemptFailure(Struct, frozen=True):
    """A failed attempt at an activity. `is_final`: there was no further one."""

    activity: str
    seq: int
    run: int
    attempt: int
    worker: str
    started_at_ms: int
    ended_at_ms: int
    error: ErrorInfo
    is_final: bool


def attempt_failures(turns: Iterable[Turn], open_rows: Sequence[Activity], limit: int) -> list[AttemptFailure]:
    """Return the last `limit` failed attempts of these turns and of activities that have not ended, newest first."""
    found: list[AttemptFailure] = []
    names: dict[tuple[int, int], str] = {}
    for turn in turns:
        for event in turn.events:
            if isinstance(event, ActivityEnded) and (event.error is not None or event.earlier):
                found += _of_event(event, names.get((turn.run, event.seq), f"#{event.seq}"), turn.run)
                # Long histories may have very many.
                found = found[-limit:] if len(found) > 2 * limit else found
        names.update({(turn.run, each.seq): each.name for each in turn.commands if isinstance(each, StartActivity)})
    for row in open_rows:
        found += [_earlier(each, row.name, row.seq, row.run) for each in failed_attempts_of(row)]
    return sorted(found, key=lambda each: each.ended_at_ms, reverse=True)[:limit]


def _of_event(event: ActivityEnded, name: str, run: int) -> list[AttemptFailure]:
    failures = [_earlier(each, name, event.seq, run) for each in event.earlier]
    if event.error is not None:
        failures.append(
            AttemptFailure(
                activity=name,
                seq=event.seq,
                run=run,
                attempt=event.attempts,
                worker=event.worker,
                started_at_ms=event.started_at_ms,
                ended_at_ms=event.ended_at_ms,
                error=event.error,
                is_final=True,
            )
        )
    return failures


def _earlier(attempt: FailedAttempt, name: str, seq: int, run: int) -> AttemptFailure:
    return AttemptFailure(
        activity=name,
        seq=seq,
        run=run,
        attempt=attempt.attempt,
        worker=attempt.worker,
        started_at_ms=attempt.started_at_ms,
        ended_at_ms=attempt.ended_at_ms,
        error=ErrorInfo(type=attempt.type, message=attempt.message, trace=attempt.trace),
        is_final=False,
    )
