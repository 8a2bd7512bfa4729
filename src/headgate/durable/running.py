"""An activity while it is performed, and how it is told that nobody waits for it any more."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headgate.durable.activities import Timeout
from headgate.durable.activity_context import ActivityContext
from headgate.durable.records import Activity


class Running(msgspec.Struct):
    """An activity that is being performed here."""

    activity: Activity
    context: ActivityContext
    deadline_ms: int
    timeout: Timeout | None
    is_abandoned: bool = False
    # Ends it where that can be done: an async activity can be cancelled, a thread cannot.
    cancel: Callable[[], object] | None = None

    def abandon(self) -> None:
        """Its result is no longer wanted."""
        self.is_abandoned = True
        self.context.cancelled = True
        if self.cancel is not None:
            self.cancel()
