"""What a Lambda function answers when it fails, and what that means for a run."""

from __future__ import annotations

import pytest

from headgate.triggers.aws.lambda_function import failure_of
from headgate.triggers.contract import FailureCategory


@pytest.mark.parametrize(
    ("said", "category", "message"),
    [
        # D27
        (
            '{"errorMessage": "\'id\'", "errorType": "KeyError", "stackTrace": []}',
            FailureCategory.PERMANENT,
            "KeyError",
        ),
        ('{"errorMessage": "no app", "errorType": "Runtime.ImportModuleError"}', FailureCategory.PERMANENT, "no app"),
        (
            '{"errorMessage": "2026-03-03T07:00:00Z 1 Task timed out after 3.00 seconds"}',
            FailureCategory.TIMEOUT,
            "3.00",
        ),
        ('{"errorMessage": "RequestId: 1", "errorType": "Runtime.ExitError"}', FailureCategory.TRANSIENT, "ExitError"),
        ("null", FailureCategory.TRANSIENT, "null"),
        ("not JSON \x07", FailureCategory.TRANSIENT, "not JSON"),
        ("", FailureCategory.TRANSIENT, "it failed"),
    ],
)
def test_failure__by_the_payload__has_a_category(said: str, category: FailureCategory, message: str) -> None:
    error = failure_of("function load", said)

    assert (error.category, error.was_started) == (category, True)
    assert message in str(error)
    assert str(error).isprintable()
