"""Vacuum: gives the free pages of the SQLite file back to the file system.

Files with incremental vacuum shrink in steps while other processes write. A full vacuum rewrites the file: it needs all
other processes to be stopped, and gives an older file incremental vacuum.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from headgate.errors import CorruptionError, HeadgateError, NotFoundError, StoreBusyError
from headgate.store.sqlite.doctor import inspect
from headgate.store.sqlite.errors import translate
from headgate.store.sqlite.file_lock import FileLock

_BUSY_SECONDS: Final = 5.0
_EXCLUSIVE_SECONDS: Final = 1.0
# A step holds the commit lock for some milliseconds.
_STEP_PAGES: Final = 256
_INCREMENTAL: Final = 2


class VacuumResult(Struct, frozen=True):
    """Sizes of the file before and after. `free_bytes` are still free in it, for new rows."""

    database: str
    before_bytes: int
    after_bytes: int
    free_bytes: int
    is_full: bool


def vacuum(path: Path, *, full: bool) -> VacuumResult:
    """Shrink the file by its free pages; with `full`, rewrite it.

    A file without incremental vacuum is always rewritten. Raises `StoreBusyError` if that needs other processes to be
    stopped first, and `StoreFullError` if the disk has no room for the copy.
    """
    if not path.exists():
        raise NotFoundError(f"{path}: no database yet; choose another home with --home")
    damages = inspect(path).damages
    if damages:
        raise CorruptionError(f"{path}: the database is damaged ({damages[0]}); restore a backup")
    before_bytes = path.stat().st_size
    try:
        is_full = full or not _is_incremental(path)
        if is_full:
            _rewrite(path)
        else:
            _shrink(path)
        with _connection(path, _BUSY_SECONDS) as connection:
            free_bytes = _pragma(connection, "freelist_count") * _pragma(connection, "page_size")
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    return VacuumResult(str(path), before_bytes, path.stat().st_size, free_bytes, is_full)


def _is_incremental(path: Path) -> bool:
    with _connection(path, _BUSY_SECONDS) as connection:
        return _pragma(connection, "auto_vacuum") == _INCREMENTAL


def _shrink(path: Path) -> None:
    with _connection(path, _BUSY_SECONDS) as connection, _commit_lock(path) as lock:
        free = _pragma(connection, "freelist_count")
        while free:
            lock.acquire()
            try:
                # One statement frees one page a step; only a script runs it to its end.
                connection.executescript(f"PRAGMA incremental_vacuum({_STEP_PAGES})")
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                lock.release()
            before, free = free, _pragma(connection, "freelist_count")
            if free >= before:
                # Other processes free pages as fast; the next vacuum goes on.
                return


def _rewrite(path: Path) -> None:
    with _commit_lock(path) as lock:
        lock.acquire()
        try:
            with _connection(path, _EXCLUSIVE_SECONDS) as connection:
                # Before the first access, so that it fails while another process has the file open.
                connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("COMMIT")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as exc:
            error: HeadgateError = translate(exc, path)
            if isinstance(error, StoreBusyError):
                error = StoreBusyError(
                    f"{path}: another process has it open, and this vacuum rewrites the file; stop the server and "
                    "other Headgate processes of this home, then run it again"
                )
            raise error from exc
        finally:
            lock.release()


@contextmanager
def _commit_lock(path: Path) -> Iterator[FileLock]:
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        yield lock
    finally:
        lock.close()


@contextmanager
def _connection(path: Path, busy_seconds: float) -> Iterator[sqlite3.Connection]:
    uri = f"file:{quote(str(path))}?mode=rw"
    with closing(sqlite3.connect(uri, uri=True, timeout=busy_seconds, isolation_level=None)) as connection:
        yield connection


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
