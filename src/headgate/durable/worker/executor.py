"""An activity while it is performed, and how it is told that nobody waits for it any more.

Performing: calls the function behind an activity, in this thread or on an event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from headgate.durable.engine.activity_store import Ended, Timeout
from headgate.durable.model import payload
from headgate.durable.model.failures import describe
from headgate.durable.model.records import Activity
from headgate.durable.sdk.activity_context import ActivityContext, Later, enter, leave
from headgate.durable.sdk.definitions import Activity as Definition


class Running(msgspec.Struct):
    """An activity that is being performed here."""

    activity: Activity
    context: ActivityContext
    deadline_ms: int
    timeout: Timeout | None
    is_abandoned: bool = False
    # Ends it where that can be done: an async activity can be cancelled, a thread cannot.
    cancel: Callable[[], object] | None = None

    def abandon(self) -> None:
        """Its result is no longer wanted."""
        self.is_abandoned = True
        self.context.cancelled = True
        if self.cancel is not None:
            self.cancel()


def perform(definition: Definition[..., Any], input: Raw, context: ActivityContext) -> Ended | None:
    """Run an activity to its end in this thread, and say how it ended: None if someone else will complete it."""
    mark = enter(context)
    try:
        args, kwargs = definition.signature.unpack(input, what=f"input of activity {definition.name}")
        answer: Any = definition.function(*args, **kwargs)
        return _answered(definition, answer, context)
    except BaseException as exc:
        # Whatever user code raises is the outcome of the activity; but Ctrl-C is a wish of the user's.
        if isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return failed(exc, context)
    finally:
        leave(mark)


async def perform_async(definition: Definition[..., Any], input: Raw, context: ActivityContext) -> Ended | None:
    """Run an `async` activity to its end on the running loop."""
    mark = enter(context)
    try:
        args, kwargs = definition.signature.unpack(input, what=f"input of activity {definition.name}")
        answer: Any = await definition.function(*args, **kwargs)
        return _answered(definition, answer, context)
    except BaseException as exc:  # noqa: BLE001 - as above; a loop that others share must not end with one of them
        return failed(exc, context)
    finally:
        leave(mark)


def failed(error: BaseException, context: ActivityContext) -> Ended:
    """Return the outcome of an attempt that raised."""
    if isinstance(error, KeyboardInterrupt):
        error = RuntimeError("the activity raised KeyboardInterrupt")
    return Ended(error=describe(error), notes=tuple(context.notes))


def _answered(definition: Definition[..., Any], answer: Any, context: ActivityContext) -> Ended | None:  # noqa: ANN401
    if isinstance(answer, Later):
        return None
    if definition.is_handler:
        return Ended(notes=tuple(context.notes))
    result = payload.encode(answer, what=f"result of activity {definition.name}")
    return Ended(result=result, notes=tuple(context.notes))
