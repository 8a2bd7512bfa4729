"""A limiter: sends a table no more than it takes, once it has begun to throttle.

A token bucket whose rate falls by half when the backend throttles and grows again a little every second. Who finds no
token borrows one and waits until it is due. How far one may borrow depends on how much the call matters, so that
under overload evidence is shed first, refreshes next, and transitions last.
"""

from __future__ import annotations

import enum
import threading
from contextvars import ContextVar
from typing import Final

import msgspec

from headgate.clock import Clock
from headgate.errors import DeadlineExceededError, ThrottledError
from headgate.store.deadlines import current_deadline

RATE_MIN: Final = 1.0
_TICK_SECONDS: Final = 1.0


class Priority(enum.IntEnum):
    """How much a call matters; the least is shed first. REFRESH is what every call is that says nothing."""

    TRANSITION = 0  # A state, an incident or a run changes: someone waits for it.
    REFRESH = 1  # Ordinary work, and states that stay what they are.
    EVIDENCE = 2  # Proof that all is well: the next one will do as well.


class LimiterLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How a limiter reacts.

    A throttle cuts the rate to `cut` of what was sent, at most once a second. Every second without one adds `growth`
    of the rate it was cut at, and at `free_at` times that rate the limit is lifted. A transition waits for
    `wait_seconds_max` at most, a refresh for half of that, evidence not at all; no more than `waiting_max` wait.
    """

    cut: float = 0.5
    growth: float = 0.1
    free_at: float = 4.0
    wait_seconds_max: float = 2.0
    waiting_max: int = 64


DEFAULT_LIMITS: Final = LimiterLimits()
# The share of the patience and of the waiting places that each priority has.
_SHARES: Final = {Priority.TRANSITION: 1.0, Priority.REFRESH: 0.5, Priority.EVIDENCE: 0.0}

# Carried by the context and not by arguments: between whoever knows how much a call matters and the store lie layers
# that do not care, and threads that work for a request inherit it.
_priority: ContextVar[Priority] = ContextVar("store_priority", default=Priority.REFRESH)


class prioritised:
    """Let the store calls made inside matter so much. Enter it once."""

    __slots__ = ("_priority", "_token")

    def __init__(self, priority: Priority) -> None:
        self._priority = priority

    def __enter__(self) -> None:
        self._token = _priority.set(self._priority)

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        _priority.reset(self._token)


def current_priority() -> Priority:
    """Return how much a store call made here matters."""
    return _priority.get()


class Limiter:
    """The limiter of one table. Until it is first throttled it only counts, without a lock. Safe for many threads."""

    def __init__(self, name: str, clock: Clock, limits: LimiterLimits = DEFAULT_LIMITS) -> None:
        self.name = name
        # None while nothing is limited.
        self.rate: float | None = None
        self.shed = 0
        self._clock = clock
        self._limits = limits
        self._lock = threading.Lock()
        self._tokens = 0.0
        self._filled_at = 0.0
        self._throttled_at = 0.0
        self._cut_at_rate = 0.0
        self._waiting = 0
        # What was sent since the last tick, and in the second before it.
        self._sent = 0
        self._ticked_at = clock.monotonic()
        self._sent_per_second = 0.0

    def acquire(self, units: int = 1, *, wait: bool = True) -> None:
        """Return when `units` may be sent, after waiting for it if need be.

        Without `wait` they may be sent at once if waiting for them would be allowed: who comes next waits longer.
        Raises `ThrottledError` with the time after which it is worth trying again, or `DeadlineExceededError` if the
        caller's deadline has passed. Nothing is taken then.
        """
        if self.rate is not None:
            self._take(units, _priority.get(), current_deadline(), wait=wait)
        now = self._clock.monotonic()
        if now - self._ticked_at >= _TICK_SECONDS:
            self._tick(now)
        self._sent += units

    def throttled(self) -> None:
        """The backend asked for less: halve the rate, unless that was done within the last second."""
        with self._lock:
            now = self._clock.monotonic()
            if self.rate is None:
                self._limit(now)
                return
            self._refill(now)
            if now - self._throttled_at >= _TICK_SECONDS:
                self.rate = max(RATE_MIN, self.rate * self._limits.cut)
                self._tokens = min(self._tokens, 0.0)
            self._throttled_at = now

    def _take(self, units: int, priority: Priority, current_deadline: float | None, *, wait: bool) -> None:
        with self._lock:
            now = self._clock.monotonic()
            self._refill(now)
            if self.rate is None:
                return
            seconds = self._borrow(units, priority, now, current_deadline)
            if seconds == 0 or not wait:
                return
            self._waiting += 1
        try:
            self._clock.sleep(seconds)
        finally:
            with self._lock:
                self._waiting -= 1

    def _borrow(self, units: int, priority: Priority, now: float, current_deadline: float | None) -> float:
        """Take the tokens and return after how many seconds they are there. Raises and takes none if that is late."""
        assert self.rate is not None
        # A call larger than a second's worth would never be let in; it pays with all that there is.
        left = self._tokens - min(units, self.rate)
        seconds = max(0.0, -left / self.rate)
        if current_deadline is not None and now >= current_deadline:
            raise DeadlineExceededError(f"table {self.name}: the deadline passed before the call was sent; ask again")
        share = _SHARES[priority]
        is_late = seconds > share * self._limits.wait_seconds_max or (
            current_deadline is not None and now + seconds > current_deadline
        )
        if is_late or (seconds > 0 and self._waiting >= share * self._limits.waiting_max):
            self.shed += 1
            raise self._shed(seconds)
        self._tokens = left
        return seconds

    def _shed(self, seconds: float) -> ThrottledError:
        assert self.rate is not None
        error = ThrottledError(
            f"table {self.name}: it takes {self.rate:.0f} calls a second and more are waiting; "
            f"try again in {seconds:.1f} s, or raise the capacity"
        )
        error.retry_after_seconds = max(seconds, 1 / self.rate)
        return error

    def _limit(self, now: float) -> None:
        elapsed = max(now - self._ticked_at, _TICK_SECONDS)
        sent_per_second = max(self._sent / elapsed, self._sent_per_second)
        self._cut_at_rate = max(RATE_MIN, sent_per_second)
        self.rate = max(RATE_MIN, self._cut_at_rate * self._limits.cut)
        self._tokens = 0.0
        self._filled_at = self._throttled_at = now

    def _refill(self, now: float) -> None:
        if self.rate is None:
            return
        elapsed = max(0.0, now - self._filled_at)
        self._filled_at = now
        self._tokens = min(self._tokens + elapsed * self.rate, self.rate * _TICK_SECONDS)
        # What passed before the second after a throttle was over does not count as a second without one.
        calm = min(elapsed, max(0.0, now - self._throttled_at - _TICK_SECONDS))
        self.rate += calm * max(1.0, self._limits.growth * self._cut_at_rate)
        if self.rate >= self._limits.free_at * self._cut_at_rate:
            self.rate = None

    def _tick(self, now: float) -> None:
        with self._lock:
            elapsed = now - self._ticked_at
            if elapsed >= _TICK_SECONDS:
                self._sent_per_second = self._sent / elapsed
                self._sent = 0
                self._ticked_at = now
