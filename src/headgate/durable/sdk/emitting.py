"""Event emission from workflow and activity code."""

from __future__ import annotations

from typing import Any, Final

from headgate.durable.bus.events import EVENT_BYTES_MAX, Event, check
from headgate.durable.model import payload
from headgate.durable.model.history import EmitEvent
from headgate.durable.replay.interpreter import running
from headgate.durable.sdk.activity_context import running_activity
from headgate.errors import PayloadTooLargeError, WorkflowViolationError

# The room for the attributes of an event.
_ENVELOPE_BYTES: Final = 16_000


def emit(type: str, data: Any = None, *, subject: str = "", id: str = "") -> None:  # noqa: ANN401 - CloudEvents' own
    """Emit an event on the bus.

    In a workflow it is part of the turn. In an activity it is durable when this returns, and a retry of the activity
    emits the same event, which is delivered once. `id` is an idempotency key: the same execution (in an activity, the
    same app) emits an event of an id once within a day, also after a reset. Other code uses `app.emit()`.
    """
    raw = payload.encode(data, what=f"data of event {type}")
    # Checked here, so that the error is raised in the calling code.
    if len(bytes(raw)) > EVENT_BYTES_MAX - _ENVELOPE_BYTES:
        raise PayloadTooLargeError(
            f"event {type}: {len(bytes(raw)):,} bytes of data; an event has at most {EVENT_BYTES_MAX:,} in all; "
            "store the data elsewhere and send a reference"
        )
    check(Event(type=type, source="/headgate", id=id or "new", subject=subject, data=raw))
    interpreter = running()
    if interpreter is not None:
        interpreter.issue(EmitEvent(interpreter.next_seq(), type, raw, subject, id))
        return
    context = running_activity()
    if context is None:
        raise WorkflowViolationError(
            "hg.emit() belongs into a workflow or an activity, and none is running here; elsewhere use app.emit()"
        )
    context.emit(type, raw, subject, id)
