"""One caller: a point read, a durable write, a batch."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

from bench.measure import Figure, ratio
from bench.rows import ROWS, TABLE, item, open_raw, open_store, row
from headgate.store.model.requests import Put
from headgate.store.model.schema import Key
from headgate.store.sqlite.store import SqliteStore

READS = 5000
WRITES = 600
BATCHES, BATCH = 10, 500


def run() -> list[Figure]:
    # In a thread, as requests and workers are served: the main thread has its commits made by another one.
    with ThreadPoolExecutor(1) as thread, open_store() as store, open_raw() as raw:
        figures = [thread.submit(measure, store, raw).result() for measure in (_batch, _write, _read)]
    with open_store() as store, open_raw() as raw:
        figures.append(_write(store, raw, caller="the main thread", goal=None))
    return figures


def _read(store: SqliteStore, raw: sqlite3.Connection) -> Figure:
    keys = [Key(item(number)["timer_id"]) for number in range(READS)]

    def bare(_: int) -> int:
        for key in keys:
            raw.execute(ROWS.select, key[:1]).fetchone()
        return READS

    def ours(_: int) -> int:
        for key in keys:
            store.get(TABLE, key)
        return READS

    before = store.stats.reads
    return ratio(
        "point read / raw primary-key read",
        yardstick=bare,
        subject=ours,
        goal=0.50,
        counted=lambda: f"{store.stats.reads - before} reads",
    )


def _write(
    store: SqliteStore, raw: sqlite3.Connection, *, caller: str = "a thread", goal: float | None = 0.60
) -> Figure:
    rows = [row(number) for number in range(1_000_000, 1_000_000 + WRITES * 9)]
    items = [item(number) for number in range(1_000_000, 1_000_000 + WRITES * 9)]

    def bare(number: int) -> int:
        for values in rows[number * WRITES : (number + 1) * WRITES]:
            raw.execute("BEGIN IMMEDIATE")
            raw.execute(ROWS.upsert, values)
            raw.execute("COMMIT")
        return WRITES

    def ours(number: int) -> int:
        for values in items[number * WRITES : (number + 1) * WRITES]:
            store.put(TABLE, values)
        return WRITES

    before = (store.stats.writes, store.stats.commits)
    return ratio(
        f"durable write from {caller} / raw WAL/FULL commit",
        yardstick=bare,
        subject=ours,
        goal=goal,
        counted=lambda: f"{store.stats.writes - before[0]} writes, {store.stats.commits - before[1]} commits",
    )


def _batch(store: SqliteStore, raw: sqlite3.Connection) -> Figure:
    total = BATCHES * BATCH
    rows = [row(number) for number in range(total * 9)]
    puts = [Put(TABLE, item(number)) for number in range(total * 9)]

    def bare(number: int) -> int:
        for start in range(number * total, (number + 1) * total, BATCH):
            raw.execute("BEGIN IMMEDIATE")
            raw.executemany(ROWS.upsert, rows[start : start + BATCH])
            raw.execute("COMMIT")
        return total

    def ours(number: int) -> int:
        for start in range(number * total, (number + 1) * total, BATCH):
            store.batch_write(puts[start : start + BATCH])
        return total

    before = (store.stats.batches, store.stats.commits)
    return ratio(
        "batch of 500 puts, one index / executemany",
        yardstick=bare,
        subject=ours,
        goal=0.60,
        counted=lambda: f"{store.stats.batches - before[0]} batches, {store.stats.commits - before[1]} commits",
    )
