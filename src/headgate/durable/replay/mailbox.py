"""Mailbox: signals, conditions, queries and updates of an execution in memory."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from headgate.durable.model import payload
from headgate.durable.model.failures import describe
from headgate.durable.model.history import AnswerUpdate, Signal, UpdateRequested
from headgate.errors import NotFoundError, WorkflowViolationError

if TYPE_CHECKING:
    from headgate.durable.replay.interpreter import Interpreter


# Limits of the names of awaited signals that an execution's row stores.
AWAITED_MAX: Final = 50
AWAITED_CHARACTERS_MAX: Final = 200


class Handler:
    """A function of the workflow that handles the signals of one name, until it is disposed of."""

    def __init__(
        self,
        function: Callable[..., Any],
        dispose: Callable[[Handler], None],
        signature: payload.Signature | None = None,
    ) -> None:
        self.function = function
        self.signature = signature or payload.Signature.of(function)
        self._dispose = dispose

    def dispose(self) -> None:
        """Stop handling signals. Idempotent."""
        dispose, self._dispose = self._dispose, _nothing
        dispose(self)


def _nothing(_: Handler) -> None:
    """Do nothing: the handler is disposed of already."""


def _pending(futures: Iterable[asyncio.Future[Signal]]) -> list[asyncio.Future[Signal]]:
    return [future for future in futures if not future.done()]


class UpdateHandler:
    """The function that answers an update, and the validator that may reject it."""

    def __init__(
        self,
        function: Callable[..., Any],
        validator: Callable[..., Any] | None,
        signature: payload.Signature | None = None,
    ) -> None:
        self.function = function
        self.signature = signature or payload.Signature.of(function)
        self.validator = validator


class Mailbox:
    """The messages to the code of one execution."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.queries: dict[str, Handler] = {}
        self.updates: dict[str, UpdateHandler] = {}
        self._interpreter = interpreter
        self._buffered: dict[str, deque[Signal]] = {}
        self._waiters: dict[str, list[asyncio.Future[Signal]]] = {}
        self._handlers: dict[str, list[Handler]] = {}
        self._conditions: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self._answering: dict[str, asyncio.Task[Any]] = {}

    # Signals.

    def deliver(self, signal: Signal) -> None:
        """Pass a signal to every waiter and every handler of its name; without any, buffer it."""
        waiters = [future for future in self._waiters.pop(signal.name, []) if not future.done()]
        handlers = list(self._handlers.get(signal.name, ()))
        for future in waiters:
            future.set_result(signal)
        for handler in handlers:
            self._handle(handler, signal)
        if not waiters and not handlers:
            self.buffer(signal)

    def buffer(self, signal: Signal) -> None:
        """Keep a signal for code that waits for it later."""
        self._buffered.setdefault(signal.name, deque()).append(signal)

    def wait(self, name: str) -> asyncio.Future[Signal]:
        """Return a future of the next signal of this name, which may be a buffered one."""
        future: asyncio.Future[Signal] = self._interpreter.loop.create_future()
        buffered = self._buffered.get(name)
        if buffered:
            future.set_result(buffered.popleft())
        else:
            # Without cancelled waiters: a loop of waits that time out must not grow the list.
            self._waiters[name] = [*_pending(self._waiters.get(name, ())), future]
        return future

    def awaited(self) -> tuple[str, ...]:
        """Return the names of the signals that the code awaits; with an open condition, also those with a handler."""
        if not self._waiters and not self._conditions:
            return ()
        names = [name for name, waiters in self._waiters.items() if _pending(waiters)]
        if any(not future.done() for _, future in self._conditions):
            names += [name for name, handlers in self._handlers.items() if handlers and name not in names]
        return tuple(name[:AWAITED_CHARACTERS_MAX] for name in names[:AWAITED_MAX])

    def handle(self, name: str, function: Callable[..., Any], signature: payload.Signature | None = None) -> Handler:
        """Call `function` with every signal of this name, buffered ones first."""
        handlers = self._handlers.setdefault(name, [])
        handler = Handler(function, handlers.remove, signature)
        handlers.append(handler)
        for signal in self._buffered.pop(name, ()):
            self._handle(handler, signal)
        return handler

    def unconsumed(self) -> tuple[Signal, ...]:
        """Return the buffered signals, for the next run."""
        return tuple(signal for buffered in self._buffered.values() for signal in buffered)

    def _handle(self, handler: Handler, signal: Signal) -> None:
        self._interpreter.loop.create_task(self._run_handler(handler, signal), name=f"signal {signal.name}")

    async def _run_handler(self, handler: Handler, signal: Signal) -> None:
        try:
            args, kwargs = handler.signature.unpack(signal.payload, what=f"signal {signal.name}")
            answer = handler.function(*args, **kwargs)
            if inspect.isawaitable(answer):
                await answer
        except WorkflowViolationError:
            raise
        except Exception as exc:  # noqa: BLE001 - a handler's failure is logged; it does not fail the workflow
            self._interpreter.report(f"handler of signal {signal.name} failed", exc)

    # Conditions.

    def wait_until(self, predicate: Callable[[], bool]) -> asyncio.Future[bool]:
        """Return a future that is done once `predicate` holds, evaluated whenever no task is ready."""
        future: asyncio.Future[bool] = self._interpreter.loop.create_future()
        self._conditions.append((predicate, future))
        return future

    def check_conditions(self) -> bool:
        """Evaluate every condition once, in the order of creation. Returns whether any future was resolved."""
        if not self._conditions:
            return False
        left, settled = [], False
        waiting, self._conditions = self._conditions, []
        for predicate, future in waiting:
            if future.done():
                continue
            try:
                holds = predicate()
            except Exception as exc:  # noqa: BLE001 - raised where the condition is awaited
                future.set_exception(exc)
                settled = True
                continue
            if holds:
                future.set_result(True)
                settled = True
            else:
                left.append((predicate, future))
        self._conditions = left + self._conditions
        return settled

    # Updates.

    def update(self, event: UpdateRequested) -> None:
        """Run an update handler; its answer is a command."""
        handler = self.updates.get(event.name)
        if handler is None:
            missing = NotFoundError(f"no update {event.name!r}; the workflow takes {sorted(self.updates)}")
            self._interpreter.issue(AnswerUpdate(event.id, error=describe(missing), rejected=True))
            return
        try:
            args, kwargs = handler.signature.unpack(event.input, what=f"update {event.name}")
            if handler.validator is not None:
                handler.validator(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - returned to the caller as a rejection
            self._interpreter.issue(AnswerUpdate(event.id, error=describe(exc), rejected=True))
            return
        answering = self._answer(event, handler, args, kwargs)
        self._answering[event.id] = self._interpreter.loop.create_task(answering, name=f"update {event.name}")

    async def _answer(
        self, event: UpdateRequested, handler: UpdateHandler, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            answer = handler.function(*args, **kwargs)
            if inspect.isawaitable(answer):
                answer = await answer
            result = payload.encode(answer, what=f"answer of update {event.name}")
        except WorkflowViolationError:
            raise
        except Exception as exc:  # noqa: BLE001 - returned to the caller
            self._interpreter.issue(AnswerUpdate(event.id, error=describe(exc)))
        else:
            self._interpreter.issue(AnswerUpdate(event.id, result))
        self._answering.pop(event.id, None)

    def refuse_updates(self) -> None:
        """Answer the open updates with an error: the workflow has ended."""
        for update_id in self._answering:
            ended = NotFoundError("the workflow ended before it answered")
            self._interpreter.issue(AnswerUpdate(update_id, error=describe(ended)))
        self._answering.clear()
