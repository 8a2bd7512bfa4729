"""Opens SQLite stores for tests the way wiring does, with the parts a test wants to hold in its hand."""

from __future__ import annotations

from pathlib import Path

from headgate.clock import Clock, SystemClock
from headgate.store.blobs import FolderBlobs
from headgate.store.cursors import Cursors
from headgate.store.keyring import Keyring
from headgate.store.names import TableNames
from headgate.store.spill import Spill
from headgate.store.sqlite import SqliteStore, Synchronous


def open_sqlite(
    folder: Path,
    *,
    clock: Clock | None = None,
    names: TableNames | None = None,
    synchronous: Synchronous = Synchronous.FULL,
) -> SqliteStore:
    clock = clock or SystemClock()
    return SqliteStore.open(
        folder / "headgate.db",
        names=names or TableNames(),
        clock=clock,
        cursors=Cursors(Keyring.open(folder / "keys.json", clock)),
        spill=Spill(FolderBlobs(folder / "blobs"), clock),
        synchronous=synchronous,
    )
