"""A timed layer: it says how long each call took, also of one that failed, and changes nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headgate.clock import VirtualClock
from headgate.errors import TransientError
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.keys import Key
from headgate.store.cache.shared import Invalidation, InvalidationListener, SharedEntry, SharedRead, TimedLayer

KEY = cache_keys.dataset_config("urn:dp:a:b", 1)
ENTRY = SharedEntry(body=b"x", version=1, age_seconds=0, fresh_seconds=1)


class SlowLayer:
    """A layer whose every call takes two seconds."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self.is_down = False
        self.listeners: list[InvalidationListener] = []
        self.is_closed = False

    def _take(self) -> None:
        self._clock.advance(2)
        if self.is_down:
            raise TransientError("down")

    def get(self, key: Key) -> SharedRead:
        self._take()
        return SharedRead(ENTRY, key.encode())

    def fill(self, key: Key, entry: SharedEntry, mark: bytes) -> bool:
        self._take()
        return (key, entry, mark) == (KEY, ENTRY, b"m")

    def write(self, key: Key, entry: SharedEntry) -> bool:
        self._take()
        return (key, entry) == (KEY, ENTRY)

    def invalidate(self, invalidations: Sequence[Invalidation]) -> bool:
        self._take()
        return len(invalidations) == 1

    def listen(self, listener: InvalidationListener) -> None:
        self.listeners.append(listener)

    def close(self) -> None:
        self.is_closed = True


def test_timed__every_call__is_passed_on_and_timed() -> None:
    clock = VirtualClock()
    slow, received = SlowLayer(clock), list[tuple[str, str, float]]()
    layer = TimedLayer(slow, clock, lambda *said: received.append(said))

    assert layer.get(KEY).entry is ENTRY
    assert layer.fill(KEY, ENTRY, b"m")
    assert layer.write(KEY, ENTRY)
    assert layer.invalidate([Invalidation(KEY)])
    slow.is_down = True
    with pytest.raises(TransientError):
        layer.get(KEY)
    layer.close()

    assert received == [("l2", name, 2.0) for name in ("get", "fill", "write", "invalidate", "get")]
    assert slow.is_closed
