"""Row cache of the writing connection: rows it recently read or wrote, so that conditions on them need no SELECT.

All writes of a process go through one connection, and SQLite's data_version tells that connection whether another one
has committed. Until then, the cached rows are current.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from headgate.store.model.conditions import Condition
from headgate.store.model.schema import KeyPart
from headgate.store.model.values import Item, TrustedItem

# The key of a row as statement parameters: one or two values.
Parameters = tuple[KeyPart | None, ...]
# The body of a row, None if it does not exist; and the item, if a trusted item was written.
Content = tuple[str | None, TrustedItem | None]

# Half of it, in which a step looks, is more than the executions that a worker keeps busy at once.
ROWS_MAX: Final = 2_048
_HALF: Final = ROWS_MAX // 2
# Fewer rows than this are read one by one.
FEW: Final = 4
# Larger bodies are not cached: they are rare, and decoding them costs more than reading them again.
_BODY_CHARS_MAX: Final = 4_000
_NOTHING: Final[Content] = (None, None)


class RecentRows:
    """The recent rows of one table, for the writing connection only.

    Every write to the table must call `remember` or `forget`.
    """

    __slots__ = ("_contents", "_held", "_older", "_select", "is_read")

    def __init__(self, select: str) -> None:
        self._select = select
        # Rows of a table that no condition has read, such as the turns of executions, are not cached.
        self.is_read = False
        # Two generations; the older is dropped as a whole, which is cheaper than an LRU.
        self._contents: dict[Parameters, Content] = {}
        self._older: dict[Parameters, Content] = {}
        # The last condition that held for a row, with the body it was checked against and the row's expiry.
        self._held: dict[Parameters, tuple[str, Condition, float]] = {}

    def content(self, cursor: sqlite3.Cursor, key: Parameters) -> Content:
        """Return the current content of a row. Callers must not change or hand out the item."""
        known = self._contents.get(key)
        if known is not None:
            return known
        self.is_read = True
        known = self._older.get(key)
        if known is None:
            row = cursor.execute(self._select, key).fetchone()
            known = (row[0], None) if row else _NOTHING
        self.remember(key, *known)
        return known

    def newest_item(self, key: Parameters) -> TrustedItem | None:
        """Return the item of a row that was written lately as a trusted item; None for any other."""
        known = self._contents.get(key)
        return None if known is None else known[1]

    def read_ahead(self, cursor: sqlite3.Cursor, keys: Sequence[Parameters], select_many: Callable[[int], str]) -> None:
        """Read the uncached rows with one statement, because every statement releases the GIL."""
        self.is_read = True
        missing = [key for key in dict.fromkeys(keys) if key not in self._contents and key not in self._older]
        if len(missing) < FEW:
            return
        values = [value for key in missing for value in key]
        bodies = {tuple(key): body for *key, body in cursor.execute(select_many(len(missing)), values)}
        for key in missing:
            self.remember(key, bodies.get(key))

    def remember(self, key: Parameters, body: str | None, item: Item | None = None) -> None:
        """Cache the body of a row, and the written item if it is trusted."""
        if not self.is_read:
            return
        contents = self._contents
        if body is None:
            contents[key] = _NOTHING
        elif len(body) <= _BODY_CHARS_MAX:
            contents[key] = (body, item if type(item) is TrustedItem else None)
        else:
            contents.pop(key, None)
            self._older.pop(key, None)
        if len(contents) >= _HALF:
            self._older, self._contents = contents, {}

    def remember_trusted(self, key: Parameters, body: str, item: TrustedItem) -> None:
        """Cache a trusted item that replaces one of the cache."""
        contents = self._contents
        if len(body) <= _BODY_CHARS_MAX:
            contents[key] = (body, item)
            if len(contents) >= _HALF:
                self._older, self._contents = contents, {}
        else:
            self.drop(key)

    def drop(self, key: Parameters) -> None:
        """Remove a row that was deleted, or written without being read. Few conditions ask for a deleted row again."""
        self._contents.pop(key, None)
        self._older.pop(key, None)

    def is_remembered(self, key: Parameters, body: str | None, condition: Condition | None, now: float) -> bool:
        """Whether this condition object held for this body object, and the item has not expired since."""
        known = self._held.get(key)
        return known is not None and known[0] is body and known[1] is condition and known[2] > now

    def still_holds(self, key: Parameters, condition: Condition, now: float) -> bool:
        """Whether this condition object held for the row, which has neither changed nor expired since."""
        known = self._contents.get(key)
        return known is not None and self.is_remembered(key, known[0], condition, now)

    def remember_condition(self, key: Parameters, body: str, condition: Condition, expires: float) -> None:
        """Remember that a condition holds for a body until the item expires."""
        if len(self._held) >= ROWS_MAX:
            self._held.clear()
        self._held[key] = (body, condition, expires)

    def forget(self) -> None:
        """Clear the cache, after a rollback or a commit of another connection."""
        self._contents.clear()
        self._older.clear()
        self._held.clear()
