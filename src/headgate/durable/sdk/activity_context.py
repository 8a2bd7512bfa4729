"""Activity context: what the code of an activity can use: its identity, heartbeats, and completion from outside."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar, overload

from msgspec import Raw, Struct

from headgate.durable.model import payload
from headgate.durable.model.failures import Cancelled
from headgate.durable.model.history import Note, note_text
from headgate.durable.replay.interpreter import running
from headgate.errors import WorkflowViolationError
from headgate.telemetry import enter_execution, leave_execution

T = TypeVar("T")

NOTES_MAX: Final = 200

_current: ContextVar[ActivityContext | None] = ContextVar("activity", default=None)


class Deferred:
    """The return value of an activity that is completed from outside."""


DEFERRED: Final = Deferred()


class ActivityContext(Struct, eq=False):
    """One attempt at an activity, for the code that runs it."""

    activity_id: str
    name: str
    attempt: int
    sign: Callable[[], str]
    execution_id: str
    details: Raw | None
    clock_ms: Callable[[], int]
    beat: Callable[[ActivityContext, Raw | None], None]
    put_event: Callable[[str, str, Raw, str], None]
    # The key of the activity's row, which differs from `activity_id` after a reset.
    row_id: str = ""
    emitted: int = 0
    cancelled: bool = False
    # Set when the worker starts to drain, so that the activity can save its progress and return.
    is_worker_stopping: bool = False
    # Set later in the drain: from then on heartbeats raise `Cancelled`.
    is_interrupted: bool = False
    # Of the execution, as interceptors have changed them.
    headers: Mapping[str, str] = {}
    notes: list[Note] = []
    # The W3C trace context of this attempt.
    traceparent: str = ""

    @property
    def token(self) -> str:
        """The signed token that completes this attempt from outside, valid for it alone."""
        return self.sign()

    @overload
    def heartbeat_details(self, returns: type[T]) -> T | None: ...

    @overload
    def heartbeat_details(self, returns: object = ...) -> Any: ...  # noqa: ANN401 - the type is not known

    def heartbeat_details(self, returns: object = Any) -> Any:
        """Return the details of the last heartbeat of an earlier attempt, or None."""
        return None if self.details is None else payload.decode(self.details, returns, what="heartbeat details")

    def emit(self, type: str, data: Raw, subject: str, id: str = "") -> None:
        """Emit an event under its id or a deterministic one, so that a retry emits the same event."""
        self.emitted += 1
        self.put_event(id or f"{self.activity_id}#{self.emitted}", type, data, subject)

    def note(self, level: str, text: str) -> None:
        """Add a line to the log of the execution."""
        if len(self.notes) < NOTES_MAX:
            self.notes.append(Note(self.clock_ms(), level, note_text(text), self.name))


def activity() -> ActivityContext:
    """Return the activity that is running here. Raises `WorkflowViolationError` outside of one."""
    return _running("hg.activity()")


def running_activity() -> ActivityContext | None:
    """Return the activity that is running here, if any."""
    return _current.get()


def _running(call: str) -> ActivityContext:
    context = _current.get()
    if context is None:
        raise WorkflowViolationError(f"{call} belongs into an activity, and none is running here")
    return context


def heartbeat(details: Any = None) -> None:  # noqa: ANN401 - any JSON
    """Record a heartbeat, with the progress as details.

    Raises `Cancelled` if the activity was cancelled, or if its worker stops and waits no longer.
    """
    context = _running("hg.heartbeat()")
    context.beat(context, None if details is None else payload.encode(details, what="heartbeat details"))
    if context.cancelled:
        raise Cancelled
    if context.is_interrupted:
        raise Cancelled("the worker is stopping")


def complete_later() -> Any:  # noqa: ANN401 - in place of whatever the activity is declared to return
    """Return this from an activity that is completed from outside, with `hg.activity().token`."""
    _running("hg.complete_later()")
    return DEFERRED


def enter(context: ActivityContext) -> Any:  # noqa: ANN401 - the argument of `leave`
    """Make this the running activity of the current thread or task."""
    scope = enter_execution(context.execution_id, context.traceparent)
    return _current.set(context), scope


def leave(mark: Any) -> None:  # noqa: ANN401 - the result of `enter`
    """Undo `enter`."""
    token, scope = mark
    _current.reset(token)
    leave_execution(scope)


class NotesHandler(logging.Handler):
    """Records what workflows and activities write with `logging` in the log of their execution."""

    def emit(self, record: logging.LogRecord) -> None:
        interpreter = running()
        context = _current.get() if interpreter is None else None
        if interpreter is None and context is None:
            return
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - as in every handler: a bad format must not raise in the logging code
            self.handleError(record)
            return
        if interpreter is not None:
            interpreter.note(record.levelname, text)
        elif context is not None:
            context.note(record.levelname, text)
