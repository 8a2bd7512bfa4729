"""The rows that store benchmarks write, once through the port and once through bare SQLite, in the same schema."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headgate.clock import SystemClock
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import TIMERS
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.values import dump
from headgate.store.sqlite.rows import TableRows
from headgate.store.sqlite.store import SqliteStore
from headgate.store.table_names import TableNames

# One index, no TTL, no stream: what is left is the price of the port itself.
TABLE = TIMERS
ROWS = TableRows(TABLE, TABLE.name)


def item(number: int, *, ordered: bool = False) -> dict[str, Any]:
    """Return an item of a usual size, under a key that falls anywhere in the table or, `ordered`, at its end."""
    place = f"{number:024d}" if ordered else hashlib.blake2b(str(number).encode(), digest_size=12).hexdigest()
    return {
        "timer_id": f"timer_{place}",
        "due_pk": f"TIMERS#{number % 8}",
        "due_at_ms": 1_763_000_000_000 + number,
        "execution_id": f"orders/{place}",
        "kind": "sleep",
        "seq": number % 100,
        "attempts": 0,
        "owner": None,
        "created_at": "2026-11-15T21:00:00.000Z",
        "payload": {"reason": "wait for the upstream partition", "window": [number, number + 300], "ratio": 0.25},
        "version": 1,
    }


def row(number: int, *, ordered: bool = False) -> tuple[Any, ...]:
    """Return the same item as the row that the store makes of it."""
    made = item(number, ordered=ordered)
    return ROWS.row(made, dump(made, special=False))


@contextmanager
def open_store() -> Iterator[SqliteStore]:
    """Give a store in a folder of its own."""
    clock = SystemClock()
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        home = Path(folder)
        store = open_at(home, clock)
        try:
            yield store
        finally:
            store.close()


def open_at(home: Path, clock: SystemClock) -> SqliteStore:
    return SqliteStore.open(
        home / "headgate.db",
        names=TableNames(),
        clock=clock,
        cursors=Cursors(Keyring.open(home / "keys.json", clock)),
        spill=Spill(FolderBlobs(home / "blobs"), clock),
    )


@contextmanager
def open_raw() -> Iterator[sqlite3.Connection]:
    """Give bare SQLite in WAL mode with synchronous=FULL and the same table and indexes."""
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        connection = sqlite3.connect(Path(folder) / "raw.db", isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(ROWS.create_table)
        for statement in ROWS.create_indexes.values():
            connection.execute(statement)
        try:
            yield connection
        finally:
            connection.close()
