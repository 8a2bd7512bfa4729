"""Chunk workers: the live local workers of a store, and which of them takes the chunks of a fan-out.

A worker's row expires unless its heartbeat renews it. The rows say who could take a chunk; leases and tokens of the
chunks say who has taken it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.fanout.core.maintenance import is_process_gone
from headgate.fanout.model.rows import Fanout
from headgate.store.catalogue.tables import WORKERS
from headgate.store.model.requests import Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

BEAT_SECONDS: Final = 10.0
EXPIRY_SECONDS: Final = 35.0
FLEET: Final = "CHUNKS"
LISTED_MAX: Final = 1000


class ChunkWorkerRow(Struct, frozen=True, omit_defaults=True):
    """The row of a worker: what it takes."""

    worker_id: str
    lane: str
    processes: int
    started_at: str
    handler: str | None = None
    group: str | None = None
    run_id: str | None = None
    # Handlers that it cannot load, with the error.
    unusable: dict[str, str] = {}
    ttl: int | None = None

    def takes(self, fanout: Fanout, lane: str) -> bool:
        """Whether it takes chunks of a lane of a fan-out."""
        if not self._is_for(fanout, lane):
            return False
        if self.handler is not None:
            return fanout.handler in (None, self.handler)
        return fanout.handler is not None and fanout.handler not in self.unusable

    def refusal(self, fanout: Fanout, lane: str) -> str | None:
        """Return why it cannot load the handler of a fan-out that it would take otherwise, or None."""
        return self.unusable.get(fanout.handler or "") if self._is_for(fanout, lane) else None

    def _is_for(self, fanout: Fanout, lane: str) -> bool:
        return self.lane == lane and self.run_id in (None, fanout.run_id) and self.group in (None, fanout.group)


class ChunkWorkers:
    """Reads and writes the rows of chunk workers."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def beat(self, row: ChunkWorkerRow) -> None:
        """Store a worker's row until `EXPIRY_SECONDS` from now."""
        expires_at = int(self._clock.seconds() + EXPIRY_SECONDS)
        self._store.put(WORKERS, {**msgspec.to_builtins(row), **_indexed(row.worker_id), "ttl": expires_at})

    def leave(self, worker_id: str) -> None:
        """Delete the row of a worker that stops."""
        self._store.delete(WORKERS, Key(_indexed(worker_id)["worker_id"]))

    def live(self) -> list[ChunkWorkerRow]:
        """Return the live workers. Eventually consistent (index)."""
        page = self._store.query(Query(table=WORKERS, index="fleet-index", partition=FLEET, limit=LISTED_MAX))
        rows = [_row(item) for item in page.items]
        return [row for row in rows if not is_process_gone(row.worker_id)]


def _indexed(worker_id: str) -> dict[str, str]:
    """Return the attributes of the key and the index: rows of workers of executions are in the same table."""
    return {"worker_id": f"{FLEET}#{worker_id}", "fleet": FLEET}


def _row(item: Item) -> ChunkWorkerRow:
    known = {**item, "worker_id": str(item["worker_id"]).removeprefix(f"{FLEET}#")}
    return typed_decode.convert(known, ChunkWorkerRow)


def no_taker_reason(workers: Sequence[ChunkWorkerRow], fanout: Fanout, lane: str) -> str | None:
    """Return why no live worker takes the chunks of a lane, or None if one does."""
    if any(worker.takes(fanout, lane) for worker in workers):
        return None
    refusals = [why for worker in workers if (why := worker.refusal(fanout, lane)) is not None]
    if refusals:
        return f"no live worker can load its handler: {refusals[0]}"
    of_lane = [worker for worker in workers if worker.lane == lane]
    if not of_lane:
        return f"no worker of the {lane} lane is running"
    if fanout.handler is None and all(worker.handler is None for worker in of_lane):
        return "it has no handler, and no live worker names one"
    return f"no live worker takes it: {len(of_lane)} of the {lane} lane run other fan-outs"


def described(unusable: Mapping[str, str]) -> dict[str, str]:
    """Return the handlers that a worker cannot load, with errors short enough for its row."""
    return {handler: why[:500] for handler, why in list(unusable.items())[:50]}
