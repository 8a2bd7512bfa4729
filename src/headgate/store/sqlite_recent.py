"""Rows that the writing connection has just read or written, so that a condition on them needs no second look.

Everything that a process writes goes through its one writing connection, and SQLite tells that connection whether
anyone else has written to the file since. As long as nobody has, what it last saw of a row is what the row holds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from headgate.store.schema import KeyPart
from headgate.store.values import Item

# The key of a row as the statements take it: one value, or two.
Parameters = tuple[KeyPart | None, ...]

ROWS_MAX: Final = 512
_FEW: Final = 4
# Larger ones are rare, and reading one again costs little beside decoding it.
_BODY_CHARS_MAX: Final = 4_000


class RecentRows:
    """The rows of one table, as transactions of the writing connection have left them. Only for that connection.

    Whoever writes to the table tells `keep` about it, or calls `forget`.
    """

    __slots__ = ("_bodies", "_items", "_select")

    def __init__(self, select: str) -> None:
        self._select = select
        # None: there is no such row.
        self._bodies: dict[Parameters, str | None] = {}
        # Each with the body that it was loaded from.
        self._items: dict[Parameters, tuple[str, Item]] = {}

    def body(self, connection: sqlite3.Connection, key: Parameters) -> str | None:
        """Return what a row holds at this point of the transaction, or None if there is no such row."""
        try:
            return self._bodies[key]
        except KeyError:
            row = connection.execute(self._select, key).fetchone()
            return self.keep(key, row[0] if row else None)

    def read_ahead(
        self, connection: sqlite3.Connection, keys: Sequence[Parameters], select_many: Callable[[int], str]
    ) -> None:
        """Read the rows that are not known yet with one statement: other threads get in between at each one."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._bodies]
        if len(missing) < _FEW:
            return
        given = [value for key in missing for value in key]
        found = {tuple(place): body for *place, body in connection.execute(select_many(len(missing)), given)}
        for key in missing:
            self.keep(key, found.get(key))

    def keep(self, key: Parameters, body: str | None) -> str | None:
        """Note what a row holds from now on in this transaction, and return it."""
        bodies = self._bodies
        # Taken out first, so that what is written again and again is never the oldest.
        bodies.pop(key, None)
        if body is None or len(body) <= _BODY_CHARS_MAX:
            if len(bodies) >= ROWS_MAX:
                del bodies[next(iter(bodies))]
            bodies[key] = body
        return body

    def item(self, key: Parameters, body: str, load: Callable[[str], Item]) -> Item:
        """Return a body as an item, loaded once as long as it stays the same. Shared: nobody changes it or keeps it."""
        known = self._items.get(key)
        if known is not None and known[0] is body:
            return known[1]
        item = load(body)
        if len(self._items) >= ROWS_MAX:
            self._items.clear()
        self._items[key] = (body, item)
        return item

    def forget(self) -> None:
        """A transaction was undone, or someone else has written: the rows may hold anything."""
        self._bodies.clear()
        self._items.clear()
