"""SQLite reads: a connection that can read a file, and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

_STEPS: Final = 100_000
_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
)


def open_read_only(path: Path, busy_seconds: float, is_over: Callable[[], bool]) -> sqlite3.Connection:
    """Open a file for reading. A statement is interrupted once `is_over` returns True."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=busy_seconds)
    connection.set_progress_handler(lambda: int(is_over()), _STEPS)
    connection.set_authorizer(lambda action, name, value, *_: _allowed(action, name, value))
    return connection


def _allowed(action: int, name: str | None, value: str | None) -> int:
    # SQLAlchemy begins and ends a transaction around the query, and reads its isolation level.
    is_level = action == sqlite3.SQLITE_PRAGMA and name == "read_uncommitted" and value is None
    is_schema = action == sqlite3.SQLITE_PRAGMA and name == "table_info"
    is_reading = action in _READING or action == sqlite3.SQLITE_TRANSACTION or is_level or is_schema
    return sqlite3.SQLITE_OK if is_reading else sqlite3.SQLITE_DENY
