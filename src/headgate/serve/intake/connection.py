"""Intake connection: one end of the socket between the server and its intake process, on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from headgate.batch_pacer import BatchPacer
from headgate.clock import Clock
from headgate.serve.intake.frames import (
    Frame,
    InvalidateFrame,
    decoder,
    invalidate_frame,
    invalidations,
)
from headgate.serve.runtime.frame_stream import FrameDecoder, encode_frame
from headgate.store.cache.read_through import Cache
from headgate.store.cache.shared import Invalidation


class IntakeConnection(asyncio.Protocol):
    """Sends and receives frames. Cache invalidations are sent before any later frame."""

    def __init__(
        self,
        cache: Cache,
        clock: Clock,
        *,
        on_frame: Callable[[Frame], None],
        on_lost: Callable[[], None] = lambda: None,
        pace: BatchPacer | None = None,
    ) -> None:
        """Pass each frame except invalidations to `on_frame`, and call `on_lost` when the peer disconnects.

        With a `pace`, frames are sent in batches under load: each write wakes the peer.
        """
        self.received_at = clock.monotonic()
        self._cache = cache
        self._clock = clock
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._decoder = FrameDecoder(decoder)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pace = pace
        # Encoded frames not sent yet, and whether a flush is scheduled.
        self._outgoing: list[bytes] = []
        self._flush_is_scheduled = False
        # Invalidations in the order of the cache writes.
        self._invalidations: deque[InvalidateFrame] = deque()
        self._invalidations_are_scheduled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the interface but not the type.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received_at = self._clock.monotonic()
        for frame in self._decoder.frames(data):
            if isinstance(frame, InvalidateFrame):
                for each in invalidations(frame):
                    self._cache.on_invalidated(each)
            else:
                self._on_frame(frame)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    def send(self, frame: Frame) -> None:
        """Send a frame, unless disconnected."""
        if self._transport is None:
            return
        self._queue_invalidations()
        self._outgoing.append(encode_frame(frame))
        pace, waiting = self._pace, len(self._outgoing)
        pause_seconds = 0.0 if pace is None else pace.pause_seconds(self._clock.monotonic(), waiting)
        if pause_seconds == 0:
            self._flush()
        elif not self._flush_is_scheduled:
            self._flush_is_scheduled = True
            self._loop.call_later(pause_seconds, self._flush)

    def invalidate(self, invalidations: Sequence[Invalidation]) -> None:
        """Send cache invalidations to the peer, before any later frame. From any thread."""
        self._invalidations.append(invalidate_frame(invalidations))
        if not self._invalidations_are_scheduled:
            self._invalidations_are_scheduled = True
            self._loop.call_soon_threadsafe(self._send_invalidations)

    def close(self) -> None:
        """Flush and close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _send_invalidations(self) -> None:
        self._queue_invalidations()
        # Together with scheduled frames, to keep the order.
        self._flush()

    def _queue_invalidations(self) -> None:
        # Cleared before the queue is drained: a later append schedules the next wake-up.
        self._invalidations_are_scheduled = False
        while self._invalidations:
            self._outgoing.append(encode_frame(self._invalidations.popleft()))

    def _flush(self) -> None:
        self._flush_is_scheduled = False
        outgoing, self._outgoing = self._outgoing, []
        if not outgoing or self._transport is None:
            return
        if self._pace is not None:
            self._pace.on_batch_started(self._clock.monotonic(), len(outgoing))
        self._transport.writelines(outgoing)
