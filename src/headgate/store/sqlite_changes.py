"""The change stream of the SQLite store, its consumers' checkpoints, and the sweep that keeps it bounded."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, Protocol

from headgate.clock import Clock
from headgate.errors import InvalidItemError, StreamTrimmedError
from headgate.store.port import Store
from headgate.store.schema import Key, Table
from headgate.store.sqlite_file import CHANGES, META
from headgate.store.sqlite_operations import APPEND_CHANGE, decoded
from headgate.store.sqlite_rows import TableRows
from headgate.store.tables import STREAM_CHECKPOINTS
from headgate.store.writes import Change, ChangeBatch, ChangeKind, StreamStart

RETENTION_SECONDS: Final = 24 * 3600


class SqlStore(Store, Protocol):
    """The store this stream belongs to, with a way to read tables that are not in the catalogue."""

    def read_sql(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return all rows of a statement that reads."""


class Changes:
    """One log for all tables with a stream. Commits are serial, so its numbers are in the order of commits."""

    def __init__(self, rows: dict[str, TableRows], clock: Clock) -> None:
        self._rows = rows
        self._clock = clock

    def position(self, store: SqlStore, table: Table, consumer: str, start: StreamStart) -> int:
        """Return the number of the last change the consumer has dealt with."""
        row = store.get(STREAM_CHECKPOINTS, Key(consumer, table.name))
        if row is not None:
            return int(row["position"])
        if start is StreamStart.OLDEST:
            return self._trimmed_through(store, table)
        newest: int = store.read_sql(f"SELECT coalesce(max(seq), 0) FROM {CHANGES}", ())[0][0]
        # Remembered at once: otherwise what is committed between this call and the next would be skipped.
        self.checkpoint(store, table, consumer, str(newest))
        return newest

    def read(self, store: SqlStore, table: Table, position: int, limit: int) -> ChangeBatch:
        """Return the changes after `position`. Raises `StreamTrimmedError` if some of them are gone."""
        trimmed = self._trimmed_through(store, table)
        if position < trimmed:
            raise StreamTrimmedError(
                f"stream of {table.name}: changes {position + 1} to {trimmed} are gone, they are kept for "
                f"{RETENTION_SECONDS // 3600} hours; rebuild from the table and checkpoint {trimmed}"
            )
        found = store.read_sql(
            f"SELECT seq, kind, old, new, at_seconds, expired FROM {CHANGES} "
            "WHERE source = ? AND seq > ? ORDER BY seq LIMIT ?",
            (table.name, position, limit),
        )
        changes = [self._change(table, *row) for row in found]
        return ChangeBatch(changes, changes[-1].id if changes else str(position))

    def checkpoint(self, store: SqlStore, table: Table, consumer: str, position: str) -> None:
        """Remember how far the consumer has come."""
        if not position.isdigit():
            raise InvalidItemError(f"stream of {table.name}: {position!r} is not a position that `changes` gave out")
        store.put(STREAM_CHECKPOINTS, {"consumer": consumer, "stream": table.name, "position": position})

    def sweep(self, connection: sqlite3.Connection, limit: int) -> int:
        """Delete up to `limit` expired rows and as many changes past their retention; return how many rows."""
        now = self._clock.seconds()
        deleted = 0
        for rows in self._rows.values():
            if rows.table.ttl_attribute is not None and deleted < limit:
                deleted += _delete_expired(connection, rows, now, limit - deleted)
        self._trim(connection, now - RETENTION_SECONDS, limit)
        return deleted

    def _change(
        self, table: Table, seq: int, kind: str, old: str | None, new: str | None, at_seconds: float, expired: int
    ) -> Change:
        rows = self._rows[table.name]
        old_item = None if old is None else decoded(rows, old)
        new_item = None if new is None else decoded(rows, new)
        image = new_item if new_item is not None else old_item
        assert image is not None, "a change has an image before or after"
        return Change(
            str(seq), table, ChangeKind(kind), table.key_of(image), old_item, new_item, at_seconds, bool(expired)
        )

    def _trim(self, connection: sqlite3.Connection, before_seconds: float, limit: int) -> None:
        old = connection.execute(
            f"SELECT source, max(seq) FROM (SELECT source, seq, at_seconds FROM {CHANGES} ORDER BY seq LIMIT ?) "
            "WHERE at_seconds <= ? GROUP BY source",
            (limit, before_seconds),
        ).fetchall()
        for source, through in old:
            connection.execute(f"DELETE FROM {CHANGES} WHERE source = ? AND seq <= ?", (source, through))
            connection.execute(f"INSERT OR REPLACE INTO {META} VALUES (?, ?)", (_trimmed_key(source), through))

    def _trimmed_through(self, store: SqlStore, table: Table) -> int:
        found = store.read_sql(f"SELECT value FROM {META} WHERE key = ?", (_trimmed_key(table.name),))
        return int(found[0][0]) if found else 0


def _delete_expired(connection: sqlite3.Connection, rows: TableRows, now: float, limit: int) -> int:
    expired: list[tuple[Any, ...]] = connection.execute(rows.select_expired, (now, limit)).fetchall()
    connection.executemany(rows.delete, [row[:-1] for row in expired])
    if rows.table.stream:
        removals = [(rows.table.name, ChangeKind.REMOVE, row[-1], None, now, 1) for row in expired]
        connection.executemany(APPEND_CHANGE, removals)
    return len(expired)


def _trimmed_key(source: str) -> str:
    return f"trimmed:{source}"
