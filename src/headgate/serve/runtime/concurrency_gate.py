"""Concurrency gate: limits the parallel calls of one kind; others wait briefly without holding a thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from headgate.errors import ServerBusyError
from headgate.serve.runtime.thread_pool import WorkPool

T = TypeVar("T")


class ConcurrencyGate:
    """Keeps slow calls from occupying all threads of the pool."""

    def __init__(self, pool: WorkPool, what: str, *, calls_max: int, wait_seconds: float) -> None:
        self._pool = pool
        self._what = what
        self._calls_max = calls_max
        self._wait_seconds = wait_seconds
        self._lock = threading.Lock()
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the pool. Raises `ServerBusyError` if no slot is free in time, or the pool is busy."""
        await self._enter()
        started = False

        def counted() -> T:
            nonlocal started
            started = True
            try:
                return work()
            finally:
                # Only now: a disconnected caller does not free the thread.
                self._leave()

        try:
            return await self._pool.run(counted)
        except ServerBusyError:
            if not started:
                self._leave()
            raise

    async def _enter(self) -> None:
        with self._lock:
            if self._inside < self._calls_max:
                self._inside += 1
                return
            slot = asyncio.get_running_loop().create_future()
            self._waiting.append(slot)
        try:
            await asyncio.wait_for(slot, self._wait_seconds)
        except TimeoutError:
            raise ServerBusyError(
                f"{self._what}: {self._calls_max} calls in progress and none ended within {self._wait_seconds:g} s; "
                "retry in a moment"
            ) from None

    def _leave(self) -> None:
        """Pass the slot to the longest waiter. From any thread."""
        with self._lock:
            while self._waiting:
                slot = self._waiting.popleft()
                if not slot.done():
                    slot.get_loop().call_soon_threadsafe(self._grant, slot)
                    return
            self._inside -= 1

    def _grant(self, slot: asyncio.Future[None]) -> None:
        if slot.done():
            # Cancelled meanwhile: pass the slot on.
            self._leave()
        else:
            slot.set_result(None)
