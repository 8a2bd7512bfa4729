"""History of an execution in Step Functions' event types.

A running execution only counts its events (`EventCounter`). To read the history, `replay` runs the execution again with
a journal that records them (`EventRecorder`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct


class HistoryEvent(Struct, frozen=True, omit_defaults=True):
    """One event. `details` has the fields that Step Functions gives an event of this type."""

    id: int
    previous_id: int
    type: str
    at_ms: int
    details: Mapping[str, Any] = {}


class Journal(Protocol):
    """Numbers the events of an execution."""

    @property
    def count(self) -> int:
        """The number of the last event."""

    def add(self, type: str, previous_id: int, details: Mapping[str, Any] | None = None) -> int:
        """Add an event caused by event `previous_id`, and return its number."""


class EventCounter:
    """A journal that only counts."""

    __slots__ = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, type: str, previous_id: int, details: Mapping[str, Any] | None = None) -> int:
        del type, previous_id, details
        self.count += 1
        return self.count


class EventRecorder:
    """A journal that appends every event, with its time, to a list."""

    def __init__(self, now_ms: Callable[[], int], events: list[HistoryEvent], count: int = 0) -> None:
        """Continue after the last of `events`, or after `count` events of an earlier run if there are none."""
        self._now_ms = now_ms
        self.events = events
        self.count = events[-1].id if events else count

    def add(self, type: str, previous_id: int, details: Mapping[str, Any] | None = None) -> int:
        self.count += 1
        # Event times never decrease, even if the clock is set back between two runs.
        at_ms = max(self._now_ms(), self.events[-1].at_ms) if self.events else self._now_ms()
        self.events.append(HistoryEvent(self.count, previous_id, type, at_ms, details or {}))
        return self.count
