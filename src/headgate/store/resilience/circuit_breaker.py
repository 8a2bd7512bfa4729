"""A breaker: leaves a part that mostly fails alone for a while, then tries it with a few calls.

It trips on a rolling failure rate, not on failures in a row, so that one success in ten does not hide an outage.
Only what the backend is to blame for counts: a lost race or a bad request says that it answers.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from headgate.clock import Clock
from headgate.errors import BreakerOpenError

# The window moves on in so many steps.
_PARTS: Final = 10


class BreakerState(enum.StrEnum):
    """Whether calls are let through."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class BreakerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a breaker trips and when it recovers.

    It opens once the window has `failures_min` failures which are at least `failure_rate` of its calls, and lets
    `probes` calls through after `open_seconds`. As many successes close it; one failure opens it again.
    """

    failures_min: int = 10
    failure_rate: float = 0.5
    window_seconds: float = 30.0
    open_seconds: float = 30.0
    probes: int = 3


DEFAULT_LIMITS: Final = BreakerLimits()


class BreakerChange(msgspec.Struct, frozen=True):
    """A breaker went from one state to another."""

    name: str
    before: BreakerState
    after: BreakerState


class Breaker:
    """One breaker. `admit` gives a ticket; exactly one of `succeeded`, `failed` and `abandoned` takes it back.

    A ticket is worth nothing after the state has changed: calls that began before an outage was noticed and fail
    during it neither prolong it nor spoil a recovery. While it is closed a call costs no lock. `changed` is called in
    the thread that made the change, outside of the lock.
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
        # Changes with every change of state. Tickets are numbers of it.
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
        """Return when a call may be let through again: 0 if one may now."""
        with self._lock:
            return self._refusal_seconds(self._clock.monotonic())

    def refuse_if_open(self) -> None:
        """Raise `BreakerOpenError` if a call would not be let through now. Takes no place among the probes."""
        if self.state is not BreakerState.CLOSED:
            self._raise(self.retry_after_seconds())

    def admit(self) -> int:
        """Return a ticket for one call. Raises `BreakerOpenError` if it is not let through."""
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
                        # Those that are out have not come back for as long as an outage: they are given up.
                        self._probes_out = 0
                    self._probes_out += 1
                    self._probed_at = now
            ticket = self.era
        self._tell(change)
        self._raise(wait_seconds)
        return ticket

    def succeeded(self, ticket: int) -> None:
        """The backend answered, be it only that a condition did not hold."""
        if ticket != self.era:
            return
        if self.state is BreakerState.CLOSED:
            part = int(self._clock.monotonic() / self._part_seconds)
            if part != self._part:
                with self._lock:
                    self._move_on(part)
            # Without the lock, on purpose: a count that is lost now and then changes no decision.
            self._calls[part % _PARTS] += 1
            return
        change = None
        with self._lock:
            if ticket == self.era and self.state is BreakerState.HALF_OPEN:
                self._probes_out = max(0, self._probes_out - 1)
                self._successes += 1
                if self._successes >= self._limits.probes:
                    change = self._move(BreakerState.CLOSED)
        self._tell(change)

    def failed(self, ticket: int) -> None:
        """The backend did not answer, or not as it should."""
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
                if self._is_too_much():
                    change = self._open(now)
        self._tell(change)

    def abandoned(self, ticket: int) -> None:
        """The call ended without having learnt anything of the backend."""
        with self._lock:
            if ticket == self.era and self.state is BreakerState.HALF_OPEN:
                self._probes_out = max(0, self._probes_out - 1)

    def _refusal_seconds(self, now: float) -> float:
        if self.state is BreakerState.OPEN:
            return max(0.0, self._opened_at + self._limits.open_seconds - now)
        if self.state is BreakerState.HALF_OPEN and self._probes_out >= self._limits.probes:
            return max(0.0, self._probed_at + self._limits.open_seconds - now)
        return 0.0

    def _is_too_much(self) -> bool:
        failures = sum(self._failures)
        return failures >= self._limits.failures_min and failures >= self._limits.failure_rate * sum(self._calls)

    def _move_on(self, part: int) -> None:
        """Let the window end with `part`, forgetting what has left it."""
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

    def _tell(self, change: BreakerChange | None) -> None:
        if change is not None:
            self._changed(change)

    def _raise(self, wait_seconds: float) -> None:
        if wait_seconds > 0:
            error = BreakerOpenError(
                f"{self.name}: it kept failing and is left alone for another {wait_seconds:.1f} s; try again then"
            )
            # While it is tried, the answer is known as soon as the tries are back.
            is_tried = self.state is BreakerState.HALF_OPEN
            error.retry_after_seconds = min(wait_seconds, 1.0) if is_tried else wait_seconds
            raise error
