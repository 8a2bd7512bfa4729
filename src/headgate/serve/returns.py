"""Results that other threads hand to an event loop: one wake-up settles all that have come by then."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any, Generic, TypeVar

T = TypeVar("T")


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
