"""Single flight: one caller loads a key while concurrent callers wait for its result.

The cache holds its lock around every call of `InFlightLoads`.
"""

from __future__ import annotations

import threading
from typing import Any

from headgate.store.cache.keys import Group, Key, group_of


class InFlightLoad:
    """One running load. Once detached, no caller joins it and its result is not cached."""

    __slots__ = ("answer", "detached", "done", "error", "joinable", "seen")

    def __init__(self, *, joinable: bool, seen: int) -> None:
        self.joinable = joinable
        # Changes of other serving processes that were counted before the load.
        self.seen = seen
        self.detached = False
        # Created when the first caller joins, which is rare.
        self.done: threading.Event | None = None
        self.answer: Any = None
        self.error: BaseException | None = None


class InFlightLoads:
    """The running loads that have not been overtaken by a write or an invalidation."""

    def __init__(self) -> None:
        self._flights: dict[Key, list[InFlightLoad]] = {}

    def __bool__(self) -> bool:
        """Whether any load is running."""
        return bool(self._flights)

    def joinable(self, key: Key, seen: int) -> InFlightLoad | None:
        """Return the load of `key` that a reader can wait for, if there is one that began after the changes it saw."""
        for flight in self._flights.get(key, ()):
            if flight.joinable and flight.seen == seen:
                if flight.done is None:
                    flight.done = threading.Event()
                return flight
        return None

    def start(self, key: Key, *, joinable: bool, seen: int = 0) -> InFlightLoad:
        """Start a load. A consistent read is not joinable: it serves its caller only."""
        flight = InFlightLoad(joinable=joinable, seen=seen)
        self._flights.setdefault(key, []).append(flight)
        return flight

    def finish(self, key: Key, flight: InFlightLoad) -> None:
        """End a load and wake its waiting callers."""
        others = [other for other in self._flights.pop(key, ()) if other is not flight]
        if others:
            self._flights[key] = others
        if flight.done is not None:
            flight.done.set()

    def detach(self, key: Key) -> None:
        """Mark the loads of `key` as overtaken."""
        for flight in self._flights.pop(key, ()):
            flight.detached = True

    def detach_group(self, group: Group) -> None:
        """Mark the loads of every key of `group` as overtaken."""
        for key in [key for key in self._flights if group_of(key) == group]:
            self.detach(key)

    def detach_all(self) -> None:
        """Mark every load as overtaken."""
        for key in list(self._flights):
            self.detach(key)
