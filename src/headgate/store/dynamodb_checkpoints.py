"""How far each consumer of a change stream has come, as rows that move by compare-and-swap."""

from __future__ import annotations

from typing import Final

from headgate.errors import ConflictError, OutcomeUnknownError, StoreBusyError
from headgate.store.conditions import absent, version_is
from headgate.store.port import Store
from headgate.store.schema import Key, Table
from headgate.store.tables import STREAM_CHECKPOINTS
from headgate.store.values import Item

ATTEMPTS_MAX: Final = 5


class Checkpoints:
    """The rows of `STREAM_CHECKPOINTS`. Each carries a version, so that a late writer does not undo a newer one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, table: Table, consumer: str) -> Item | None:
        """Return the consumer's row, or None if it has never been anywhere."""
        return self._store.get(STREAM_CHECKPOINTS, Key(consumer, table.name), consistent=True)

    def move(self, table: Table, consumer: str, position: str, row: Item | None) -> Item | None:
        """Move the checkpoint to `position` if it still is `row`. Return the row as it then stands, moved or not."""
        version = 0 if row is None else row["version"]
        moved = {"consumer": consumer, "stream": table.name, "position": position, "version": version + 1}
        try:
            self._store.put(STREAM_CHECKPOINTS, moved, condition=absent() if row is None else version_is(version))
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            return exc.current
        return moved

    def set(self, table: Table, consumer: str, position: str) -> None:
        """Move the checkpoint to `position`, wherever it is. Raises `StoreBusyError` if it never stands still."""
        row = self.find(table, consumer)
        for _ in range(ATTEMPTS_MAX):
            row = self.move(table, consumer, position, row)
            if row is not None and row["position"] == position:
                return
        raise StoreBusyError(f"stream of {table.name}: others keep moving the checkpoint of {consumer!r}; try again")
