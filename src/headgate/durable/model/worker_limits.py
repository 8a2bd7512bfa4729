"""Worker limits: how much one worker runs, keeps in memory and claims ahead; and how much of it is in use."""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class WorkerLimits(Struct, frozen=True, kw_only=True):
    """The limits of one worker, as it registers them."""

    # Activities in threads. One that is isolated occupies a thread as well.
    threads_max: int = 64
    async_max: int = 200
    isolated_max: int = 64
    # Executions in memory; others are replayed from their history when they have an event.
    cached_max: int = 2_000
    # Claims that wait for a thread.
    prefetch_max: int = 256
    # The longest time between two polls of the store. Notifications make most of them earlier.
    poll_seconds: float = 1.0


DEFAULT_LIMITS: Final = WorkerLimits()


class WorkerUsage(Struct, frozen=True, kw_only=True):
    """What a worker had in use at its last heartbeat."""

    in_threads: int = 0
    in_async: int = 0
    in_isolated: int = 0
    cached: int = 0
    queued: int = 0
