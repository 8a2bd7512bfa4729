"""One-shots: schedules of EventBridge Scheduler that fire once, and are gone after that."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from headgate.pipelines.definition.model import Json
from headgate.pipelines.lifecycle.aws_errors import asking

_NAME_MAX: Final = 64
_DIGEST_CHARS: Final = 16
_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]")
# A call that fails is made again, and for so long: later than that its answer is not worth having.
_AGE_SECONDS_MAX: Final = 3_600
_RETRIES_MAX: Final = 10


class OneShots:
    """One-shot schedules in one group, which call as one role."""

    def __init__(self, client: Any, *, role_arn: str, group: str) -> None:  # noqa: ANN401 - boto3 has no types here
        self._client = client
        self._role_arn = role_arn
        self._group = group

    def put(self, wish: str, at: datetime, target_arn: str, given: Json) -> bool:
        """Have a target called with `given` at a time. False: the same wish waits already.

        Raises `TransientError` and `StoreIOError`.
        """
        # Rounded up: whoever is called before the time finds that it has not come.
        second = datetime.fromtimestamp(-(-at.timestamp() // 1), UTC)
        name = schedule_name(wish)
        with asking(f"schedule {name}"):
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
                        "Input": msgspec.json.encode(given).decode(),
                        "RetryPolicy": {
                            "MaximumEventAgeInSeconds": _AGE_SECONDS_MAX,
                            "MaximumRetryAttempts": _RETRIES_MAX,
                        },
                    },
                )
            except self._client.exceptions.ConflictException:
                return False
        return True

    def drop(self, wish: str) -> None:
        """Take a schedule back; one that has fired, or never was, is gone. Raises `TransientError`, `StoreIOError`."""
        name = schedule_name(wish)
        with asking(f"schedule {name}"):
            try:
                self._client.delete_schedule(Name=name, GroupName=self._group)
            except self._client.exceptions.ResourceNotFoundException:
                return


def schedule_name(wish: str) -> str:
    """Return a name for a wish: readable, the same for the same wish, and at most 64 characters."""
    digest = hashlib.sha256(wish.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{_OTHER.sub('_', wish)[: _NAME_MAX - _DIGEST_CHARS - 1]}-{digest}"
