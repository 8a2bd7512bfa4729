"""Errors of the lifecycle as sentences."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.pipelines.lifecycle.messages import error_text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            {"Error": "TriggerFailedError", "Cause": '{"errorMessage": "exit code 3", "errorType": "X"}'},
            "exit code 3",
        ),
        ({"Error": "StoreBusyError", "Cause": '{"errorMessage": "try again"}'}, "try again"),
        ({"Error": "States.Timeout", "Cause": "no heartbeat"}, "States.Timeout: no heartbeat"),
        ({"Error": "States.Timeout", "Cause": '["a list"]'}, 'States.Timeout: ["a list"]'),
        ({"Error": "TriggerFailedError"}, "TriggerFailedError"),
        (
            {
                "Error": "TypeError",
                "Cause": '{"errorMessage": "no \\"date\\" given", "stackTrace": ["  File \\"/var/ta',
            },
            'no "date" given',
        ),
        ("as text", "as text"),
        (None, ""),
    ],
)
def test_error_text__cause_as_json_or_text__is_the_message_alone(error: Any, text: str) -> None:
    assert error_text(error) == text
