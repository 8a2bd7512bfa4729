"""Rate limits: token buckets for writes and failed logins, in bounded memory."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

# Maximum number of buckets of one limiter. A bucket that is dropped starts full again.
BUCKETS_MAX: Final = 10_000


class Rate(NamedTuple):
    """Tokens added each second, and the most a bucket holds."""

    per_second: float
    burst: float


class Level(NamedTuple):
    """The tokens of a bucket at a time on the monotonic clock."""

    tokens: float
    at: float


def take(level: Level | None, rate: Rate, now: float) -> tuple[Level, float]:
    """Take a token. Return the new level, and the seconds until a token is available; 0 means that one was taken.

    A bucket without a level is full. A refused request takes nothing.
    """
    tokens = rate.burst
    if level is not None:
        tokens = min(rate.burst, level.tokens + max(0.0, now - level.at) * rate.per_second)
    if tokens >= 1:
        return Level(tokens - 1, now), 0.0
    return Level(tokens, now), (1 - tokens) / rate.per_second


class Limiter(Protocol):
    """A limit by key. Thread-safe."""

    def wait_seconds(self, key: str, now: float) -> float:
        """Take a token of `key`; return 0, or the seconds until one is available."""


# Returns the limiter of a named limit.
LimiterMaker = Callable[[str, Rate], Limiter]


def own_limiter(_name: str, rate: Rate) -> Limiter:
    """Return a limiter of this process alone."""
    return RateLimiter(rate)


class RateLimiter:
    """Token buckets by key. Thread-safe; the bucket that was used least recently is dropped first."""

    def __init__(self, rate: Rate, *, buckets_max: int = BUCKETS_MAX) -> None:
        self._rate = rate
        self._buckets_max = buckets_max
        self._levels: OrderedDict[str, Level] = OrderedDict()
        self._lock = threading.Lock()

    def wait_seconds(self, key: str, now: float) -> float:
        """Take a token of `key`; return 0, or the seconds until one is available."""
        with self._lock:
            level, seconds = take(self._levels.get(key), self._rate, now)
            self._levels[key] = level
            self._levels.move_to_end(key)
            if len(self._levels) > self._buckets_max:
                self._levels.popitem(last=False)
        return seconds

    def __len__(self) -> int:
        return len(self._levels)
