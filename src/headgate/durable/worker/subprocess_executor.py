"""Subprocess executor: runs an activity in a process of its own, and the messages between that and its worker.

Heartbeats and events are synchronous: the call in the activity returns once the worker has stored them.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import wait
from time import monotonic
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from headgate.clock import SystemClock
from headgate.durable.engine.activity_store import AttemptResult, Timeout
from headgate.durable.model import payload
from headgate.durable.model.failures import ErrorInfo, describe
from headgate.durable.model.history import Note
from headgate.durable.model.payload import NULL
from headgate.durable.sdk.activity_context import ActivityContext, Deferred, NotesHandler, enter
from headgate.durable.sdk.definitions import Activity as Definition
from headgate.durable.worker.executor import call_function
from headgate.durable.worker.process_channel import ProcessChannel
from headgate.durable.worker.process_group import kill_group, lead_group, start_leader
from headgate.errors import HeadgateError, TransientError, UserError
from headgate.telemetry import within_execution

_NO_RESULT: Final = "the process of the activity ended without a result"
_CORRUPT: Final = (
    "the activity, or something it uses, wrote to the descriptor by which its process answers the worker, "
    "so the process was ended; have it write to files that it opened itself"
)
# How often the worker checks whether the activity was cancelled.
_POLL_SECONDS: Final = 0.2


class AttemptMessage(Struct, frozen=True, tag_field="told", tag="Attempt"):
    """Worker to process: the attempt to make."""

    input: Raw
    activity_id: str
    name: str
    attempt: int
    execution_id: str
    token: str
    details: str | None
    headers: dict[str, str] = {}
    traceparent: str = ""


class HeartbeatMessage(Struct, frozen=True, tag_field="said", tag="Beats"):
    """Process to worker: a heartbeat with the progress of the activity."""

    details: str | None


class EventMessage(Struct, frozen=True, tag_field="said", tag="Emits"):
    """Process to worker: an event for the bus."""

    id: str
    type: str
    data: Raw
    subject: str


class ResultMessage(Struct, frozen=True, tag_field="said", tag="Ends"):
    """Process to worker: the end of the attempt, with an error, a result, or completion from outside."""

    result: Raw = NULL
    error: ErrorInfo | None = None
    is_later: bool = False
    notes: tuple[Note, ...] = ()


class ReplyMessage(Struct, frozen=True, tag_field="told", tag="Heard"):
    """Worker to process: the reply to a heartbeat or an event."""

    is_cancelled: bool = False
    error: str = msgspec.field(default="", name="trouble")
    # Whether a retry may succeed.
    is_transient: bool = False
    # The two stages of a worker that stops.
    is_worker_stopping: bool = False
    is_interrupted: bool = False


ChildMessage: TypeAlias = HeartbeatMessage | EventMessage | ResultMessage
WorkerMessage: TypeAlias = AttemptMessage | ReplyMessage

_child_decoder: Final[msgspec.json.Decoder[ChildMessage]] = msgspec.json.Decoder(ChildMessage)
_worker_decoder: Final[msgspec.json.Decoder[WorkerMessage]] = msgspec.json.Decoder(WorkerMessage)


# In the worker.


def perform_isolated(
    definition: Definition[..., Any], input: Raw, context: ActivityContext, limit_seconds: float | None
) -> AttemptResult | None:
    """Run an activity in a process of its own, and return its result; None if it is completed from outside.

    The process is killed at the time limit, or when the activity is cancelled, with all processes that it has started.
    None of them outlives this process.
    """
    function = definition.function
    worker_end, process_end = socket.socketpair()
    channel = ProcessChannel(worker_end, _child_decoder)
    with process_end:
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(
            target=_isolated, args=(function.__module__, function.__qualname__, process_end), daemon=True
        )
        start_leader(process)
    try:
        # Not as an argument: those are written before the process is known to read them.
        channel.send(
            AttemptMessage(
                input=input,
                activity_id=context.activity_id,
                name=context.name,
                attempt=context.attempt,
                execution_id=context.execution_id,
                token=context.token,
                details=None if context.details is None else bytes(context.details).decode(),
                headers=dict(context.headers),
                traceparent=context.traceparent,
            )
        )
        # Events of the process are stored here.
        with within_execution(context.execution_id, context.traceparent):
            return _outcome(definition, channel, context, limit_seconds)
    except (EOFError, OSError):
        message = _CORRUPT if channel.is_corrupt else _NO_RESULT
        return AttemptResult(error=ErrorInfo(type="ProcessDied", message=message), notes=tuple(context.notes))
    finally:
        kill_group(process)
        channel.close()


def _outcome(
    definition: Definition[..., Any],
    channel: ProcessChannel[ChildMessage],
    context: ActivityContext,
    limit_seconds: float | None,
) -> AttemptResult | None:
    deadline = None if limit_seconds is None else monotonic() + limit_seconds
    while True:
        left = _POLL_SECONDS if deadline is None else min(_POLL_SECONDS, deadline - monotonic())
        if left <= 0:
            message = f"activity {definition.name}: its process was killed after {limit_seconds} s"
            return AttemptResult(error=ErrorInfo(type="TimeoutError", message=message), timeout=Timeout.START_TO_CLOSE)
        if context.cancelled:
            return AttemptResult(error=ErrorInfo(type="Cancelled", message="the activity was cancelled"))
        if not wait([channel.fileno()], left):
            continue
        for child_message in channel.receive():
            if isinstance(child_message, ResultMessage):
                return _result(child_message, context)
            channel.send(_reply(child_message, context))


def _result(end: ResultMessage, context: ActivityContext) -> AttemptResult | None:
    if end.is_later:
        return None
    return AttemptResult(result=end.result, error=end.error, notes=(*context.notes, *end.notes))


def _reply(request: HeartbeatMessage | EventMessage, context: ActivityContext) -> ReplyMessage:
    try:
        if isinstance(request, HeartbeatMessage):
            context.beat(context, None if request.details is None else Raw(request.details.encode()))
        else:
            context.put_event(request.id, request.type, request.data, request.subject)
    except HeadgateError as exc:
        return ReplyMessage(context.cancelled, str(exc), not isinstance(exc, UserError))
    return ReplyMessage(
        context.cancelled, is_worker_stopping=context.is_worker_stopping, is_interrupted=context.is_interrupted
    )


# In the process.


def _isolated(module: str, qualname: str, worker: socket.socket) -> None:
    """Entry point of the new process: import the function, call it, and send its result."""
    lead_group()
    channel = ProcessChannel(worker, _worker_decoder)
    channel.close_on_fork()
    channel.send(_perform(module, qualname, channel))


def _perform(module: str, qualname: str, channel: ProcessChannel[WorkerMessage]) -> ResultMessage:
    context: ActivityContext | None = None
    try:
        attempt = _receive(channel)
        assert isinstance(attempt, AttemptMessage), "the worker sends it first"
        context = _context(attempt, channel)
        member: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            member = getattr(member, part)
        function: Callable[..., Any] = member.function if isinstance(member, Definition) else member
        logging.getLogger().addHandler(NotesHandler(logging.INFO))
        enter(context)
        args, kwargs = payload.Signature.of(function).unpack(attempt.input, what=f"input of {qualname}")
        is_declared = isinstance(member, Definition)
        value = call_function(member, args, kwargs, context) if is_declared else function(*args, **kwargs)
        if isinstance(value, Deferred):
            return ResultMessage(is_later=True)
        return ResultMessage(result=payload.encode(value, what=f"result of {qualname}"), notes=tuple(context.notes))
    except Exception as exc:  # noqa: BLE001 - whatever user code raises is the result of the attempt
        return ResultMessage(error=describe(exc), notes=() if context is None else tuple(context.notes))


def _receive(channel: ProcessChannel[WorkerMessage]) -> WorkerMessage:
    while True:
        for received in channel.receive():
            # Never more than one: each replies to one request.
            return received


def _context(attempt: AttemptMessage, channel: ProcessChannel[WorkerMessage]) -> ActivityContext:
    clock = SystemClock()
    lock = threading.Lock()

    def call(request: HeartbeatMessage | EventMessage) -> ReplyMessage:
        # One request at a time, from whichever thread: replies come in the order of the requests.
        with lock:
            channel.send(request)
            reply = _receive(channel)
        assert isinstance(reply, ReplyMessage), "the attempt is sent once"
        if reply.error:
            raise TransientError(reply.error) if reply.is_transient else UserError(reply.error)
        return reply

    def beat(context: ActivityContext, details: Raw | None) -> None:
        reply = call(HeartbeatMessage(None if details is None else bytes(details).decode()))
        context.cancelled = context.cancelled or reply.is_cancelled
        context.is_worker_stopping = reply.is_worker_stopping
        context.is_interrupted = reply.is_interrupted

    def put_event(id: str, type: str, data: Raw, subject: str) -> None:
        call(EventMessage(id, type, data, subject))

    return ActivityContext(
        activity_id=attempt.activity_id,
        name=attempt.name,
        attempt=attempt.attempt,
        sign=lambda: attempt.token,
        execution_id=attempt.execution_id,
        details=None if attempt.details is None else Raw(attempt.details.encode()),
        clock_ms=lambda: int(clock.seconds() * 1000),
        beat=beat,
        put_event=put_event,
        headers=attempt.headers,
        traceparent=attempt.traceparent,
    )
