"""Prefetch: how many activities a worker claims ahead of its threads, and when it releases them to other workers."""

from __future__ import annotations

from typing import Final

from headgate.clock import Clock

PREFETCH_MAX: Final = 256
# A claim that would wait longer than this for a thread is better left to other workers.
PREFETCH_SECONDS: Final = 1.0


class Prefetch:
    """Estimates the wait of a claim from the mean duration of activities, and from the last progress of the queue."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mean_seconds = 0.0
        self._progress_at = clock.monotonic()

    def on_progress(self) -> None:
        """Note that an activity was started, or that an empty queue was filled."""
        self._progress_at = self._clock.monotonic()

    def on_finished(self, seconds: float) -> None:
        """Include the duration of an activity in the mean."""
        self._mean_seconds += 0.1 * (seconds - self._mean_seconds)

    def room(self, queued: int, threads: int) -> int:
        """Return how many more activities to claim."""
        if queued >= threads and self._seconds_left() <= 0:
            return 0
        room = PREFETCH_MAX - queued
        if self._mean_seconds > 0:
            within_limit = int(PREFETCH_SECONDS * threads / self._mean_seconds) + threads
            room = min(room, within_limit - queued)
        return max(0, room)

    def surplus(self, queued: int, threads: int) -> int:
        """Return how many queued claims to release: none while the threads make progress."""
        return 0 if self._seconds_left() > 0 else max(0, queued - threads)

    def seconds_left(self, queued: int, threads: int) -> float | None:
        """Return the seconds until there is a surplus if no activity is started; None if there will be none."""
        return max(0.0, self._seconds_left()) if queued > threads else None

    def _seconds_left(self) -> float:
        return self._progress_at + PREFETCH_SECONDS - self._clock.monotonic()
