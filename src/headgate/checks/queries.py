"""Check queries: the one SELECT of a check on a table. Names are checked against these patterns, and not quoted."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from headgate.checks.model import Check

COLUMN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]{0,127}")
TABLE: Final = re.compile(rf"{COLUMN.pattern}(\.{COLUMN.pattern}){{0,2}}")


def query_of(check: Check, table: str, window_ms: tuple[int, int]) -> str | None:
    """Return the query of a check, or None for a kind that has none. `window_ms` is the hour of a volume."""
    rows = "" if check.where is None else f" WHERE ({check.where})"
    if check.sql is not None:
        return check.sql.query
    if check.freshness is not None:
        return f"SELECT max({check.freshness.column}) FROM {table}"
    if check.volume is not None:
        column = check.volume.column
        if column is None:
            return f"SELECT count(*) FROM {table}{rows}"
        start, end = (_literal(at_ms) for at_ms in window_ms)
        more = "" if check.where is None else f" AND ({check.where})"
        return f"SELECT count(*) FROM {table} WHERE {column} >= {start} AND {column} < {end}{more}"
    if check.null_share is not None:
        nulls = f"CASE WHEN {check.null_share.column} IS NULL THEN 1.0 ELSE 0.0 END"
        return f"SELECT avg({nulls}) FROM {table}{rows}"
    if check.unique is not None:
        columns = ", ".join(check.unique.columns)
        keys = f"SELECT {columns} FROM {table}{rows} GROUP BY {columns} HAVING count(*) > 1"
        return f"SELECT count(*) FROM ({keys}) AS repeated"
    return None


def _literal(at_ms: int) -> str:
    """Return a time as text that databases compare with a time column; it is in UTC."""
    return f"'{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}'"
