"""Shared cache layer (L2): its port, a guard that contains its failures, and a wrapper that times its calls.

L2 may be down, slow or full at any time. Reads then continue without it, and a write that does not arrive becomes a
pending invalidation, sent as soon as L2 answers again, so that other processes stop reading the replaced value.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from headgate.clock import Clock
from headgate.errors import TransientError
from headgate.store.cache.keys import Group, Key, group_of, kind_of
from headgate.store.cache.stats import CacheStats

FAILURES_MAX: Final = 3
PAUSE_SECONDS: Final = 5.0
PENDING_MAX: Final = 10_000
PENDING_BATCH_MAX: Final = 100

R = TypeVar("R")


class SharedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of L2. `body` is None if the item does not exist in the store.

    It is fresh while `age_seconds` is below `fresh_seconds`, and is stored for `keep_seconds`.
    """

    body: bytes | None
    version: int | None
    age_seconds: float
    fresh_seconds: float
    keep_seconds: float = 0.0


class SharedRead(msgspec.Struct, frozen=True):
    """The entry of a key in L2, and a mark that changes with every change of the entry."""

    entry: SharedEntry | None
    mark: bytes


class Invalidation(msgspec.Struct, frozen=True):
    """An invalidation of a key (versions below `version`; None: all) or of a whole group."""

    target: Key | Group
    version: int | None = None


class InvalidationListener(Protocol):
    """Receives the invalidations of other processes, in the layer's own thread."""

    def on_invalidated(self, invalidation: Invalidation) -> None:
        """Another process has sent this invalidation."""

    def on_messages_lost(self) -> None:
        """Messages may have been lost; cached entries may be out of date."""

    def on_idle(self) -> None:
        """Called about once a second while the layer is reachable."""


class SharedLayer(Protocol):
    """A cache shared between processes. Every method raises `TransientError` if the layer does not answer in time.

    Each call is atomic, and an older version never replaces a newer one.
    """

    def get(self, key: Key) -> SharedRead:
        """Return the entry of `key`, fresh or not."""

    def fill(self, key: Key, entry: SharedEntry, mark: bytes) -> bool:
        """Store an entry loaded after `mark` was read. Returns False if the key has changed since."""

    def write(self, key: Key, entry: SharedEntry) -> bool:
        """Store a committed value and notify the other processes. Returns False if a newer version is stored."""

    def invalidate(self, invalidations: Sequence[Invalidation]) -> bool:
        """Drop the entries, refuse fills of running loads, and notify the other processes."""

    def listen(self, listener: InvalidationListener) -> None:
        """Call `listener` until `close`."""

    def close(self) -> None:
        """Stop listening and close all connections. Idempotent."""


class LayerBreaker:
    """Circuit breaker of L2: after a few failures only one call per pause is tried, so that most avoid the timeout."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0

    def admits(self) -> bool:
        """Whether to call L2 now. While open, one call per pause is admitted as a probe."""
        if self._failures < FAILURES_MAX:
            return True
        now = self._clock.monotonic()
        with self._lock:
            if now < self._open_until:
                return False
            self._open_until = now + PAUSE_SECONDS
            return True

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._open_until = self._clock.monotonic() + PAUSE_SECONDS


class GuardedLayer:
    """A shared layer that never raises. None from a call means that the layer could not be reached."""

    def __init__(self, layer: SharedLayer, *, clock: Clock, stats: CacheStats) -> None:
        self._layer = layer
        self._stats = stats
        self._breaker = LayerBreaker(clock)
        self._lock = threading.Lock()
        self._pending: OrderedDict[Key | Group, Invalidation] = OrderedDict()

    def get(self, key: Key) -> SharedRead | None:
        """Return the entry of `key`; None also while an invalidation of it is pending."""
        if self._pending and (key in self._pending or group_of(key) in self._pending):
            return None
        return self._call(key, lambda: self._layer.get(key))

    def fill(self, key: Key, entry: SharedEntry, mark: bytes) -> bool | None:
        """Store a loaded entry. False means that the key has changed since the load started."""
        return self._call(key, lambda: self._layer.fill(key, entry, mark))

    def write(self, key: Key, entry: SharedEntry) -> None:
        """Send a committed value; if it does not arrive, its invalidation becomes pending."""
        stored = self._call(key, lambda: self._layer.write(key, entry))
        if stored is None:
            self._add_pending(Invalidation(key, entry.version))
        elif stored and self._pending:
            self._drop_pending(key, entry.version)

    def invalidate(self, invalidation: Invalidation) -> None:
        """Send an invalidation; if it does not arrive, it becomes pending."""
        if self._call(invalidation.target, lambda: self._layer.invalidate([invalidation])) is None:
            self._add_pending(invalidation)

    def send_pending(self) -> None:
        """Send the pending invalidations in batches until none is left or the layer fails again."""
        while True:
            with self._lock:
                batch = list(self._pending.values())[:PENDING_BATCH_MAX]
            if not batch or self._call(batch[0].target, partial(self._layer.invalidate, batch)) is None:
                return
            with self._lock:
                for sent in batch:
                    # A newer one of the same key may have been added meanwhile.
                    if self._pending.get(sent.target) is sent:
                        del self._pending[sent.target]

    def pending_count(self) -> int:
        """Return the number of pending invalidations."""
        return len(self._pending)

    def close(self) -> None:
        self._layer.close()

    def _call(self, target: Key | Group, call: Callable[[], R]) -> R | None:
        if not self._breaker.admits():
            return None
        try:
            answer = call()
        except TransientError:
            self._breaker.failed()
            self._stats.of(kind_of(target)).l2_errors += 1
            return None
        self._breaker.succeeded()
        return answer

    def _drop_pending(self, key: Key, version: int | None) -> None:
        """Drop a pending invalidation that a later write has replaced."""
        with self._lock:
            pending = self._pending.get(key)
            if pending is not None and (
                pending.version is None or (version is not None and pending.version <= version)
            ):
                del self._pending[key]

    def _add_pending(self, invalidation: Invalidation) -> None:
        target = invalidation.target
        with self._lock:
            earlier = self._pending.pop(target, invalidation)
            versions = (earlier.version, invalidation.version)
            known = [version for version in versions if version is not None]
            self._pending[target] = Invalidation(target, max(known) if len(known) == len(versions) else None)
            if len(self._pending) > PENDING_MAX:
                # Beyond this bound other processes may read the replaced value until it is no longer fresh.
                self._pending.popitem(last=False)


LAYER: Final = "l2"
# Called with the layer, the operation and the seconds it took.
OnAnswered = Callable[[str, str, float], None]


class TimedLayer:
    """Times the calls of another `SharedLayer`, also failed ones. `answered` must not raise."""

    def __init__(self, layer: SharedLayer, clock: Clock, answered: OnAnswered) -> None:
        self._layer = layer
        self._clock = clock
        self._answered = answered

    def get(self, key: Key) -> SharedRead:
        return self._timed("get", lambda: self._layer.get(key))

    def fill(self, key: Key, entry: SharedEntry, mark: bytes) -> bool:
        return self._timed("fill", lambda: self._layer.fill(key, entry, mark))

    def write(self, key: Key, entry: SharedEntry) -> bool:
        return self._timed("write", lambda: self._layer.write(key, entry))

    def invalidate(self, invalidations: Sequence[Invalidation]) -> bool:
        return self._timed("invalidate", lambda: self._layer.invalidate(invalidations))

    def listen(self, listener: InvalidationListener) -> None:
        self._layer.listen(listener)

    def close(self) -> None:
        self._layer.close()

    def _timed(self, operation: str, call: Callable[[], R]) -> R:
        began_at = self._clock.monotonic()
        try:
            return call()
        finally:
            self._answered(LAYER, operation, self._clock.monotonic() - began_at)
