"""EventBridge Scheduler timers: one-time schedules that delete themselves after they fire."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headgate.pipelines.definition.model import Json
from headgate.pipelines.lifecycle.aws_errors import aws_request

_NAME_MAX: Final = 64
_DIGEST_CHARS: Final = 16
_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]")
# EventBridge retries a failed call within this time and number of attempts.
_AGE_SECONDS_MAX: Final = 3_600
_RETRIES_MAX: Final = 10


class OneShotSchedules:
    """Creates and deletes one-time schedules in one schedule group, under one role."""

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - boto3 has no types here
        *,
        role_arn: str,
        group: str,
        dead_letters_arn: str = "",
    ) -> None:
        """`dead_letters_arn` is the queue for calls that EventBridge gives up; without it they are only counted."""
        self._dead_letters = {"DeadLetterConfig": {"Arn": dead_letters_arn}} if dead_letters_arn else {}
        self._client = client
        self._role_arn = role_arn
        self._group = group

    def put(self, timer_id: str, at: datetime, target_arn: str, target_input: Json) -> bool:
        """Schedule one call of a target. False: a schedule for this id exists already.

        Raises `TransientError` and `StoreIOError`.
        """
        # Rounded up: a target that is called early finds its time not reached.
        second = datetime.fromtimestamp(-(-at.timestamp() // 1), UTC)
        name = schedule_name(timer_id)
        with aws_request(f"schedule {name}"):
            try:
                self._client.create_schedule(
                    Name=name,
                    GroupName=self._group,
                    ScheduleExpression=f"at({second:%Y-%m-%dT%H:%M:%S})",
                    ScheduleExpressionTimezone="UTC",
                    FlexibleTimeWindow={"Mode": "OFF"},
                    ActionAfterCompletion="DELETE",
                    Target={
                        "Arn": target_arn,
                        "RoleArn": self._role_arn,
                        "Input": msgspec.json.encode(target_input).decode(),
                        "RetryPolicy": {
                            "MaximumEventAgeInSeconds": _AGE_SECONDS_MAX,
                            "MaximumRetryAttempts": _RETRIES_MAX,
                        },
                        **self._dead_letters,
                    },
                )
            except self._client.exceptions.ConflictException:
                return False
        return True

    def drop(self, timer_id: str) -> None:
        """Delete a schedule; a missing one is no error. Raises `TransientError`, `StoreIOError`."""
        name = schedule_name(timer_id)
        with aws_request(f"schedule {name}"):
            try:
                self._client.delete_schedule(Name=name, GroupName=self._group)
            except self._client.exceptions.ResourceNotFoundException:
                return


def schedule_name(timer_id: str) -> str:
    """Return a schedule name of at most 64 characters: readable, deterministic and unique for an id."""
    digest = hashlib.sha256(timer_id.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{_OTHER.sub('_', timer_id)[: _NAME_MAX - _DIGEST_CHARS - 1]}-{digest}"
