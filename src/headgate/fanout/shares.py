"""Shares: how a worker divides the room it has between fan-outs that want it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from msgspec import Struct


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
