"""SQLite store: the default backend, one file shared by any number of processes on one machine."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any, Final

from headgate.clock import Clock
from headgate.errors import ConflictError, HeadgateError, StoreClosedError, StoreUnavailableError
from headgate.store.blobs.spill import REFERENCE, Spill
from headgate.store.catalogue.tables import ALL_TABLES
from headgate.store.model.conditions import Condition
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import (
    ChangeBatch,
    Check,
    Delete,
    Page,
    Put,
    Query,
    StepWrites,
    StreamStart,
    Update,
    Write,
)
from headgate.store.model.schema import Key, Table
from headgate.store.model.validation import (
    check_batch,
    check_count,
    check_distinct,
    check_key,
    check_length,
    check_query,
    check_size,
    check_stream,
    check_transaction_bytes,
    checked_item,
    checked_update,
)
from headgate.store.model.values import Item, TrustedItem, dump, dump_trusted
from headgate.store.sqlite.batch import Transaction, execute, execute_each
from headgate.store.sqlite.change_log import ChangeLog
from headgate.store.sqlite.file import DatabaseFile, Synchronous
from headgate.store.sqlite.group_commit import GroupCommitter
from headgate.store.sqlite.operations import (
    BODY_SURELY_FITS,
    CHARS_SURELY_SMALL,
    CheckRow,
    DeleteRow,
    Operation,
    PutRow,
    Refresh,
    UpdateRow,
    decoded,
    execute_all,
    live_item,
    refresh_of,
    surely_within,
)
from headgate.store.sqlite.rows import TableRows, parameters
from headgate.store.sqlite.step_commit import StepCommit
from headgate.store.sqlite.wakeups import Wakeups
from headgate.store.stats import StoreStats
from headgate.store.table_names import TableNames
from headgate.store.topics import ANYTHING, STEP_TOPICS, Topics, are_quiet, topics_of
from headgate.store.transactions import allows_add, check_replay, token_row

__all__ = ["SqliteStore", "Synchronous"]

BATCH_ROWS_MAX: Final = 500
# Text of this length is within the item limit, whatever its characters are.
_CHARS_SURELY_FIT: Final = BODY_SURELY_FITS // 4
_KEYS_PER_SELECT: Final = 100
_place_of: Final = attrgetter("rows", "key")
_is_small: Final = attrgetter("is_small")
# How long a read waits for a connection of another thread, while none can be opened.
_READER_SECONDS_MAX: Final = 2.0
_READER_POLL_SECONDS: Final = 0.005


class SqliteStore:
    """Implements `headgate.store.port.Store`. Every read is consistent: it sees all earlier commits."""

    def __init__(
        self,
        file: DatabaseFile,
        rows: dict[str, TableRows],
        *,
        clock: Clock,
        cursors: Cursors,
        spill: Spill,
        index_lag_seconds: float,
    ) -> None:
        self.stats = StoreStats(file.faults)
        self._file = file
        self._rows = rows
        self._clock = clock
        self._cursors = cursors
        self._spill = spill
        self._readers: deque[sqlite3.Connection] = deque()
        self._index_reader = _LaggingReader(file, index_lag_seconds) if index_lag_seconds > 0 else None
        self._wakeups = Wakeups(file.path, file.connect)
        self._commits = GroupCommitter(file, self._wakeups, self.stats, [each.recent for each in rows.values()])
        self._changes = ChangeLog(rows, clock)
        # Bound once: each step takes it along.
        self._validated = self._step_operations
        self._closed: str | None = None
        # A first reader, with its files open: reads go on if the file is moved later.
        self.check_health()
        _OPEN_STORES.add(self)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        names: TableNames,
        clock: Clock,
        cursors: Cursors,
        spill: Spill,
        synchronous: Synchronous = Synchronous.FULL,
        index_lag_seconds: float = 0.0,
    ) -> SqliteStore:
        """Open the store at `path`, creating or migrating it as needed.

        `index_lag_seconds` makes index queries read a snapshot up to that old, as DynamoDB's may: tests use it to find
        code that trusts an index.

        Raises `ForeignFileError`, `NewerStoreError`, `ReadOnlyStoreError` or `StoreDamagedError` without changing the
        file.
        """
        faults = spill.faults
        rows = {table.name: TableRows(table, names.physical(table), faults) for table in ALL_TABLES}
        file = DatabaseFile(path, list(rows.values()), synchronous, faults)
        return cls(file, rows, clock=clock, cursors=cursors, spill=spill, index_lag_seconds=index_lag_seconds)

    def get(self, table: Table, key: Key, *, consistent: bool = False) -> Item | None:
        del consistent  # Every read is.
        body = self._body(table, key)
        if body is None:
            return None
        item = live_item(self._rows[table.name], body, self._clock.seconds())
        return self._spill.restore(item) if item is not None and REFERENCE in body else item

    def get_raw(self, table: Table, key: Key) -> Item | None:
        """Return the item as stored: also if expired, and with blob references instead of spilled attributes."""
        body = self._body(table, key)
        return None if body is None else decoded(self._rows[table.name], body)

    def get_many(self, table: Table, keys: Sequence[Key], *, consistent: bool = False) -> list[Item | None]:
        if len(keys) <= 1:
            return [self.get(table, key, consistent=consistent) for key in keys]
        rows, now = self._rows[table.name], self._clock.seconds()
        items: dict[Key, Item] = {}
        # Bounded, because SQLite compiles a statement for each number of keys. The port promises no snapshot.
        for start in range(0, len(keys), _KEYS_PER_SELECT):
            part = keys[start : start + _KEYS_PER_SELECT]
            for key in part:
                check_key(table, key)
            self.stats.reads += len(part)
            values = [value for key in part for value in key if value is not None]
            for *key_values, body in self._read(rows.select_many(len(part)), values):
                item = live_item(rows, body, now)
                if item is not None:
                    items[Key(*key_values)] = self._spill.restore(item) if REFERENCE in body else item
        return [items.get(key) for key in keys]

    def query(self, query: Query) -> Page:
        check_query(query)
        position = self._cursors.position(query)
        self.stats.queries += 1
        rows = self._rows[query.table.name]
        statement, parameters = rows.query(query, position, self._clock.seconds())
        if query.index is not None and self._index_reader is not None:
            self._refuse_if_closed()
            results = self._index_reader.read(statement, parameters)
        else:
            results = self._read(statement, parameters)
        items = [
            self._spill.restore(decoded(rows, body)) if REFERENCE in body else decoded(rows, body)
            for (body,) in results[: query.limit]
        ]
        # No reader relies on what an index of DynamoDB does not have.
        projection = query.table.projection(query.index)
        if projection is not None:
            items = [{name: value for name, value in item.items() if name in projection} for item in items]
        more = len(results) > query.limit
        return Page(items, self._cursors.after(query, items[-1]) if more else None)

    def count(self, query: Query, by: str | None = None, *, most: int) -> dict[str, int]:
        check_count(query, by, most)
        self.stats.queries += 1
        statement, parameters = self._rows[query.table.name].count(query, by, most, self._clock.seconds())
        if query.index is not None and self._index_reader is not None:
            self._refuse_if_closed()
            return {str(value or ""): count for value, count in self._index_reader.read(statement, parameters)}
        return {str(value or ""): count for value, count in self._read(statement, parameters)}

    def query_many(self, queries: Sequence[Query]) -> list[Page]:
        return [self.query(query) for query in queries]

    def put(self, table: Table, item: Mapping[str, Any], *, condition: Condition | None = None) -> None:
        put = Put(table, item, condition)
        self._commit(self._put_row(put, self._clock.seconds()), topics_of([put]))

    def update(
        self,
        table: Table,
        key: Key,
        *,
        set: Mapping[str, Any] | None = None,
        add: Mapping[str, int | float] | None = None,
        remove: Sequence[str] = (),
        condition: Condition | None = None,
    ) -> Item:
        update = Update(table, key, set or {}, add or {}, tuple(remove), condition)
        item = self._commit(self._update_row(update, self._clock.seconds(), cannot_repeat=False), topics_of([update]))
        assert item is not None, "an update without conflict has a result"
        return item

    def delete(self, table: Table, key: Key, *, condition: Condition | None = None) -> Item | None:
        deletion = Delete(table, key, condition)
        return self._commit(self._operation(deletion, self._clock.seconds()), topics_of([deletion]))

    def transact(self, writes: Sequence[Write], *, token: str | None = None) -> None:
        if type(writes) is StepWrites and token is None:
            self._commit_step(writes)
            return
        topics = topics_of(writes)
        if token is None:
            operations = self._operations(writes, None)
            self.stats.transactions += 1
            self._commit_all(operations, topics)
            return
        operations = self._operations(writes, token)
        self.stats.transactions += 1
        row = token_row(token, writes, self._clock.seconds())
        try:
            self._commit_all([*operations, self._put_row(row, self._clock.seconds())], topics)
        except ConflictError as exc:
            check_replay(exc, row, len(operations))

    def transact_many(self, transactions: Sequence[Sequence[Write]]) -> list[HeadgateError | None]:
        now = self._clock.seconds()
        pieces: list[Transaction] = []
        topics, writes_count = 0, 0
        for writes in transactions:
            # Most have one put, which needs none of the checks of a transaction.
            if len(writes) == 1 and type(put := writes[0]) is Put:
                pieces.append(self._refresh_or_put(put, now) if put.table.refreshed else [self._put_row(put, now)])
                topics |= 0 if put.quiet else topics_of(writes)
                writes_count += 1
            else:
                is_step = type(writes) is StepWrites
                pieces.append(
                    StepCommit(self._rows, writes, now, self._validated)  # type: ignore[arg-type]  # by its type
                    if is_step
                    else self._operations(writes, None)
                )
                topics |= 0 if are_quiet(writes) else topics_of(writes)
                writes_count += len(writes)
        self._refuse_if_closed()
        self.stats.transactions += len(pieces)
        self.stats.writes += writes_count
        outcomes = self._commits.run(lambda connection: execute_each(connection, pieces), topics=topics)
        return [self._with_whole_items(o) if isinstance(o, ConflictError) else o for o in outcomes]

    def submit(self, writes: Sequence[Write], done: Callable[[BaseException | None], None]) -> None:
        operations = self._operations(writes, None)
        self._refuse_if_closed()
        self.stats.transactions += 1
        self.stats.writes += len(writes)
        work = operations[0].execute if len(operations) == 1 else lambda c: execute_all(c.cursor(), operations)

        def on_done(error: BaseException | None) -> None:
            try:
                outcome = self._with_whole_items(error) if isinstance(error, ConflictError) else error
            except HeadgateError as exc:
                outcome = exc
            done(outcome)

        self._commits.submit(work, on_done, topics_of(writes))

    def batch_write(self, writes: Sequence[Put | Delete]) -> None:
        check_batch(writes)
        self.stats.batches += 1
        now = self._clock.seconds()
        operations = [self._operation(write, now) for write in writes]
        for start in range(0, len(operations), BATCH_ROWS_MAX):
            self._commit_all(operations[start : start + BATCH_ROWS_MAX], topics_of(writes))

    def changes(
        self, table: Table, consumer: str, *, limit: int = 100, start: StreamStart = StreamStart.OLDEST
    ) -> ChangeBatch:
        check_stream(table, limit)
        self.stats.reads += 1
        batch = self._changes.read(self, table, self._changes.position(self, table, consumer, start), limit)
        return ChangeBatch([self._spill.restore_change(change) for change in batch.changes], batch.position)

    def checkpoint(self, table: Table, consumer: str, position: str) -> None:
        check_stream(table)
        self._changes.checkpoint(self, table, consumer, position)

    def read_sql(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a SELECT and return all rows, for parts of this backend with tables outside the catalogue."""
        return self._read(statement, parameters)

    def generation(self, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        self._refuse_if_closed()
        return self._wakeups.generation(topics, others=others)

    def wait(self, generation: int, timeout_seconds: float, topics: Topics = ANYTHING, *, others: bool = False) -> int:
        self._refuse_if_closed()
        return self._wakeups.wait(generation, timeout_seconds, topics, others=others)

    def wake(self) -> None:
        self._wakeups.wake()

    def sweep(self, *, limit: int = 1000) -> int:
        self._refuse_if_closed()
        return self._commits.run(lambda connection: self._changes.sweep(connection, limit))

    def check_health(self) -> None:
        self._read("SELECT count(*) FROM sqlite_master", ())
        self._file.check_in_place()

    def close(self) -> None:
        if self._closed is not None:
            return
        self._closed = "the store was closed; open it again"
        self._commits.close()
        self._wakeups.close()
        while self._readers:
            self._readers.pop().close()
        if self._index_reader is not None:
            self._index_reader.close()
        self._file.close()

    def _commit(self, operation: Operation, topics: Topics) -> Item | None:
        self._refuse_if_closed()
        self.stats.writes += 1
        try:
            item = self._commits.run(operation.execute, topics=topics)
        except ConflictError as exc:
            raise self._with_whole_items(exc) from None
        return None if item is None else self._spill.restore(item)

    def _commit_all(self, operations: Sequence[Operation], topics: Topics) -> None:
        self._refuse_if_closed()
        self.stats.writes += len(operations)
        try:
            self._commits.run(lambda connection: execute(connection.cursor(), operations), topics=topics)
        except ConflictError as exc:
            raise self._with_whole_items(exc) from None

    def _commit_step(self, writes: StepWrites) -> None:
        if self._closed is not None:
            self._refuse_if_closed()
        stats = self.stats
        stats.transactions += 1
        stats.writes += len(writes)
        step = StepCommit(self._rows, writes, self._clock.seconds(), self._validated)
        try:
            self._commits.run(step.execute, topics=STEP_TOPICS)
        except ConflictError as exc:
            raise self._with_whole_items(exc) from None

    def _step_operations(self, writes: StepWrites) -> list[Operation]:
        return self._operations(writes, None)

    def _with_whole_items(self, conflict: ConflictError) -> ConflictError:
        self.stats.conflicts += 1
        conflict.failures = {place: item and self._spill.restore(item) for place, item in conflict.failures.items()}
        conflict.current = conflict.failures[conflict.write_index]
        return conflict

    def _operations(self, writes: Sequence[Write], token: str | None) -> list[Operation]:
        """Validate the writes of a transaction and return its row operations."""
        check_length(writes, token)
        now = self._clock.seconds()
        counts: bool | None = None
        operations: list[Operation] = []
        for write in writes:
            kind = type(write)
            if kind is Put:
                operations.append(self._put_row(write, now))  # type: ignore[arg-type]  # by its type
            elif kind is Update:
                if counts is None:
                    counts = allows_add(writes, token)
                operations.append(self._update_row(write, now, cannot_repeat=counts))  # type: ignore[arg-type]
            else:
                operations.append(self._keyed_row(write, now))  # type: ignore[arg-type]
        # Most transactions are small and have distinct keys, so the exact checks run only in doubt.
        if len(operations) > 1:
            if len(set(map(_place_of, operations))) < len(operations):
                check_distinct(writes)
            if not all(map(_is_small, operations)):
                check_transaction_bytes(operation.bytes_written() for operation in operations)
        return operations

    def _operation(self, write: Write, now: float) -> Operation:
        match write:
            case Put():
                return self._put_row(write, now)
            case Delete() | Check():
                return self._keyed_row(write, now)
            case Update():
                return self._update_row(write, now, cannot_repeat=False)

    def _keyed_row(self, write: Delete | Check, now: float) -> DeleteRow | CheckRow:
        table, key = write.table, write.key
        check_key(table, key)
        kind = DeleteRow if type(write) is Delete else CheckRow
        return kind(self._rows[table.name], key[:1] if table.sort is None else key, write.condition, now)

    def _refresh_or_put(self, put: Put, now: float) -> Refresh | list[Operation]:
        """Return the operations of a transaction with a single put into a table that is refreshed."""
        if put.quiet and type(put.item) is TrustedItem:
            body = dump(put.item, special=False)
            if len(body) <= _CHARS_SURELY_FIT:
                refresh = refresh_of(self._rows[put.table.name], put.item, body, put.condition, now)
                if refresh is not None:
                    return refresh
        return [self._put_row(put, now)]

    def _put_row(self, put: Put, now: float) -> PutRow:
        rows, item = self._rows[put.table.name], put.item
        if type(item) is TrustedItem:
            body = dump_trusted(item)
        else:
            item, special = checked_item(put.table, item)
            body = dump(item, special=special)
        if len(body) > _CHARS_SURELY_FIT and not surely_within(body, BODY_SURELY_FITS):
            item = self._spill.fit(put.table, item)
            check_size(put.table, item)
            body = dump(item, special=True)
        is_small = len(body) <= CHARS_SURELY_SMALL
        return PutRow(rows, rows.key_of(item), put.condition, now, is_small, None, None, item, body, put.quiet)

    def _update_row(self, update: Update, now: float, *, cannot_repeat: bool) -> UpdateRow:
        checked = checked_update(update, cannot_repeat=cannot_repeat)
        values = self._spill.fit_update(checked.table, checked.key, dict(checked.set))
        fitted = Update(checked.table, checked.key, values, checked.add, checked.remove, checked.condition)
        return UpdateRow.of(self._rows[checked.table.name], fitted, now)

    def _body(self, table: Table, key: Key) -> str | None:
        check_key(table, key)
        self.stats.reads += 1
        rows = self._read(self._rows[table.name].select, parameters(key))
        return rows[0][0] if rows else None

    def _read(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        # Fetch all rows before returning the connection: an open cursor would pin an old snapshot.
        if self._closed is not None:
            self._refuse_if_closed()
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._new_reader()
        try:
            return connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as exc:
            error = self._file.error_of(exc)
            self._file.faults.record(error)
            raise error from exc
        finally:
            if self._closed is None:
                self._readers.append(connection)
            else:
                connection.close()

    def _new_reader(self) -> sqlite3.Connection:
        """Return a new connection; if the file was moved, one that another thread has opened before and returns."""
        try:
            return self._file.connect()
        except StoreUnavailableError as exc:
            self._file.faults.record(exc)
            until = monotonic() + _READER_SECONDS_MAX
            while monotonic() < until:
                try:
                    return self._readers.pop()
                except IndexError:
                    threading.Event().wait(_READER_POLL_SECONDS)
            raise

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise StoreClosedError(f"{self._file.path}: {self._closed}")

    def close_after_fork(self) -> None:
        """Close in a forked child: SQLite's locks do not survive a fork, and the file lock would have two owners."""
        if self._closed is None:
            self._closed = "the store was opened before a fork; open it in the new process"
            self._file.lock.forget()


class _LaggingReader:
    """Reads from a snapshot that is renewed only when older than the lag: simulates a lagging index."""

    def __init__(self, file: DatabaseFile, lag_seconds: float) -> None:
        self._connection = file.connect()
        self._lag_seconds = lag_seconds
        self._lock = threading.Lock()
        self._taken_at = -lag_seconds

    def read(self, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            # Real time: the lag must end even if a test's virtual clock does not move.
            if monotonic() - self._taken_at >= self._lag_seconds:
                if self._connection.in_transaction:
                    self._connection.execute("COMMIT")
                self._connection.execute("BEGIN")
                self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                self._taken_at = monotonic()
            return self._connection.execute(statement, parameters).fetchall()

    def close(self) -> None:
        with self._lock:
            self._connection.close()


_OPEN_STORES: weakref.WeakSet[SqliteStore] = weakref.WeakSet()


def _close_after_fork() -> None:
    for store in list(_OPEN_STORES):
        store.close_after_fork()


os.register_at_fork(after_in_child=_close_after_fork)
