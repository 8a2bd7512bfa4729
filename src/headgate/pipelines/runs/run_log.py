"""Run log transitions: pure functions that change the log of a period as its attempts start, proceed and end."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from headgate.pipelines.enums import Cause, FailureCategory, RunStatus
from headgate.pipelines.runs.rows import HISTORY_MAX, Attempt, Order, Run, RunLog, Slot

# The period was requested once more: earlier failures do not count.
_REQUESTED: Final = frozenset({Cause.MANUAL, Cause.RERUN, Cause.REPLAY, Cause.BACKFILL})


def opened(slot: Slot, now_ms: int) -> RunLog:
    """Return the log of a period without attempts."""
    return RunLog(
        **slot._asdict(),
        status=RunStatus.PENDING,
        version=1,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
    )


def started(log: RunLog | None, run: Run, now_ms: int) -> RunLog:
    """Return the log after `run` has started: one attempt more, which only this function adds."""
    before = log if log is not None else opened(run.slot, now_ms)
    # The retries of one execution keep its cause.
    is_retry = bool(run.execution) and run.execution == before.execution
    is_fresh = before.status.is_done or (run.cause in _REQUESTED and not is_retry)
    is_same_pursuit = bool(before.attempts) and not is_fresh
    is_kept = before.order is not None and before.order.order is Order.FORCE
    attempt = Attempt(
        number=run.attempt,
        run_id=run.run_id,
        status=run.status,
        cause=run.cause,
        begun_at_ms=now_ms,
        by=run.by,
        execution=run.execution,
    )
    return replace(
        before,
        version=1 if log is None else before.version + 1,
        updated_at_ms=now_ms,
        status=run.status,
        attempts=run.attempt,
        run_id=run.run_id,
        cause=run.cause,
        by=run.by,
        execution=run.execution,
        category=None,
        event=None,
        reason="",
        recovered_from="",
        begun_at_ms=now_ms,
        ended_at_ms=None,
        failures=before.failures if is_same_pursuit else 0,
        permanent_failures=before.permanent_failures if is_same_pursuit else 0,
        rerun_id=run.rerun_id or before.rerun_id,
        is_rerun_due=False,
        order=before.order if is_kept else None,
        history=(*before.history, attempt)[-HISTORY_MAX:],
    )


def updated(log: RunLog, run: Run, now_ms: int) -> RunLog:
    """Return the log after a change of `run`.

    A run that a later one has replaced changes only its own line in the history.
    """
    noted = replace(
        log,
        version=log.version + 1,
        updated_at_ms=now_ms,
        history=tuple(_updated_line(line, run) for line in log.history),
    )
    if log.run_id != run.run_id:
        return noted
    # A monitored run can still fail; only a run that never succeeded counts as a failure.
    is_failure = run.status is RunStatus.FAILED and not log.status.is_done
    is_permanent = run.category is FailureCategory.PERMANENT
    is_success = run.status.is_done and not log.status.is_done
    is_forced = log.order is not None and log.order.order is Order.FORCE
    return replace(
        noted,
        status=run.status,
        execution=run.execution,
        category=run.category,
        event=run.event,
        reason=run.reason,
        ended_at_ms=run.ended_at_ms,
        failures=log.failures + (is_failure and not is_permanent),
        permanent_failures=log.permanent_failures + (is_failure and is_permanent),
        succeeded_at_ms=now_ms if is_success else log.succeeded_at_ms,
        succeeded_run_id=run.run_id if is_success else log.succeeded_run_id,
        order=None if is_success and is_forced else log.order,
    )


def recovered(log: RunLog, run: Run, now_ms: int) -> RunLog:
    """Return the log after the job of a failed run was repaired: the period is done by that run."""
    # The run may be an earlier attempt than the last one, which has failed as well.
    return replace(
        updated(replace(log, run_id=run.run_id, cause=run.cause), run, now_ms), recovered_from=run.recovered_from
    )


def _updated_line(line: Attempt, run: Run) -> Attempt:
    if line.run_id != run.run_id:
        return line
    return replace(
        line,
        status=run.status,
        category=run.category,
        event=run.event,
        reason=run.reason,
        ended_at_ms=run.ended_at_ms,
        recovered_from=run.recovered_from,
    )
