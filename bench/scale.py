"""What must not grow with the table: an index query, a read of the change stream, a page past expired rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import ROUNDS, Figure, seconds
from bench.rows import open_at
from headgate.clock import SystemClock
from headgate.store.catalogue.tables import SIGNAL_STATE
from headgate.store.model.requests import Query
from headgate.store.model.values import dump
from headgate.store.sqlite.file import CHANGES
from headgate.store.sqlite.rows import TableRows
from headgate.store.sqlite.store import SqliteStore

SMALL, LARGE = 10**4, 10**6
TIMES = 300
FLAT_MAX = 1.5
# Every size has as many rows in breach, as many rows in the page's partition and as many new changes:
# the answers are the same, only the table around them grows.
IN_BREACH = 500
IN_PARTITION = 200


def run() -> list[Figure]:
    clock = SystemClock()
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        stores = {}
        for size in (SMALL, LARGE):
            home = Path(folder) / str(size)
            open_at(home, clock).close()
            _fill(home / "headgate.db", size, int(clock.seconds()))
            stores[size] = open_at(home, clock)
        figures = [
            _flat("query by index", stores, _by_index),
            _flat("change-stream read", stores, _by_stream),
            _flat("page past expired rows", stores, _past_expired),
        ]
        for store in stores.values():
            store.close()
    return figures


def _flat(name: str, stores: dict[int, SqliteStore], read: Callable[[SqliteStore], None]) -> Figure:
    def repeat(store: SqliteStore) -> float:
        def work() -> None:
            for _ in range(TIMES):
                read(store)

        return seconds(work)

    for store in stores.values():
        repeat(store)
    times = [(repeat(stores[SMALL]), repeat(stores[LARGE])) for _ in range(ROUNDS)]
    growth = sorted(large / small for small, large in times)[ROUNDS // 2]
    calls = {size: store.stats.queries + store.stats.reads for size, store in stores.items()}
    return Figure(
        f"{name}: time at {LARGE:,} / at {SMALL:,}",
        f"{growth:.2f}",
        f"<= {FLAT_MAX:.2f}",
        growth <= FLAT_MAX,
        f"{calls[SMALL]} and {calls[LARGE]} calls",
        f"{min(small for small, _ in times) / TIMES * 1e6:.0f} us a call when small",
    )


def _by_index(store: SqliteStore) -> None:
    page = store.query(Query(table=SIGNAL_STATE, index="breach-index", partition="BREACH#CRITICAL#TIER_1#0", limit=20))
    assert len(page.items) == 20


def _by_stream(store: SqliteStore) -> None:
    assert len(store.changes(SIGNAL_STATE, "bench", limit=20).changes) == 20


def _past_expired(store: SqliteStore) -> None:
    page = store.query(Query(table=SIGNAL_STATE, partition="urn:dp:many", limit=20))
    assert len(page.items) == 20


def _fill(path: Path, size: int, now: int) -> None:
    """Write rows straight into the file: only reading is measured, and a million puts would take minutes."""
    rows = TableRows(SIGNAL_STATE, SIGNAL_STATE.name)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    for number in range(size):
        connection.execute(rows.upsert, _row(rows, number, now))
    connection.executemany(
        f"INSERT INTO {CHANGES} (source, kind, old, new, at_seconds, expired) VALUES (?, 'INSERT', NULL, ?, ?, 0)",
        ((SIGNAL_STATE.name, _row(rows, number, now)[-1], now) for number in range(size)),
    )
    checkpoint = dump({"consumer": "bench", "stream": SIGNAL_STATE.name, "position": str(size // 2)}, special=False)
    connection.execute(
        'INSERT INTO "headgate-stream-checkpoints" VALUES (?, ?, ?)', ("bench", SIGNAL_STATE.name, checkpoint)
    )
    connection.execute("COMMIT")
    connection.close()


def _row(rows: TableRows, number: int, now: int) -> tuple[object, ...]:
    item: dict[str, object] = {
        "PK": "urn:dp:many" if number < IN_PARTITION else f"urn:dp:d{number:07d}",
        "SK": f"SIGNAL-{number:07d}",
        "state": "OK",
        "version": 1,
    }
    # Two of three rows everywhere have expired and wait for the sweep.
    if number % 3:
        item["ttl"] = now - 10
    if number >= IN_PARTITION and number % 3 == 0 and number < IN_PARTITION + 3 * IN_BREACH:
        item |= {"breach_pk": "BREACH#CRITICAL#TIER_1#0", "breach_sk": f"{number:07d}"}
    return rows.row(item, dump(item, special=False))
