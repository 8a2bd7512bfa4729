"""Fan-out observer: the one interface through which fan-outs report to the rest of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import Struct

from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Fanout
from headgate.store.model.requests import Write

# Sends a queue message for each WAITING chunk of a fan-out and returns the fan-out. Safe to repeat.
MessageSender = Callable[[Fanout], Fanout]


class QueueChoice(Struct, frozen=True):
    """Which queues fan-outs use: `check` raises for one that an order may not name, `default_url` is for the others."""

    check: Callable[[str], None] | None = None
    default_url: str | None = None


ANY_QUEUE: Final = QueueChoice()


class FanoutObserver(Protocol):
    """Receives the events of the fan-outs of one store."""

    def on_work_available(self, run_id: str) -> None:
        """A fan-out may have chunks to run, or was paused, resumed, cancelled or tuned."""

    def closing_writes(self, fanout: Fanout, counts: Counts) -> list[Write]:
        """Return writes to commit in the transaction that closes the fan-out."""
        ...

    def on_closed(self, fanout: Fanout) -> None:
        """A fan-out has ended, and that is committed."""

    def notice_writes(self, event_type: str, fanout: Fanout, counts: Counts) -> list[Write]:
        """Return writes that publish an event of a fan-out with its `reason`, for the transaction that decides it."""
        ...

    def on_noticed(self) -> None:
        """Such an event is committed."""


class NoObserver:
    """An observer that ignores every event."""

    def on_work_available(self, run_id: str) -> None:
        """Ignore it."""

    def closing_writes(self, fanout: Fanout, counts: Counts) -> list[Write]:
        """Return no writes."""
        del fanout, counts
        return []

    def on_closed(self, fanout: Fanout) -> None:
        """Ignore it."""

    def notice_writes(self, event_type: str, fanout: Fanout, counts: Counts) -> list[Write]:
        """Return no writes."""
        del event_type, fanout, counts
        return []

    def on_noticed(self) -> None:
        """Ignore it."""


NO_OBSERVER: Final = NoObserver()
