"""Lost invocations: counts the attempts of activities whose asynchronous invocation Lambda gave up on.

Lambda sends a record to the failure destination after the last retry, or when the event has become too old. The
invocation may have died before it claimed the activity, while it held the claim, or after the activity had ended.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct

from headgate.durable.model.failures import ErrorInfo
from headgate.durable.serverless.activity_functions import invoked_wake
from headgate.durable.serverless.lease_watch import LeaseWatch
from headgate.durable.serverless.wakeups import ActivityWake, Due
from headgate.durable.service import Service
from headgate.errors import InvalidPayloadError, StaleClaimError

INVOCATION_FAILED: Final = "InvocationFailed"
_REASON_CHARACTERS_MAX: Final = 500
_log = structlog.get_logger(__name__)


class _Request(Struct, rename="camel"):
    condition: str


class _Record(Struct, rename="camel"):
    """The invocation record of Lambda. There is no response to an event that became too old."""

    request_context: _Request
    request_payload: dict[str, Any]
    response_payload: Any = None


class LostInvocation(Struct, frozen=True):
    """An invocation that Lambda gave up on, and why."""

    wake: ActivityWake
    reason: str


_decoder: Final = msgspec.json.Decoder(_Record)


def load_record(body: str) -> LostInvocation:
    """Return what the message of a failure destination says. Raises `InvalidPayloadError`."""
    try:
        record = _decoder.decode(body)
    except msgspec.DecodeError as exc:
        raise InvalidPayloadError(f"message: {exc}; it is no invocation record of Lambda") from exc
    answer = record.response_payload
    message = answer.get("errorMessage") if isinstance(answer, dict) else None
    reason = record.request_context.condition if message is None else f"{record.request_context.condition}: {message}"
    return LostInvocation(invoked_wake(record.request_payload), reason[:_REASON_CHARACTERS_MAX])


class LostInvocations:
    """Counts lost attempts. Any number of them may run at once, and each record may come twice."""

    def __init__(self, service: Service) -> None:
        self._worker = service.worker(queues=())
        self._workers = LeaseWatch(self._worker, service.store)

    def count(self, lost: LostInvocation) -> Due | None:
        """Fail an attempt that never started. Returns a check of the worker that holds the activity, if one does.

        An activity that has ended, or waits for another attempt, is left alone.
        """
        wake = lost.wake
        row = self._worker.activities.find(wake.activity_id)
        if row is None:
            return None
        if row.queue_pk is None:
            # The holder may be another invocation of the same attempt, which is alive: its heartbeat decides.
            is_lost = row.attempt == wake.attempt and not row.is_external
            return self._workers.check_of(row.worker, lost.reason) if is_lost else None
        if row.attempt + 1 == wake.attempt:
            fact = f"activity {row.activity_id} attempt {wake.attempt}: Lambda gave up its invocation: {lost.reason}"
            try:
                self._worker.activities.fail_unstarted(row, ErrorInfo(type=INVOCATION_FAILED, message=fact))
            except StaleClaimError:
                _log.info("activity claimed by another worker", activity_id=row.activity_id, attempt=wake.attempt)
            else:
                _log.warning("invocation lost", activity_id=row.activity_id, attempt=wake.attempt, reason=lost.reason)
        return None
