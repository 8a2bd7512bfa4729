"""Table scan of a SQLite store, for comparing two copies of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from headgate.store.model.schema import Table
from headgate.store.model.values import Item
from headgate.store.sqlite.operations import live_item
from headgate.store.sqlite.rows import TableRows
from headgate.store.table_names import TableNames

PAGE_ROWS: Final = 1000


def items(
    read_sql: Callable[[str, Sequence[Any]], list[tuple[Any, ...]]], table: Table, names: TableNames, now_seconds: float
) -> Iterator[Item]:
    """Yield every unexpired item as stored, in key order. `read_sql` is `SqliteStore.read_sql`.

    Rows are read in pages without a snapshot: concurrent writes may or may not be included.
    """
    rows = TableRows(table, names.physical(table))
    keys = ", ".join(("pk", "sk")[: len(table.key_names)])
    places = ", ".join("?" * len(table.key_names))
    after: tuple[Any, ...] | None = None
    while True:
        where = "" if after is None else f" WHERE ({keys}) > ({places})"
        statement = f"SELECT {keys}, body FROM {rows.name}{where} ORDER BY {keys} LIMIT {PAGE_ROWS}"
        page = read_sql(statement, after or ())
        for row in page:
            item = live_item(rows, row[-1], now_seconds)
            if item is not None:
                yield item
        if len(page) < PAGE_ROWS:
            return
        after = page[-1][:-1]
