"""Database snapshots: consistent copies of the SQLite file while other processes write, and facts about them."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from headgate.errors import CorruptionError, NotFoundError
from headgate.store.blobs.spill import REFERENCE
from headgate.store.sqlite.doctor import inspect
from headgate.store.sqlite.errors import translate
from headgate.store.sqlite.file import CHANGES

_BUSY_SECONDS: Final = 30.0
_REFERENCE: Final = re.compile(re.escape(REFERENCE) + r':"(spill/[0-9]{10}/[0-9a-f]{64})"')


def take_snapshot(source: Path, target: Path) -> int:
    """Copy the database at `source` to the new file `target`, as of one commit; return its file format.

    Writers continue meanwhile. Raises `NotFoundError` without a database, `CorruptionError` if the copy is damaged,
    and the errors of opening the file.
    """
    if not source.exists():
        raise NotFoundError(f"{source}: no database yet; 'headgate up' creates it, or choose another home with --home")
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with _connection(source) as from_file, closing(sqlite3.connect(target)) as to_file:
            # One step is one read transaction. The WAL keeps what is committed meanwhile.
            from_file.backup(to_file, pages=-1)
    except sqlite3.Error as exc:
        raise translate(exc, source) from exc
    facts = inspect(target)
    if facts.damages:
        raise CorruptionError(
            f"{source}: the database is damaged ({facts.damages[0]}); run 'headgate doctor', and restore a backup"
        )
    return facts.format


def row_counts(path: Path) -> dict[str, int]:
    """Return the number of rows of each table in a file that no process has open."""
    with _unshared(path) as connection:
        return {
            name: int(connection.execute(f"SELECT count(*) FROM {_quoted(name)}").fetchone()[0])
            for name in _tables(connection)
        }


def blob_references(path: Path) -> set[str]:
    """Return the names of the spilled blobs that rows and stored changes reference, in a file no process has open."""
    found: set[str] = set()
    with _unshared(path) as connection:
        for name in _tables(connection):
            columns = ("old", "new") if _quoted(name) == CHANGES else ("body",)
            known = {row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(name)})")}
            for column in (each for each in columns if each in known):
                rows = connection.execute(
                    f"SELECT {column} FROM {_quoted(name)} WHERE instr({column}, ?)", (REFERENCE,)
                )
                for (text,) in rows:
                    found.update(_REFERENCE.findall(text))
    return found


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite^_%' ESCAPE '^' ORDER BY name"
    )
    return [name for (name,) in rows.fetchall()]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _connection(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a file that other processes may have open, for reading. It needs a WAL, so it is not opened read-only."""
    uri = f"file:{quote(str(path))}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        yield connection


@contextmanager
def _unshared(path: Path) -> Iterator[sqlite3.Connection]:
    uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            yield connection
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
