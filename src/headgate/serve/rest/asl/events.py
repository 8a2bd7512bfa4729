"""Execution events in the shape of Step Functions' GetExecutionHistory, with JSON values instead of JSON text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from headgate.asl.runtime.history import HistoryEvent
from headgate.durable.model.records import instant

# Event types that have details in GetExecutionHistory.
_ENDS: Final = {
    "Activity": ("Scheduled", "ScheduleFailed", "Started", "Succeeded", "Failed", "TimedOut"),
    "Execution": ("Started", "Succeeded", "Failed", "TimedOut", "Aborted", "Redriven"),
    "LambdaFunction": ("Scheduled", "ScheduleFailed", "StartFailed", "Succeeded", "Failed", "TimedOut"),
    "MapIteration": ("Started", "Succeeded", "Failed", "Aborted"),
    "MapRun": ("Started", "Failed", "Redriven"),
    "MapState": ("Started",),
    "Task": (
        "Scheduled", "StartFailed", "Started", "SubmitFailed", "Submitted", "Succeeded", "Failed", "TimedOut",
    ),
    "Evaluation": ("Failed",),
}  # fmt: skip
_DETAILED: Final = frozenset(f"{word}{end}" for word, ends in _ENDS.items() for end in ends)
_CAUSE_MAX: Final = 200
_WHOLE: Final = ("timeoutInSeconds", "heartbeatInSeconds")


def event_view(event: HistoryEvent) -> dict[str, Any]:
    """Return an event in the shape of GetExecutionHistory."""
    result: dict[str, Any] = {
        "id": event.id,
        "previousEventId": event.previous_id,
        "timestamp": instant(event.at_ms),
        "type": event.type,
    }
    key = details_key(event.type)
    if key is not None and event.details:
        result[key] = {name: _value(name, value) for name, value in event.details.items()}
    return result


def details_key(type: str) -> str | None:
    """Return the key of the details of an event type, or None if it has none."""
    for end, key in (("StateEntered", "stateEnteredEventDetails"), ("StateExited", "stateExitedEventDetails")):
        if type.endswith(end):
            return key
    return f"{type[0].lower()}{type[1:]}EventDetails" if type in _DETAILED else None


def details_of(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the details of an event from `event_view`."""
    key = details_key(event["type"])
    found: Mapping[str, Any] = {} if key is None else event.get(key, {})
    return found


def _value(name: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    return int(value) if name in _WHOLE and isinstance(value, float) and value.is_integer() else value


def error_text(error: str, cause: str) -> str:
    """Return error and cause on one line; of a Lambda error only its message."""
    try:
        inner = json.loads(cause)
        cause = inner["errorMessage"] if isinstance(inner, dict) and "errorMessage" in inner else cause
    except (ValueError, RecursionError):
        pass  # Plain text.
    line = " ".join(str(cause).split())
    short = line if len(line) <= _CAUSE_MAX else f"{line[: _CAUSE_MAX - 1]}…"
    return ": ".join(filter(None, (error, short)))
