"""Slots: how many async and isolated activities a worker holds at once. Others are limited by its threads."""

from __future__ import annotations

import enum
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping

from headgate.durable.model.records import Activity
from headgate.durable.model.worker_limits import WorkerLimits
from headgate.durable.worker.executor import RunningAttempt


class SlotKind(enum.Enum):
    """How an activity runs."""

    THREAD = enum.auto()
    ASYNC = enum.auto()
    ISOLATED = enum.auto()


class Slots:
    """The slots of one worker. Claims are admitted by the threads that run a turn and a poll, at the same time.

    The claims in use are counted when a slot is needed, and not by a counter that every end of a claim would have to
    keep: no end of a claim can lose a slot.
    """

    def __init__(
        self,
        limits: WorkerLimits,
        queue: deque[Activity],
        running: Mapping[str, RunningAttempt],
        kind_of: Callable[[Activity], SlotKind],
    ) -> None:
        self._limits = {SlotKind.ASYNC: limits.async_max, SlotKind.ISOLATED: limits.isolated_max}
        self._queue = queue
        self._running = running
        self._kind_of = kind_of
        # Of claims that are not queued yet: those of the turn and those of the poll, each ended by its own thread.
        self._reserved: Counter[SlotKind] = Counter()
        self._polled: Counter[SlotKind] = Counter()
        self._mutex = threading.Lock()
        # Kinds of which an activity was left in its queue for lack of a slot.
        self._lacking: set[SlotKind] = set()

    def begin(self) -> None:
        """Start the claims of a turn, or end them: those of the last one are queued by now, or were not committed."""
        if self._reserved:
            self._reserved.clear()

    def begin_poll(self) -> None:
        """Start the claims of a poll, which finds every activity that was left in its queue."""
        self.end_poll()
        self._lacking.clear()

    def end_poll(self) -> None:
        """End the claims of a poll: they are queued by now, or were not committed."""
        self._polled.clear()

    def take(self, activity: Activity, *, is_poll: bool = False) -> bool:
        """Reserve a slot for an activity, until the end of the turn or poll. False if there is none."""
        kind = self._kind_of(activity)
        if kind is SlotKind.THREAD:
            return True
        with self._mutex:
            if not self._has_room(kind):
                self._lacking.add(kind)
                return False
            reserved = self._polled if is_poll else self._reserved
            reserved[kind] += 1
        return True

    @property
    def is_lacking(self) -> bool:
        """Whether an activity was left in its queue for lack of a slot."""
        return bool(self._lacking)

    def is_freed(self) -> bool:
        """Whether there is a slot now of a kind that lacked one."""
        return any(self._has_room(kind) for kind in tuple(self._lacking))

    def in_use(self) -> Counter[SlotKind]:
        """Return how many attempts run now, by kind."""
        return Counter(self._kind_of(each.activity) for each in list(self._running.values()))

    def _has_room(self, kind: SlotKind) -> bool:
        limit, reserved = self._limits[kind], self._reserved[kind] + self._polled[kind]
        queue, running = list(self._queue), list(self._running.values())
        if len(queue) + len(running) + reserved < limit:
            return True
        held = reserved + sum(self._kind_of(each) is kind for each in queue)
        abandoned = 0
        for each in running:
            if self._kind_of(each.activity) is kind:
                abandoned += each.is_abandoned
                held += not each.is_abandoned
        # An attempt that ignores its cancellation loses its slot, but only so many can run besides the others.
        return held + max(0, abandoned - limit) < limit
