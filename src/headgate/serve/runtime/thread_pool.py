"""Thread pool: bounded threads and a bounded queue for blocking calls, and a bridge from threads to futures."""

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
# Completion callback: called once, from any thread, with the result or the error.
Completion: TypeAlias = Callable[[T | None, BaseException | None], None]


class FutureBridge(Generic[T]):
    """Settles asyncio futures from other threads. One loop wake-up settles all that are queued by then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._queue: deque[tuple[asyncio.Future[Any], T | None, BaseException | None]] = deque()
        self._wake_is_scheduled = False

    def settle(self, future: asyncio.Future[Any], result: T | None, error: BaseException | None) -> None:
        """Set the result, or the error if there is one, unless the future is done. From any thread.

        The first call schedules the wake-up, later ones only append. The flag is cleared before the queue is drained,
        so a call that misses one wake-up schedules the next.
        """
        self._queue.append((future, result, error))
        if not self._wake_is_scheduled:
            self._wake_is_scheduled = True
            with suppress(RuntimeError):  # The loop is closed; there is no waiter left.
                self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._wake_is_scheduled = False
        while self._queue:
            future, result, error = self._queue.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


class WorkPool:
    """Runs blocking work off the event loop, and refuses work beyond its queue limit."""

    def __init__(self, *, threads_max: int = THREADS_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._accepted_max = threads_max + waiting_max
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix="headgate-work")
        self._lock = threading.Lock()
        self._accepted = 0
        self._bridge: FutureBridge[Any] | None = None

    @property
    def accepted(self) -> int:
        """Calls running or queued."""
        return self._accepted

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread with the caller's context variables. Raises `ServerBusyError` if the queue is full."""
        self._accept()
        future = self._executor.submit(contextvars.copy_context().run, work)
        # Counted until the work ends: a disconnected caller does not free the thread.
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    async def from_callback(self, begin: Callable[[Completion[T]], None]) -> T:
        """Call `begin` with a completion callback and wait for it. Needs no thread, but counts as queued work.

        Raises `ServerBusyError` as `run` does, and any error of `begin`.
        """
        loop = asyncio.get_running_loop()
        bridge = self._bridge
        if bridge is None or bridge.loop is not loop:
            bridge = self._bridge = FutureBridge(loop)
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            self._release()
            bridge.settle(future, result, error)

        self._accept()
        try:
            begin(settle)
        except BaseException:
            self._release()
            raise
        return await future

    def close(self) -> None:
        """Cancel queued work, and wait for running work."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _accept(self) -> None:
        with self._lock:
            if self._accepted >= self._accepted_max:
                raise ServerBusyError(f"the server is busy: {self._accepted} requests queued; retry in a moment")
            self._accepted += 1

    def _release(self) -> None:
        with self._lock:
            self._accepted -= 1

    def _done(self, _future: Future[Any]) -> None:
        self._release()
