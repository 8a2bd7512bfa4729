"""Pages of a query: a later page costs what the first one costs, on tables and indexes, in both directions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Put, Query, Range, Sort
from headgate.store.sqlite.rows import TableRows
from headgate.store.sqlite.store import SqliteStore
from tests.stores import open_sqlite

ROWS, LIMIT = 2_000, 20
RANGES = {
    "all": None,
    "prefix": Sort(Range.BEGINS_WITH, "CHUNK#"),
    "between": Sort(Range.BETWEEN, "CHUNK#", "CHUNK#~"),
    "at least": Sort(Range.AT_LEAST, "CHUNK#"),
    "at most": Sort(Range.AT_MOST, "CHUNK#~"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pages")
    with closing(open_sqlite(made)) as store:
        rows = [
            Put(
                FANOUT,
                {
                    "PK": "run",
                    "SK": f"CHUNK#{number:05d}",
                    "attention_pk": "run#DEAD",
                    "attention_sk": f"CHUNK#{number:05d}",
                },
            )
            for number in range(ROWS)
        ]
        store.batch_write(rows)
    return made


def _steps(home: Path, store: SqliteStore, query: Query, position: dict[str, str] | None) -> int:
    """Return how many instructions SQLite executes for a page."""
    rows = TableRows(FANOUT, store._rows[FANOUT.name].name.strip('"'))
    statement, parameters = rows.query(query, position, 0.0)
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return 0

    with closing(sqlite3.connect(home / "headgate.db")) as connection:
        connection.set_progress_handler(step, 1)
        found = connection.execute(statement, parameters).fetchall()
    assert len(found) == LIMIT + 1
    return count


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("index", [None, "attention-index"])
@pytest.mark.parametrize("sort", RANGES.values(), ids=RANGES)
def test_page__the_last_of_a_hundred__costs_no_more_than_the_first(
    home: Path, sort: Sort | None, index: str | None, *, descending: bool
) -> None:
    partition = "run" if index is None else "run#DEAD"
    query = Query(table=FANOUT, partition=partition, index=index, sort=sort, limit=LIMIT, descending=descending)
    number = LIMIT + 5 if descending else ROWS - LIMIT - 5
    last = f"CHUNK#{number:05d}"
    position = {"PK": "run", "SK": last, "attention_sk": last}
    with closing(open_sqlite(home)) as store:
        first, later = (_steps(home, store, query, each) for each in (None, position))

    assert later < 1.5 * first
