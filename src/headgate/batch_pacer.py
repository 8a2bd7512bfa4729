"""Pace: what comes in one by one is passed on in groups where there is so much of it that groups cost less."""

from __future__ import annotations

from typing import Final

# So many in a second are worth waiting for one another, for so long.
BUSY_PER_SECOND: Final = 200
PACE_SECONDS: Final = 0.008
# So many together are a group, and need not wait for more: who sends the next only once the last is answered would wait
# for nobody.
ENOUGH: Final = 8


class Pace:
    """Says when the next group is to begin: at once, or a moment after the one before it where much comes in."""

    def __init__(self) -> None:
        self._second = 0
        # In this second, and in the one before.
        self._counts = (0, 0)
        self._began_at = 0.0

    def pause_seconds(self, now: float, waiting: int) -> float:
        """Return how long to wait before the next group, if so many wait already. With `ENOUGH` it is over at once."""
        self._turn(now)
        if waiting >= ENOUGH or max(self._counts) < BUSY_PER_SECOND:
            return 0.0
        return max(0.0, self._began_at + PACE_SECONDS - now)

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
