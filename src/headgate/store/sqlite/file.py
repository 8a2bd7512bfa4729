"""Database file: creates, identifies and migrates the SQLite file, and opens connections to it."""

from __future__ import annotations

import enum
import hashlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from headgate.errors import (
    ForeignFileError,
    HeadgateError,
    NewerStoreError,
    ReadOnlyStoreError,
    StoreDamagedError,
    StoreMovedError,
)
from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.faults import StoreFaults
from headgate.store.sqlite.errors import refusal, translate
from headgate.store.sqlite.file_lock import FileLock
from headgate.store.sqlite.rows import TableRows
from headgate.store.table_names import TableNames

APPLICATION_ID: Final = 0x48474154  # "HGAT"; `file` and sqlite3's .dbinfo show it.
FORMAT: Final = 1
META: Final = '"headgate:meta"'
CHANGES: Final = '"headgate:changes"'
_BUSY_SECONDS: Final = 5.0
_WRITE_BITS: Final = 0o222
_Identity = tuple[int, int]


class Synchronous(enum.StrEnum):
    """SQLite's synchronous mode.

    FULL syncs the disk on every commit: acknowledged writes survive a power cut. NORMAL does not: they survive a crash
    of the process, but a power cut may lose the latest commits. The file stays consistent either way.
    """

    FULL = "FULL"
    NORMAL = "NORMAL"


class DatabaseFile:
    """One SQLite file, and the lock file beside it that orders the commits of all processes."""

    def __init__(
        self,
        path: Path,
        tables: Sequence[TableRows],
        synchronous: Synchronous,
        faults: StoreFaults | None = None,
    ) -> None:
        """Open the file, creating or migrating it as needed.

        Raises `ForeignFileError`, `NewerStoreError`, `ReadOnlyStoreError` or `StoreDamagedError` without changing the
        file.
        """
        self.path = path
        self.faults = StoreFaults() if faults is None else faults
        self._uri = f"{path.absolute().as_uri()}?mode=rw"
        self._identity: _Identity | None = None
        self._path_text = str(path)
        self._synchronous = synchronous
        _check_owner(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.lock = FileLock(path.with_name(f"{path.name}.lock"))
            with suppress(FileExistsError):
                # SQLite would create a file that others can read; -wal and -shm inherit the mode of this one.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as exc:
            raise refusal(exc, path) from exc
        try:
            self._migrate(tables)
            self._identity = _identity_of(os.stat(self._path_text))  # noqa: PTH116 - as `check_writable` does
        except BaseException:
            self.lock.close()
            raise

    def connect(self) -> sqlite3.Connection:
        """Return a new connection, usable by one thread at a time. Raises `StoreMovedError` if the file is gone."""
        if self._identity is not None:
            self.check_in_place()
        try:
            # With a URI, because SQLite would create a file that was moved away.
            connection = sqlite3.connect(
                self._uri,
                uri=True,
                timeout=_BUSY_SECONDS,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=512,
            )
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA temp_store = MEMORY")
        except sqlite3.Error as exc:
            raise self.error_of(exc) from exc
        return connection

    def error_of(self, exc: sqlite3.Error) -> HeadgateError:
        """Return the Headgate error to raise from a SQLite error of this file."""
        return translate(exc, self.path, is_opened=self._identity is not None)

    def check_in_place(self) -> os.stat_result:
        """Return the status of the file. Raises `StoreMovedError` if it was moved, deleted or replaced."""
        try:
            status = os.stat(self._path_text)  # noqa: PTH116 - on the path of every commit
        except OSError as exc:
            raise StoreMovedError(
                f"{self.path}: the database was moved or deleted while it was open; move it back, or restore a backup "
                "and restart this process"
            ) from exc
        # Without a call: on the path of every commit.
        if (status.st_dev, status.st_ino) != self._identity:
            raise StoreMovedError(
                f"{self.path}: the database was moved, and another file is in its place; move it back, or restart this "
                "process to use the new file"
            )
        return status

    def check_writable(self) -> None:
        """Refuse to write to a file that was moved, that is marked read-only or that is damaged."""
        status = self.check_in_place()
        if not status.st_mode & _WRITE_BITS:
            # The open descriptors could still write, but an operator has forbidden it.
            raise ReadOnlyStoreError(f"{self.path}: the file is marked read-only; make it writable with chmod u+w")
        damage = self.faults.damage
        if damage is not None:
            raise StoreDamagedError(damage.fact)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file lock. Raises `StoreBusyError` on timeout."""
        self.lock.acquire()
        try:
            yield
        finally:
            self.lock.release()

    def close(self) -> None:
        self.lock.close()

    def _migrate(self, tables: Sequence[TableRows]) -> None:
        digest = _digest(tables)
        with self.locked():
            connection = self.connect()
            try:
                if _meta(connection, "catalogue") == digest:
                    return
                if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                    # Must come first: the mode is fixed when the first page is written. `headgate vacuum` needs it.
                    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                    # Before the first table and before WAL mode, so that the id is in the file's own header.
                    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version = {FORMAT}")
                    connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("BEGIN IMMEDIATE")
                _create_or_migrate(connection, tables)
                connection.execute(f"INSERT OR REPLACE INTO {META} VALUES ('catalogue', ?)", (digest,))
                connection.execute("COMMIT")
            except sqlite3.Error as exc:
                raise translate(exc, self.path) from exc
            finally:
                connection.close()


def catalogue_of(path: Path) -> str | None:
    """Return the digest of the schema that the file at `path` has; None for a file without one."""
    connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        stored = _meta(connection, "catalogue")
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    finally:
        connection.close()
    return None if stored is None else str(stored)


def current_catalogue(names: TableNames) -> str:
    """Return the digest of the schema that this build creates."""
    return _digest([TableRows(table, names.physical(table)) for table in ALL_TABLES])


def _identity_of(status: os.stat_result) -> _Identity:
    return (status.st_dev, status.st_ino)


def _check_owner(path: Path) -> None:
    """Refuse a file of another program, without changing it.

    The header is read through SQLite: closing a file descriptor of our own would drop the POSIX locks of another store
    in this process, and the newest header may be in the WAL.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return
    except OSError as exc:
        raise ReadOnlyStoreError(f"{path}: cannot be accessed: {exc.strerror}; make its folder accessible") from exc
    if path.is_dir():
        raise ForeignFileError(f"{path}: is a folder, not a Headgate database; name another home")
    if size == 0:
        return
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_SECONDS)
        try:
            (application_id,) = connection.execute("PRAGMA application_id").fetchone()
            (user_version,) = connection.execute("PRAGMA user_version").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    if application_id != APPLICATION_ID:
        raise ForeignFileError(f"{path}: a database of another program; move it away or name another home")
    if user_version > FORMAT:
        raise NewerStoreError(
            f"{path}: written by a newer Headgate (format {user_version}, this one reads {FORMAT}); "
            "upgrade this installation, or name another home"
        )


def _create_or_migrate(connection: sqlite3.Connection, tables: Sequence[TableRows]) -> None:
    connection.execute(f"CREATE TABLE IF NOT EXISTS {META} (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {CHANGES} (seq INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, "
        "kind TEXT NOT NULL, old TEXT, new TEXT, at_seconds REAL NOT NULL, expired INTEGER NOT NULL)"
    )
    connection.execute(f'CREATE INDEX IF NOT EXISTS "headgate:changes.source" ON {CHANGES} (source, seq)')
    for rows in tables:
        connection.execute(rows.create_table)
        _add_missing_columns(connection, rows)
        for name, statement in rows.create_indexes.items():
            _create_index(connection, name, statement)
    # Processes of an older build must stop, because they do not fill the columns of new indexes. They detect this by
    # SQLite's schema_version, which creating a table increments even if nothing else in the schema has changed.
    connection.execute('CREATE TABLE "headgate:build" (x)')
    connection.execute('DROP TABLE "headgate:build"')


def _create_index(connection: sqlite3.Connection, name: str, statement: str) -> None:
    row = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?", (name,)).fetchone()
    if row is not None and row[0] == statement:
        return
    if row is not None:
        connection.execute(f'DROP INDEX "{name}"')
    connection.execute(statement)


def _add_missing_columns(connection: sqlite3.Connection, rows: TableRows) -> None:
    """Add the columns of new indexes to an older table, and make every copied column match its body.

    An older build leaves the columns of newer indexes empty in the rows it writes, so the copies are corrected whenever
    the catalogue differs from that of the last build that opened the file.
    """
    present = {f'"{name}"' for _, name, *_ in connection.execute(f"PRAGMA table_info({rows.name})")}
    for attribute, column in rows.copied_columns.items():
        if f'"{column.strip(chr(34))}"' not in present:
            connection.execute(f"ALTER TABLE {rows.name} ADD COLUMN {column}")
        stored = f"json_extract(body, '$.\"{attribute}\"')"
        connection.execute(f"UPDATE {rows.name} SET {column} = {stored} WHERE {column} IS NOT {stored}")


def _meta(connection: sqlite3.Connection, key: str) -> object:
    try:
        row = connection.execute(f"SELECT value FROM {META} WHERE key = ?", (key,)).fetchone()
    except sqlite3.OperationalError as exc:
        if "no such table" in str(exc):
            return None
        raise
    return row[0] if row else None


def _digest(tables: Sequence[TableRows]) -> str:
    statements = [text for rows in tables for text in (rows.create_table, *rows.create_indexes.values())]
    return hashlib.sha256("\n".join(statements).encode()).hexdigest()
