"""Rows that the writing connection has just read or written, so that a condition on them needs no second look.

Everything that a process writes goes through its one writing connection, and SQLite tells that connection whether
anyone else has written to the file since. As long as nobody has, what it last saw of a row is what the row holds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from headgate.store.conditions import Condition
from headgate.store.schema import KeyPart

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

    __slots__ = ("_bodies", "_held", "_select")

    def __init__(self, select: str) -> None:
        self._select = select
        # None: there is no such row.
        self._bodies: dict[Parameters, str | None] = {}
        # What was asked of a row last and found to hold, with the body that it was asked of.
        self._held: dict[Parameters, tuple[str, Condition, float]] = {}

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

    def is_known_to_hold(self, key: Parameters, body: str | None, condition: Condition | None, now: float) -> bool:
        """Whether this very condition was seen to hold for this very body, which has not expired since."""
        known = self._held.get(key)
        return known is not None and known[0] is body and known[1] is condition and known[2] > now

    def note_to_hold(self, key: Parameters, body: str, condition: Condition, expires: float) -> None:
        """Note that a condition holds for a body, and will until that expires."""
        if len(self._held) >= ROWS_MAX:
            self._held.clear()
        self._held[key] = (body, condition, expires)

    def forget(self) -> None:
        """A transaction was undone, or someone else has written: the rows may hold anything."""
        self._bodies.clear()
        self._held.clear()
