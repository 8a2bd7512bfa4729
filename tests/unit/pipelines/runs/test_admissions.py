"""Whether a period may have another attempt, and whether a failure is tried again."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import RetryPolicy
from headgate.pipelines.enums import Cause, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.runs.admissions import Applicant, admit
from headgate.pipelines.runs.retries import backoff_seconds, decide_retry
from headgate.pipelines.runs.rows import RunLog
from tests.unit.pipelines.run_rig import SLOT

TRANSIENT, PERMANENT, TIMEOUT, CRASH = (
    FailureCategory.TRANSIENT, FailureCategory.PERMANENT, FailureCategory.TIMEOUT, FailureCategory.EVALUATOR_CRASH,
)  # fmt: skip


def _log(status: RunStatus, **more: Any) -> RunLog:
    given: dict[str, Any] = {"attempts": 1, "run_id": "run_1", "execution": "exec-1", **more}
    return RunLog(**SLOT._asdict(), status=status, version=1, created_at_ms=0, updated_at_ms=0, **given)


FAILED = _log(RunStatus.FAILED, failures=1, category=TRANSIENT)
SPENT = _log(RunStatus.FAILED, failures=3, category=TRANSIENT)
BAD_CODE = _log(RunStatus.FAILED, permanent_failures=1, category=PERMANENT)
NOT_READY = _log(RunStatus.FAILED, failures=3, category=TIMEOUT, event=JobEvent.VALIDATION_EXHAUSTED)
NOT_STARTED = _log(RunStatus.FAILED, failures=3, category=TRANSIENT, event=JobEvent.INFRA_TRIGGER_EXHAUSTED)
CLOSED = _log(RunStatus.FAILED, attempts=0, run_id="", execution="", reason="too late")
DONE = _log(RunStatus.COMPLETED, succeeded_run_id="run_1")


@pytest.mark.parametrize(
    ("log", "cause", "execution", "proceeds"),
    [
        (None, Cause.CRON, "exec-1", True),
        (_log(RunStatus.PENDING, attempts=0, run_id=""), Cause.CRON, "exec-1", True),
        # A finished period stays finished for every caller.
        *((DONE, cause, "exec-2", False) for cause in Cause if cause is not Cause.REPLAY),
        (_log(RunStatus.COMPLETED_MONITORING), Cause.RECOVERY, "exec-2", False),
        # With the lock in hand: the same execution goes on, another takes over what was left open.
        (_log(RunStatus.RUNNING), Cause.SENSOR, "exec-1", True),
        (_log(RunStatus.RUNNING), Cause.SENSOR, "exec-2", True),
        # A failure with attempts left is tried again by its own execution and by the watchdog, and for news.
        (FAILED, Cause.CRON, "exec-1", True),
        (FAILED, Cause.RECOVERY, "exec-2", True),
        (FAILED, Cause.MARKER, "exec-2", True),
        (FAILED, Cause.CRON, "exec-2", False),
        # One whose attempts are used up is not, by anyone but who asks for it.
        (SPENT, Cause.CRON, "exec-1", False),
        (SPENT, Cause.RECOVERY, "exec-2", False),
        (SPENT, Cause.SENSOR, "exec-2", False),
        (BAD_CODE, Cause.RECOVERY, "exec-2", False),
        (SPENT, Cause.MANUAL, "exec-2", True),
        (SPENT, Cause.BACKFILL, "exec-2", True),
        (SPENT, Cause.MANUAL, "exec-1", False),
        # Where no job ever began, news begin it; the watchdog does not.
        (NOT_READY, Cause.SENSOR, "exec-2", True),
        (NOT_READY, Cause.RECOVERY, "exec-2", False),
        (NOT_STARTED, Cause.MARKER, "exec-2", True),
        (NOT_STARTED, Cause.RECOVERY, "exec-2", False),
        # Closed at its deadline, or cancelled by someone.
        (CLOSED, Cause.SENSOR, "exec-2", False),
        (CLOSED, Cause.RECOVERY, "exec-2", False),
        (CLOSED, Cause.MANUAL, "exec-2", True),
        (_log(RunStatus.CANCELLED), Cause.SENSOR, "exec-2", False),
        (_log(RunStatus.CANCELLED), Cause.CRON, "exec-1", False),
        (_log(RunStatus.CANCELLED), Cause.MANUAL, "exec-2", True),
    ],
)
def test_admit__by_how_the_period_stands__begins_nothing_again_by_itself(  # bugs 19, 20, 45, D8
    log: RunLog | None, cause: Cause, execution: str, proceeds: bool
) -> None:
    admission = admit(log, Applicant(cause=cause, execution=execution), RetryPolicy())

    assert admission.proceeds == proceeds
    assert admission.reason


@pytest.mark.parametrize(
    ("is_due", "rerun_id", "proceeds"), [(True, "rerun_1", True), (False, "rerun_1", False), (True, "rerun_2", False)]
)
def test_admit__a_rerun__passes_once_and_only_if_it_was_accepted(is_due: bool, rerun_id: str, proceeds: bool) -> None:
    log = _log(RunStatus.COMPLETED, rerun_id="rerun_1", is_rerun_due=is_due)
    asks = Applicant(cause=Cause.RERUN, execution="exec-2", rerun_id=rerun_id)

    assert admit(log, asks, RetryPolicy()).proceeds == proceeds


def test_admit__a_replay__passes_whatever_was_done() -> None:
    assert admit(DONE, Applicant(cause=Cause.REPLAY, is_replay=True), RetryPolicy()).proceeds


@pytest.mark.parametrize(
    ("category", "failures", "permanent_failures", "policy", "is_retryable", "is_exhausted"),
    [
        (TRANSIENT, 1, 0, RetryPolicy(), True, False),
        (TRANSIENT, 2, 0, RetryPolicy(), True, False),
        (TRANSIENT, 3, 0, RetryPolicy(), False, True),
        (TIMEOUT, 1, 0, RetryPolicy(), True, False),
        # No category counts as transient.
        (None, 1, 0, RetryPolicy(), True, False),
        (CRASH, 1, 0, RetryPolicy(), False, False),
        (CRASH, 1, 0, RetryPolicy(categories=(CRASH,)), True, False),
        (TRANSIENT, 1, 0, RetryPolicy(attempts=1), False, False),
        # What trying again is not known to help against has a budget of its own; 0 is none.
        (PERMANENT, 0, 1, RetryPolicy(), False, False),
        (PERMANENT, 0, 1, RetryPolicy(permanent_retries=1), True, False),
        (PERMANENT, 2, 1, RetryPolicy(permanent_retries=1), True, False),
        (PERMANENT, 0, 2, RetryPolicy(permanent_retries=1), False, True),
        (TRANSIENT, 1, 9, RetryPolicy(), True, False),
    ],
)
def test_decide_retry__by_category__keeps_to_the_budget_of_its_kind(  # bug 44
    category: FailureCategory | None,
    failures: int,
    permanent_failures: int,
    policy: RetryPolicy,
    is_retryable: bool,
    is_exhausted: bool,
) -> None:
    log = _log(RunStatus.FAILED, category=category, failures=failures, permanent_failures=permanent_failures)

    decision = decide_retry(policy, log)

    assert (decision.is_retryable, decision.is_exhausted) == (is_retryable, is_exhausted)
    assert (decision.backoff_seconds > 0) == is_retryable


@pytest.mark.parametrize("status", [status for status in RunStatus if status is not RunStatus.FAILED])
def test_decide_retry__of_what_has_not_failed__is_no(status: RunStatus) -> None:
    assert not decide_retry(RetryPolicy(), _log(status)).is_retryable


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 30), (1, 30), (2, 60), (3, 120), (7, 1_920), (8, 3_600), (5_000, 3_600)]
)
def test_backoff_seconds__with_every_failure__doubles_up_to_a_bound(failures: int, seconds: float) -> None:
    assert backoff_seconds(RetryPolicy(), failures) == seconds


def test_backoff_seconds__a_steep_policy__is_still_bounded() -> None:
    steep = RetryPolicy(backoff=Seconds(1), multiplier=1_000.0, backoff_max=Seconds(5))

    assert backoff_seconds(steep, 10_000) == 5
