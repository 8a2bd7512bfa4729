"""Activity functions: Lambda functions of their own for activities, invoked asynchronously.

Lambda keeps such an event in a queue of its own, retries it, and sends a record of what it gives up on to the failure
destination. As with queues, the event only names a row, whose lease and token decide who runs the activity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec
import structlog
from botocore.exceptions import BotoCoreError, ClientError

from headgate.durable.serverless.wakeups import ActivityWake, Due, dump_due, load_due
from headgate.errors import InvalidPayloadError, TransientError
from headgate.store.dynamodb.client import Fault, classify

if TYPE_CHECKING:
    from mypy_boto3_lambda import LambdaClient

# Refusals of Lambda that pass by themselves.
_PASSING: Final = frozenset({"ResourceConflictException", "ResourceNotReadyException", "TooManyRequestsException"})
_log = structlog.get_logger(__name__)


class ActivityFunctions:
    """The functions of activities, by the name of the activity. Safe to use from many threads."""

    def __init__(self, client: LambdaClient, arns: Mapping[str, str]) -> None:
        self._client = client
        self._arns = arns

    def invoke(self, wake: ActivityWake) -> bool:
        """Invoke the function of an activity. False if that is refused for good: the sweep tries it again.

        Raises `TransientError`.
        """
        arn = self._arns[wake.name]
        try:
            self._client.invoke(FunctionName=arn, InvocationType="Event", Payload=dump_due(Due(wake, 0)).encode())
        except (ClientError, BotoCoreError) as exc:
            if _is_final(exc):
                _log.error("invocation refused", activity_id=wake.activity_id, function=arn, error=str(exc))
                return False
            raise TransientError(f"function {arn}: {exc}; it is tried again") from exc
        return True


def invoked_wake(event: object) -> ActivityWake:
    """Return what a function was invoked with. Raises `InvalidPayloadError` if it is not the event of an activity."""
    try:
        due = load_due(msgspec.json.encode(event).decode())
    except msgspec.DecodeError as exc:
        raise InvalidPayloadError(f"event: {exc}; only the waker invokes this function") from exc
    if not isinstance(due.wake, ActivityWake):
        raise InvalidPayloadError("event: it names no activity; only the waker invokes this function")
    return due.wake


def _is_final(error: ClientError | BotoCoreError) -> bool:
    if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _PASSING:
        return False
    return classify(error) is Fault.FINAL
