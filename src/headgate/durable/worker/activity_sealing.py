"""Activity sealing: opens the inputs of activities, and seals their results, errors and heartbeats.

An activity whose input was sealed has a sealed result, whichever workflow calls it; any other has a plain one.
"""

from __future__ import annotations

import structlog
from msgspec import Raw
from msgspec.structs import replace

from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.payload_codec import (
    ERROR,
    HEARTBEAT,
    INPUT,
    RESULT,
    PayloadCodec,
    activity_place,
    is_sealed_text,
    open_sealed,
    seal,
    seal_error,
    seal_once,
    sealed_of,
)
from headgate.durable.model.records import Activity
from headgate.errors import SealedPayloadError

_log = structlog.get_logger(__name__)


class ActivitySealing:
    """The activities of one worker, and the codec of its app, if it has one."""

    def __init__(self, codec: PayloadCodec | None) -> None:
        self._codec = codec
        # Keys that are missing here and were logged.
        self._missing: set[str] = set()

    def can_open(self, activity: Activity) -> bool:
        """Whether this worker has the key of an activity's input. If not, the activity waits for one that has it."""
        stored = [sealed_of(text.encode()) for text in (activity.input, activity.details) if text is not None]
        keys = {sealed.key for sealed in stored if sealed is not None}
        missing = sorted(key for key in keys if self._codec is None or not self._codec.has_key(key))
        for key in missing:
            if key not in self._missing:
                self._missing.add(key)
                _log.error(
                    "activity not claimed: its encryption key is missing here",
                    activity_id=activity.activity_id,
                    name=activity.name,
                    key=key,
                )
        return not missing

    def input_of(self, activity: Activity) -> Raw:
        """Return the input of an activity as JSON of its own. Raises `SealedPayloadError`."""
        raw = Raw(activity.input.encode())
        if self._codec is None or not is_sealed_text(activity.input):
            return raw
        return open_sealed(self._codec, raw, activity.execution_id, activity_place(activity.seq, INPUT))

    def details_of(self, activity: Activity) -> Raw | None:
        """Return the details of the last heartbeat; None if there are none, or if they were altered."""
        if activity.details is None:
            return None
        raw = Raw(activity.details.encode())
        if self._codec is None or not is_sealed_text(activity.details):
            return raw
        try:
            return open_sealed(self._codec, raw, activity.execution_id, activity_place(activity.seq, HEARTBEAT))
        except SealedPayloadError as exc:
            _log.error("heartbeat details dropped", activity_id=activity.activity_id, error=str(exc))
            return None

    def sealed(self, activity: Activity, result: AttemptResult) -> AttemptResult:
        """Return the result of an activity with a sealed input as it is stored."""
        if self._codec is None:
            return result
        execution_id, seq = activity.execution_id, activity.seq
        if result.error is not None:
            return replace(
                result, error=seal_error(self._codec, result.error, execution_id, activity_place(seq, ERROR))
            )
        return replace(result, result=seal_once(self._codec, result.result, execution_id, activity_place(seq, RESULT)))

    def sealed_details(self, activity: Activity, details: Raw) -> Raw:
        """Return the details of a heartbeat as they are stored."""
        if self._codec is None:
            return details
        return seal(self._codec, details, activity.execution_id, activity_place(activity.seq, HEARTBEAT))
