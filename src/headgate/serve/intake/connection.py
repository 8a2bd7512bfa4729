"""One end of the line between a server and its intake, on the event loop of either."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from headgate.batch_pacer import Pace
from headgate.clock import Clock
from headgate.serve.intake.frames import Forget, Frame, Incoming, forgetting, forgotten, packed
from headgate.store.cache.read_through import Cache
from headgate.store.cache.shared import Invalidation


class Line(asyncio.Protocol):
    """Sends and takes frames. What was written to the cache here goes before whatever is sent after it."""

    def __init__(
        self,
        cache: Cache,
        clock: Clock,
        *,
        take: Callable[[Frame], None],
        lost: Callable[[], None] = lambda: None,
        pace: Pace | None = None,
    ) -> None:
        """Give `take` each frame that is not about the cache, and call `lost` once the other end is gone.

        With a `pace`, frames leave together where there are many: each that leaves alone wakes the other end.
        """
        self.heard_at = clock.monotonic()
        self._cache = cache
        self._clock = clock
        self._take = take
        self._lost = lost
        self._incoming = Incoming()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pace = pace
        # What has not left yet, and whether it is going to.
        self._leaving: list[bytes] = []
        self._leaves_later = False
        # Frames, in the order in which threads have written to the cache.
        self._forgets: deque[Forget] = deque()
        self._forget_is_due = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # One of uvloop's own, which says of itself only that it behaves like this.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._clock.monotonic()
        for frame in self._incoming.frames(data):
            if isinstance(frame, Forget):
                for each in forgotten(frame):
                    self._cache.heard(each)
            else:
                self._take(frame)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._lost()

    def send(self, frame: Frame) -> None:
        """Send a frame, if there is anyone to send it to."""
        if self._transport is None:
            return
        self._queue_forgets()
        self._leaving.append(packed(frame))
        pace, waiting = self._pace, len(self._leaving)
        pause_seconds = 0.0 if pace is None else pace.pause_seconds(self._clock.monotonic(), waiting)
        if pause_seconds == 0:
            self._leave()
        elif not self._leaves_later:
            self._leaves_later = True
            self._loop.call_later(pause_seconds, self._leave)

    def told(self, invalidations: Sequence[Invalidation]) -> None:
        """Have the other end forget what was written here, before it is sent anything else. From any thread."""
        self._forgets.append(forgetting(invalidations))
        if not self._forget_is_due:
            self._forget_is_due = True
            self._loop.call_soon_threadsafe(self._send_forgets)

    def close(self) -> None:
        """Hang up, once what was sent has left."""
        self._leave()
        if self._transport is not None:
            self._transport.close()

    def _send_forgets(self) -> None:
        self._queue_forgets()
        # With what was to leave later: all goes in one order.
        self._leave()

    def _queue_forgets(self) -> None:
        # Cleared before the queue is emptied: who comes too late for this wake-up schedules the next.
        self._forget_is_due = False
        while self._forgets:
            self._leaving.append(packed(self._forgets.popleft()))

    def _leave(self) -> None:
        self._leaves_later = False
        leaving, self._leaving = self._leaving, []
        if not leaving or self._transport is None:
            return
        if self._pace is not None:
            self._pace.began(self._clock.monotonic(), len(leaving))
        self._transport.writelines(leaving)
