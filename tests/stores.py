"""Opens SQLite stores for tests the way wiring does, with the parts a test wants to hold in its hand.

To make the tables of a database takes longer than most tests. They are made once in each process; a new store gets
a copy of that file, and opens it as any process opens a database that is already there.
"""

from __future__ import annotations

import os
import tempfile
from functools import lru_cache
from pathlib import Path

from headgate.clock import Clock, SystemClock
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.sqlite.store import SqliteStore, Synchronous
from headgate.store.table_names import TableNames

FILE = "headgate.db"


def open_sqlite(
    folder: Path,
    *,
    clock: Clock | None = None,
    names: TableNames | None = None,
    synchronous: Synchronous = Synchronous.FULL,
) -> SqliteStore:
    """Open the store in a folder, which is empty if it was not opened before."""
    if names is None:
        lay_database(folder)
    return create_sqlite(folder, clock=clock, names=names, synchronous=synchronous)


def create_sqlite(
    folder: Path,
    *,
    clock: Clock | None = None,
    names: TableNames | None = None,
    synchronous: Synchronous = Synchronous.FULL,
) -> SqliteStore:
    """Open the store in a folder without a database to copy, for tests of how one comes to be."""
    clock = clock or SystemClock()
    return SqliteStore.open(
        folder / FILE,
        names=names or TableNames(),
        clock=clock,
        cursors=Cursors(Keyring.open(folder / "keys.json", clock)),
        spill=Spill(FolderBlobs(folder / "blobs"), clock),
        synchronous=synchronous,
    )


def lay_database(folder: Path, *, name: str = FILE, prefix: str = "") -> None:
    """Put an empty database into a folder, as opening a store there would. One that is there is left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / name).exists():
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_empty_database(prefix))


@lru_cache
def _empty_database(prefix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        create_sqlite(Path(folder), names=TableNames(prefix)).close()
        return (Path(folder) / FILE).read_bytes()
