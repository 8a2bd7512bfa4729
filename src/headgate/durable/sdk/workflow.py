"""Workflow functions: what workflow code uses besides activities: waits, messages, time and random numbers.

Every function here works inside of a workflow only, and has the same result on replay.
"""

from __future__ import annotations

import asyncio
import inspect
import random as random_module
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn, TypeVar, overload
from uuid import UUID

from headgate.durable.model import payload
from headgate.durable.model.duration import Duration, optional_seconds, seconds
from headgate.durable.model.history import SetTags
from headgate.durable.model.message_types import A, Query, R, Signal, Update, name_of, pack, signature_of
from headgate.durable.model.names import check_execution_id, check_signal_name, check_tags
from headgate.durable.replay.interpreter import current
from headgate.durable.replay.mailbox import Handler, UpdateHandler
from headgate.durable.replay.outcomes import ContinueRequest
from headgate.errors import DefinitionError

T = TypeVar("T")


@dataclass(frozen=True)
class ExecutionInfo:
    """The identity of the current execution."""

    execution_id: str
    workflow: str
    run: int
    parent_id: str | None
    memo: Any
    is_replaying: bool
    headers: Mapping[str, str]
    # The number of the attempt, if the workflow has a retry policy.
    attempt: int


def info() -> ExecutionInfo:
    """Return the id, run and parent of this execution."""
    interpreter = current("hg.info()")
    started = interpreter.started
    assert started is not None, "workflow code runs after it was started"
    memo = payload.decode(started.memo, Any, what="memo")
    return ExecutionInfo(
        interpreter.execution_id,
        started.workflow,
        started.run,
        started.parent_id,
        memo,
        interpreter.replaying,
        started.headers or {},
        started.attempt,
    )


def now() -> datetime:
    """Return the time of this turn. It does not change until the workflow waits."""
    return datetime.fromtimestamp(current("hg.now()").at_ms / 1000, UTC)


def random() -> random_module.Random:
    """Return the random generator of this execution, the same on replay. Not for secrets."""
    return current("hg.random()").random()


def uuid() -> UUID:
    """Return a random UUID that is the same on replay."""
    return UUID(int=current("hg.uuid()").random().getrandbits(128), version=4)


def side_effect(function: Callable[[], T], returns: Any = Any) -> T:  # noqa: ANN401 - a type of any kind
    """Call `function` once, record its result, and return the recorded result on replay.

    For a quick read of something outside of the history. It must not fail and must not need a retry: use an activity
    for that.
    """
    interpreter = current("hg.side_effect()")
    recorded = interpreter.record(lambda: payload.encode(function(), what="value of a side effect"))
    value: T = payload.decode(recorded, returns, what="value of a side effect")
    return value


def patched(patch: str) -> bool:
    """Whether this execution takes the new branch of a change in the code.

    True for executions that reach this point for the first time with the new code, and on their replay; False for
    those that passed it before the change.
    """
    return current("hg.patched()").patched(patch)


def deprecate_patch(patch: str) -> None:
    """State that a patch has no old branch any more, in place of its `patched`.

    Remove the call once `headgate workflow patches` counts no execution with the mark of `patched`.
    """
    current("hg.deprecate_patch()").deprecate_patch(patch)


async def sleep(duration: Duration) -> None:
    """Wait, for milliseconds or for years."""
    current("hg.sleep()")
    await asyncio.sleep(seconds(duration, name="sleep"))


async def sleep_until(moment: datetime) -> None:
    """Wait until a time; return at once if it has passed."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    await asyncio.sleep(max(0.0, moment.timestamp() - current("hg.sleep_until()").at_ms / 1000))


@overload
async def wait_signal(name: Signal[T], *, timeout: Duration | None = None) -> T: ...


@overload
async def wait_signal(name: str, *, timeout: Duration | None = None, type: type[T]) -> T: ...


@overload
async def wait_signal(name: str, *, timeout: Duration | None = None, type: object = ...) -> Any: ...  # noqa: ANN401


async def wait_signal(name: str | Signal[Any], *, timeout: Duration | None = None, type: Any = Any) -> Any:
    """Return the payload of the next signal of this name, which may be a buffered one. Raises `TimeoutError`.

    The payload is decoded by the declaration of the signal, or as `type`.
    """
    interpreter = current("hg.wait_signal()")
    label = name_of(name)
    waiting = interpreter.mailbox.wait(label)
    if timeout is not None:
        async with asyncio.timeout(seconds(timeout, name="timeout")):
            signal = await waiting
    else:
        signal = await waiting
    return payload.decode(
        signal.payload, type if isinstance(name, str) else name.input, what=f"payload of signal {label}"
    )


@overload
def on_signal(name: Signal[None], handler: Callable[[], object]) -> Handler: ...


@overload
def on_signal(name: Signal[T], handler: Callable[[T], object]) -> Handler: ...


@overload
def on_signal(name: str, handler: Callable[..., Any]) -> Handler: ...


def on_signal(name: str | Signal[Any], handler: Callable[..., Any]) -> Handler:
    """Call `handler` with every signal of this name, buffered ones first, until `.dispose()`."""
    return current("hg.on_signal()").mailbox.handle(name_of(name), handler, signature_of(name))


@overload
def on_query(name: Query[None, R], function: Callable[[], R]) -> None: ...


@overload
def on_query(name: Query[A, R], function: Callable[[A], R]) -> None: ...


@overload
def on_query(name: str, function: Callable[..., Any]) -> None: ...


def on_query(name: str | Query[Any, Any], function: Callable[..., Any]) -> None:
    """Answer queries of this name with the result of `function`, which must not wait or change anything."""
    interpreter = current("hg.on_query()")
    label = name_of(name)
    if inspect.iscoroutinefunction(function):
        raise DefinitionError(f"query {label}: a query cannot wait; write its function without async, or use on_update")
    interpreter.mailbox.queries[label] = Handler(function, lambda _: None, signature_of(name))


@overload
def on_update(
    name: Update[None, R],
    function: Callable[[], R] | Callable[[], Awaitable[R]],
    *,
    validator: Callable[[], object] | None = None,
) -> None: ...


@overload
def on_update(
    name: Update[A, R],
    function: Callable[[A], R] | Callable[[A], Awaitable[R]],
    *,
    validator: Callable[[A], object] | None = None,
) -> None: ...


@overload
def on_update(name: str, function: Callable[..., Any], *, validator: Callable[..., Any] | None = None) -> None: ...


def on_update(
    name: str | Update[Any, Any], function: Callable[..., Any], *, validator: Callable[..., Any] | None = None
) -> None:
    """Answer updates of this name with the result of `function`, which may be `async` and wait.

    `validator` is called first with the same arguments, and rejects the update by raising.
    """
    updates = current("hg.on_update()").mailbox.updates
    updates[name_of(name)] = UpdateHandler(function, validator, signature_of(name))


async def wait_condition(predicate: Callable[[], bool], *, timeout: Duration | None = None) -> bool:
    """Return True once `predicate` holds, or False at the time-out. It is evaluated whenever no task is ready."""
    interpreter = current("hg.wait_condition()")
    if predicate():
        return True
    holding = interpreter.mailbox.wait_until(predicate)
    limit = optional_seconds(timeout, name="timeout")
    try:
        async with asyncio.timeout(limit):
            return await holding
    except TimeoutError:
        if holding.done() and not holding.cancelled():
            raise  # The predicate's own.
        return False


@overload
def signal(execution_id: str, name: Signal[None], /) -> Awaitable[None]: ...


@overload
def signal(execution_id: str, name: Signal[T], value: T, /) -> Awaitable[None]: ...


@overload
def signal(execution_id: str, name: str, value: object = None) -> Awaitable[None]: ...


def signal(execution_id: str, name: str | Signal[Any], value: Any = None) -> Awaitable[None]:
    """Send a signal to another execution, once. Awaiting it raises `NotFoundError` if there is no open one."""
    label = name_of(name)
    raw = pack(name, value, what=f"payload of signal {label}")
    check_execution_id(execution_id, derived=True)
    return current("hg.signal()").send_signal(execution_id, check_signal_name(label), raw)


def set_tags(tags: Mapping[str, str]) -> None:
    """Change the tags of this execution; an empty value removes a tag."""
    interpreter = current("hg.set_tags()")
    interpreter.issue(SetTags(interpreter.next_seq(), check_tags(tags)))


def continue_as_new(*args: Any, **kwargs: Any) -> NoReturn:  # noqa: ANN401
    """End this run and start a new one with this input, under the same id. Buffered signals are carried over."""
    interpreter = current("hg.continue_as_new()")
    raise ContinueRequest(interpreter.signature.pack(args, kwargs, what="input of the next run"))
