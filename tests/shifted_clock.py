"""The machine's clock, as far ahead of its time as a test says."""

from __future__ import annotations

from datetime import datetime, timedelta

from headgate.clock import SystemClock


class ShiftedClock(SystemClock):
    """The machine's clock, some time ahead."""

    ahead = timedelta(0)

    def __init__(self) -> None:
        self.seconds = lambda: SystemClock.seconds() + self.ahead.total_seconds()

    def now(self) -> datetime:
        return super().now() + self.ahead
