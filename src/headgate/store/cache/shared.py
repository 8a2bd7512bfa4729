"""L2 of the cache as the cache sees it: a port, and a guard that lets no fault of it through.

The shared layer may be down, slow or full at any time. A read then goes on without it, and what could not
be written is owed: the keys are remembered and invalidated there as soon as it answers again, so that
other processes do not go on reading what this one has replaced.

L2 of the cache with a watch beside it: how long each of its answers takes.
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
OWED_MAX: Final = 10_000
SETTLE_BATCH_MAX: Final = 100

R = TypeVar("R")


class SharedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An answer on its way to or from the shared layer. `body` None means: the store said there is none.

    It is fresh while `age_seconds` is below `fresh_seconds`, and kept for `keep_seconds` after it was put.
    """

    body: bytes | None
    version: int | None
    age_seconds: float
    fresh_seconds: float
    keep_seconds: float = 0.0


class SharedRead(msgspec.Struct, frozen=True):
    """What the shared layer holds under a key, and a mark that changes whenever that does."""

    entry: SharedEntry | None
    mark: bytes


class Invalidation(msgspec.Struct, frozen=True):
    """What is out of date: a key (its versions below `version`, or all of them for None) or a whole group."""

    target: Key | Group
    version: int | None = None


class Listener(Protocol):
    """Whoever wants to know what other processes did. Called from the layer's own thread."""

    def heard(self, invalidation: Invalidation) -> None:
        """Another process has invalidated this."""

    def missed(self) -> None:
        """Messages may have been lost up to now: what is held may be out of date."""

    def idle(self) -> None:
        """About a second has passed, and the layer is within reach."""


class SharedLayer(Protocol):
    """Answers shared between processes. Every method raises `TransientError` if it cannot do its work in time.

    Each call is atomic in the layer itself, and an older version never takes the place of a newer one.
    """

    def get(self, key: Key) -> SharedRead:
        """Return what is held under `key`, fresh or not."""

    def fill(self, key: Key, entry: SharedEntry, mark: bytes) -> bool:
        """Keep what was loaded after `mark` was read. Return False if something newer came in between."""

    def write(self, key: Key, entry: SharedEntry) -> bool:
        """Keep what was just committed and tell the other processes. Return False if a newer version is held."""

    def invalidate(self, invalidations: Sequence[Invalidation]) -> bool:
        """Forget, refuse fills whose load has already begun, and tell the other processes."""

    def listen(self, listener: Listener) -> None:
        """Call `listener` from now on, until `close`."""

    def close(self) -> None:
        """Stop listening and let go of every connection. Closing twice is allowed."""


class Breaker:
    """Keeps a dead layer from costing a time-out a call: after a few failures one call in a while tries it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._open_until = 0.0

    def admits(self) -> bool:
        """Whether to try now. While it is open, one caller in each pause is let through as a probe."""
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
    """A shared layer that never raises. None from a call means that it could not be asked."""

    def __init__(self, layer: SharedLayer, *, clock: Clock, stats: CacheStats) -> None:
        self._layer = layer
        self._stats = stats
        self._breaker = Breaker(clock)
        self._lock = threading.Lock()
        self._owed: OrderedDict[Key | Group, Invalidation] = OrderedDict()

    def get(self, key: Key) -> SharedRead | None:
        """Return what is held, or None also while this process knows better than the layer does."""
        if self._owed and (key in self._owed or group_of(key) in self._owed):
            return None
        return self._ask(key, lambda: self._layer.get(key))

    def fill(self, key: Key, entry: SharedEntry, mark: bytes) -> bool | None:
        """Offer what was loaded. False means that the layer knows something newer."""
        return self._ask(key, lambda: self._layer.fill(key, entry, mark))

    def write(self, key: Key, entry: SharedEntry) -> None:
        """Send what was committed; what does not arrive is owed."""
        kept = self._ask(key, lambda: self._layer.write(key, entry))
        if kept is None:
            self._owe(Invalidation(key, entry.version))
        elif kept and self._owed:
            self._forgive(key, entry.version)

    def invalidate(self, invalidation: Invalidation) -> None:
        """Send an invalidation; one that does not arrive is owed."""
        if self._ask(invalidation.target, lambda: self._layer.invalidate([invalidation])) is None:
            self._owe(invalidation)

    def settle(self) -> None:
        """Send what is owed, a batch at a time, until nothing is or the layer fails again."""
        while True:
            with self._lock:
                batch = list(self._owed.values())[:SETTLE_BATCH_MAX]
            if not batch or self._ask(batch[0].target, partial(self._layer.invalidate, batch)) is None:
                return
            with self._lock:
                for paid in batch:
                    # A newer debt of the same key came in while this one was being paid.
                    if self._owed.get(paid.target) is paid:
                        del self._owed[paid.target]

    def owed(self) -> int:
        """Return how many keys and groups the layer has yet to be told about."""
        return len(self._owed)

    def close(self) -> None:
        self._layer.close()

    def _ask(self, target: Key | Group, call: Callable[[], R]) -> R | None:
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

    def _forgive(self, key: Key, version: int | None) -> None:
        """Cross out a debt that a later write has paid."""
        with self._lock:
            debt = self._owed.get(key)
            if debt is not None and (debt.version is None or (version is not None and debt.version <= version)):
                del self._owed[key]

    def _owe(self, invalidation: Invalidation) -> None:
        target = invalidation.target
        with self._lock:
            earlier = self._owed.pop(target, invalidation)
            versions = (earlier.version, invalidation.version)
            known = [version for version in versions if version is not None]
            self._owed[target] = Invalidation(target, max(known) if len(known) == len(versions) else None)
            if len(self._owed) > OWED_MAX:
                # Past this bound other processes may read the replaced answer until it stops being fresh.
                self._owed.popitem(last=False)


LAYER: Final = "l2"
# The layer, the operation, and the seconds it took.
Answered = Callable[[str, str, float], None]


class TimedLayer:
    """Implements `SharedLayer` around another one. What fails is timed as well; `answered` must not raise."""

    def __init__(self, layer: SharedLayer, clock: Clock, answered: Answered) -> None:
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

    def listen(self, listener: Listener) -> None:
        self._layer.listen(listener)

    def close(self) -> None:
        self._layer.close()

    def _timed(self, operation: str, call: Callable[[], R]) -> R:
        began_at = self._clock.monotonic()
        try:
            return call()
        finally:
            self._answered(LAYER, operation, self._clock.monotonic() - began_at)
