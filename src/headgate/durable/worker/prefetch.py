"""Prefetch: how many activities a worker holds ready for its threads, and when others should rather have them."""

from __future__ import annotations

from typing import Final

from headgate.clock import Clock

PREFETCH_MAX: Final = 256
# How long what is claimed may have to wait here before others should rather have it.
PREFETCH_SECONDS: Final = 1.0


class Prefetch:
    """Judges by how long activities have taken, and by when what waits has last moved."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mean_seconds = 0.0
        self._moved_at = clock.monotonic()

    def moved(self) -> None:
        """One was begun, or the first ones have come to wait."""
        self._moved_at = self._clock.monotonic()

    def took(self, seconds: float) -> None:
        """One took so long."""
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def room(self, waiting: int, threads: int) -> int:
        """Return how many more to claim while so many wait for so many threads."""
        if waiting >= threads and self._seconds_left() <= 0:
            return 0
        room = PREFETCH_MAX - waiting
        if self._mean_seconds > 0:
            soon = int(PREFETCH_SECONDS * threads / self._mean_seconds) + threads
            room = min(room, soon - waiting)
        return max(0, room)

    def surplus(self, waiting: int, threads: int) -> int:
        """Return how many of those that wait to give back: none, unless all threads are held up."""
        return 0 if self._seconds_left() > 0 else max(0, waiting - threads)

    def seconds_left(self, waiting: int, threads: int) -> float | None:
        """Return in how many seconds there will be a surplus if nothing is begun; None: there is none to be."""
        return max(0.0, self._seconds_left()) if waiting > threads else None

    def _seconds_left(self) -> float:
        return self._moved_at + PREFETCH_SECONDS - self._clock.monotonic()
