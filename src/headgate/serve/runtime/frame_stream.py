"""Frame streams: messages of one union of structs, each with its length before it, between two processes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

import msgspec

T = TypeVar("T")

_LENGTH: Final = struct.Struct("<I")
_encoder: Final = msgspec.msgpack.Encoder()


def encode_frame(frame: object) -> bytes:
    """Return a frame with its length prefix."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


class FrameDecoder(Generic[T]):
    """Reassembles frames from stream data."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[T]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def frames(self, data: bytes) -> Iterator[T]:
        """Yield the frames that are complete. Raises `msgspec.DecodeError` for malformed data."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                frame = self._decoder.decode(view[at + _LENGTH.size : end])
            at = end
            yield frame
        del buffer[:at]
