"""Calls: what the lifecycle asks of its functions, and the words in which they answer."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.errors import InvalidPayloadError
from headgate.pipelines.definition.model import Json
from headgate.pipelines.enums import Cause, FailureCategory, JobEvent, RunStatus
from headgate.pipelines.runs.rows import Slot

# An answer is a document of the machine: JSON with the names that the lifecycle reads.
Answer = dict[str, Json]


class Call(Struct, frozen=True, kw_only=True, rename="camel"):
    """One call. Which fields it has depends on the action or mode that it names."""

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

    @property
    def slot(self) -> Slot:
        """The period that it is about."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


def read_call(event: dict[str, Any]) -> Call:
    """Return a call. Raises `InvalidPayloadError` that names the field."""
    try:
        return typed_decode.convert(event, Call)
    except msgspec.ValidationError as exc:
        raise InvalidPayloadError(f"a call of the lifecycle: {exc}; see deploy/statemachine.asl.json") from exc


def cause_of(error: Json) -> str:
    """Return what an error of a state says, in a sentence."""
    if isinstance(error, dict):
        name, cause = error.get("Error", ""), error.get("Cause", "")
        return f"{name}: {cause}" if name and cause else str(name or cause)
    return str(error or "")
