"""Change log: the change stream of the SQLite store, consumer checkpoints, and the sweep of expired rows."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any, Final, Protocol

from headgate.clock import Clock
from headgate.errors import InvalidItemError, StreamTrimmedError
from headgate.store.catalogue.tables import STREAM_CHECKPOINTS
from headgate.store.model.requests import Change, ChangeBatch, ChangeKind, StreamStart
from headgate.store.model.schema import Key, Table
from headgate.store.port import Store
from headgate.store.sqlite.file import CHANGES, META
from headgate.store.sqlite.operations import APPEND_CHANGE, decoded
from headgate.store.sqlite.rows import TableRows

RETENTION_SECONDS: Final = 24 * 3600
_POSITION: Final = re.compile(r"[0-9]{1,18}")


class SqlStore(Store, Protocol):
    """A store that can also read SQL tables outside the catalogue."""

    def read_sql(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a SELECT and return all rows."""


class ChangeLog:
    """One log for all tables with a stream. Commits are serial, so sequence numbers are in commit order."""

    def __init__(self, rows: dict[str, TableRows], clock: Clock) -> None:
        self._rows = rows
        self._clock = clock

    def position(self, store: SqlStore, table: Table, consumer: str, start: StreamStart) -> int:
        """Return the sequence number of the consumer's checkpoint, or of its start position."""
        row = store.get(STREAM_CHECKPOINTS, Key(consumer, table.name))
        if row is not None:
            return int(row["position"])
        if start is StreamStart.OLDEST:
            return self._past_retention_through(store, table)
        # The highest sequence number ever assigned, even if all changes have been trimmed.
        rows = store.read_sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (CHANGES.strip('"'),))
        newest: int = rows[0][0] if rows else 0
        # Checkpointed at once, so that changes committed before the next call are not skipped.
        self.checkpoint(store, table, consumer, str(newest))
        return newest

    def read(self, store: SqlStore, table: Table, position: int, limit: int) -> ChangeBatch:
        """Return the changes after `position`. Raises `StreamTrimmedError` if some of them were trimmed."""
        rows = store.read_sql(
            f"SELECT seq, kind, old, new, at_seconds, expired FROM {CHANGES} "
            "WHERE source = ? AND seq > ? ORDER BY seq LIMIT ?",
            (table.name, position, limit),
        )
        # Read afterwards, so that a sweep between the two reads is detected. A change past its retention counts as
        # trimmed even if it was not swept yet, because the blobs it references may be gone.
        before_seconds = self._clock.seconds() - RETENTION_SECONDS
        too_old = [seq for seq, _, _, _, at_seconds, _ in rows if at_seconds <= before_seconds]
        trimmed = max([self._trimmed_through(store, table), *too_old])
        if position < trimmed:
            raise StreamTrimmedError(
                f"stream of {table.name}: changes {position + 1} to {trimmed} were trimmed after "
                f"{RETENTION_SECONDS // 3600} hours; rebuild from the table and checkpoint {trimmed}"
            )
        changes = [self._change(table, *row) for row in rows]
        return ChangeBatch(changes, changes[-1].id if changes else str(position))

    def checkpoint(self, store: SqlStore, table: Table, consumer: str, position: str) -> None:
        """Store the consumer's checkpoint."""
        if not _POSITION.fullmatch(position):
            raise InvalidItemError(f"stream of {table.name}: {position!r} is not a position returned by `changes`")
        store.put(STREAM_CHECKPOINTS, {"consumer": consumer, "stream": table.name, "position": position})

    def sweep(self, connection: sqlite3.Connection, limit: int) -> int:
        """Delete up to `limit` expired rows and up to `limit` old changes; return the larger count."""
        now = self._clock.seconds()
        deleted = 0
        for rows in self._rows.values():
            if rows.table.ttl_attribute is not None and deleted < limit:
                deleted += _delete_expired(connection, rows, now, limit - deleted)
        return max(deleted, self._trim(connection, now - RETENTION_SECONDS, limit))

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

    def _trim(self, connection: sqlite3.Connection, before_seconds: float, limit: int) -> int:
        """Delete up to `limit` old changes from the start of the log; return their number."""
        oldest = connection.execute(
            f"SELECT seq, source, at_seconds FROM {CHANGES} ORDER BY seq LIMIT ?", (limit,)
        ).fetchall()
        # Sequence numbers are in commit order, times need not be: everything before an old change is old as well.
        count = max(
            (place for place, (_, _, at_seconds) in enumerate(oldest, 1) if at_seconds <= before_seconds), default=0
        )
        through = {source: seq for seq, source, _ in oldest[:count]}
        if count:
            connection.execute(f"DELETE FROM {CHANGES} WHERE seq <= ?", (oldest[count - 1][0],))
        marks = [(_trimmed_key(source), seq) for source, seq in through.items()]
        connection.executemany(f"INSERT OR REPLACE INTO {META} VALUES (?, ?)", marks)
        return count

    def _past_retention_through(self, store: SqlStore, table: Table) -> int:
        """Return the last change past its retention, swept or not: a new consumer starts after it."""
        before_seconds = self._clock.seconds() - RETENTION_SECONDS
        statement = f"SELECT coalesce(max(seq), 0) FROM {CHANGES} WHERE source = ? AND at_seconds <= ?"
        rows = store.read_sql(statement, (table.name, before_seconds))
        return max(self._trimmed_through(store, table), int(rows[0][0]))

    def _trimmed_through(self, store: SqlStore, table: Table) -> int:
        rows = store.read_sql(f"SELECT value FROM {META} WHERE key = ?", (_trimmed_key(table.name),))
        return int(rows[0][0]) if rows else 0


def _delete_expired(connection: sqlite3.Connection, rows: TableRows, now: float, limit: int) -> int:
    expired: list[tuple[Any, ...]] = connection.execute(rows.select_expired, (now, limit)).fetchall()
    connection.executemany(rows.delete, [row[:-1] for row in expired])
    rows.recent.forget()
    if rows.table.stream:
        removals = [(rows.table.name, ChangeKind.REMOVE, row[-1], None, now, 1) for row in expired]
        connection.executemany(APPEND_CHANGE, removals)
    return len(expired)


def _trimmed_key(source: str) -> str:
    return f"trimmed:{source}"
