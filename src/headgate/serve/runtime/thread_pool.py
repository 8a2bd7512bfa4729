"""A bounded pool of threads with a bounded queue before it, for calls that block.

Results that other threads hand to an event loop: one wake-up settles all that have come by then.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Generic, TypeAlias, TypeVar

from headgate.errors import ServerBusyError

THREADS_MAX: Final = 16
WAITING_MAX: Final = 128

T = TypeVar("T")
# Told once, from any thread, how something went: what came of it, or what it raised.
Told: TypeAlias = Callable[[T | None, BaseException | None], None]


class Returns(Generic[T]):
    """Settles futures on the loop that they were made in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._settled: deque[tuple[asyncio.Future[Any], T | None, BaseException | None]] = deque()
        self._wake_is_due = False

    def settle(self, future: asyncio.Future[Any], result: T | None, error: BaseException | None) -> None:
        """Let a future be done, with the error if there is one. From any thread; a future that was cancelled stays so.

        The first of several schedules the wake-up, the others only add to what it will find. The flag is cleared
        before the queue is emptied, so whoever comes too late for one wake-up schedules the next.
        """
        self._settled.append((future, result, error))
        if not self._wake_is_due:
            self._wake_is_due = True
            with suppress(RuntimeError):  # The loop is closed: nobody waits for the answer any more.
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._wake_is_due = False
        while self._settled:
            future, result, error = self._settled.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


class WorkPool:
    """Runs blocking work away from the event loop, and refuses more than it could soon get to."""

    def __init__(self, *, threads_max: int = THREADS_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._accepted_max = threads_max + waiting_max
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix="headgate-work")
        self._lock = threading.Lock()
        self._accepted = 0
        self._returns: Returns[Any] | None = None

    @property
    def accepted(self) -> int:
        """How many pieces of work run or wait."""
        return self._accepted

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises, in the caller's context.

        Raises `ServerBusyError` at once if too much waits already.
        """
        self._accept()
        future = self._executor.submit(contextvars.copy_context().run, work)
        # Counted until the work itself ends: a caller that went away does not free the thread.
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    async def told(self, begin: Callable[[Told[T]], None]) -> T:
        """Return or raise what `begin` is told in the end. It starts what needs no thread of the pool, and returns.

        It counts as work as long as it lasts. Raises `ServerBusyError` as `run` does, and what `begin` raises.
        """
        loop = asyncio.get_running_loop()
        returns = self._returns
        if returns is None or returns.loop is not loop:
            returns = self._returns = Returns(loop)
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            self._release()
            returns.settle(future, result, error)

        self._accept()
        try:
            begin(settle)
        except BaseException:
            self._release()
            raise
        return await future

    def close(self) -> None:
        """Drop what waits, and return once what runs has ended."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _accept(self) -> None:
        with self._lock:
            if self._accepted >= self._accepted_max:
                raise ServerBusyError(f"the server is busy: {self._accepted} requests are ahead; try again in a moment")
            self._accepted += 1

    def _release(self) -> None:
        with self._lock:
            self._accepted -= 1

    def _done(self, _future: Future[Any]) -> None:
        self._release()
