"""Step commit: writes the rows of one step of an execution without an operation for each of them.

Most transactions of a busy worker are such steps. Whatever is not sure is left to the operations: a row that is
not in the row cache, a condition other than an equality, a conflict, a row that may have expired, a large item.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.store.model.conditions import EQUALS, Compare, Condition
from headgate.store.model.requests import StepWrites
from headgate.store.model.values import Item
from headgate.store.sqlite.operations import BODY_SURELY_FITS, Operation, execute_all
from headgate.store.sqlite.rows import TableRows

# Three texts of this length together are within every limit, whatever their characters are.
_CHARS_SURELY_FIT: Final = BODY_SURELY_FITS // 4


class StepCommit(Struct, frozen=True, eq=False):
    """The writes of one step. `now` is the time of the call, which decides whether a row has expired."""

    tables: Mapping[str, TableRows]
    step: StepWrites
    now: float
    # Returns the writes as operations. Raises if they are refused.
    operations: Callable[[StepWrites], Sequence[Operation]]

    def execute(self, connection: sqlite3.Connection) -> None:
        """Run the transaction, or raise `ConflictError` with every failed write before writing anything."""
        cursor = connection.cursor()
        if not self.applies(cursor):
            execute_all(cursor, self.operations(self.step))

    def applies(self, cursor: sqlite3.Cursor) -> bool:
        """Write all rows, or return False without a change: then the operations decide."""
        tables, now = self.tables, self.now
        advanced, recorded, ended, begun, checked = self.step
        # Without a cast, which is a call.
        execution: Any = advanced.item
        turn: Any = recorded.item
        activity: Any = begun.item
        try:
            execution_body, turn_body, activity_body = execution.text, turn.text, activity.text
        except AttributeError:
            return False  # Not trusted items.
        if len(execution_body) + len(turn_body) + len(activity_body) > _CHARS_SURELY_FIT:
            return False
        executions, activities = tables[advanced.table.name], tables[ended.table.name]
        execution_key, ended_key = executions.key_of(execution), ended.key[:1]
        before = executions.recent.newest_item(execution_key)
        claimed = activities.recent.newest_item(ended_key)
        if (
            before is None
            or claimed is None
            or not _surely_holds(advanced.condition, before)
            or not _surely_holds(ended.condition, claimed)
            # One that expires may have expired.
            or executions.ttl_attribute in before
            or activities.ttl_attribute in claimed
            or not tables[checked.table.name].recent.still_holds(checked.key[:1], checked.condition, now)
        ):
            return False
        if executions.same_index_keys(before, execution):
            cursor.execute(executions.rewrite, (execution_body, *execution_key))
        else:
            cursor.execute(*executions.upsert_of(execution, execution_body))
        executions.recent.remember_trusted(execution_key, execution_body, execution)
        turns = tables[recorded.table.name]
        cursor.execute(*turns.upsert_of(turn, turn_body))
        if turns.recent.is_read:
            turns.recent.drop(turns.key_of(turn))
        cursor.execute(*activities.move_of(activity, activity_body, ended_key))
        activities.recent.drop(ended_key)
        activities.recent.remember_trusted(activities.key_of(activity), activity_body, activity)
        return True


def _surely_holds(condition: Condition | None, current: Item) -> bool:
    """Whether a condition is an equality that holds."""
    if type(condition) is not Compare or condition.comparison is not EQUALS:
        return False
    expected = condition.value
    value = current.get(condition.attribute)
    # Of one type: a number can equal a bool.
    return value == expected and type(value) is type(expected) and value is not None
