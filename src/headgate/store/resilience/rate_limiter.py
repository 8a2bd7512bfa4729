"""Adaptive rate limiter: limits the calls to a table once its backend throttles.

A token bucket whose rate is halved on a throttle and then grows a little every second. A call without a token borrows
one and waits for it. The allowed debt depends on the priority of the call, so that overload sheds evidence first,
refreshes next, and transitions last.
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
    """The priority of a store call; the highest number is shed first. The default is REFRESH."""

    TRANSITION = 0  # A state, incident or run changes.
    REFRESH = 1  # Ordinary work, and unchanged states.
    EVIDENCE = 2  # Evidence of passed checks, which the next check replaces.


class LimiterLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a rate limiter.

    A throttle cuts the rate to `cut` of the sent rate, at most once a second. Every second without one adds `growth` of
    the rate at the cut, and at `free_at` times that rate the limit is lifted. A transition waits at most
    `wait_seconds_max`, a refresh half of that, evidence not at all; at most `waiting_max` calls wait.
    """

    cut: float = 0.5
    growth: float = 0.1
    free_at: float = 4.0
    wait_seconds_max: float = 2.0
    waiting_max: int = 64


DEFAULT_LIMITS: Final = LimiterLimits()
# Each priority's share of the maximum wait and of the maximum number of waiting calls.
_SHARES: Final = {Priority.TRANSITION: 1.0, Priority.REFRESH: 0.5, Priority.EVIDENCE: 0.0}

# A context variable instead of an argument, as the deadline: the layers in between do not use it.
_priority: ContextVar[Priority] = ContextVar("store_priority", default=Priority.REFRESH)


class prioritised:
    """Set the priority of the store calls inside the block. Not reusable."""

    __slots__ = ("_priority", "_token")

    def __init__(self, priority: Priority) -> None:
        self._priority = priority

    def __enter__(self) -> None:
        self._token = _priority.set(self._priority)

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        _priority.reset(self._token)


def current_priority() -> Priority:
    """Return the priority of store calls in this context."""
    return _priority.get()


class RateLimiter:
    """The rate limiter of one table. Thread-safe. Before the first throttle it only counts, without a lock."""

    def __init__(self, name: str, clock: Clock, limits: LimiterLimits = DEFAULT_LIMITS) -> None:
        self.name = name
        # Calls per second; None while there is no limit.
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
        # Calls since the last tick, and per second before it.
        self._sent = 0
        self._ticked_at = clock.monotonic()
        self._sent_per_second = 0.0

    def acquire(self, units: int = 1, *, wait: bool = True) -> None:
        """Wait until `units` may be sent.

        Without `wait`, they are sent at once where a wait would be allowed, and later calls wait longer instead.
        Raises `ThrottledError` with a retry time, or `DeadlineExceededError` if the caller's deadline has passed;
        neither takes tokens.
        """
        if self.rate is not None:
            self._take(units, current_priority(), current_deadline(), wait=wait)
        now = self._clock.monotonic()
        if now - self._ticked_at >= _TICK_SECONDS:
            self._tick(now)
        self._sent += units

    def throttled(self) -> None:
        """Halve the rate because the backend throttled, at most once a second."""
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

    def _take(self, units: int, priority: Priority, deadline: float | None, *, wait: bool) -> None:
        with self._lock:
            now = self._clock.monotonic()
            self._refill(now)
            if self.rate is None:
                return
            seconds = self._borrow(units, priority, now, deadline)
            if seconds == 0 or not wait:
                return
            self._waiting += 1
        try:
            self._clock.sleep(seconds)
        finally:
            with self._lock:
                self._waiting -= 1

    def _borrow(self, units: int, priority: Priority, now: float, deadline: float | None) -> float:
        """Take the tokens and return the seconds until they are available. Raises if the wait would be too long."""
        assert self.rate is not None
        # A call of more units than one second's tokens takes all of them, or it would never be admitted.
        left = self._tokens - min(units, self.rate)
        seconds = max(0.0, -left / self.rate)
        if deadline is not None and now >= deadline:
            raise DeadlineExceededError(f"table {self.name}: the deadline passed before the call was sent; try again")
        share = _SHARES[priority]
        is_late = seconds > share * self._limits.wait_seconds_max or (deadline is not None and now + seconds > deadline)
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
        # The first second after a throttle does not count as time without one.
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
