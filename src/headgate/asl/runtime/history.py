"""The journal: what happened in an execution, in the words of Step Functions' history.

A running execution only counts. Who wants to read the history replays the execution with a journal that collects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct


class Event(Struct, frozen=True, omit_defaults=True):
    """One event. `details` has the fields that Step Functions gives an event of this type."""

    id: int
    previous_id: int
    type: str
    at_ms: int
    details: Mapping[str, Any] = {}


class Journal(Protocol):
    """Takes events, and gives each its number."""

    @property
    def count(self) -> int:
        """The number of the last event."""

    def add(self, type: str, previous_id: int, details: Mapping[str, Any] | None = None) -> int:
        """Note an event that follows from another, and return its number."""


class Tally:
    """A journal that only counts."""

    __slots__ = ("count",)

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self, type: str, previous_id: int, details: Mapping[str, Any] | None = None) -> int:
        del type, previous_id, details
        self.count += 1
        return self.count


class Chronicle:
    """A journal that keeps every event with its time."""

    def __init__(self, now_ms: Callable[[], int], events: list[Event], count: int = 0) -> None:
        """Take up after the events there are, or, if they are another execution's, after so many."""
        self._now_ms = now_ms
        self.events = events
        self.count = events[-1].id if events else count

    def add(self, type: str, previous_id: int, details: Mapping[str, Any] | None = None) -> int:
        self.count += 1
        # A clock that is set back between two runs of an execution does not turn its history round.
        at_ms = max(self._now_ms(), self.events[-1].at_ms) if self.events else self._now_ms()
        self.events.append(Event(self.count, previous_id, type, at_ms, details or {}))
        return self.count
