"""Batch pacer: decides how long a batch lingers for more requests. Under light load it does not linger at all."""

from __future__ import annotations

from typing import Final

# From this request rate on, a batch lingers for more requests, for at most `LINGER_SECONDS` after the previous one.
BUSY_PER_SECOND: Final = 200
LINGER_SECONDS: Final = 0.008
# A batch of this size starts at once. A few closed-loop clients, which send one request at a time, would otherwise
# wait for requests that cannot arrive before they are answered.
FULL_BATCH: Final = 8


class BatchPacer:
    """Returns the delay before the next batch starts, from the request rate of this second and the last."""

    def __init__(self) -> None:
        self._second = 0
        # Requests in the current second and in the previous one.
        self._counts = (0, 0)
        self._started_at = 0.0

    def pause_seconds(self, now: float, waiting: int) -> float:
        """Return the delay before the next batch, given the number of waiting requests; 0 from `FULL_BATCH` on."""
        self._roll_to(now)
        if waiting >= FULL_BATCH or max(self._counts) < BUSY_PER_SECOND:
            return 0.0
        return max(0.0, self._started_at + LINGER_SECONDS - now)

    def on_batch_started(self, now: float, count: int) -> None:
        """Count the requests of a batch that starts now."""
        self._roll_to(now)
        self._started_at = now
        self._counts = (self._counts[0] + count, self._counts[1])

    def _roll_to(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._counts = (0, self._counts[0] if second == self._second + 1 else 0)
            self._second = second
