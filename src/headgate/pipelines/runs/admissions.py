"""Admission: decides whether a period may have another attempt, from the log of its earlier ones."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.pipelines.definition.model import RetryPolicy
from headgate.pipelines.enums import Cause, JobEvent, RunStatus
from headgate.pipelines.runs.retries import decide_retry
from headgate.pipelines.runs.rows import Order, RunLog

# An operator requested this period.
_REQUESTED: Final = frozenset({Cause.MANUAL, Cause.REPLAY, Cause.BACKFILL})
# New input that the last attempt did not have.
_NEW_INPUT: Final = frozenset({Cause.SENSOR, Cause.MARKER, Cause.UPSTREAM, Cause.EVENT})
# The last attempt ended before its job started.
_NOT_STARTED: Final = frozenset({JobEvent.VALIDATION_EXHAUSTED, JobEvent.INFRA_TRIGGER_EXHAUSTED})


class Admission(Struct, frozen=True):
    """Whether to proceed, and why."""

    proceeds: bool
    reason: str


class Applicant(Struct, frozen=True, kw_only=True):
    """The execution that asks, holding the lock of the period."""

    cause: Cause
    execution: str = ""
    # Run although the period is done.
    is_replay: bool = False
    # The accepted rerun that this execution is for.
    rerun_id: str = ""


def admit(log: RunLog | None, applicant: Applicant, policy: RetryPolicy) -> Admission:
    """Decide whether a period may have another attempt. A finished period does not start again by itself."""
    if log is None:
        return _yes("nothing was begun")
    is_own = bool(applicant.execution) and applicant.execution == log.execution
    if log.hold is not None:
        return _no(f"{log.hold.by} holds it: {log.hold.reason}")
    is_rerun = applicant.cause is Cause.RERUN and log.is_rerun_due and applicant.rerun_id == log.rerun_id
    if applicant.is_replay or is_rerun:
        return _yes("it was asked for again")
    if log.order is not None and log.order.order is Order.SKIP:
        return _no(f"{log.order.by} skipped it: {log.order.reason}")
    if log.status.is_done:
        return _no(f"it is done, by {log.succeeded_run_id or 'hand'}; ask for a rerun to do it again")
    if not log.status.is_terminal:
        if not log.attempts:
            return _yes("nothing was begun")
        return _yes("its attempt goes on" if is_own else "its last attempt was left open")
    return _after_failure(log, applicant, policy, is_own=is_own)


def _after_failure(log: RunLog, applicant: Applicant, policy: RetryPolicy, *, is_own: bool) -> Admission:
    if applicant.cause in _REQUESTED and not is_own:
        return _yes("someone asks for it")
    if log.status is RunStatus.CANCELLED:
        return _no(f"it was cancelled, {log.reason or 'without a reason'}; ask for a rerun to do it again")
    if not log.attempts:
        return _no(f"it was closed before it began, {log.reason}; ask for a rerun to do it")
    if applicant.cause in _NEW_INPUT and log.event in _NOT_STARTED:
        return _yes("its last attempt ended before the job began, and there is new input")
    retry = decide_retry(policy, log)
    if not retry.is_retryable:
        return _no(f"it failed, and {retry.reason}; ask for a rerun to do it again")
    if is_own or applicant.cause is Cause.RECOVERY or applicant.cause in _NEW_INPUT:
        return _yes(retry.reason)
    return _no("it failed, and its schedule alone does not begin it again")


def _yes(reason: str) -> Admission:
    return Admission(proceeds=True, reason=reason)


def _no(reason: str) -> Admission:
    return Admission(proceeds=False, reason=reason)
