"""Interceptors: code of an app around the calls of clients, workflows and activities, and the headers of calls.

Headers are text by name. A client sets them; the execution has them, and passes them on to its activities, its children
and the signals that it sends.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Final

from msgspec import Raw, Struct

from headgate.durable.model.payload import NULL

_NOTHING: Final = nullcontext()


class ClientCallKind(enum.StrEnum):
    """What a client does."""

    START = "start"
    SIGNAL_WITH_START = "signal_with_start"
    SIGNAL = "signal"
    QUERY = "query"
    UPDATE = "update"
    CANCEL = "cancel"
    TERMINATE = "terminate"


class OutboundKind(enum.StrEnum):
    """What the code of a workflow does."""

    ACTIVITY = "activity"
    CHILD = "child"
    SIGNAL = "signal"


class ClientCall(Struct):
    """A call of a client. `name` is that of the workflow, signal, query or update.

    `execution_id` is empty if a start has not chosen it. `input` and `headers` may be changed; the headers of a start
    and of a signal are stored.
    """

    kind: ClientCallKind
    execution_id: str
    name: str = ""
    input: Raw = NULL
    headers: dict[str, str] = {}


class WorkflowCall(Struct):
    """One run of a workflow. `args`, `kwargs`, and after the run `result`, may be changed."""

    workflow: str
    execution_id: str
    run: int
    headers: Mapping[str, str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None


class ActivityCall(Struct):
    """One attempt at an activity. `args`, `kwargs`, and after the attempt `result`, may be changed."""

    activity: str
    activity_id: str
    execution_id: str
    attempt: int
    headers: Mapping[str, str]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None


class OutboundCall(Struct):
    """An activity, a child or a signal that workflow code is about to start or send. `headers` may be changed."""

    kind: OutboundKind
    name: str
    input: Raw
    headers: dict[str, str]


class SignalCall(Struct, frozen=True):
    """A signal that an execution receives."""

    execution_id: str
    name: str
    headers: Mapping[str, str]


class Interceptor:
    """Base of interceptors: override the methods that you need.

    `client`, `workflow` and `activity` return a context manager around one call: write them with
    `contextlib.contextmanager`. `outbound` and `signal` are plain methods.

    `workflow`, `outbound` and `signal` run as workflow code, and again on every replay: they must be deterministic and
    do no I/O. What they ask for (an activity, a timer) is part of the history of the execution; headers are not
    compared on replay.
    """

    def client(self, call: ClientCall) -> AbstractContextManager[None]:  # noqa: ARG002 - for overriding
        """Wrap a call of a client."""
        return _NOTHING

    def workflow(self, call: WorkflowCall) -> AbstractContextManager[None]:  # noqa: ARG002 - for overriding
        """Wrap a run of a workflow."""
        return _NOTHING

    def activity(self, call: ActivityCall) -> AbstractContextManager[None]:  # noqa: ARG002 - for overriding
        """Wrap an attempt at an activity, in the thread, event loop or process that runs it."""
        return _NOTHING

    def outbound(self, call: OutboundCall) -> None:
        """Change the headers of an activity, a child or a signal before it leaves the workflow."""

    def signal(self, call: SignalCall) -> None:
        """Handle the headers of a signal before the code of the workflow receives it."""


def around(contexts: Iterable[AbstractContextManager[None]]) -> ExitStack:
    """Enter context managers, the first one outermost, and return the block that they wrap."""
    stack = ExitStack()
    try:
        for each in contexts:
            stack.enter_context(each)
    except BaseException:
        stack.close()
        raise
    return stack


def around_client(interceptors: Sequence[Interceptor], call: ClientCall) -> AbstractContextManager[Any]:
    """Return the block of a client's call."""
    return around(each.client(call) for each in interceptors) if interceptors else _NOTHING
