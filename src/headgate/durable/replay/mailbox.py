"""The mailbox of an execution in memory: signals kept or handed on, conditions, queries and updates."""

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


# As many as someone reads who wonders what an execution waits for.
AWAITED_MAX: Final = 50
AWAITED_CHARACTERS_MAX: Final = 200


class Handler:
    """A function of the workflow that takes messages of one name, until it is disposed of."""

    def __init__(self, function: Callable[..., Any], dispose: Callable[[Handler], None]) -> None:
        self.function = function
        self.signature = payload.Signature.of(function)
        self._dispose = dispose

    def dispose(self) -> None:
        """Take no more messages. Disposing of it again changes nothing."""
        dispose, self._dispose = self._dispose, _nothing
        dispose(self)


def _nothing(_: Handler) -> None:
    """Dispose of what is no longer there."""


def _pending(futures: Iterable[asyncio.Future[Signal]]) -> list[asyncio.Future[Signal]]:
    return [future for future in futures if not future.done()]


class UpdateHandler:
    """A function that answers an update, and one that may refuse it first."""

    def __init__(self, function: Callable[..., Any], validator: Callable[..., Any] | None) -> None:
        self.function = function
        self.signature = payload.Signature.of(function)
        self.validator = validator


class Mailbox:
    """What reaches the code of one execution from outside."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.queries: dict[str, Handler] = {}
        self.updates: dict[str, UpdateHandler] = {}
        self._interpreter = interpreter
        self._kept: dict[str, deque[Signal]] = {}
        self._waiters: dict[str, list[asyncio.Future[Signal]]] = {}
        self._handlers: dict[str, list[Handler]] = {}
        self._conditions: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self._answering: dict[str, asyncio.Task[Any]] = {}

    # Signals.

    def deliver(self, signal: Signal) -> None:
        """Hand a signal to everyone who waits for it or handles it now; with nobody there, keep it."""
        waiters = [future for future in self._waiters.pop(signal.name, []) if not future.done()]
        handlers = list(self._handlers.get(signal.name, ()))
        for future in waiters:
            future.set_result(signal)
        for handler in handlers:
            self._handle(handler, signal)
        if not waiters and not handlers:
            self._kept.setdefault(signal.name, deque()).append(signal)

    def wait(self, name: str) -> asyncio.Future[Signal]:
        """Return a future of the next signal of this name, which may be one that was kept."""
        future: asyncio.Future[Signal] = self._interpreter.loop.create_future()
        kept = self._kept.get(name)
        if kept:
            future.set_result(kept.popleft())
        else:
            # Without those who gave up: a loop of waits that time out must not grow a list.
            self._waiters[name] = [*_pending(self._waiters.get(name, ())), future]
        return future

    def awaited(self) -> tuple[str, ...]:
        """Return the names of signals that the code waits for; for a condition, of those that it has handlers for."""
        if not self._waiters and not self._conditions:
            return ()
        names = [name for name, waiters in self._waiters.items() if _pending(waiters)]
        if any(not future.done() for _, future in self._conditions):
            names += [name for name, handlers in self._handlers.items() if handlers and name not in names]
        return tuple(name[:AWAITED_CHARACTERS_MAX] for name in names[:AWAITED_MAX])

    def handle(self, name: str, function: Callable[..., Any]) -> Handler:
        """Give every signal of this name to `function`, those that were kept first."""
        handlers = self._handlers.setdefault(name, [])
        handler = Handler(function, handlers.remove)
        handlers.append(handler)
        for signal in self._kept.pop(name, ()):
            self._handle(handler, signal)
        return handler

    def unconsumed(self) -> tuple[Signal, ...]:
        """Return the signals that nobody has taken yet, for the next run."""
        return tuple(signal for kept in self._kept.values() for signal in kept)

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
        except Exception as exc:  # noqa: BLE001 - a handler's failure is noted; it does not fail the workflow
            self._interpreter.report(f"handler of signal {signal.name} failed", exc)

    # Conditions.

    def wait_until(self, predicate: Callable[[], bool]) -> asyncio.Future[bool]:
        """Return a future that is done once `predicate` holds, asked whenever the code has come to rest."""
        future: asyncio.Future[bool] = self._interpreter.loop.create_future()
        self._conditions.append((predicate, future))
        return future

    def check_conditions(self) -> bool:
        """Ask every condition once, in the order they were made. Returns whether any future was settled."""
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
        """Have an update handler answer; the answer is a command."""
        handler = self.updates.get(event.name)
        if handler is None:
            missing = NotFoundError(f"no update {event.name!r}; the workflow takes {sorted(self.updates)}")
            self._interpreter.issue(AnswerUpdate(event.id, error=describe(missing), rejected=True))
            return
        try:
            args, kwargs = handler.signature.unpack(event.input, what=f"update {event.name}")
            if handler.validator is not None:
                handler.validator(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 - told to the caller as a refusal
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
        except Exception as exc:  # noqa: BLE001 - told to the caller
            self._interpreter.issue(AnswerUpdate(event.id, error=describe(exc)))
        else:
            self._interpreter.issue(AnswerUpdate(event.id, result))
        self._answering.pop(event.id, None)

    def refuse_updates(self) -> None:
        """Answer those who still wait: the workflow has ended."""
        for update_id in self._answering:
            ended = NotFoundError("the workflow ended before it answered")
            self._interpreter.issue(AnswerUpdate(update_id, error=describe(ended)))
        self._answering.clear()
