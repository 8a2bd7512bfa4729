"""Change feed: one poll of the store for all open pages, in numbered batches.

Pages of any number wait for the same batch. Its number tells which rendered content includes its changes, so that equal
pages share one rendering (`fragment_cache.py`).
"""

from __future__ import annotations

import asyncio
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, TypeVar

from headgate.durable.bus.event_log import StoredEvent
from headgate.errors import HeadgateError
from headgate.health.service import HealthService
from headgate.serve.runtime.log_tail import LogTail
from headgate.serve.runtime.thread_pool import WorkPool
from headgate.serve.runtime.watch_hub import WatchHub

# Minimum time between two batches. With the spread of the messages, a change is on an open page within a second.
PACE_SECONDS: Final = 0.6
# Maximum wait for a commit; also bounds how late a shutdown is noticed.
_POLL_SECONDS: Final = 1.0
# Batches kept for followers that are behind.
_KEPT: Final = 64
_TYPES: Final = "headgate.*"

T = TypeVar("T")


class Batch:
    """What has changed since the batch before: events, and with or without them at least one commit."""

    def __init__(self, sequence: int, events: list[StoredEvent]) -> None:
        self.sequence = sequence
        self.events = events
        self._found: dict[Hashable, object] = {}

    def once(self, key: Hashable, find: Callable[[list[StoredEvent]], T]) -> T:
        """Return what `find` makes of the events. It is called once for each key: most pages ask the same."""
        if key not in self._found:
            self._found[key] = find(self.events)
        return self._found[key]  # type: ignore[return-value]  # what it was called for


class ChangeFeed:
    """Polls while there are followers. Used from the event loop only."""

    def __init__(self, health: HealthService, pool: WorkPool, watches: WatchHub) -> None:
        self._health = health
        self._pool = pool
        self._watches = watches
        # Numbers of an earlier process mean nothing here.
        self._process = secrets.token_hex(4)
        self._run: _Run | None = None
        self.sequence = 0

    def position(self, sequence: int) -> str:
        """Return a number of this feed as a token for pages."""
        return f"{self._process}.{sequence}"

    def sequence_of(self, token: str) -> int | None:
        """Return the number that a token stands for; None if it is not of this feed."""
        process, _, number = token.partition(".")
        is_ours = process == self._process and number.isascii() and number.isdigit() and len(number) < 16
        return int(number) if is_ours else None

    async def follow(self) -> Follower:
        """Return a follower from now on. Raises errors of the store."""
        run = self._run
        if run is None or run.is_over or run.loop is not asyncio.get_running_loop():
            run = self._run = _Run()
            tail, store = LogTail(self._health, _TYPES), self._health.store
            generation = await self._pool.run(store.generation)
            # The loop keeps no strong reference to a task.
            run.task = asyncio.create_task(self._poll(run, tail, generation))
        follower = Follower(run, self.sequence)
        run.followers.add(follower)
        return follower

    async def _poll(self, run: _Run, tail: LogTail, generation: int) -> None:
        store = self._health.store

        def read() -> tuple[int, list[StoredEvent]]:
            # The generation first: a commit during the poll is found by the next.
            return store.generation(), tail.poll()

        try:
            while run.followers and not self._watches.is_stopping:
                await self._watches.committed(_POLL_SECONDS, after=generation)
                before, (generation, events) = generation, await self._pool.run(read)
                if events or generation != before:
                    self.sequence += 1
                    run.publish(Batch(self.sequence, events))
                    await asyncio.sleep(PACE_SECONDS)
        except HeadgateError:
            # The followers end, and their pages connect again.
            pass
        finally:
            run.end()


class Follower:
    """The position of one page in the feed."""

    def __init__(self, run: _Run, sequence: int) -> None:
        self._run = run
        self.sequence = sequence

    @property
    def is_over(self) -> bool:
        """Whether the feed has ended, because the store is unavailable or the server stops."""
        return self._run.is_over

    @property
    def count(self) -> int:
        """The number of followers."""
        return len(self._run.followers)

    @property
    def is_behind(self) -> bool:
        """Whether there are batches to take."""
        return self._run.sequence > self.sequence

    async def wait(self, timeout_seconds: float) -> None:
        """Return when there are batches, after the end, or on timeout."""
        if self.is_behind or self._run.is_over:
            return
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._run.published.wait()
        except TimeoutError:
            return

    def take(self) -> list[Batch] | None:
        """Return the batches since the last call; None if some are no longer kept."""
        after, kept = self.sequence, self._run.batches
        self.sequence = max(after, self._run.sequence)
        if kept and kept[0].sequence > after + 1:
            return None
        return [each for each in kept if each.sequence > after]


class _Run:
    """The polls from the first follower to the last."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.task: asyncio.Task[None] | None = None
        # Weak: a stream whose client is gone is dropped, and need not say so.
        self.followers: weakref.WeakSet[Follower] = weakref.WeakSet()
        self.batches: deque[Batch] = deque(maxlen=_KEPT)
        self.sequence = 0
        self.is_over = False
        self.published = asyncio.Event()

    def publish(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.sequence = batch.sequence
        self._wake()

    def end(self) -> None:
        self.is_over = True
        self._wake()

    def _wake(self) -> None:
        published, self.published = self.published, asyncio.Event()
        published.set()
