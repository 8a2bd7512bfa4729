"""L2 of the cache with a watch beside it: how long each of its answers takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headgate.clock import Clock
from headgate.store.cache_keys import Key
from headgate.store.cache_shared import Invalidation, Listener, SharedEntry, SharedLayer, SharedRead

LAYER: Final = "l2"
# The layer, the operation, and the seconds it took.
Answered = Callable[[str, str, float], None]

R = TypeVar("R")


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
