"""SQLite errors: translates sqlite3 exceptions into Headgate's errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from headgate.errors import (
    CorruptionError,
    ForeignFileError,
    HeadgateError,
    ReadOnlyStoreError,
    StoreBusyError,
    StoreFullError,
    StoreIOError,
)


def translate(exc: sqlite3.Error, path: Path) -> HeadgateError:
    """Return the Headgate error to raise from a SQLite error."""
    name = getattr(exc, "sqlite_errorname", None) or ""
    if name in ("SQLITE_BUSY", "SQLITE_LOCKED") or name.startswith("SQLITE_BUSY_"):
        return StoreBusyError(f"{path}: another program holds the database; close it or try again")
    if name == "SQLITE_FULL" or name == "SQLITE_IOERR_WRITE":
        return StoreFullError(f"{path}: no space left to write ({exc}); free some and try again, nothing was lost")
    if name.startswith("SQLITE_READONLY") or name == "SQLITE_PERM":
        return ReadOnlyStoreError(
            f"{path}: the database cannot be written ({exc}); make the file and its folder writable"
        )
    if name.startswith("SQLITE_CORRUPT"):
        return CorruptionError(
            f"{path}: the database is damaged ({exc}); stop, copy the file with its -wal, "
            "run 'headgate doctor', and restore a backup"
        )
    if name == "SQLITE_NOTADB":
        return ForeignFileError(f"{path}: not a Headgate database; move the file away or name another home")
    return StoreIOError(
        f"{path}: SQLite reports {name or type(exc).__name__}: {exc}; check the disk and its permissions"
    )
