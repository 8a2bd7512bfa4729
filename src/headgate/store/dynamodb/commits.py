"""Commit generations on DynamoDB: exact for this process, noticed or assumed for the others.

DynamoDB does not report commits. While this process works, another one is assumed to commit every second. An idle
process reads the notices of the others each second, and assumes commits for a few seconds after each notice; without
one, seldom. If notices cannot be read, it polls every eight seconds. Time is the machine's, as waits must end even if a
test's clock does not move.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final, Protocol

from headgate.store.catalogue.tables import ACTIVITIES, EVENTS, EXECUTIONS, FANOUT, INBOXES, SCHEDULES, TIMERS
from headgate.store.model.schema import Table
from headgate.store.topics import Topic, Topics

BUSY_SECONDS: Final = 1.0
# Between assumed commits of an idle process that cannot read notices.
IDLE_SECONDS: Final = 8.0
# Between assumed commits of an idle process that reads notices.
QUIET_SECONDS: Final = 30.0
# A process sends a notice with its first commit of a second. Its later ones of that second, and indexes that lag, are
# covered because its readers go on polling for this long.
NOTICED_SECONDS: Final = 3.0
NOTICE_SECONDS: Final = 1.0
# For how long a read of notices vouches for there being none.
_VOUCHED_SECONDS: Final = 3.0
# From one second to eight, or with notices to thirty, in about half a minute.
_GROWTH: Final = 1.25
_VOUCHED_GROWTH: Final = 2.0
# A commit to one of these is work. Heartbeats and checkpoints, which an idle process commits too, are not.
_WORK_TABLES: Final = frozenset(
    table.name for table in (ACTIVITIES, EVENTS, EXECUTIONS, FANOUT, INBOXES, SCHEDULES, TIMERS)
)


class Notices(Protocol):
    """Notices of commits, as `CommitNotices` has them."""

    def receive(self) -> bool | None: ...


class CommitGenerations:
    """The generations of one store. Thread-safe."""

    def __init__(self, now: Callable[[], float] = monotonic, notices: Notices | None = None) -> None:
        self._now = now
        self._notices = notices
        self._changed = threading.Condition()
        self._own = dict.fromkeys(map(int, Topic), 0)
        # Counts wake-ups and the assumed commits of others.
        self._assumed = 0
        self._interval_seconds = BUSY_SECONDS
        self._assumed_at = now()
        self._noticed_at = -NOTICED_SECONDS
        self._sent_at = -NOTICE_SECONDS
        self._read_at = now()
        self._vouched_at = -_VOUCHED_SECONDS
        self._is_reading = False

    def on_committed(self, topics: Topics, tables: Iterable[Table]) -> bool:
        """Report a commit of this process. Returns whether a notice of it should be sent."""
        is_work = any(table.name in _WORK_TABLES for table in tables)
        with self._changed:
            for topic in self._own:
                if topics & topic:
                    self._own[topic] += 1
            is_due = is_work and self._notices is not None and self._now() >= self._sent_at + NOTICE_SECONDS
            if is_work:
                self._interval_seconds = BUSY_SECONDS
            if is_due:
                self._sent_at = self._now()
            self._changed.notify_all()
        return is_due

    def generation(self, topics: Topics, *, others: bool) -> int:
        """Return the present generation."""
        with self._changed:
            self._assume()
            return self._generation(topics, others=others)

    def wait(self, generation: int, timeout_seconds: float, topics: Topics, *, others: bool) -> int:
        """Return the generation once it is another than the given one, or after the time-out.

        One of the waiting threads reads the notices.
        """
        ends_at = self._now() + timeout_seconds
        while True:
            with self._changed:
                self._assume()
                present = self._generation(topics, others=others)
                left = ends_at - self._now()
                reader = self._next_reader() if present == generation else None
                if reader is None:
                    if present != generation or left <= 0:
                        return present
                    # A commit may shorten the interval, and wakes this thread to wait for less.
                    self._changed.wait(max(0.001, min(left, self._due_seconds())))
                    continue
            self._on_read(is_new=reader.receive())

    def wake(self) -> None:
        """Wake every waiter."""
        with self._changed:
            self._assumed += 1
            self._changed.notify_all()

    def _due_seconds(self) -> float:
        """Return how long it is until a commit is assumed or notices are read."""
        next_at = self._assumed_at + self._interval_seconds
        if self._notices is not None and not self._is_reading:
            next_at = min(next_at, self._read_at + NOTICE_SECONDS)
        return next_at - self._now()

    def _next_reader(self) -> Notices | None:
        """Return the notices if this thread is to read them now. A busy process assumes commits, and reads none."""
        now = self._now()
        is_due = now >= self._read_at + NOTICE_SECONDS
        if self._notices is None or self._is_reading or not is_due:
            return None
        self._read_at = now
        if self._interval_seconds <= BUSY_SECONDS:
            return None
        self._is_reading = True
        return self._notices

    def _on_read(self, *, is_new: bool | None) -> None:
        with self._changed:
            self._is_reading = False
            now = self._now()
            if is_new is not None:
                self._vouched_at = now
            if is_new:
                self._noticed_at = now
                self._interval_seconds = BUSY_SECONDS
                self._assumed += 1
                self._assumed_at = now
                self._changed.notify_all()

    def _assume(self) -> None:
        now = self._now()
        is_vouched = now < self._vouched_at + _VOUCHED_SECONDS
        if not is_vouched:
            # Nothing vouches any more for the absence of commits.
            self._interval_seconds = min(self._interval_seconds, IDLE_SECONDS)
        if now >= self._assumed_at + self._interval_seconds:
            self._assumed += 1
            self._assumed_at = now
            if now >= self._noticed_at + NOTICED_SECONDS:
                most, growth = (QUIET_SECONDS, _VOUCHED_GROWTH) if is_vouched else (IDLE_SECONDS, _GROWTH)
                self._interval_seconds = min(most, self._interval_seconds * growth)
            self._changed.notify_all()

    def _generation(self, topics: Topics, *, others: bool) -> int:
        own = 0 if others else sum(count for topic, count in self._own.items() if topics & topic)
        return self._assumed + own
