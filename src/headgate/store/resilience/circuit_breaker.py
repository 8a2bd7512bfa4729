"""Circuit breaker: stops calls to a failing dependency, and probes it with a few calls after a pause.

It opens on a rolling failure rate instead of consecutive failures, so that one success in ten does not hide an outage.
Only backend failures count: a conflict or an invalid request shows that the backend answers.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from headgate.clock import Clock
from headgate.errors import BreakerOpenError

# The number of buckets of the rolling window.
_PARTS: Final = 10


class BreakerState(enum.StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class BreakerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds of a circuit breaker.

    It opens when the window has `failures_min` failures that are at least `failure_rate` of its calls, and admits
    `probes` calls after `open_seconds`. As many successes close it; one failure opens it again.
    """

    failures_min: int = 10
    failure_rate: float = 0.5
    window_seconds: float = 30.0
    open_seconds: float = 30.0
    probes: int = 3


DEFAULT_LIMITS: Final = BreakerLimits()


class BreakerChange(msgspec.Struct, frozen=True):
    """A change of a circuit breaker's state."""

    name: str
    before: BreakerState
    after: BreakerState


class CircuitBreaker:
    """One circuit breaker. `admit` returns a ticket; pass it to exactly one of `succeeded`, `failed` and `abandoned`.

    A ticket is void after a change of state: calls that started before the breaker opened neither prolong the outage
    nor spoil the recovery. While closed, a call takes no lock. `changed` is called outside the lock, in the thread that
    caused the change.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        limits: BreakerLimits = DEFAULT_LIMITS,
        changed: Callable[[BreakerChange], None] = lambda _change: None,
    ) -> None:
        self.name = name
        self.state = BreakerState.CLOSED
        # Incremented with every change of state; a ticket is the era it was issued in.
        self.era = 0
        self._clock = clock
        self._limits = limits
        self._changed = changed
        self._lock = threading.Lock()
        self._part_seconds = limits.window_seconds / _PARTS
        self._part = 0
        self._calls = [0] * _PARTS
        self._failures = [0] * _PARTS
        self._opened_at = 0.0
        self._probes_out = 0
        self._probed_at = 0.0
        self._successes = 0

    def retry_after_seconds(self) -> float:
        """Return the seconds until the next call is admitted; 0 if it would be now."""
        with self._lock:
            return self._refusal_seconds(self._clock.monotonic())

    def refuse_if_open(self) -> None:
        """Raise `BreakerOpenError` if a call would not be admitted now. Does not count as a probe."""
        if self.state is not BreakerState.CLOSED:
            self._raise(self.retry_after_seconds())

    def admit(self) -> int:
        """Return a ticket for one call. Raises `BreakerOpenError` if it is not admitted."""
        if self.state is BreakerState.CLOSED:
            return self.era
        change = None
        with self._lock:
            now = self._clock.monotonic()
            wait_seconds = self._refusal_seconds(now)
            if wait_seconds == 0:
                if self.state is BreakerState.OPEN:
                    change = self._move(BreakerState.HALF_OPEN)
                if self.state is BreakerState.HALF_OPEN:
                    if self._probes_out >= self._limits.probes:
                        # Earlier probes have not returned within `open_seconds`: stop waiting for them.
                        self._probes_out = 0
                    self._probes_out += 1
                    self._probed_at = now
            ticket = self.era
        self._report(change)
        self._raise(wait_seconds)
        return ticket

    def succeeded(self, ticket: int) -> None:
        """Record that the backend answered, including with a conflict."""
        if ticket != self.era:
            return
        if self.state is BreakerState.CLOSED:
            part = int(self._clock.monotonic() / self._part_seconds)
            if part != self._part:
                with self._lock:
                    self._move_on(part)
            # Deliberately without the lock: an occasional lost count changes no decision.
            self._calls[part % _PARTS] += 1
            return
        change = None
        with self._lock:
            if ticket == self.era and self.state is BreakerState.HALF_OPEN:
                self._probes_out = max(0, self._probes_out - 1)
                self._successes += 1
                if self._successes >= self._limits.probes:
                    change = self._move(BreakerState.CLOSED)
        self._report(change)

    def failed(self, ticket: int) -> None:
        """Record a backend failure."""
        change = None
        with self._lock:
            if ticket != self.era:
                return
            now = self._clock.monotonic()
            if self.state is BreakerState.HALF_OPEN:
                change = self._open(now)
            elif self.state is BreakerState.CLOSED:
                part = int(now / self._part_seconds)
                self._move_on(part)
                self._calls[part % _PARTS] += 1
                self._failures[part % _PARTS] += 1
                if self._is_over_threshold():
                    change = self._open(now)
        self._report(change)

    def abandoned(self, ticket: int) -> None:
        """Release the ticket of a call that showed nothing about the backend."""
        with self._lock:
            if ticket == self.era and self.state is BreakerState.HALF_OPEN:
                self._probes_out = max(0, self._probes_out - 1)

    def _refusal_seconds(self, now: float) -> float:
        if self.state is BreakerState.OPEN:
            return max(0.0, self._opened_at + self._limits.open_seconds - now)
        if self.state is BreakerState.HALF_OPEN and self._probes_out >= self._limits.probes:
            return max(0.0, self._probed_at + self._limits.open_seconds - now)
        return 0.0

    def _is_over_threshold(self) -> bool:
        failures = sum(self._failures)
        return failures >= self._limits.failures_min and failures >= self._limits.failure_rate * sum(self._calls)

    def _move_on(self, part: int) -> None:
        """Advance the window to `part` and clear the buckets that left it."""
        for gone in range(self._part + 1, min(part, self._part + _PARTS) + 1):
            self._calls[gone % _PARTS] = 0
            self._failures[gone % _PARTS] = 0
        self._part = max(self._part, part)

    def _open(self, now: float) -> BreakerChange:
        self._opened_at = now
        return self._move(BreakerState.OPEN)

    def _move(self, state: BreakerState) -> BreakerChange:
        change = BreakerChange(self.name, self.state, state)
        self.state = state
        self.era += 1
        self._probes_out = self._successes = 0
        self._calls = [0] * _PARTS
        self._failures = [0] * _PARTS
        return change

    def _report(self, change: BreakerChange | None) -> None:
        if change is not None:
            self._changed(change)

    def _raise(self, wait_seconds: float) -> None:
        if wait_seconds > 0:
            error = BreakerOpenError(
                f"{self.name}: the circuit breaker is open after repeated failures; try again in {wait_seconds:.1f} s"
            )
            # While half open, the outcome is known as soon as the probes return.
            is_probed = self.state is BreakerState.HALF_OPEN
            error.retry_after_seconds = min(wait_seconds, 1.0) if is_probed else wait_seconds
            raise error
