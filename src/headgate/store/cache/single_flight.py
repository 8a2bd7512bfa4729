"""Loads under way, so that one caller loads a key and the others wait for it.

Nothing here locks but a flight's own end: the cache holds its lock around every call of `Flights`.
"""

from __future__ import annotations

import threading
from typing import Any

from headgate.store.cache.keys import Group, Key, group_of


class Flight:
    """One load. Once detached, nobody joins it any more and its answer is not kept."""

    __slots__ = ("answer", "detached", "done", "error", "joinable")

    def __init__(self, *, joinable: bool) -> None:
        self.joinable = joinable
        self.detached = False
        # Made when someone comes to wait, which is seldom.
        self.done: threading.Event | None = None
        self.answer: Any = None
        self.error: BaseException | None = None


class Flights:
    """Every load under way that has not been overtaken by a write or an invalidation."""

    def __init__(self) -> None:
        self._flights: dict[Key, list[Flight]] = {}

    def joinable(self, key: Key) -> Flight | None:
        """Return the load of `key` that a reader may wait for, if there is one."""
        for flight in self._flights.get(key, ()):
            if flight.joinable:
                if flight.done is None:
                    flight.done = threading.Event()
                return flight
        return None

    def depart(self, key: Key, *, joinable: bool) -> Flight:
        """Begin a load. One that must see the store as it is now is not joinable: it concerns its caller alone."""
        flight = Flight(joinable=joinable)
        self._flights.setdefault(key, []).append(flight)
        return flight

    def land(self, key: Key, flight: Flight) -> None:
        """End a load and wake who waits for it."""
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
