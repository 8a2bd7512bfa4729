"""Deterministic event loop: an asyncio loop whose time comes from the history and whose order is always the same.

It has no thread, no socket and no clock. A turn adds events, runs every ready handle, and stops when none is left.
Everything in asyncio that is built on futures, tasks and timers works unchanged: gather, wait, TaskGroup, timeout,
sleep, Event, Queue, locks. Methods that reach outside are refused, with the name of the replacement.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Final, NoReturn, Protocol, TypeVar

from headgate.durable.replay.turn_timeout import TurnInterrupted
from headgate.errors import WorkflowViolationError

T = TypeVar("T")

# A turn with more callbacks is an endless loop, such as `while True: await asyncio.sleep(0)`.
HANDLES_MAX: Final = 1_000_000
CLOSINGS_MAX: Final = 100
_REPLACEMENTS: Final = {
    "run_in_executor": "call an activity",
    "run_forever": "await instead",
    "run_until_complete": "await instead",
    "stop": "return from the workflow",
    "close": "return from the workflow",
    "add_signal_handler": "use hg.on_signal",
    "create_connection": "call an activity",
    "create_server": "call an activity",
    "create_unix_connection": "call an activity",
    "create_unix_server": "call an activity",
    "create_datagram_endpoint": "call an activity",
    "subprocess_exec": "call an activity",
    "subprocess_shell": "call an activity",
    "connect_read_pipe": "call an activity",
    "connect_write_pipe": "call an activity",
    "add_reader": "call an activity",
    "add_writer": "call an activity",
    "getaddrinfo": "call an activity",
    "getnameinfo": "call an activity",
    "sock_connect": "call an activity",
    "sock_recv": "call an activity",
    "sock_sendall": "call an activity",
    "sock_accept": "call an activity",
    "sendfile": "call an activity",
    "start_tls": "call an activity",
    "connect_accepted_socket": "call an activity",
    "remove_reader": "call an activity",
    "remove_writer": "call an activity",
    "remove_signal_handler": "use hg.on_signal",
    "set_default_executor": "call an activity",
    "shutdown_default_executor": "call an activity",
    "sock_recv_into": "call an activity",
    "sock_recvfrom": "call an activity",
    "sock_recvfrom_into": "call an activity",
    "sock_sendfile": "call an activity",
    "sock_sendto": "call an activity",
}


class DurableTimer(asyncio.TimerHandle):
    """A timer that survives the process. `seq` identifies it in the history."""

    __slots__ = ("seq",)

    seq: int


class DurableFuture(asyncio.Future[T]):
    """A future with a hash that is the same on replay, so that sets of futures keep their order."""

    __slots__ = ("_place",)

    def __init__(self, loop: TurnLoop) -> None:
        super().__init__(loop=loop)
        self._place = loop.next_place()

    def __hash__(self) -> int:
        return self._place


class DurableTask(asyncio.Task[T]):
    """A task with a hash and a name that are the same on replay."""

    def __init__(self, coro: Any, *, loop: TurnLoop, name: str | None, context: Context | None) -> None:  # noqa: ANN401
        self._place = loop.next_place()
        super().__init__(coro, loop=loop, name=name or f"task-{self._place & 0xFFFFF}", context=context)

    def __hash__(self) -> int:
        return self._place


class LoopHost(Protocol):
    """The execution that a loop runs."""

    def start_timer(self, timer: DurableTimer) -> None:
        """Schedule a timer for `timer.when()`."""

    def cancel_timer(self, timer: DurableTimer) -> None:
        """Cancel a timer."""

    def report(self, message: str, error: BaseException | None) -> None:
        """Log the error of a callback or of a task that is never awaited."""


class TurnLoop(asyncio.AbstractEventLoop):
    """Runs the tasks of one execution, one turn at a time, in the calling thread."""

    def __init__(self, host: LoopHost, hash_base: int) -> None:
        self.now_seconds = 0.0
        self._steps_left = HANDLES_MAX
        self.violation: WorkflowViolationError | None = None
        self._host = host
        self._ready: deque[asyncio.Handle] = deque()
        self._place = hash_base << 20
        self._tasks: dict[DurableTask[Any], None] = {}
        self._driver: int | None = None
        self._dead = False

    # For the interpreter.

    def drain(self) -> None:
        """Run until nothing is ready. Raises `WorkflowViolationError` after too many callbacks."""
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if not handle.cancelled():
                try:
                    handle._run()
                except SystemExit:
                    # The task has it as its exception; asyncio also raises it, to end the program.
                    pass
                except KeyboardInterrupt:
                    if threading.current_thread() is threading.main_thread():
                        raise
            self._steps_left -= 1
            if self._steps_left <= 0:
                ready.clear()
                raise WorkflowViolationError(
                    f"{HANDLES_MAX} callbacks in one turn: the workflow spins without waiting for anything; "
                    "wait for a signal, a timer or an activity"
                )

    def enter(self) -> object:
        """Make this the running loop of the current thread. Returns the argument of `leave`."""
        if events._get_running_loop() is not None:
            raise WorkflowViolationError("a turn cannot run inside another event loop; drive it from a thread")
        self._driver = threading.get_ident()
        self._steps_left = HANDLES_MAX
        finalizer = sys.get_asyncgen_hooks().finalizer
        sys.set_asyncgen_hooks(finalizer=self._finish_generator)
        events._set_running_loop(self)
        return finalizer

    def leave(self, finalizer: Any) -> None:  # noqa: ANN401 - the result of `enter`
        """Undo `enter`."""
        events._set_running_loop(None)
        sys.set_asyncgen_hooks(finalizer=finalizer)
        self._driver = None

    def kill(self) -> None:
        """Close every remaining task now, so that the garbage collector does not run their `finally` later."""
        self._dead = True
        self._ready.clear()
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is pending on purpose
            coroutine: Any = task.get_coro()
            # `finally` blocks may await again when closed: each such wait needs another close.
            for _ in range(CLOSINGS_MAX):
                try:
                    coroutine.close()
                except RuntimeError:
                    continue
                except (Exception, TurnInterrupted) as exc:  # noqa: BLE001 - `finally` may raise anything
                    self._host.report("a task raised while its execution left memory", exc)
                break
        self._tasks.clear()
        self._ready.clear()

    def next_place(self) -> int:
        """Return a number that is unique to this execution and the same on replay."""
        self._place += 1
        return self._place

    # The interface of asyncio.

    def time(self) -> float:
        return self.now_seconds

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001 - asyncio's signature
        del enabled

    def is_running(self) -> bool:
        return self._driver is not None

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]  # asyncio's own stubs tie the arguments to the callback
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> asyncio.Handle:
        if self._driver != threading.get_ident() or self._dead:
            self._refuse_foreign()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_seconds + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,  # noqa: ANN401 - asyncio's signature
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._dead:
            self._refuse_foreign()
        timer = DurableTimer(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._host.start_timer(timer)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        assert isinstance(handle, DurableTimer)
        if not self._dead:
            self._host.cancel_timer(handle)

    def create_future(self) -> asyncio.Future[Any]:
        return DurableFuture(self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> DurableTask[T]:
        if self._dead:
            coro.close()
            self._refuse_foreign()
        task = DurableTask[T](coro, loop=self, name=name, context=context)
        # A task without references must not be garbage-collected before it ends.
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)  # type: ignore[call-overload]  # only durable tasks get here

    def get_task_factory(self) -> None:
        return None

    def set_task_factory(self, factory: object) -> None:
        if factory is not None:
            raise WorkflowViolationError("workflow code cannot set a task factory: its tasks have to be replayed")

    def get_exception_handler(self) -> None:
        return None

    def set_exception_handler(self, handler: object) -> None:
        if handler is not None:
            raise WorkflowViolationError("workflow code cannot set an exception handler; catch the error where it is")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self._dead:
            self._host.report(str(context.get("message", "a callback failed")), context.get("exception"))

    async def shutdown_asyncgens(self) -> None:
        return

    def _finish_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        # Only for reference counting, which replay repeats; a garbage collection of cycles may run at any time.
        if self._driver == threading.get_ident() and not self._dead:
            self.create_task(generator.aclose())

    def _refuse_foreign(self) -> NoReturn:
        violation = WorkflowViolationError(
            "a future or task of a workflow was touched outside of its turn, from another thread or after it left "
            "memory; send a signal instead"
        )
        self.violation = violation
        raise violation


def _refused(name: str, replacement: str) -> Callable[..., NoReturn]:
    def refuse(self: TurnLoop, *args: object, **kwargs: object) -> NoReturn:
        del args, kwargs
        self.violation = WorkflowViolationError(f"loop.{name}() cannot be used in a workflow: {replacement}")
        raise self.violation

    refuse.__name__ = name
    return refuse


for _name, _replacement in _REPLACEMENTS.items():
    setattr(TurnLoop, _name, _refused(_name, _replacement))
