"""Clock: the source of wall and monotonic time that components are constructed with."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for stored timestamps, monotonic time for durations."""

    def seconds(self) -> float:
        """Wall time as seconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, comparable only within this process."""

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""

    def now(self) -> datetime:
        """Wall time as an aware UTC datetime."""


def epoch_ms(clock: Clock) -> int:
    """Return wall time as milliseconds since 1970-01-01 UTC."""
    return int(clock.seconds() * 1000)


class SystemClock:
    """The machine's clock."""

    # Plain functions instead of methods: the store reads the clock once for every item it returns.
    seconds = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def now(self) -> datetime:
        return datetime.now(UTC)


class VirtualClock:
    """A clock for tests and simulations that moves only on request.

    `advance` moves both clocks and wakes sleepers that are due. `step` moves wall time only, as NTP does, which
    exposes code that measures durations in wall time.
    """

    def __init__(self, start_seconds: float = 1_750_000_000.0) -> None:
        self._wall = start_seconds
        self._elapsed = 0.0
        self._changed = threading.Condition()
        self._sleepers = 0

    def seconds(self) -> float:
        return self._wall

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._wall, UTC)

    def sleep(self, seconds: float) -> None:
        with self._changed:
            wake_at = self._elapsed + max(0.0, seconds)
            self._sleepers += 1
            self._changed.wait_for(lambda: self._elapsed >= wake_at)
            self._sleepers -= 1

    def advance(self, seconds: float) -> None:
        """Move wall and monotonic time forward and wake due sleepers."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): must not be negative; use step() to set the wall clock back")
        with self._changed:
            self._wall += seconds
            self._elapsed += seconds
            self._changed.notify_all()

    def step(self, seconds: float) -> None:
        """Move wall time forward or back; monotonic time stays."""
        with self._changed:
            self._wall += seconds

    def sleepers(self) -> int:
        """Return the number of threads that sleep on this clock."""
        with self._changed:
            return self._sleepers
