"""The one source of time: objects are given a `Clock` and never ask the operating system themselves."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for facts that are stored, monotonic time for how long something took."""

    def seconds(self) -> float:
        """Wall time as seconds since 1970-01-01 UTC."""

    def monotonic(self) -> float:
        """Seconds that never run backwards, comparable only within this process."""

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""

    def now(self) -> datetime:
        """Wall time as an aware UTC datetime."""


class SystemClock:
    """The machine's clock."""

    # Bound as attributes, not wrapped in methods: the store reads the clock once for each item it returns.
    seconds = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)

    def now(self) -> datetime:
        return datetime.now(UTC)


class VirtualClock:
    """A clock that stands still until it is told to move, for tests and simulations.

    `advance` wakes whoever is due. `step` moves wall time alone, as an operator or NTP does, so that
    code which measures durations with the wrong clock is found out.
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
        """Let `seconds` pass on both clocks."""
        if seconds < 0:
            raise ValueError(f"advance({seconds}): time does not pass backwards; use step() to set the wall clock back")
        with self._changed:
            self._wall += seconds
            self._elapsed += seconds
            self._changed.notify_all()

    def step(self, seconds: float) -> None:
        """Set the wall clock forwards or back without any time passing."""
        with self._changed:
            self._wall += seconds

    def sleepers(self) -> int:
        """How many threads are asleep on this clock."""
        with self._changed:
            return self._sleepers
