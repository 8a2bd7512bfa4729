"""Store writes awaited on the event loop: no thread is held for a commit, and one wake-up settles a whole group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from headgate.store.port import Store
from headgate.store.writes import Write


class LoopWrites:
    """Hands writes to the store and settles their futures on the loop that made this object."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._settled: deque[tuple[asyncio.Future[None], BaseException | None]] = deque()
        self._wake_is_due = False

    def transact(self, writes: Sequence[Write]) -> asyncio.Future[None]:
        """Return a future that is done once all of `writes` are durable, or fails as `Store.transact` does.

        Cancelling it does not undo the writes. Bad input is raised here and now.
        """
        future = self._loop.create_future()
        self._store.submit(writes, partial(self._done, future))
        return future

    def _done(self, future: asyncio.Future[None], error: BaseException | None) -> None:
        # Called from the committing thread, once for each write of a group: the first schedules the wake-up,
        # the others only add to what it will find. The flag is cleared before the queue is emptied, so
        # whoever comes too late for one wake-up schedules the next.
        self._settled.append((future, error))
        if not self._wake_is_due:
            self._wake_is_due = True
            with suppress(RuntimeError):  # The loop is closed: nobody waits for the answer any more.
                self._loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        self._wake_is_due = False
        while self._settled:
            future, error = self._settled.popleft()
            if future.cancelled():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
