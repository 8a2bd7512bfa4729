"""Step commit: writes without operations if all conditions surely hold, and leaves every doubt to the operations."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from headgate.store.catalogue.tables import ACTIVITIES, EXECUTIONS, TURNS, WORKERS
from headgate.store.model.requests import StepWrites
from headgate.store.model.values import Item
from headgate.store.sqlite.batch import execute
from headgate.store.sqlite.operations import CheckRow, Operation
from headgate.store.sqlite.rows import TableRows
from headgate.store.sqlite.step_commit import StepCommit
from tests.contract.test_step_writes import activity, execution, step, trusted

NOW = 1_000.0


class Database:
    """SQLite with the tables of a step, and how often a transaction was left to the operations."""

    def __init__(self) -> None:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        self.rows = {table.name: TableRows(table, table.name) for table in (EXECUTIONS, TURNS, ACTIVITIES, WORKERS)}
        for rows in self.rows.values():
            connection.execute(rows.create_table)
        self.cursor = connection.cursor()
        self.left_to_operations = 0

    def commit(self, writes: StepWrites, now: float = NOW) -> None:
        def operations(_: StepWrites) -> Sequence[Operation]:
            self.left_to_operations += 1
            return []

        execute(self.cursor, StepCommit(self.rows, writes, now, operations))

    def put(self, rows: TableRows, item: Item) -> None:
        stored = trusted(item)
        self.cursor.execute(*rows.upsert_of(stored, stored.text))
        rows.recent.content(self.cursor, rows.key_of(stored))
        rows.recent.remember(rows.key_of(stored), stored.text, stored)

    def bodies(self) -> list[str]:
        return [row[0] for rows in self.rows.values() for row in self.cursor.execute(f"SELECT body FROM {rows.name}")]


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    database.put(database.rows[EXECUTIONS.name], execution("e", 1))
    database.put(database.rows[ACTIVITIES.name], activity("e", 1))
    workers, member = database.rows[WORKERS.name], {"worker_id": "worker-e", "fleet": "FLEET"}
    database.put(workers, member)
    assert CheckRow(workers, ("worker-e",), step("e", 1).checked.condition, NOW).admits(database.cursor)
    yield database
    database.cursor.close()


def test_applies__every_condition_surely_holds__writes_without_operations(database: Database) -> None:
    database.commit(step("e", 1))
    database.commit(step("e", 2))

    assert database.left_to_operations == 0
    advanced, *turns, begun, _ = database.bodies()
    assert (advanced, begun) == (trusted(execution("e", 3)).text, trusted(activity("e", 3)).text)
    assert len(turns) == 2


@pytest.mark.parametrize("table", [EXECUTIONS, ACTIVITIES, WORKERS])
def test_applies__row_is_not_in_the_cache__changes_nothing(database: Database, table: object) -> None:
    database.rows[table.name].recent.forget()  # type: ignore[attr-defined]
    before = database.bodies()

    database.commit(step("e", 1))

    assert (database.left_to_operations, database.bodies()) == (1, before)


def test_applies__another_version__changes_nothing(database: Database) -> None:
    before = database.bodies()

    database.commit(step("e", 1)._replace(advanced=step("e", 2).advanced))

    assert (database.left_to_operations, database.bodies()) == (1, before)


def test_applies__another_token__changes_nothing(database: Database) -> None:
    before = database.bodies()

    database.commit(step("e", 1)._replace(ended=replace(step("e", 1).ended, condition=step("e", 2).ended.condition)))

    assert (database.left_to_operations, database.bodies()) == (1, before)


def test_applies__activity_has_expired__changes_nothing(database: Database) -> None:
    database.put(database.rows[ACTIVITIES.name], activity("e", 1, ttl=int(NOW) + 1))
    before = database.bodies()

    database.commit(step("e", 1), NOW + 1)

    assert (database.left_to_operations, database.bodies()) == (1, before)
