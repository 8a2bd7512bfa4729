"""Store size: bytes of the database file and its WAL, free pages, and rows of each table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.sqlite.file import CHANGES
from headgate.store.table_names import TableNames

# Rows of a table are counted up to this number, so that counting stays cheap.
ROWS_COUNTED_MAX: Final = 100_000
CHANGES_NAME: Final = "changes"


class StoreSize(Struct, frozen=True):
    """Sizes in bytes, and rows by catalogue name of the table, counted up to `ROWS_COUNTED_MAX`."""

    file_bytes: int
    free_bytes: int
    wal_bytes: int
    rows: dict[str, int]


def measure(
    path: Path, read_sql: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]], names: TableNames
) -> StoreSize:
    """Measure an open database. `read_sql` is `SqliteStore.read_sql`."""
    ((page_bytes,),) = read_sql("PRAGMA page_size", ())
    ((free_pages,),) = read_sql("PRAGMA freelist_count", ())
    tables = {table.name: '"' + names.physical(table) + '"' for table in ALL_TABLES} | {CHANGES_NAME: CHANGES}
    rows = {name: _count(read_sql, physical) for name, physical in tables.items()}
    wal = path.with_name(f"{path.name}-wal")
    return StoreSize(_bytes(path), page_bytes * free_pages, _bytes(wal), rows)


def _count(read_sql: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]], physical: str) -> int:
    ((count,),) = read_sql(f"SELECT count(*) FROM (SELECT 1 FROM {physical} LIMIT ?)", (ROWS_COUNTED_MAX,))
    return int(count)


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
