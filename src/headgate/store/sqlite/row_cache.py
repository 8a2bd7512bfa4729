"""Rows that the writing connection has just read or written, so that a condition on them needs no second look.

Everything that a process writes goes through its one writing connection, and SQLite tells that connection whether
anyone else has written to the file since. As long as nobody has, what it last saw of a row is what the row holds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from headgate.store.model.conditions import Condition
from headgate.store.model.schema import KeyPart
from headgate.store.model.values import Item, Vouched

# The key of a row as the statements take it: one value, or two.
Parameters = tuple[KeyPart | None, ...]
# What a row holds, None if there is no such row; and the item, if it was written as one that its maker answers for.
Content = tuple[str | None, Vouched | None]

ROWS_MAX: Final = 512
_HALF: Final = ROWS_MAX // 2
# Fewer rows than these are read one by one.
FEW: Final = 4
# Larger ones are rare, and reading one again costs little beside decoding it.
_BODY_CHARS_MAX: Final = 4_000
_NOTHING: Final[Content] = (None, None)


class RecentRows:
    """The rows of one table, as transactions of the writing connection have left them. Only for that connection.

    Whoever writes to the table tells `keep` about it, or calls `forget`.
    """

    __slots__ = ("_contents", "_held", "_older", "_select")

    def __init__(self, select: str) -> None:
        self._select = select
        # Two halves, of which the older is let go of as a whole: to find the oldest row takes longer than to read one.
        self._contents: dict[Parameters, Content] = {}
        self._older: dict[Parameters, Content] = {}
        # What was asked of a row last and found to hold, with the body that it was asked of.
        self._held: dict[Parameters, tuple[str, Condition, float]] = {}

    def content(self, cursor: sqlite3.Cursor, key: Parameters) -> Content:
        """Return what a row holds at this point of the transaction. The item is not to be changed, nor given away."""
        known = self._contents.get(key)
        if known is not None:
            return known
        known = self._older.get(key)
        if known is None:
            row = cursor.execute(self._select, key).fetchone()
            known = (row[0], None) if row else _NOTHING
        self.keep(key, *known)
        return known

    def read_ahead(self, cursor: sqlite3.Cursor, keys: Sequence[Parameters], select_many: Callable[[int], str]) -> None:
        """Read the rows that are not known yet with one statement: other threads get in between at each one."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._contents and key not in self._older]
        if len(missing) < FEW:
            return
        given = [value for key in missing for value in key]
        found = {tuple(place): body for *place, body in cursor.execute(select_many(len(missing)), given)}
        for key in missing:
            self.keep(key, found.get(key))

    def keep(self, key: Parameters, body: str | None, item: Item | None = None) -> None:
        """Note what a row holds from now on in this transaction, as text and as the item that was written, if any."""
        contents = self._contents
        if body is None:
            contents[key] = _NOTHING
        elif len(body) <= _BODY_CHARS_MAX:
            contents[key] = (body, item if type(item) is Vouched else None)
        else:
            contents.pop(key, None)
            self._older.pop(key, None)
        if len(contents) >= _HALF:
            self._older, self._contents = contents, {}

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
        self._contents.clear()
        self._older.clear()
        self._held.clear()
