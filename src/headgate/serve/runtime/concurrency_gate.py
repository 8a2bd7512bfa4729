"""A gate before the pool: lets a few calls of one kind in at a time, and has others wait shortly, without a thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from headgate.errors import ServerBusyError
from headgate.serve.runtime.thread_pool import WorkPool

T = TypeVar("T")


class Gate:
    """Keeps calls that may take long from using up the threads that all others need."""

    def __init__(self, pool: WorkPool, what: str, *, calls_max: int, wait_seconds: float) -> None:
        self._pool = pool
        self._what = what
        self._calls_max = calls_max
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns in a thread of the pool, or raise what it raises.

        Raises `ServerBusyError` if too many are inside for too long, or the pool is busy.
        """
        await self._enter()
        begun = False

        def counted() -> T:
            nonlocal begun
            begun = True
            try:
                return work()
            finally:
                # Not before: a caller that went away does not free the thread.
                self._leave()

        try:
            return await self._pool.run(counted)
        except ServerBusyError:
            if not begun:
                self._leave()
            raise

    async def _enter(self) -> None:
        with self._lock:
            if self._inside < self._calls_max:
                self._inside += 1
                return
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
        try:
            await asyncio.wait_for(turn, self._wait_seconds)
        except TimeoutError:
            raise ServerBusyError(
                f"{self._what}: {self._calls_max} are being answered and none has ended in {self._wait_seconds:g} s; "
                "try again in a moment"
            ) from None

    def _leave(self) -> None:
        """Give the place to whoever has waited longest, from any thread."""
        with self._lock:
            while self._waiting:
                turn = self._waiting.popleft()
                if not turn.done():
                    turn.get_loop().call_soon_threadsafe(self._let_in, turn)
                    return
            self._inside -= 1

    def _let_in(self, turn: asyncio.Future[None]) -> None:
        if turn.done():
            # Gone in the meantime: the place is the next one's.
            self._leave()
        else:
            turn.set_result(None)
