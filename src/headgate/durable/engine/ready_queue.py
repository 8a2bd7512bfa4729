"""Ready list: the executions of a worker that have events for a turn. Shared by all its threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.engine.turn_commit import Source
from headgate.store.model.requests import Delete

# An execution that cannot be advanced here is tried again no sooner than after this long.
SHELVED_SECONDS: Final = 2.0
_SHELVED_MAX: Final = 1_000


class Work(Struct):
    """The events of an execution's next turn. With `reads_inbox`, its inbox is read as well."""

    sources: list[Source]
    # Of all sources, once there are two: most turns have one, and a set of one costs more than its event.
    removals: set[Delete] | None = None
    reads_inbox: bool = False

    def add(self, source: Source) -> None:
        """Add an event, unless it is there already: a timer can be polled twice before a turn consumes it."""
        if self.sources and source.removal is not None:
            if self.removals is None:
                self.removals = {each.removal for each in self.sources if each.removal is not None}
            if source.removal in self.removals:
                return
            self.removals.add(source.removal)
        self.sources.append(source)


class ReadyList:
    """Executions in the order in which they became ready. Safe to use from many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._ready: dict[str, Work] = {}
        # Taken for the current cycle.
        self._taken: Sequence[tuple[str, Work]] = ()
        self._shelved: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._ready)

    def add_event(self, execution_id: str, source: Source) -> None:
        """Give an execution an event for its next turn."""
        with self._mutex:
            work = self._ready.get(execution_id)
            if work is None:
                self._ready[execution_id] = Work([source])
            else:
                work.add(source)

    def add_events(self, execution_id: str, sources: Sequence[Source]) -> None:
        """Give an execution events for its next turn."""
        for source in sources:
            self.add_event(execution_id, source)

    def read_inbox(self, execution_id: str) -> None:
        """Have an execution's inbox read before its next turn. It is no longer shelved."""
        with self._mutex:
            self._shelved.pop(execution_id, None)
            self._work(execution_id).reads_inbox = True

    def take(self, count_max: int) -> list[tuple[str, Work]]:
        """Remove and return the executions that have been ready longest. `end_batch` ends their cycle."""
        with self._mutex:
            ready = self._ready
            if len(ready) <= count_max:
                batch = list(ready.items())
                ready.clear()
            else:
                batch = [(execution_id, ready.pop(execution_id)) for execution_id in list(ready)[:count_max]]
            self._taken = batch
            return batch

    def end_batch(self) -> None:
        """End the cycle: every execution that was taken has been advanced or put back."""
        self._taken = ()

    def clear(self) -> None:
        """Drop every execution, shelved or not."""
        with self._mutex:
            self._ready.clear()
            self._taken = ()
            self._shelved.clear()

    def put_back(self, batch: Sequence[tuple[str, Work]]) -> None:
        """Make executions ready again that were taken; their inboxes are read again."""
        with self._mutex:
            for execution_id, work in batch:
                newer = self._ready.get(execution_id)
                again = Work([], reads_inbox=True)
                for source in [*work.sources, *(newer.sources if newer is not None else ())]:
                    again.add(source)
                self._ready[execution_id] = again

    def removal_keys(self) -> set[str]:
        """Return the keys of all rows that pending events will remove, including events of the current cycle."""
        with self._mutex:
            works = [*self._ready.values(), *(work for _, work in self._taken)]
            removals = [source.removal for work in works for source in work.sources]
            return {str(removal.key.partition) for removal in removals if removal is not None}

    def shelve(self, execution_id: str) -> None:
        """Let an execution rest that cannot be advanced here now."""
        now = self._clock.monotonic()
        self._shelved[execution_id] = now + SHELVED_SECONDS
        if len(self._shelved) > _SHELVED_MAX:
            self._shelved = {name: until for name, until in self._shelved.items() if until > now}

    def is_shelved(self, execution_id: str) -> bool:
        """Whether an execution rests."""
        until = self._shelved.get(execution_id)
        if until is None:
            return False
        if until > self._clock.monotonic():
            return True
        self._shelved.pop(execution_id, None)
        return False

    def _work(self, execution_id: str) -> Work:
        work = self._ready.get(execution_id)
        if work is None:
            work = self._ready[execution_id] = Work([])
        return work
