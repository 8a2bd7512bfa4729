"""Batch: runs the transactions of one call in order, each as if it were alone."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from headgate.errors import HeadgateError
from headgate.store.sqlite.operations import Operation, Refresh, execute_all
from headgate.store.sqlite.row_cache import FEW, Parameters
from headgate.store.sqlite.rows import TableRows
from headgate.store.sqlite.step_commit import StepCommit

# Rows read ahead of transactions at once: fewer than the row cache holds.
AHEAD_MAX: Final = 100

# One transaction: the operations of its writes, or a form of it that needs none as long as its conditions hold.
Transaction = Sequence[Operation] | StepCommit | Refresh


def execute(cursor: sqlite3.Cursor, transaction: Transaction) -> None:
    """Run a transaction, or raise `ConflictError` with every failed write before writing anything."""
    if type(transaction) is StepCommit:
        if not transaction.applies(cursor):
            execute_all(cursor, transaction.operations(transaction.step))
    elif type(transaction) is Refresh:
        if not transaction.applies(cursor):
            transaction.put_row().execute_with(cursor)
    elif len(transaction) > 1:  # type: ignore[arg-type]  # by its type
        execute_all(cursor, transaction)  # type: ignore[arg-type]  # by its type
    else:
        transaction[0].execute_with(cursor)  # type: ignore[index]  # by its type


def execute_each(connection: sqlite3.Connection, transactions: Sequence[Transaction]) -> list[HeadgateError | None]:
    """Run transactions in order and return the error of each, or None."""
    cursor = connection.cursor()
    outcomes: list[HeadgateError | None] = []
    # Reading ahead does not pay for a few rows.
    read_through = len(transactions) if len(transactions) < FEW else 0
    for place, transaction in enumerate(transactions):
        if place == read_through:
            read_through = _read_ahead(cursor, transactions, place)
        try:
            if type(transaction) is list and len(transaction) > 1:
                execute_all(cursor, transaction)
            else:
                execute(cursor, transaction)
        except HeadgateError as exc:
            # Raised before its first write, so the writes of the others stay.
            outcomes.append(exc)
        else:
            outcomes.append(None)
    return outcomes


def _read_ahead(cursor: sqlite3.Cursor, transactions: Sequence[Transaction], first: int) -> int:
    """Read the rows that the next transactions check into the row cache, with one statement per table.

    Returns the index after the last of these transactions. Later writes update the row cache as usual.
    """
    keys: dict[str, list[Parameters]] = {}
    tables: dict[str, TableRows] = {}
    after, count = first, 0
    while after < len(transactions):
        transaction = transactions[after]
        # A refresh checks its row while it writes it, and a step looks at rows that were written lately.
        checked = (
            ()
            if isinstance(transaction, Refresh | StepCommit)
            else [each for each in transaction if each.condition is not None]
        )
        if after > first and count + len(checked) > AHEAD_MAX:
            break
        for operation in checked:
            tables[operation.rows.name] = operation.rows
            keys.setdefault(operation.rows.name, []).append(operation.key)
        count += len(checked)
        after += 1
    for name, rows in tables.items():
        rows.recent.read_ahead(cursor, keys[name], rows.select_many)
    return after
