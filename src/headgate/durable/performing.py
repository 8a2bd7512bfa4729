"""Performing: calls the function behind an activity, in this thread, on an event loop, or in a process of its own."""

from __future__ import annotations

import importlib
import multiprocessing
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
from msgspec import Raw

from headgate.durable import payload
from headgate.durable.activities import Ended, Timeout
from headgate.durable.activity_context import ActivityContext, Later, enter, leave
from headgate.durable.definitions import Activity as Definition
from headgate.durable.failures import ErrorInfo, describe
from headgate.durable.process_group import kill_group, lead_group, start_head

_KILLED: Final = "the process of the activity ended without an answer"


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


def perform_isolated(
    definition: Definition[..., Any], input: Raw, context: ActivityContext, limit_seconds: float | None
) -> Ended:
    """Run an activity in a process of its own, which is killed when its time is up or nobody wants its result.

    Whatever that process has started is killed with it; none of them outlives this process.
    """
    function = definition.function
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_isolated, args=(function.__module__, function.__qualname__, theirs), daemon=True)
    start_head(process)
    theirs.close()
    try:
        # Not among the arguments: they are written before anyone is sure to read them.
        ours.send_bytes(bytes(input))
        return _await_isolated(definition, ours, context, limit_seconds)
    except OSError:
        return Ended(error=ErrorInfo(type="ProcessDied", message=_KILLED), notes=tuple(context.notes))
    finally:
        kill_group(process)
        ours.close()


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


def _await_isolated(
    definition: Definition[..., Any], ours: Connection, context: ActivityContext, limit_seconds: float | None
) -> Ended:
    left = limit_seconds
    while True:
        step = 0.2 if left is None else min(0.2, left)
        if ours.poll(step):
            break
        if context.cancelled:
            return Ended(error=ErrorInfo(type="Cancelled", message="nobody wants the result any more"))
        if left is not None:
            left -= step
            if left <= 0:
                message = f"activity {definition.name}: its process was killed after {limit_seconds} s"
                return Ended(error=ErrorInfo(type="TimeoutError", message=message), timeout=Timeout.START_TO_CLOSE)
    try:
        succeeded, body = ours.recv()
    except (EOFError, OSError):
        return Ended(error=ErrorInfo(type="ProcessDied", message=_KILLED), notes=tuple(context.notes))
    if succeeded:
        return Ended(result=Raw(body), notes=tuple(context.notes))
    return Ended(error=msgspec.json.decode(body, type=ErrorInfo), notes=tuple(context.notes))


def _isolated(module: str, qualname: str, answer_to: Connection) -> None:
    """Run in the new process: find the function again, call it, send back what it returned or raised."""
    lead_group()
    try:
        input = answer_to.recv_bytes()
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
        function: Callable[..., Any] = found.function if isinstance(found, Definition) else found
        args, kwargs = payload.Signature.of(function).unpack(Raw(input), what=f"input of {qualname}")
        result = payload.encode(function(*args, **kwargs), what=f"result of {qualname}")
    except Exception as exc:  # noqa: BLE001 - whatever user code raises is the outcome of the activity
        answer_to.send((False, msgspec.json.encode(describe(exc))))
    else:
        answer_to.send((True, bytes(result)))
