"""Store writes awaited on the event loop: no thread is held for a commit, and one wake-up settles a whole group."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from headgate.serve.runtime.thread_pool import Returns
from headgate.store.model.requests import Write
from headgate.store.port import Store


class LoopWrites:
    """Hands writes to the store and settles their futures on the loop that made this object."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._returns: Returns[None] = Returns(loop)

    def transact(self, writes: Sequence[Write]) -> asyncio.Future[None]:
        """Return a future that is done once all of `writes` are durable, or fails as `Store.transact` does.

        Cancelling it does not undo the writes. Bad input is raised here and now.
        """
        future = self._loop.create_future()
        self._store.submit(writes, partial(self._returns.settle, future, None))
        return future
