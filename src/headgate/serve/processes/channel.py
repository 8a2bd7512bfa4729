"""Channel: one end of the socket between the first serving process and a further one, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from headgate.clock import Clock
from headgate.serve.processes.frames import Frame, decoder
from headgate.serve.runtime.frame_stream import FrameDecoder, encode_frame


class Channel(asyncio.Protocol):
    """Sends and receives frames in order."""

    def __init__(self, clock: Clock, *, on_frame: Callable[[Frame], None], on_lost: Callable[[], None]) -> None:
        """Pass each frame to `on_frame`, and call `on_lost` when the other process has disconnected."""
        self.received_at = clock.monotonic()
        self._clock = clock
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._decoder = FrameDecoder(decoder)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has the interface but not the type.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received_at = self._clock.monotonic()
        for frame in self._decoder.frames(data):
            self._on_frame(frame)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._on_lost()

    def send(self, frame: Frame) -> None:
        """Send a frame, unless disconnected."""
        if self._transport is not None:
            self._transport.write(encode_frame(frame))

    def close(self) -> None:
        """Send what is left, and close."""
        if self._transport is not None:
            self._transport.close()
