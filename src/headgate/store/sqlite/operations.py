"""Row operations: check all conditions of a transaction first, then write its rows."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Struct

from headgate.errors import ConflictError, CorruptionError, InvalidItemError
from headgate.store.model.conditions import EQUALS, VERSION, Compare, Condition, holds
from headgate.store.model.requests import ChangeKind, Update
from headgate.store.model.validation import check_size, update_condition
from headgate.store.model.values import Item, TrustedItem, add_numbers, dump, is_plain, load, stored_bytes
from headgate.store.sqlite.file import CHANGES
from headgate.store.sqlite.row_cache import Parameters
from headgate.store.sqlite.rows import TableRows, column_version, parameters
from headgate.store.transactions import conflict_error

# JSON text has at least half of an item's size by DynamoDB's rules, so a body of these bytes is within the item limit.
BODY_SURELY_FITS: Final = 200_000
# A hundred bodies of these bytes are within the transaction limit.
BODY_SURELY_SMALL: Final = 20_000
# The same in characters, whatever they are.
CHARS_SURELY_SMALL: Final = BODY_SURELY_SMALL // 4

_needs_preparing: Final = attrgetter("needs_preparing")

APPEND_CHANGE: Final = f"INSERT INTO {CHANGES} (source, kind, old, new, at_seconds, expired) VALUES (?, ?, ?, ?, ?, ?)"


def surely_within(body: str, bytes_max: int) -> bool:
    """Whether a body surely has at most `bytes_max` bytes, estimated without encoding it."""
    return (len(body) if body.isascii() else 4 * len(body)) <= bytes_max


class Operation(Struct, eq=False):
    """One write of one row. `now` is the time of the call, which decides whether an item has expired.

    A structure, because every written row makes one.
    """

    # Whether the new row depends on the current one and is computed by `prepare`.
    needs_preparing: ClassVar[bool] = False

    rows: TableRows
    key: Parameters
    condition: Condition | None
    now: float
    # Whether a hundred such writes are surely within the transaction limit.
    is_small: bool = True
    # The current item and its body, once `admits` has read them.
    current: Item | None = None
    body: str | None = None

    def execute(self, connection: sqlite3.Connection) -> Item | None:
        """Run this operation alone. Raises `ConflictError` before writing anything."""
        return self.execute_with(connection.cursor())

    def execute_with(self, cursor: sqlite3.Cursor) -> Item | None:
        """Run this operation alone, with a cursor that is reused."""
        if not self.admits(cursor):
            raise _conflict({0: self})
        if self.needs_preparing:
            self.prepare()
        return self.apply(cursor)

    def admits(self, cursor: sqlite3.Cursor) -> bool:
        """Read the current row and return whether the condition holds."""
        if self.condition is None and not self.rows.has_stream and not self._needs_current():
            return True
        self.body, cached = self.rows.recent.content(cursor, self.key)
        exists = cached is not None and is_live(self.rows, cached, self.now)
        if exists and (self.condition is None or holds(self.condition, cached)):
            self.current = cached
            return True
        # A conflict returns a private copy of the item to its caller.
        self.current = live_item(self.rows, self.body, self.now)
        return self.condition is None or holds(self.condition, self.current)

    def prepare(self) -> None:
        """Compute and validate the new row. All conditions of the transaction hold."""

    def apply(self, cursor: sqlite3.Cursor) -> Item | None:
        """Write the row. `admits` returned True in the same transaction."""
        raise NotImplementedError

    def bytes_written(self) -> int:
        """Return the bytes that count towards the transaction limit."""
        return 0

    def _needs_current(self) -> bool:
        return False

    def _record_change(self, cursor: sqlite3.Cursor, new: str | None) -> None:
        if self.body == new:
            return
        kind = ChangeKind.INSERT if self.body is None else ChangeKind.REMOVE if new is None else ChangeKind.MODIFY
        cursor.execute(APPEND_CHANGE, (self.rows.table.name, kind, self.body, new, self.now, 0))


class _RowWriter(Operation, eq=False):
    """Writes a row with a new item."""

    new: Item = {}
    new_body: str = ""
    # Whether the change stream may leave it out.
    is_quiet: bool = False

    def apply(self, cursor: sqlite3.Cursor) -> Item | None:
        rows, current, item, body = self.rows, self.current, self.new, self.new_body
        if current is not None and rows.same_index_keys(current, item):
            changed = (body, column_version(item)) if rows.has_versions else (body,)
            cursor.execute(rows.rewrite, (*changed, *self.key))
        else:
            cursor.execute(*rows.upsert_of(item, body))
        rows.recent.remember(self.key, body, item)
        if rows.has_stream and not self.is_quiet:
            self._record_change(cursor, body)
        return None


class PutRow(_RowWriter, eq=False):
    """Replaces the whole row."""

    def admits(self, cursor: sqlite3.Cursor) -> bool:
        rows, condition = self.rows, self.condition
        if condition is None and not rows.has_stream:
            return True
        version = version_of(condition)
        if version is None:
            return super().admits(cursor)
        # A version condition needs only a part of the item, which is faster to decode.
        self.body, cached = rows.recent.content(cursor, self.key)
        partial: Item | None = cached
        if partial is None and self.body is not None:
            partial = rows.index_keys_and_version(self.body)
        if partial is not None and _is_at(partial, version) and is_live(rows, partial, self.now):
            self.current = partial
            return True
        # A conflict returns the whole item.
        self.current = live_item(rows, self.body, self.now)
        return self.condition is None or holds(self.condition, self.current)

    def bytes_written(self) -> int:
        body = self.new_body
        # An upper bound is enough far from the transaction limit.
        return 2 * BODY_SURELY_SMALL if surely_within(body, BODY_SURELY_SMALL) else stored_bytes(load(body))


class UpdateRow(_RowWriter, kw_only=True, eq=False):
    """Changes attributes of an existing row."""

    needs_preparing: ClassVar[bool] = True

    update: Update

    @classmethod
    def of(cls, rows: TableRows, update: Update, now: float) -> UpdateRow:
        """Return the operation of an update."""
        return cls(rows, parameters(update.key), update_condition(update), now, is_small=False, update=update)

    def prepare(self) -> None:
        assert self.current is not None, "an update's condition includes that the item exists"
        assert self.body is not None
        self.new = _updated(self.current, self.update)
        changed = {**self.update.set, **self.update.add}
        special = '"$' in self.body or not all(name[0] != "$" and is_plain(self.new[name]) for name in changed)
        self.new_body = dump(self.new, special=special)
        if not surely_within(self.new_body, BODY_SURELY_FITS):
            check_size(self.rows.table, self.new)

    def apply(self, cursor: sqlite3.Cursor) -> Item:
        super().apply(cursor)
        return self.new

    def bytes_written(self) -> int:
        values = self.update.set.values()
        # An upper bound is enough far from the transaction limit.
        chars = sum(
            len(value) if type(value) is str else 40 if is_plain(value) else BODY_SURELY_SMALL for value in values
        )
        return 2 * BODY_SURELY_SMALL if 4 * chars < BODY_SURELY_SMALL else stored_bytes(self.update.set)


class DeleteRow(Operation, eq=False):
    """Removes the row and returns the item if it had not expired."""

    def apply(self, cursor: sqlite3.Cursor) -> Item | None:
        cursor.execute(self.rows.delete, self.key)
        self.rows.recent.drop(self.key)
        if self.rows.has_stream:
            self._record_change(cursor, None)
        return self.current

    def _needs_current(self) -> bool:
        return True


class CheckRow(Operation, eq=False):
    """Checks its condition and writes nothing."""

    def admits(self, cursor: sqlite3.Cursor) -> bool:
        # Consecutive transactions check the same few rows, for example the lease of a worker.
        recent, condition = self.rows.recent, self.condition
        body, _ = recent.content(cursor, self.key)
        if recent.is_remembered(self.key, body, condition, self.now):
            return True
        admits = super().admits(cursor)
        if admits and body is not None and condition is not None and self.current is not None:
            name = self.rows.table.ttl_attribute
            expires = None if name is None else self.current.get(name)
            recent.remember_condition(self.key, body, condition, math.inf if expires is None else expires)
        return admits

    def apply(self, cursor: sqlite3.Cursor) -> None:
        del cursor


class Refresh(msgspec.Struct, frozen=True, gc=False):
    """A quiet put under a version that is a transaction of its own, of a table whose rows have the version in a column.

    It is one UPDATE without a read, which changes no row if the version or the index keys differ.
    """

    rows: TableRows
    item: TrustedItem
    body: str
    condition: Condition
    now: float
    statement: str
    parameters: Parameters

    def applies(self, cursor: sqlite3.Cursor) -> bool:
        """Write the row, or return False without a change: then `put_row` decides."""
        if cursor.execute(self.statement, self.parameters).rowcount != 1:
            return False
        self.rows.recent.drop(self.rows.key_of(self.item))
        return True

    def put_row(self) -> PutRow:
        """Return the operation that reads the current row."""
        key, is_small = self.rows.key_of(self.item), len(self.body) <= CHARS_SURELY_SMALL
        put = PutRow(self.rows, key, self.condition, self.now, is_small, None, None, self.item, self.body)
        put.is_quiet = True
        return put


def refresh_of(
    rows: TableRows, item: TrustedItem, body: str, condition: Condition | None, now: float
) -> Refresh | None:
    """Return the refresh that a quiet put is, if it has a version condition and its item has not expired."""
    version = version_of(condition)
    if condition is None or version is None or not is_live(rows, item, now):
        return None
    # The UPDATE compares the expiry of both items: if the new one has not expired, neither has the current one.
    statement, parameters = rows.refresh_of(item, body, version)
    return Refresh(rows, item, body, condition, now, statement, parameters)


def execute_all(cursor: sqlite3.Cursor, operations: Sequence[Operation]) -> None:
    """Run all operations, or raise `ConflictError` with every failed one before writing anything."""
    refused = [operation for operation in operations if not operation.admits(cursor)]
    if refused:
        raise _conflict({operations.index(operation): operation for operation in refused})
    if any(map(_needs_preparing, operations)):
        for operation in operations:
            operation.prepare()
    for operation in operations:
        operation.apply(cursor)


def live_item(rows: TableRows, body: str | None, now: float) -> Item | None:
    """Decode a row's item; None if there is no row or the item has expired."""
    if body is None:
        return None
    item = decoded(rows, body)
    return item if is_live(rows, item, now) else None


def is_live(rows: TableRows, item: Item, now: float) -> bool:
    """Whether an item has not expired."""
    expires = None if rows.table.ttl_attribute is None else item.get(rows.table.ttl_attribute)
    return expires is None or expires > now


def decoded(rows: TableRows, body: str) -> Item:
    """Decode a row's item, expired or not. Raises `CorruptionError`."""
    try:
        return load(body)
    except msgspec.DecodeError as exc:
        error = CorruptionError(f"table {rows.table.name}: a row is corrupt ({exc}); stop and restore a backup")
        rows.faults.record(error)
        raise error from exc


def version_of(condition: Condition | None) -> int | None:
    """Return the version of a pure version condition, else None."""
    if type(condition) is not Compare or condition.attribute != VERSION:
        return None
    is_version = condition.comparison is EQUALS and type(condition.value) is int
    return condition.value if is_version else None  # type: ignore[return-value]  # checked to be an int


def _is_at(item: Item, version: int) -> bool:
    """Whether an item surely has this version."""
    current = item.get(VERSION)
    return type(current) is int and current == version


def _conflict(places: dict[int, Operation]) -> ConflictError:
    first = next(iter(places.values()))
    failures = {place: operation.current for place, operation in places.items()}
    return conflict_error(first.rows.table, first.key, first.condition, failures)


def _updated(current: Item, update: Update) -> Item:
    new: dict[str, Any] = {**current, **update.set}
    for name, amount in update.add.items():
        before = current.get(name, 0)
        if isinstance(before, bool) or not isinstance(before, int | float):
            raise InvalidItemError(
                f"table {update.table.name}, item {tuple(update.key)}: cannot add to {name!r}, which is not a number"
            )
        new[name] = add_numbers(before, amount, name)
    for name in update.remove:
        new.pop(name, None)
    return new
