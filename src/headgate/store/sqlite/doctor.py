"""Database check for `headgate doctor`: inspects a SQLite file without changing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

from headgate.errors import ForeignFileError, NewerStoreError, StoreIOError
from headgate.store.model.schema import Key
from headgate.store.sqlite.errors import translate
from headgate.store.sqlite.file import APPLICATION_ID, FORMAT

LIBRARY_MIN: Final = (3, 38, 0)
_SERIALIZED: Final = 3
_DAMAGES_SHOWN_MAX: Final = 3
_BUSY_SECONDS: Final = 5.0


class Library(NamedTuple):
    """The SQLite that this Python was built with."""

    version: str
    is_new_enough: bool
    is_threadsafe: bool


class FileFacts(NamedTuple):
    """Facts about a database file. `damages` is empty if it is intact."""

    format: int
    file_bytes: int
    wal_bytes: int
    damages: list[str]


def library() -> Library:
    return Library(
        sqlite3.sqlite_version, sqlite3.sqlite_version_info >= LIBRARY_MIN, sqlite3.threadsafety == _SERIALIZED
    )


def inspect(path: Path) -> FileFacts:
    """Check the whole file at `path`.

    Raises `ForeignFileError` or `NewerStoreError` if it was written by another program or version, `CorruptionError`
    if it is too damaged to read, and `StoreBusyError` or `StoreIOError` if it cannot be opened.
    """
    wal = path.with_name(path.name + "-wal")
    try:
        # Without a WAL no process has the file open; `immutable` then avoids creating one.
        is_idle = not wal.exists()
        facts = _read(path, "mode=ro&immutable=1" if is_idle else "mode=ro")
        if is_idle and wal.exists():
            facts = _read(path, "mode=ro")
        return facts._replace(wal_bytes=wal.stat().st_size if wal.exists() else 0)
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    except OSError as exc:
        raise StoreIOError(f"{path}: cannot be read: {exc.strerror}; correct its permissions") from exc


def read_bodies(path: Path, table: str, keys: Sequence[Key]) -> list[str | None]:
    """Return the stored bodies of rows without changing the file, None for each missing row. Raises as `inspect`."""
    quoted = table.replace('"', '""')
    options = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True, timeout=_BUSY_SECONDS)
        ) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                return [None] * len(keys)
            statement = f'SELECT body FROM "{quoted}" WHERE pk = ? AND sk = ?'
            found = [connection.execute(statement, tuple(key)).fetchone() for key in keys]
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    return [None if row is None else row[0] for row in found]


def _read(path: Path, options: str) -> FileFacts:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?{options}", uri=True, timeout=_BUSY_SECONDS)) as connection:
        file_format = _format(connection, path)
        rows = connection.execute(f"PRAGMA quick_check({_DAMAGES_SHOWN_MAX})").fetchall()
    return FileFacts(file_format, path.stat().st_size, 0, [text for (text,) in rows if text != "ok"])


def _format(connection: sqlite3.Connection, path: Path) -> int:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (file_format,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID:
        raise ForeignFileError(f"{path}: a database of another program; move it away or name another home")
    if file_format > FORMAT:
        raise NewerStoreError(
            f"{path}: written by a newer Headgate (format {file_format}, this one reads {FORMAT}); upgrade this one"
        )
    return int(file_format)
