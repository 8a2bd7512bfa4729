"""Executor: calls the function of an activity, in this thread or on an event loop, and returns its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from headgate.durable.engine.activity_store import AttemptResult, Timeout
from headgate.durable.model import payload
from headgate.durable.model.failures import describe
from headgate.durable.model.interceptors import ActivityCall, around
from headgate.durable.model.records import Activity
from headgate.durable.sdk.activity_context import ActivityContext, Deferred, enter, leave
from headgate.durable.sdk.definitions import Activity as Definition


class RunningAttempt(msgspec.Struct):
    """An attempt at an activity that runs in this process."""

    activity: Activity
    context: ActivityContext
    deadline_ms: int
    timeout: Timeout | None
    is_abandoned: bool = False
    # When it began, by `perf_counter`; 0 if it is not measured.
    began: float = 0.0
    # When it began, in nanoseconds since 1970; 0 without tracing.
    began_ns: int = 0
    # Stops the attempt where that is possible: an async activity can be cancelled, a thread cannot.
    cancel: Callable[[], object] | None = None

    def abandon(self) -> None:
        """Discard the result, and cancel the attempt where that is possible."""
        self.is_abandoned = True
        self.context.cancelled = True
        if self.cancel is not None:
            self.cancel()

    def request_cancel(self) -> None:
        """Have the attempt end itself: the code that called it has cancelled it, and waits for its result."""
        self.activity = replace(self.activity, is_cancel_requested=True)
        self.context.cancelled = True
        if self.cancel is not None:
            self.cancel()

    def interrupt(self) -> None:
        """Have the attempt end itself: its worker is stopping. A result that it returns still counts."""
        self.context.is_interrupted = True
        if self.cancel is not None:
            self.cancel()


def perform(definition: Definition[..., Any], input: Raw, context: ActivityContext) -> AttemptResult | None:
    """Run an activity in this thread, and return its result; None if it is completed from outside."""
    mark = enter(context)
    try:
        args, kwargs = definition.signature.unpack(input, what=definition.input_label)
        return _succeeded(definition, call_function(definition, args, kwargs, context), context)
    except BaseException as exc:
        # Whatever user code raises is the result of the attempt; but Ctrl-C in the main thread stops the process.
        if isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return failed(exc, context)
    finally:
        leave(mark)


async def perform_async(definition: Definition[..., Any], input: Raw, context: ActivityContext) -> AttemptResult | None:
    """Run an `async` activity on the current event loop, and return its result."""
    mark = enter(context)
    try:
        args, kwargs = definition.signature.unpack(input, what=definition.input_label)
        return _succeeded(definition, await _call_async(definition, args, kwargs, context), context)
    except BaseException as exc:  # noqa: BLE001 - as above; one activity must not end the loop that it shares
        return failed(exc, context)
    finally:
        leave(mark)


def call_function(
    definition: Definition[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: ActivityContext
) -> Any:  # noqa: ANN401 - whatever the activity returns
    """Call the function of an activity that is not async, within the interceptors of its app."""
    if not definition.interceptors:
        return definition.function(*args, **kwargs)
    call = _activity_call(definition, args, kwargs, context)
    with around(each.activity(call) for each in definition.interceptors):
        call.result = definition.function(*call.args, **call.kwargs)
    return call.result


async def _call_async(
    definition: Definition[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: ActivityContext
) -> Any:  # noqa: ANN401 - whatever the activity returns
    if not definition.interceptors:
        return await definition.function(*args, **kwargs)
    call = _activity_call(definition, args, kwargs, context)
    with around(each.activity(call) for each in definition.interceptors):
        call.result = await definition.function(*call.args, **call.kwargs)
    return call.result


def _activity_call(
    definition: Definition[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], context: ActivityContext
) -> ActivityCall:
    return ActivityCall(
        activity=definition.name,
        activity_id=context.activity_id,
        execution_id=context.execution_id,
        attempt=context.attempt,
        headers=context.headers,
        args=args,
        kwargs=kwargs,
    )


def failed(error: BaseException, context: ActivityContext) -> AttemptResult:
    """Return the result of an attempt that raised."""
    if isinstance(error, KeyboardInterrupt):
        error = RuntimeError("the activity raised KeyboardInterrupt")
    return AttemptResult(error=describe(error), notes=tuple(context.notes))


def _succeeded(definition: Definition[..., Any], value: Any, context: ActivityContext) -> AttemptResult | None:  # noqa: ANN401
    if isinstance(value, Deferred):
        return None
    if definition.is_handler:
        return AttemptResult(notes=tuple(context.notes))
    result = payload.encode(value, what=definition.result_label)
    return AttemptResult(result=result, notes=tuple(context.notes))
