"""An activity in a process of its own, and what that and its worker say to each other.

The process asks and waits for the answer: a heartbeat is recorded, and an event is on the bus, once the call returns.
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
from headgate.durable.engine.activity_store import Ended, Timeout
from headgate.durable.model import payload
from headgate.durable.model.failures import ErrorInfo, describe
from headgate.durable.model.history import Note
from headgate.durable.model.payload import NULL
from headgate.durable.sdk.activity_context import ActivityContext, Later, NotesHandler, enter
from headgate.durable.sdk.definitions import Activity as Definition
from headgate.durable.worker.process_channel import ProcessChannel
from headgate.durable.worker.process_group import kill_group, lead_group, start_head
from headgate.errors import HeadgateError, TransientError, UserError

_KILLED: Final = "the process of the activity ended without an answer"
_GARBLED: Final = (
    "the activity, or something it uses, wrote to the descriptor by which its process answers the worker, "
    "so the process was ended; have it write to files that it opened itself"
)
# How soon it is seen that nobody wants the result any more.
_LOOK_SECONDS: Final = 0.2


class Attempt(Struct, frozen=True, tag_field="told", tag=True):
    """What the process has to know of the attempt that it makes."""

    input: Raw
    activity_id: str
    name: str
    attempt: int
    execution_id: str
    token: str
    details: str | None


class Beats(Struct, frozen=True, tag_field="said", tag=True):
    """The process is alive, and has come so far."""

    details: str | None


class Emits(Struct, frozen=True, tag_field="said", tag=True):
    """The process has an event for the bus."""

    id: str
    type: str
    data: Raw
    subject: str


class Ends(Struct, frozen=True, tag_field="said", tag=True):
    """The process is done. Without an error, `result` counts; or somebody else will complete it."""

    result: Raw = NULL
    error: ErrorInfo | None = None
    is_later: bool = False
    notes: tuple[Note, ...] = ()


class Heard(Struct, frozen=True, tag_field="told", tag=True):
    """What the worker answers: whether the result is still wanted, and what kept it from doing what it was asked."""

    is_cancelled: bool = False
    trouble: str = ""
    # Whether the same may go well another time.
    is_transient: bool = False


Said: TypeAlias = Beats | Emits | Ends
Told: TypeAlias = Attempt | Heard

_SAID: Final[msgspec.json.Decoder[Said]] = msgspec.json.Decoder(Said)
_TOLD: Final[msgspec.json.Decoder[Told]] = msgspec.json.Decoder(Told)


# The worker.


def perform_isolated(
    definition: Definition[..., Any], input: Raw, context: ActivityContext, limit_seconds: float | None
) -> Ended | None:
    """Run an activity in a process of its own, and say how it ended: None if someone else will complete it.

    The process is killed when its time is up or nobody wants its result. Whatever it has started is killed with it;
    none of them outlives this process.
    """
    function = definition.function
    ours, theirs = socket.socketpair()
    channel = ProcessChannel(ours, _SAID)
    with theirs:
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(
            target=_isolated, args=(function.__module__, function.__qualname__, theirs), daemon=True
        )
        start_head(process)
    try:
        # Not among the arguments: they are written before anyone is sure to read them.
        channel.send(_attempt(input, context))
        return _outcome(definition, channel, context, limit_seconds)
    except (EOFError, OSError):
        message = _GARBLED if channel.is_garbled else _KILLED
        return Ended(error=ErrorInfo(type="ProcessDied", message=message), notes=tuple(context.notes))
    finally:
        kill_group(process)
        channel.close()


def _attempt(input: Raw, context: ActivityContext) -> Attempt:
    return Attempt(
        input=input,
        activity_id=context.activity_id,
        name=context.name,
        attempt=context.attempt,
        execution_id=context.execution_id,
        token=context.token,
        details=None if context.details is None else bytes(context.details).decode(),
    )


def _outcome(
    definition: Definition[..., Any],
    channel: ProcessChannel[Said],
    context: ActivityContext,
    limit_seconds: float | None,
) -> Ended | None:
    give_up_at = None if limit_seconds is None else monotonic() + limit_seconds
    while True:
        left = _LOOK_SECONDS if give_up_at is None else min(_LOOK_SECONDS, give_up_at - monotonic())
        if left <= 0:
            message = f"activity {definition.name}: its process was killed after {limit_seconds} s"
            return Ended(error=ErrorInfo(type="TimeoutError", message=message), timeout=Timeout.START_TO_CLOSE)
        if context.cancelled:
            return Ended(error=ErrorInfo(type="Cancelled", message="nobody wants the result any more"))
        if not wait([channel.fileno()], left):
            continue
        for said in channel.heard():
            if isinstance(said, Ends):
                return _ended(said, context)
            channel.send(_answer(said, context))


def _ended(ends: Ends, context: ActivityContext) -> Ended | None:
    if ends.is_later:
        return None
    return Ended(result=ends.result, error=ends.error, notes=(*context.notes, *ends.notes))


def _answer(said: Beats | Emits, context: ActivityContext) -> Heard:
    try:
        if isinstance(said, Beats):
            context.beat(context, None if said.details is None else Raw(said.details.encode()))
        else:
            context.put_event(said.id, said.type, said.data, said.subject)
    except HeadgateError as exc:
        return Heard(context.cancelled, str(exc), not isinstance(exc, UserError))
    return Heard(context.cancelled)


# The process.


def _isolated(module: str, qualname: str, worker: socket.socket) -> None:
    """Run in the new process: find the function again, call it, send back what it returned or raised."""
    lead_group()
    channel = ProcessChannel(worker, _TOLD)
    channel.keep_to_this_process()
    channel.send(_performed(module, qualname, channel))


def _performed(module: str, qualname: str, channel: ProcessChannel[Told]) -> Ends:
    context: ActivityContext | None = None
    try:
        attempt = _told(channel)
        assert isinstance(attempt, Attempt), "it is told first"
        context = _context(attempt, channel)
        found: Any = sys.modules.get(module) or importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
        function: Callable[..., Any] = found.function if isinstance(found, Definition) else found
        logging.getLogger().addHandler(NotesHandler(logging.INFO))
        enter(context)
        args, kwargs = payload.Signature.of(function).unpack(attempt.input, what=f"input of {qualname}")
        answer = function(*args, **kwargs)
        if isinstance(answer, Later):
            return Ends(is_later=True)
        return Ends(result=payload.encode(answer, what=f"result of {qualname}"), notes=tuple(context.notes))
    except Exception as exc:  # noqa: BLE001 - whatever user code raises is the outcome of the activity
        return Ends(error=describe(exc), notes=() if context is None else tuple(context.notes))


def _told(channel: ProcessChannel[Told]) -> Told:
    while True:
        for told in channel.heard():
            # Never more than one: each answers a question.
            return told


def _context(attempt: Attempt, channel: ProcessChannel[Told]) -> ActivityContext:
    clock = SystemClock()
    lock = threading.Lock()

    def ask(said: Beats | Emits) -> Heard:
        # One at a time, whichever thread it is of: answers come in the order of the questions.
        with lock:
            channel.send(said)
            heard = _told(channel)
        assert isinstance(heard, Heard), "the attempt is told once"
        if heard.trouble:
            raise TransientError(heard.trouble) if heard.is_transient else UserError(heard.trouble)
        return heard

    def beat(context: ActivityContext, details: Raw | None) -> None:
        heard = ask(Beats(None if details is None else bytes(details).decode()))
        context.cancelled = context.cancelled or heard.is_cancelled

    def put_event(id: str, type: str, data: Raw, subject: str) -> None:
        ask(Emits(id, type, data, subject))

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
    )
