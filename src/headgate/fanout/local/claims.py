"""Claims: how a worker of this machine takes chunks from the rows themselves, many in a transaction.

Shares: how a worker divides the room it has between fan-outs that want it.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import CorruptionError
from headgate.fanout.core.attempts import begun
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.tracking import Claim, lease_of
from headgate.fanout.core.transitions import Guard, apply
from headgate.fanout.model.rows import MAIN_LANE, Chunk, Fanout, moment_ms, queue_place, run_key
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import all_of, exists, lacks
from headgate.store.model.requests import Check
from headgate.store.port import Store


class Want(Struct, frozen=True):
    """A fan-out with chunks to run: how many it can use now, and how many of it are running here."""

    run_id: str
    wanted: int
    running: int = 0
    priority: int = 5


def shares(room: int, wants: Sequence[Want]) -> dict[str, int]:
    """Return how many chunks of each fan-out to take, so that what runs is in proportion to the priorities.

    Each place goes to the one that has least for its priority; among equals, to the one named first.
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


# How long a list of fan-outs is good for, unless someone says that there is a new one.
LIST_SECONDS: Final = 0.5
# How far ahead a worker looks when others have taken what it wanted.
SPREAD: Final = 8


class Claims:
    """Takes chunks for one worker. Not for several threads at once."""

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
        # Where in the queue of a fan-out this worker takes from, if not at its head.
        self._places: dict[str, str] = {}

    def look_again(self) -> None:
        """Something was committed: there may be a new fan-out."""
        self._listed_until = 0.0

    def take(self, room: int, running: Mapping[str, int]) -> list[Claim]:
        """Claim up to `room` chunks; `running` says how many of each fan-out this worker has already."""
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
        """Return when the next chunk may be taken that has to wait until then, if there is one."""
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
            self._listed = [fanout for fanout in found if fanout.queue_url is None and _runs(fanout)]
            self._listed = [fanout for fanout in self._listed if self._wanted(fanout)]
            listed = {fanout.run_id for fanout in self._listed}
            self._places = {run_id: place for run_id, place in self._places.items() if run_id in listed}
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
        place = self._places.get(fanout.run_id)
        found = self.queries.queued(fanout.run_id, self._lane, due_ms=now_ms, after=place, limit=count)
        if found or place is None:
            return found
        # Nothing from there on: back to the head, where others are too.
        del self._places[fanout.run_id]
        ahead = self.queries.queued(fanout.run_id, self._lane, due_ms=now_ms, limit=min(1000, SPREAD * count))
        return sorted(ahead, key=lambda _: self.draw())[:count]

    def _claim(self, fanout: Fanout, chunks: Sequence[Chunk]) -> list[Claim]:
        now_ms = self.queries.now_ms()
        lease_seconds = self._lease_seconds if self._lease_seconds is not None else lease_of(fanout)
        changes = [
            begun(chunk, worker=self._worker, token=self._ids.ulid(), now_ms=now_ms, lease_seconds=lease_seconds)
            for chunk in chunks
        ]
        refused = apply(self._store, changes, guard=self._guard(fanout))
        self._move_on(fanout, chunks, is_crowded=bool(refused))
        gone = {one.change.after.sk for one in refused}
        return [Claim(fanout, change.after) for change in changes if change.after.sk not in gone]

    def _move_on(self, fanout: Fanout, chunks: Sequence[Chunk], *, is_crowded: bool) -> None:
        """Others take from the head too: whoever was refused begins where chance puts it, and goes on from there."""
        if is_crowded:
            drawn = round(self.draw() * max(1, fanout.items_total))
            self._places[fanout.run_id] = queue_place(moment_ms(fanout.created_at), f"-{drawn:0{fanout.width}d}")
        elif fanout.run_id in self._places and chunks[-1].queue_sk is not None:
            self._places[fanout.run_id] = chunks[-1].queue_sk

    def _guard(self, fanout: Fanout) -> Guard:
        """Others may have paused or cancelled it since it was listed, or filled it up since it was counted."""
        runs = Check(FANOUT, run_key(fanout.run_id), all_of(exists(), lacks("paused_at"), lacks("cancelled_at")))
        concurrency = fanout.rules().concurrency if fanout.shards == 1 else None
        return Guard((runs,), "running" if self._lane == MAIN_LANE else "slow_running", concurrency)


def _runs(fanout: Fanout) -> bool:
    try:
        fanout.rules()
    except CorruptionError:
        # Whoever tends it says so; the others go on.
        return False
    return fanout.paused_at is None and fanout.cancelled_at is None
