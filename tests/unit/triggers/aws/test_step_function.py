"""What DescribeExecution says, and what it means for a run."""

from __future__ import annotations

import pytest

from headgate.triggers.aws.step_function import execution_arn, judge
from headgate.triggers.contract import FailureCategory, JobState

MACHINE = "arn:aws:states:eu-west-1:123456789012:stateMachine:load"


@pytest.mark.parametrize(
    ("status", "error", "state", "category"),
    [
        ("RUNNING", None, JobState.RUNNING, None),
        ("PENDING_REDRIVE", None, JobState.RUNNING, None),
        ("SUCCEEDED", None, JobState.SUCCEEDED, None),
        ("TIMED_OUT", None, JobState.FAILED, FailureCategory.TIMEOUT),
        ("ABORTED", None, JobState.FAILED, FailureCategory.TRANSIENT),
        ("FAILED", "States.Timeout", JobState.FAILED, FailureCategory.TIMEOUT),
        # D27
        ("FAILED", "States.Runtime", JobState.FAILED, FailureCategory.PERMANENT),
        ("FAILED", "States.DataLimitExceeded", JobState.FAILED, FailureCategory.PERMANENT),
        ("FAILED", "KeyError", JobState.FAILED, FailureCategory.PERMANENT),
        ("FAILED", "Lambda.TooManyRequestsException", JobState.FAILED, FailureCategory.TRANSIENT),
        ("FAILED", None, JobState.FAILED, FailureCategory.TRANSIENT),
        # bug 42
        (None, None, JobState.RUNNING, None),
    ],
)
def test_judge__every_status__has_a_meaning(
    status: str | None, error: str | None, state: JobState, category: FailureCategory | None
) -> None:
    polled = judge({"status": status, "error": error})

    assert (polled.state, polled.category) == (state, category)


@pytest.mark.parametrize("arn", [MACHINE, f"{MACHINE}:PROD", f"{MACHINE}:7"])
def test_execution_arn__of_a_machine_a_version_or_an_alias__is_the_machines(arn: str) -> None:
    assert execution_arn(arn, "run_1") == "arn:aws:states:eu-west-1:123456789012:execution:load:run_1"
