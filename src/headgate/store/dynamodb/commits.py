"""Commit generations on DynamoDB: exact for this process, assumed for the others, which DynamoDB does not report.

Another process is assumed to commit every second while this one works, and less often the longer it does not: an idle
process polls every eight seconds. Time is the machine's, as waits must end even if a test's clock does not move.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

from headgate.store.catalogue.tables import ACTIVITIES, EVENTS, EXECUTIONS, FANOUT, INBOXES
from headgate.store.model.schema import Table
from headgate.store.topics import Topic, Topics

BUSY_SECONDS: Final = 1.0
IDLE_SECONDS: Final = 8.0
# From one second to eight in about half a minute.
_GROWTH: Final = 1.25
# A commit to one of these is work. Heartbeats and checkpoints, which an idle process commits too, are not.
_WORK_TABLES: Final = frozenset(table.name for table in (ACTIVITIES, EVENTS, EXECUTIONS, FANOUT, INBOXES))


class CommitGenerations:
    """The generations of one store. Thread-safe."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._own = dict.fromkeys(map(int, Topic), 0)
        # Counts wake-ups and the assumed commits of others.
        self._assumed = 0
        self._interval_seconds = BUSY_SECONDS
        self._assumed_at = now()

    def on_committed(self, topics: Topics, tables: Iterable[Table]) -> None:
        """Report a commit of this process."""
        with self._changed:
            for topic in self._own:
                if topics & topic:
                    self._own[topic] += 1
            if any(table.name in _WORK_TABLES for table in tables):
                self._interval_seconds = BUSY_SECONDS
            self._changed.notify_all()

    def generation(self, topics: Topics, *, others: bool) -> int:
        """Return the present generation."""
        with self._changed:
            self._assume()
            return self._generation(topics, others=others)

    def wait(self, generation: int, timeout_seconds: float, topics: Topics, *, others: bool) -> int:
        """Return the generation once it is another than the given one, or after the time-out."""
        ends_at = self._now() + timeout_seconds
        with self._changed:
            while True:
                self._assume()
                present = self._generation(topics, others=others)
                left = ends_at - self._now()
                if present != generation or left <= 0:
                    return present
                # A commit may shorten the interval, and wakes this thread to wait for less.
                self._changed.wait(max(0.001, min(left, self._assumed_at + self._interval_seconds - self._now())))

    def wake(self) -> None:
        """Wake every waiter."""
        with self._changed:
            self._assumed += 1
            self._changed.notify_all()

    def _assume(self) -> None:
        now = self._now()
        if now >= self._assumed_at + self._interval_seconds:
            self._assumed += 1
            self._assumed_at = now
            self._interval_seconds = min(IDLE_SECONDS, self._interval_seconds * _GROWTH)
            self._changed.notify_all()

    def _generation(self, topics: Topics, *, others: bool) -> int:
        own = 0 if others else sum(count for topic, count in self._own.items() if topics & topic)
        return self._assumed + own
