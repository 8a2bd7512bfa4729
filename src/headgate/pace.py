"""Pace: what comes in one by one is passed on in groups where there is so much of it that groups cost less."""

from __future__ import annotations

from typing import Final

# So many in a second are worth waiting for one another, for so long.
BUSY_PER_SECOND: Final = 200
PACE_SECONDS: Final = 0.012


class Pace:
    """Says when the next group is to begin: at once, or a moment after the one before it where much comes in."""

    def __init__(self) -> None:
        self._second = 0
        # In this second, and in the one before.
        self._counts = (0, 0)
        self._began_at = 0.0

    def pause_seconds(self, now: float) -> float:
        """Return how long to wait before the next group."""
        self._turn(now)
        return max(0.0, self._began_at + PACE_SECONDS - now) if max(self._counts) >= BUSY_PER_SECOND else 0.0

    def began(self, now: float, count: int) -> None:
        """Note that a group of so many began."""
        self._turn(now)
        self._began_at = now
        self._counts = (self._counts[0] + count, self._counts[1])

    def _turn(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._counts = (0, self._counts[0] if second == self._second + 1 else 0)
            self._second = second
