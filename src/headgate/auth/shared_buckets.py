"""Shared token buckets: rate limits that hold for all serving processes of one server together.

The levels are in shared memory, in sets of a few places, each place with the digest of its key. A set is locked for the
few microseconds of a change by a lock on its bytes of the file behind the memory, which ends with its process.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headgate.auth.rate_limits import Level, Rate, take

_PLACE: Final = struct.Struct("=16sdd")
_PLACES: Final = 8
SETS: Final = 2048
_SET_BYTES: Final = _PLACES * _PLACE.size
MEMORY_BYTES: Final = SETS * _SET_BYTES
_EMPTY: Final = bytes(16)


class SharedBuckets:
    """The buckets of all limits. Thread-safe, in any number of processes.

    In a set without a free place the bucket that was used least recently is dropped, and starts full again.
    """

    def __init__(self, memory: mmap.mmap, descriptor: int, *, offset: int = 0) -> None:
        """Take the memory, the descriptor of its file, and where the buckets begin in both."""
        self._memory = memory
        self._descriptor = descriptor
        self._offset = offset
        # A file lock excludes other processes, not other threads of this one.
        self._lock = threading.Lock()

    def limiter(self, name: str, rate: Rate) -> SharedRateLimiter:
        """Return the limiter of one limit."""
        return SharedRateLimiter(self, name, rate)

    def take(self, key: str, rate: Rate, now: float) -> float:
        """Take a token of `key`; return 0, or the seconds until one is available."""
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        start = self._offset + int.from_bytes(digest[:4], "big") % SETS * _SET_BYTES
        with self._locked(start):
            found, at, oldest = None, start, float("inf")
            for place in range(start, start + _SET_BYTES, _PLACE.size):
                owner, tokens, used_at = _PLACE.unpack_from(self._memory, place)
                if owner == digest:
                    found, at = Level(tokens, used_at), place
                    break
                if owner == _EMPTY:
                    used_at = -1.0
                if used_at < oldest:
                    at, oldest = place, used_at
            level, seconds = take(found, rate, now)
            _PLACE.pack_into(self._memory, at, digest, *level)
        return seconds

    @contextmanager
    def _locked(self, start: int) -> Iterator[None]:
        with self._lock:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, _SET_BYTES, start)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, _SET_BYTES, start)


class SharedRateLimiter:
    """One limit of all serving processes."""

    def __init__(self, buckets: SharedBuckets, name: str, rate: Rate) -> None:
        self._buckets = buckets
        self._name = name
        self._rate = rate

    def wait_seconds(self, key: str, now: float) -> float:
        """Take a token of `key`; return 0, or the seconds until one is available."""
        return self._buckets.take(f"{self._name}:{key}", self._rate, now)
