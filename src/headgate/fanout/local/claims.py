"""Claims: a local worker claims chunks directly from the store, many in a transaction.

`shares` divides the worker's capacity between fan-outs by priority.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import CorruptionError
from headgate.fanout.core.attempts import start_change
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.tracking import Claim, lease_of
from headgate.fanout.core.transitions import TransitionGuard, apply
from headgate.fanout.model.rows import MAIN_LANE, Chunk, Fanout, queue_position, run_key, timestamp_ms
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import all_of, exists, lacks
from headgate.store.model.requests import Check
from headgate.store.port import Store


class Want(Struct, frozen=True):
    """A fan-out with queued chunks: how many the worker could use, and how many of it are running here."""

    run_id: str
    wanted: int
    running: int = 0
    priority: int = 5


def shares(room: int, wants: Sequence[Want]) -> dict[str, int]:
    """Return how many chunks to claim of each fan-out, so that running chunks are in proportion to the priorities.

    Each slot goes to the fan-out with the lowest ratio of running chunks to priority; the first one wins ties.
    """
    given = dict.fromkeys((want.run_id for want in wants), 0)
    heap = [(want.running / want.priority, place, want) for place, want in enumerate(wants) if want.wanted > 0]
    heapq.heapify(heap)
    while room > 0 and heap:
        _, place, want = heapq.heappop(heap)
        given[want.run_id] += 1
        room -= 1
        if given[want.run_id] < want.wanted:
            heapq.heappush(heap, ((want.running + given[want.run_id]) / want.priority, place, want))
    return {run_id: count for run_id, count in given.items() if count}


# How long the list of fan-outs is cached, unless `refresh` is called.
LIST_SECONDS: Final = 0.5
# Factor of chunks to read ahead after losing claims to other workers.
SPREAD: Final = 8


class Claims:
    """Claims chunks for one worker. Not thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        worker: str,
        lane: str = MAIN_LANE,
        wanted: Callable[[Fanout], bool] = lambda _: True,
        room_for: Callable[[Fanout], int] = lambda _: 1_000_000,
        lease_seconds: float | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.queries = FanoutQueries(store, clock)
        self._store = store
        self._clock = clock
        self._ids = ids
        self._worker = worker
        self._lane = lane
        self._wanted = wanted
        self._lease_seconds = lease_seconds
        self.draw = draw
        # The most further chunks of a fan-out to claim, whatever the total room.
        self._room_for = room_for
        self._listed: list[Fanout] = []
        self._listed_until = 0.0
        # Queue position by fan-out at which this worker claims, if not at the head.
        self._positions: dict[str, str] = {}

    def refresh(self) -> None:
        """Read the list of fan-outs again at the next call."""
        self._listed_until = 0.0

    def take(self, room: int, running: Mapping[str, int]) -> list[Claim]:
        """Claim up to `room` chunks; `running` is the number of chunks of each fan-out that this worker runs."""
        if room <= 0:
            return []
        fanouts = {fanout.run_id: fanout for fanout in self._fanouts()}
        wants, waiting = [], {}
        for run_id, fanout in fanouts.items():
            limit = self._limit(fanout, room)
            found = self._waiting(fanout, limit) if limit > 0 else []
            if found:
                waiting[run_id] = found
                wants.append(Want(run_id, len(found), running.get(run_id, 0), fanout.rules().priority))
        claims: list[Claim] = []
        for run_id, count in shares(room, wants).items():
            claims += self._claim(fanouts[run_id], waiting[run_id][:count])
        return claims

    def next_due_ms(self) -> int | None:
        """Return when the next queued chunk becomes due, or None."""
        soonest: int | None = None
        for fanout in self._fanouts():
            for chunk in self.queries.queued(fanout.run_id, self._lane, limit=1):
                due_ms = int((chunk.queue_sk or "0").partition("#")[0])
                soonest = due_ms if soonest is None else min(soonest, due_ms)
        return soonest

    def _fanouts(self) -> list[Fanout]:
        now = self._clock.monotonic()
        if now >= self._listed_until:
            found = self.queries.every_active()
            self._listed = [fanout for fanout in found if fanout.queue_url is None and _is_runnable(fanout)]
            self._listed = [fanout for fanout in self._listed if self._wanted(fanout)]
            listed = {fanout.run_id for fanout in self._listed}
            self._positions = {run_id: place for run_id, place in self._positions.items() if run_id in listed}
            self._listed_until = now + LIST_SECONDS
        return self._listed

    def _limit(self, fanout: Fanout, room: int) -> int:
        room = min(room, self._room_for(fanout))
        concurrency = fanout.rules().concurrency
        if concurrency is None:
            return room
        counts = self.queries.counts(fanout)
        return min(room, concurrency - counts.running - counts.slow_running)

    def _waiting(self, fanout: Fanout, count: int) -> Sequence[Chunk]:
        now_ms = self.queries.now_ms()
        position = self._positions.get(fanout.run_id)
        found = self.queries.queued(fanout.run_id, self._lane, due_ms=now_ms, after=position, limit=count)
        if found or position is None:
            return found
        # The end was reached: back to the head, where other workers claim too.
        del self._positions[fanout.run_id]
        ahead = self.queries.queued(fanout.run_id, self._lane, due_ms=now_ms, limit=min(1000, SPREAD * count))
        return sorted(ahead, key=lambda _: self.draw())[:count]

    def _claim(self, fanout: Fanout, chunks: Sequence[Chunk]) -> list[Claim]:
        now_ms = self.queries.now_ms()
        lease_seconds = self._lease_seconds if self._lease_seconds is not None else lease_of(fanout)
        changes = [
            start_change(chunk, worker=self._worker, token=self._ids.ulid(), now_ms=now_ms, lease_seconds=lease_seconds)
            for chunk in chunks
        ]
        refused = apply(self._store, changes, guard=self._guard(fanout))
        self._advance(fanout, chunks, is_contended=bool(refused))
        gone = {one.change.after.sk for one in refused}
        return [Claim(fanout, change.after) for change in changes if change.after.sk not in gone]

    def _advance(self, fanout: Fanout, chunks: Sequence[Chunk], *, is_contended: bool) -> None:
        """After losing claims to other workers, continue at a random queue position; otherwise after the last claim."""
        if is_contended:
            drawn = round(self.draw() * max(1, fanout.items_total))
            self._positions[fanout.run_id] = queue_position(
                timestamp_ms(fanout.created_at), f"-{drawn:0{fanout.width}d}"
            )
        elif fanout.run_id in self._positions and chunks[-1].queue_sk is not None:
            self._positions[fanout.run_id] = chunks[-1].queue_sk

    def _guard(self, fanout: Fanout) -> TransitionGuard:
        """Return the guard against a pause, a cancellation or a full concurrency limit since the fan-out was read."""
        runs = Check(FANOUT, run_key(fanout.run_id), all_of(exists(), lacks("paused_at"), lacks("cancelled_at")))
        concurrency = fanout.rules().concurrency if fanout.shards == 1 else None
        return TransitionGuard((runs,), "running" if self._lane == MAIN_LANE else "slow_running", concurrency)


def _is_runnable(fanout: Fanout) -> bool:
    try:
        fanout.rules()
    except CorruptionError:
        # Maintenance logs it; other fan-outs go on.
        return False
    return fanout.paused_at is None and fanout.cancelled_at is None
