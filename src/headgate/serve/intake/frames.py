"""What a server and its intake say to each other: calls and answers, what to forget, counts, and signs of life.

Everything goes over one connection each way, in order. So whoever was answered and asks again, on either side, never
finds in memory what the answered call has replaced.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from headgate.auth.principals import Principal
from headgate.store.cache.keys import Group, Key, is_group
from headgate.store.cache.shared import Invalidation

_LENGTH: Final = struct.Struct("<I")


class Ask(Struct, frozen=True, array_like=True, tag=1):
    """A call to answer. Who makes it is known, and what they may do is not."""

    number: int
    path: str
    codec: str
    content: bytes
    name: str
    peer: str
    principal: Principal
    remaining_seconds: float | None


class Answer(Struct, frozen=True, array_like=True, tag=2):
    """The answer to a call, or the counts of the process as `meters_elsewhere` packs them."""

    number: int
    content: bytes


class Failed(Struct, frozen=True, array_like=True, tag=3):
    """A call that failed: our own code, and the rest as a `google.rpc.Status`."""

    number: int
    code: str
    status: bytes


class Forget(Struct, frozen=True, array_like=True, tag=4):
    """What was written, and is not to be answered from memory any more: targets, each up to a version or whole."""

    targets: list[tuple[str, int | None]]


class Count(Struct, frozen=True, array_like=True, tag=5):
    """The question how much of everything there was."""

    number: int


class Beat(Struct, frozen=True, array_like=True, tag=6):
    """A sign of life, with how much evidence was turned away so far of datasets of which that has changed."""

    shed: dict[str, int]


Frame: TypeAlias = Ask | Answer | Failed | Forget | Count | Beat
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Frame)


def packed(frame: Frame) -> bytes:
    """Return a frame as it travels."""
    body = _encoder.encode(frame)
    return _LENGTH.pack(len(body)) + body


def forgetting(invalidations: Sequence[Invalidation]) -> Forget:
    """Return the frame that passes on what a cache has heard."""
    return Forget([(each.target, each.version) for each in invalidations])


def forgotten(frame: Forget) -> Iterator[Invalidation]:
    """Go through what a frame says is to be forgotten."""
    for target, version in frame.targets:
        yield Invalidation(Group(target) if is_group(Key(target)) else Key(target), version)


class Incoming:
    """Puts frames together from the pieces in which they come."""

    def __init__(self) -> None:
        self._held = bytearray()

    def frames(self, data: bytes) -> Iterator[Frame]:
        """Yield what is complete with this piece. Raises `msgspec.DecodeError` for what is no frame."""
        held = self._held
        held += data
        at = 0
        while len(held) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, at)
            end = at + _LENGTH.size + length
            if len(held) < end:
                break
            with memoryview(held) as view:
                frame: Frame = _decoder.decode(view[at + _LENGTH.size : end])
            at = end
            yield frame
        del held[:at]
