"""Intake frames: calls, results, cache invalidations, metrics and heartbeats between server and intake process.

All frames share one ordered connection. An invalidation precedes the result of the write, so a caller that has its
answer never reads a stale cache entry on either side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from headgate.auth.principals import Principal
from headgate.store.cache.keys import Group, Key, is_group
from headgate.store.cache.shared import Invalidation


class CallFrame(Struct, frozen=True, array_like=True, tag=1):
    """A call to answer. The caller is authenticated; the intake authorizes."""

    number: int
    path: str
    codec: str
    content: bytes
    name: str
    peer: str
    principal: Principal
    remaining_seconds: float | None


class ResultFrame(Struct, frozen=True, array_like=True, tag=2):
    """The answer to a call, or the process metrics encoded by `merged_metrics`."""

    number: int
    content: bytes


class FailureFrame(Struct, frozen=True, array_like=True, tag=3):
    """A failed call: our error code and an encoded `google.rpc.Status`."""

    number: int
    code: str
    status: bytes


class InvalidateFrame(Struct, frozen=True, array_like=True, tag=4):
    """Cache entries to invalidate: each target up to a version, or entirely."""

    targets: list[tuple[str, int | None]]


class MetricsRequest(Struct, frozen=True, array_like=True, tag=5):
    """Request for the process metrics."""

    number: int


class Heartbeat(Struct, frozen=True, array_like=True, tag=6):
    """Heartbeat with the shed-evidence totals of datasets whose total changed."""

    shed: dict[str, int]


Frame: TypeAlias = CallFrame | ResultFrame | FailureFrame | InvalidateFrame | MetricsRequest | Heartbeat
decoder: Final = msgspec.msgpack.Decoder(Frame)


def invalidate_frame(invalidations: Sequence[Invalidation]) -> InvalidateFrame:
    """Return the frame for cache invalidations."""
    return InvalidateFrame([(each.target, each.version) for each in invalidations])


def invalidations(frame: InvalidateFrame) -> Iterator[Invalidation]:
    """Yield the invalidations in a frame."""
    for target, version in frame.targets:
        yield Invalidation(Group(target) if is_group(Key(target)) else Key(target), version)
