"""The change stream of the SQLite store, its consumers' checkpoints, and the sweep that keeps it bounded."""

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
            return self._past_retention_through(store, table)
        # The highest number ever given out, also when every change since then has been trimmed.
        found = store.read_sql("SELECT seq FROM sqlite_sequence WHERE name = ?", (CHANGES.strip('"'),))
        newest: int = found[0][0] if found else 0
        # Remembered at once: otherwise what is committed between this call and the next would be skipped.
        self.checkpoint(store, table, consumer, str(newest))
        return newest

    def read(self, store: SqlStore, table: Table, position: int, limit: int) -> ChangeBatch:
        """Return the changes after `position`. Raises `StreamTrimmedError` if some of them are gone."""
        found = store.read_sql(
            f"SELECT seq, kind, old, new, at_seconds, expired FROM {CHANGES} "
            "WHERE source = ? AND seq > ? ORDER BY seq LIMIT ?",
            (table.name, position, limit),
        )
        # Asked afterwards: a sweep between the two reads is then noticed. What is past its retention counts as gone
        # although it was not swept yet, for blobs it points to may be.
        before_seconds = self._clock.seconds() - RETENTION_SECONDS
        too_old = [seq for seq, _, _, _, at_seconds, _ in found if at_seconds <= before_seconds]
        gone = max([self._trimmed_through(store, table), *too_old])
        if position < gone:
            raise StreamTrimmedError(
                f"stream of {table.name}: changes {position + 1} to {gone} are gone, they are kept for "
                f"{RETENTION_SECONDS // 3600} hours; rebuild from the table and checkpoint {gone}"
            )
        changes = [self._change(table, *row) for row in found]
        return ChangeBatch(changes, changes[-1].id if changes else str(position))

    def checkpoint(self, store: SqlStore, table: Table, consumer: str, position: str) -> None:
        """Remember how far the consumer has come."""
        if not _POSITION.fullmatch(position):
            raise InvalidItemError(f"stream of {table.name}: {position!r} is not a position that `changes` gave out")
        store.put(STREAM_CHECKPOINTS, {"consumer": consumer, "stream": table.name, "position": position})

    def sweep(self, connection: sqlite3.Connection, limit: int) -> int:
        """Delete up to `limit` expired rows, and as many changes past their retention; return the larger count."""
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
        """Forget up to `limit` old changes, from the beginning of the log, and return how many."""
        oldest = connection.execute(
            f"SELECT seq, source, at_seconds FROM {CHANGES} ORDER BY seq LIMIT ?", (limit,)
        ).fetchall()
        # Numbers are in the order of commits, and times need not be: what precedes an old change is old as well.
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
        """Return the last change that a new consumer has no claim to, whether it was swept already or not."""
        before_seconds = self._clock.seconds() - RETENTION_SECONDS
        statement = f"SELECT coalesce(max(seq), 0) FROM {CHANGES} WHERE source = ? AND at_seconds <= ?"
        found = store.read_sql(statement, (table.name, before_seconds))
        return max(self._trimmed_through(store, table), int(found[0][0]))

    def _trimmed_through(self, store: SqlStore, table: Table) -> int:
        found = store.read_sql(f"SELECT value FROM {META} WHERE key = ?", (_trimmed_key(table.name),))
        return int(found[0][0]) if found else 0


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
