"""The ready list: which executions have something to hear, and what. Shared by every thread of a worker."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.durable.engine.turn_commit import Source
from headgate.store.model.requests import Delete

# An execution that waits for other code or for someone's attention is looked at no more often than this.
SHELVED_SECONDS: Final = 2.0
_SHELVED_MAX: Final = 1_000


class Work(Struct):
    """What an execution has to hear. `look` says that its inbox has to be read."""

    sources: list[Source]
    removals: set[Delete]
    look: bool = False

    def add(self, source: Source) -> None:
        """Add what is to be heard, unless it is there already: a timer can be seen twice before it is heard."""
        if source.removal is not None:
            known = len(self.removals)
            self.removals.add(source.removal)
            if len(self.removals) == known:
                return
        self.sources.append(source)


class ReadyList:
    """Executions in the order in which they became ready. Safe to use from many threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._ready: dict[str, Work] = {}
        # Taken, and neither heard nor put back yet.
        self._taken: Sequence[tuple[str, Work]] = ()
        self._shelved: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._ready)

    def tell(self, execution_id: str, sources: Iterable[Source]) -> None:
        """Have an execution hear these in its next turn."""
        with self._mutex:
            work = self._work(execution_id)
            for source in sources:
                work.add(source)

    def look(self, execution_id: str) -> None:
        """Have an execution's inbox read. Whoever asks for it has a reason, so that it is no longer shelved."""
        with self._mutex:
            self._shelved.pop(execution_id, None)
            self._work(execution_id).look = True

    def take(self, count_max: int) -> list[tuple[str, Work]]:
        """Return the first of those that are ready; they are no longer on the list. `settle` says when it is over."""
        with self._mutex:
            first = list(self._ready)[:count_max]
            batch = [(execution_id, self._ready.pop(execution_id)) for execution_id in first]
            self._taken = batch
            return batch

    def settle(self) -> None:
        """What was taken has been heard, or put back."""
        with self._mutex:
            self._taken = ()

    def put_back(self, batch: Sequence[tuple[str, Work]]) -> None:
        """Let those who were taken be ready again, with everything read anew."""
        with self._mutex:
            for execution_id, work in batch:
                newer = self._ready.get(execution_id)
                again = Work([], set(), look=True)
                for source in [*work.sources, *(newer.sources if newer is not None else ())]:
                    again.add(source)
                self._ready[execution_id] = again

    def ids_told(self) -> set[str]:
        """Return the keys of everything that waits to be heard, or is being heard."""
        with self._mutex:
            works = [*self._ready.values(), *(work for _, work in self._taken)]
            return {str(removal.key.partition) for work in works for removal in work.removals}

    def shelve(self, execution_id: str) -> None:
        """The execution cannot be advanced now; there is no hurry to look again."""
        now = self._clock.monotonic()
        self._shelved[execution_id] = now + SHELVED_SECONDS
        if len(self._shelved) > _SHELVED_MAX:
            self._shelved = {name: until for name, until in self._shelved.items() if until > now}

    def is_shelved(self, execution_id: str) -> bool:
        """Whether an execution could not be advanced a moment ago."""
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
            work = self._ready[execution_id] = Work([], set())
        return work
