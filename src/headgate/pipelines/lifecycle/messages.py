"""Messages between the state machine and its functions: the call, and the answers."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import InvalidPayloadError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import Cause, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.runs.rows import Slot

_LAMBDA_MESSAGE: Final = re.compile(r'\s*\{\s*"errorMessage"\s*:\s*("(?:[^"\\]|\\.)*")')
# A JSON document with the field names that the state machine reads.
Answer = dict[str, Json]


class Call(Struct, frozen=True, kw_only=True, rename="camel"):
    """One call of a function. The action or mode determines which fields are set."""

    pipeline_id: str
    schedule_id: str
    date: str
    action: str = ""
    mode: str = ""
    run_id: str = ""
    cause: Cause = Cause.MARKER
    replay: bool = False
    rerun_id: str = ""
    by: str = ""
    note: str = ""
    lock_token: str = ""
    execution_name: str = ""
    sensor_arrival_at: str = ""
    trait_results: list[Json] = []
    evaluation_id: str = ""
    task_token: str = ""
    status: RunStatus | None = None
    failure_category: FailureCategory | None = None
    job_event: JobEvent | None = None
    reason: str = ""
    kind: str = ""
    error: Json = None
    final: bool = False
    metadata: dict[str, str] = {}
    sla: Json = None
    warning_at: str = ""
    breach_at: str = ""
    traceparent: str = ""
    # The loop that a continued execution resumes; empty: it starts at the beginning.
    resume_at: str = ""
    # The whole state of an execution that hands over.
    state: Json = None

    @property
    def slot(self) -> Slot:
        """The period of the call."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


def read_call(event: dict[str, Any]) -> Call:
    """Decode a call. Raises `InvalidPayloadError` that names the field."""
    try:
        return typed_decode.convert(event, Call)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"a call of the lifecycle: {exc}; see deploy/statemachine.asl.json") from exc


def error_text(error: Json) -> str:
    """Return the error of a state as one sentence."""
    if isinstance(error, dict):
        name, cause = error.get("Error", ""), error.get("Cause", "")
        message = _message_of(cause)
        if message:
            return message
        return f"{name}: {cause}" if name and cause else str(name or cause)
    return str(error or "")


def _message_of(cause: Json) -> str:
    """Return the message in the cause of a failed function, which is JSON in the form of Lambda; empty: it is none.

    Step Functions cuts a long cause, such as one with a deep stack trace.
    """
    try:
        found = msgspec.json.decode(cause) if isinstance(cause, str) else cause
    except msgspec.DecodeError:
        cut = _LAMBDA_MESSAGE.match(str(cause))
        return "" if cut is None else str(msgspec.json.decode(cut[1]))
    return str(found.get("errorMessage", "")) if isinstance(found, dict) else ""
