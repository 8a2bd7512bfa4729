"""Writes as they are carried out on rows: first every condition is looked at, then everything is written."""

from __future__ import annotations

import math
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from headgate.errors import ConflictError, CorruptionError, HeadgateError, InvalidItemError
from headgate.store.model.conditions import VERSION, Compare, Comparison, Condition, holds
from headgate.store.model.requests import ChangeKind, Update
from headgate.store.model.validation import check_size, update_condition
from headgate.store.model.values import Item, add_numbers, dump, is_plain, load, stored_bytes
from headgate.store.sqlite.file import CHANGES
from headgate.store.sqlite.row_cache import FEW, Parameters
from headgate.store.sqlite.rows import TableRows, parameters
from headgate.store.transactions import refused

# JSON text is never less than half the size the limits speak of, so shorter text needs no closer look.
BODY_SURELY_FITS: Final = 200_000
# A hundred of these are within the limit of a transaction whatever they hold.
BODY_SURELY_SMALL: Final = 20_000
# So are as many of this length, whatever their characters are.
_CHARS_SURELY_SMALL: Final = BODY_SURELY_SMALL // 4

# Rows that are read ahead of transactions: fewer than are kept, and than a statement takes.
AHEAD_MAX: Final = 100

APPEND_CHANGE: Final = f"INSERT INTO {CHANGES} (source, kind, old, new, at_seconds, expired) VALUES (?, ?, ?, ?, ?, ?)"


def surely_within(body: str, bytes_max: int) -> bool:
    """Whether a body has at most so many bytes, told without encoding it; when in doubt, no."""
    return (len(body) if body.isascii() else 4 * len(body)) <= bytes_max


class Operation(ABC):
    """One write of one row. `now` is the moment its caller made it, and decides what has expired."""

    __slots__ = ("_body", "_now", "condition", "current", "key", "rows")

    # Whether a hundred such writes are surely within the limit of a transaction.
    is_small = True
    # Whether what is written depends on what is there, so that `prepare` has something to do.
    needs_preparing = False

    def __init__(self, rows: TableRows, key: Parameters, condition: Condition | None, now: float) -> None:
        self.rows = rows
        self.key = key
        self.condition = condition
        self.current: Item | None = None
        self._body: str | None = None
        self._now = now

    def carry_out(self, connection: sqlite3.Connection) -> Item | None:
        """Apply this operation alone. Raises `ConflictError`, having written nothing."""
        cursor = connection.cursor()
        if not self.admits(cursor):
            raise _conflict({0: self})
        if self.needs_preparing:
            self.prepare()
        return self.apply(cursor)

    def admits(self, cursor: sqlite3.Cursor) -> bool:
        """Read the row as it stands and say whether the write may go ahead. Writes nothing."""
        if self.condition is None and not self.rows.table.stream and not self._needs_current():
            return True
        self._body, kept = self.rows.recent.content(cursor, self.key)
        is_there = kept is not None and is_live(self.rows, kept, self._now)
        if is_there and (self.condition is None or holds(self.condition, kept)):
            self.current = kept
            return True
        # Whoever is refused gets an item of their own.
        self.current = live_item(self.rows, self._body, self._now)
        return self.condition is None or holds(self.condition, self.current)

    def prepare(self) -> None:  # noqa: B027 - most writes are worked out when they are made
        """Work out what to write, and refuse what cannot be. Everything in the transaction has been admitted."""

    @abstractmethod
    def apply(self, cursor: sqlite3.Cursor) -> Item | None:
        """Write. `admits` has said yes in the same transaction."""

    def bytes_written(self) -> int:
        """Return the size this write counts with in a transaction."""
        return 0

    def _needs_current(self) -> bool:
        return False

    def _write(self, cursor: sqlite3.Cursor, item: Item, body: str, *, is_news: bool = True) -> None:
        if self.current is not None and self.rows.places_alike(self.current, item):
            cursor.execute(self.rows.rewrite, (body, *self.key))
        else:
            cursor.execute(*self.rows.upserted(item, body))
        self.rows.recent.keep(self.key, body, item)
        if is_news and self.rows.table.stream:
            self._record(cursor, body)

    def _record(self, cursor: sqlite3.Cursor, new: str | None) -> None:
        if self._body == new:
            return
        kind = ChangeKind.INSERT if self._body is None else ChangeKind.REMOVE if new is None else ChangeKind.MODIFY
        cursor.execute(APPEND_CHANGE, (self.rows.table.name, kind, self._body, new, self._now, 0))


class PutRow(Operation):
    """Replaces the whole row."""

    __slots__ = ("_is_quiet", "_item", "_new_body", "is_small")

    def __init__(
        self, rows: TableRows, item: Item, body: str, condition: Condition | None, now: float, *, quiet: bool = False
    ) -> None:
        # As `Operation` does, without the call: there is one of these for almost every row that is written.
        self.rows = rows
        self.key = rows.key_of(item)
        self.condition = condition
        self.current = None
        self._body = None
        self._now = now
        self._item = item
        self._new_body = body
        self._is_quiet = quiet
        self.is_small = len(body) <= _CHARS_SURELY_SMALL

    def admits(self, cursor: sqlite3.Cursor) -> bool:
        if self.condition is None and not self.rows.table.stream:
            return True
        wanted = _version_of(self.condition)
        if wanted is None:
            return super().admits(cursor)
        self._body, kept = self.rows.recent.content(cursor, self.key)
        placed: Item | None = kept
        if placed is None and self._body is not None:
            placed = self.rows.placed(self._body)
        if placed is not None and _is_at(placed, wanted) and is_live(self.rows, placed, self._now):
            self.current = placed
            return True
        # Whoever is refused is told of the whole item.
        self.current = live_item(self.rows, self._body, self._now)
        return self.condition is None or holds(self.condition, self.current)

    def apply(self, cursor: sqlite3.Cursor) -> None:
        self._write(cursor, self._item, self._new_body, is_news=not self._is_quiet)

    def bytes_written(self) -> int:
        body = self._new_body
        # Far from the limit of a transaction a bound will do, and costs nothing.
        return 2 * BODY_SURELY_SMALL if surely_within(body, BODY_SURELY_SMALL) else stored_bytes(load(body))


class UpdateRow(Operation):
    """Changes attributes of a row that is there."""

    __slots__ = ("_new", "_new_body", "_update")

    # Looked at with the rest of its transaction.
    is_small = False
    needs_preparing = True

    def __init__(self, rows: TableRows, update: Update, now: float) -> None:
        super().__init__(rows, parameters(update.key), update_condition(update), now)
        self._update = update
        self._new: Item = {}
        self._new_body = ""

    def prepare(self) -> None:
        assert self.current is not None, "an update's condition includes that the item exists"
        assert self._body is not None
        self._new = _updated(self.current, self._update)
        touched = {**self._update.set, **self._update.add}
        special = '"$' in self._body or not all(name[0] != "$" and is_plain(self._new[name]) for name in touched)
        self._new_body = dump(self._new, special=special)
        if not surely_within(self._new_body, BODY_SURELY_FITS):
            check_size(self.rows.table, self._new)

    def apply(self, cursor: sqlite3.Cursor) -> Item:
        self._write(cursor, self._new, self._new_body)
        return self._new

    def bytes_written(self) -> int:
        values = self._update.set.values()
        # Far from the limit of a transaction a bound will do, as for a whole row.
        chars = sum(
            len(value) if type(value) is str else 40 if is_plain(value) else BODY_SURELY_SMALL for value in values
        )
        return 2 * BODY_SURELY_SMALL if 4 * chars < BODY_SURELY_SMALL else stored_bytes(self._update.set)


class DeleteRow(Operation):
    """Removes the row, and returns the item if it was live."""

    __slots__ = ()

    def apply(self, cursor: sqlite3.Cursor) -> Item | None:
        cursor.execute(self.rows.delete, self.key)
        self.rows.recent.keep(self.key, None)
        if self.rows.table.stream:
            self._record(cursor, None)
        return self.current

    def _needs_current(self) -> bool:
        return True


class CheckRow(Operation):
    """Writes nothing; its condition alone matters."""

    __slots__ = ()

    def admits(self, cursor: sqlite3.Cursor) -> bool:
        # The same few rows are checked by one transaction after the other: that a worker is a member, for instance.
        recent, condition = self.rows.recent, self.condition
        body, _ = recent.content(cursor, self.key)
        if recent.is_known_to_hold(self.key, body, condition, self._now):
            return True
        admits = super().admits(cursor)
        if admits and body is not None and condition is not None and self.current is not None:
            name = self.rows.table.ttl_attribute
            expires = None if name is None else self.current.get(name)
            recent.note_to_hold(self.key, body, condition, math.inf if expires is None else expires)
        return admits

    def apply(self, cursor: sqlite3.Cursor) -> None:
        del cursor


def carry_out_all(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    """Apply all operations, or raise `ConflictError` naming every one that was refused, having written nothing."""
    _carry_out_all(connection.cursor(), operations)


def _carry_out_all(cursor: sqlite3.Cursor, operations: Sequence[Operation]) -> None:
    losers: dict[int, Operation] = {}
    for place, operation in enumerate(operations):
        if not operation.admits(cursor):
            losers[place] = operation  # noqa: PERF403 - seldom any, and a comprehension is a call for each transaction
    if losers:
        raise _conflict(losers)
    for operation in operations:
        if operation.needs_preparing:
            operation.prepare()
    for operation in operations:
        operation.apply(cursor)


def carry_out_each(
    connection: sqlite3.Connection, transactions: Sequence[Sequence[Operation]]
) -> list[HeadgateError | None]:
    """Apply transactions one after the other, and return for each what refused it, if anything did."""
    cursor = connection.cursor()
    outcomes: list[HeadgateError | None] = []
    # A few rows are not read ahead anyway, and to find out which ones takes as long as to read one.
    seen_ahead = len(transactions) if len(transactions) < FEW else 0
    for place, operations in enumerate(transactions):
        if place == seen_ahead:
            seen_ahead = _look_ahead(cursor, transactions, place)
        try:
            _carry_out_all(cursor, operations)
        except HeadgateError as exc:
            # Raised before its first write, so that what the others wrote can stay.
            outcomes.append(exc)
        else:
            outcomes.append(None)
    return outcomes


def _look_ahead(cursor: sqlite3.Cursor, transactions: Sequence[Sequence[Operation]], first: int) -> int:
    """Read what the next transactions will look at with one statement for each table; return the first one after them.

    What one of them writes before another looks is kept as any other write is.
    """
    keys: dict[str, list[Parameters]] = {}
    tables: dict[str, TableRows] = {}
    after, count = first, 0
    while after < len(transactions) and (after == first or count + len(transactions[after]) <= AHEAD_MAX):
        for operation in transactions[after]:
            if operation.condition is not None:
                tables[operation.rows.name] = operation.rows
                keys.setdefault(operation.rows.name, []).append(operation.key)
        count += len(transactions[after])
        after += 1
    for name, rows in tables.items():
        rows.recent.read_ahead(cursor, keys[name], rows.select_many)
    return after


def live_item(rows: TableRows, body: str | None, now: float) -> Item | None:
    """Return the item a row holds, or None if there is no row or it has expired."""
    if body is None:
        return None
    item = decoded(rows, body)
    return item if is_live(rows, item, now) else None


def is_live(rows: TableRows, item: Item, now: float) -> bool:
    """Whether an item has not expired."""
    expires = None if rows.table.ttl_attribute is None else item.get(rows.table.ttl_attribute)
    return expires is None or expires > now


def decoded(rows: TableRows, body: str) -> Item:
    """Return the item a row holds, expired or not. Raises `CorruptionError`."""
    try:
        return load(body)
    except msgspec.DecodeError as exc:
        raise CorruptionError(
            f"table {rows.table.name}: a row does not hold an item ({exc}); stop and restore a backup"
        ) from exc


def _version_of(condition: Condition | None) -> int | None:
    """Return the one version that a condition asks for, if it asks for that alone."""
    if type(condition) is not Compare or condition.attribute != VERSION:
        return None
    is_one = condition.comparison is Comparison.EQUALS and type(condition.value) is int
    return condition.value if is_one else None  # type: ignore[return-value]  # just seen to be one


def _is_at(item: Item, version: int) -> bool:
    """Whether an item is plainly at a version; False says nothing."""
    held = item.get(VERSION)
    return type(held) is int and held == version


def _conflict(places: dict[int, Operation]) -> ConflictError:
    first = next(iter(places.values()))
    failures = {place: operation.current for place, operation in places.items()}
    return refused(first.rows.table, first.key, first.condition, failures)


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
