"""A bounded pool of threads with a bounded queue before it, for calls that block."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from headgate.errors import ServerBusyError

THREADS_MAX: Final = 16
WAITING_MAX: Final = 128

T = TypeVar("T")


class WorkPool:
    """Runs blocking work away from the event loop, and refuses more than it could soon get to."""

    def __init__(self, *, threads_max: int = THREADS_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._accepted_max = threads_max + waiting_max
        self._executor = ThreadPoolExecutor(threads_max, thread_name_prefix="headgate-work")
        self._lock = threading.Lock()
        self._accepted = 0

    @property
    def accepted(self) -> int:
        """How many pieces of work run or wait."""
        return self._accepted

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises, in the caller's context.

        Raises `ServerBusyError` at once if too much waits already.
        """
        with self._lock:
            if self._accepted >= self._accepted_max:
                raise ServerBusyError(f"the server is busy: {self._accepted} requests are ahead; try again in a moment")
            self._accepted += 1
        future = self._executor.submit(contextvars.copy_context().run, work)
        # Counted until the work itself ends: a caller that went away does not free the thread.
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Drop what waits, and return once what runs has ended."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _done(self, _future: Future[Any]) -> None:
        with self._lock:
            self._accepted -= 1
