"""SQLite errors: translates sqlite3 exceptions into Headgate's errors."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Final

from headgate.errors import (
    ForeignFileError,
    HeadgateError,
    ReadOnlyStoreError,
    StoreBusyError,
    StoreDamagedError,
    StoreFullError,
    StoreIOError,
    StoreUnavailableError,
)

# Errors of a write without space. Python does not expose the errno.
_NO_ROOM: Final = ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")
# The operating system refuses the file; a later call may succeed.
_DISK: Final = ("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_NOMEM", "SQLITE_PROTOCOL")


def translate(exc: sqlite3.Error, path: Path, *, is_opened: bool = False) -> HeadgateError:
    """Return the Headgate error to raise from a SQLite error.

    With `is_opened`, the file is known to be a Headgate database: a header that is none is damage.
    """
    name = getattr(exc, "sqlite_errorname", None) or ""
    if name in ("SQLITE_BUSY", "SQLITE_LOCKED") or name.startswith("SQLITE_BUSY_"):
        return StoreBusyError(f"{path}: another program holds the database; close it or try again")
    if name.startswith("SQLITE_READONLY") or name == "SQLITE_PERM" or (name in _NO_ROOM and _is_read_only(path)):
        return ReadOnlyStoreError(
            f"{path}: the database cannot be written ({exc}); make the file and its folder writable"
        )
    if name in _NO_ROOM:
        return StoreFullError(f"{path}: no space left to write ({exc}); free some and try again, nothing was lost")
    if name.startswith("SQLITE_CORRUPT") or (name == "SQLITE_NOTADB" and is_opened):
        return StoreDamagedError(
            f"{path}: the database is damaged ({exc}) and is read-only now; see 'headgate doctor', stop the server, "
            "copy the home to keep what it holds, and run 'headgate restore' with a backup"
        )
    if name == "SQLITE_NOTADB":
        return ForeignFileError(f"{path}: not a Headgate database; move the file away or name another home")
    if name.startswith(_DISK):
        return StoreUnavailableError(f"{path}: SQLite reports {name}: {exc}; check the disk and its permissions")
    return StoreIOError(
        f"{path}: SQLite reports {name or type(exc).__name__}: {exc}; check the disk and its permissions"
    )


def refusal(exc: OSError, path: Path) -> HeadgateError:
    """Return the Headgate error for a file of the store that the operating system refuses to open or create."""
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFullError(f"{path}: no space left ({exc.strerror}); free some and try again")
    if isinstance(exc, PermissionError) or exc.errno == errno.EROFS:
        return ReadOnlyStoreError(f"{path}: the folder cannot be written; make it writable or name another home")
    return StoreIOError(f"{path}: cannot be opened: {exc.strerror}; name another home")


def _is_read_only(path: Path) -> bool:
    """Whether the file system of the database is mounted read-only."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False
