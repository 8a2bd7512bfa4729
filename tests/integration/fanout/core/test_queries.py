"""Fan-outs of other programs: rows of the external layout without counters of ours."""

from __future__ import annotations

from pathlib import Path

import msgspec

from headgate.clock import VirtualClock
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.rows import Chunk, fanout_of
from headgate.serve.rest.fanout.models import chunk_view
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite
from tests.unit.fanout.made_rows import RUN, T0, Stage


def test_counts__rows_of_another_program__are_counted_by_their_status(tmp_path: Path) -> None:
    clock = VirtualClock(T0 / 1000)
    store = open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)
    store.put(FANOUT, {"PK": "theirs", "SK": "RUN", "survey": "grs", "jobs_total": 6, "n_spectra": 3_000})
    statuses = ["IN_PROGRESS", "IN_PROGRESS", "PENDING", "COMPLETED", "FAILED"]
    for number, status in enumerate(statuses):
        row = {"PK": "theirs", "SK": f"CHUNK#chunk-{number * 500:07d}", "status": status, "n_spectra": 500}
        store.put(FANOUT, row)
    queries = FanoutQueries(store, clock)

    counts = queries.counts(fanout_of(store.get(FANOUT, Key("theirs", "RUN")) or {}))

    assert (counts.running, counts.queued, counts.done, counts.dead, counts.total) == (2, 2, 1, 1, 6)
    assert counts.items_ok == 500
    store.close()


def test_chunk__never_started__its_counters_are_on_the_wire(tmp_path: Path) -> None:
    clock = VirtualClock(T0 / 1000)
    store = open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)
    stage = Stage(store, clock, chunks=1)
    chunk: Chunk = stage.queries.chunks(RUN).chunks[0]

    shown = msgspec.json.decode(msgspec.json.encode(chunk_view(chunk)))

    assert {name: shown[name] for name in ("attempt", "items_failed", "redrives")} == {
        "attempt": 0,
        "items_failed": 0,
        "redrives": 0,
    }
    row = store.get(FANOUT, Key(RUN, "RUN")) or {}
    assert (row["jobs_completed"], row["jobs_failed"]) == (0, 0)
    store.close()
