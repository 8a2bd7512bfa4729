"""Vacuum: free space goes back to the file system, with the store open or closed, and nothing is lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headgate.errors import NotFoundError, StoreBusyError
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.requests import Delete, Put
from headgate.store.model.schema import Key
from headgate.store.sqlite.size import measure
from headgate.store.sqlite.store import SqliteStore
from headgate.store.sqlite.vacuum import vacuum
from headgate.store.table_names import TableNames
from tests.stores import create_sqlite

ROWS = 2_000


def fill_and_empty(store: SqliteStore) -> None:
    """Write rows and delete all but the first."""
    items = [{"PK": f"DEDUP#{number:05}", "SK": "DEDUP", "text": "x" * 1000} for number in range(ROWS)]
    store.batch_write([Put(CONTROL, item) for item in items])
    store.batch_write([Delete(CONTROL, Key(item["PK"], "DEDUP")) for item in items[1:]])


def make_older(folder: Path) -> None:
    """Give a file the form it had before incremental vacuum."""
    with closing(sqlite3.connect(folder / "headgate.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("VACUUM")


def test_vacuum__store_open__shrinks_the_file_and_the_store_goes_on(tmp_path: Path) -> None:
    with closing(create_sqlite(tmp_path)) as store:
        fill_and_empty(store)

        done = vacuum(tmp_path / "headgate.db", full=False)

        assert not done.is_full
        assert done.after_bytes < done.before_bytes // 2
        assert done.free_bytes < done.after_bytes // 4
        store.put(CONTROL, {"PK": "DEDUP#after", "SK": "DEDUP"})
        assert store.get(CONTROL, Key("DEDUP#00000", "DEDUP")) is not None


def test_vacuum__full_while_the_store_is_open__refused_and_the_store_goes_on(tmp_path: Path) -> None:
    with closing(create_sqlite(tmp_path)) as store:
        fill_and_empty(store)

        with pytest.raises(StoreBusyError, match="stop the server"):
            vacuum(tmp_path / "headgate.db", full=True)

        store.put(CONTROL, {"PK": "DEDUP#after", "SK": "DEDUP"})


def test_vacuum__full_with_the_store_closed__leaves_no_free_page_and_every_row(tmp_path: Path) -> None:
    with closing(create_sqlite(tmp_path)) as store:
        fill_and_empty(store)

    done = vacuum(tmp_path / "headgate.db", full=True)

    assert (done.is_full, done.free_bytes) == (True, 0)
    assert done.after_bytes < done.before_bytes // 2
    with closing(create_sqlite(tmp_path)) as store:
        assert store.get(CONTROL, Key("DEDUP#00000", "DEDUP")) is not None
        store.put(CONTROL, {"PK": "DEDUP#after", "SK": "DEDUP"})


def test_vacuum__file_of_an_older_version__is_rewritten_once_and_incremental_after(tmp_path: Path) -> None:
    with closing(create_sqlite(tmp_path)) as store:
        fill_and_empty(store)
    make_older(tmp_path)
    with closing(create_sqlite(tmp_path)), pytest.raises(StoreBusyError, match="stop the server"):
        vacuum(tmp_path / "headgate.db", full=False)

    assert vacuum(tmp_path / "headgate.db", full=False).is_full
    assert not vacuum(tmp_path / "headgate.db", full=False).is_full


def test_vacuum__no_database__refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        vacuum(tmp_path / "headgate.db", full=False)

    assert list(tmp_path.iterdir()) == []


def test_measure__open_store__has_bytes_free_bytes_and_rows(tmp_path: Path) -> None:
    with closing(create_sqlite(tmp_path)) as store:
        fill_and_empty(store)

        size = measure(tmp_path / "headgate.db", store.read_sql, TableNames())

        assert size.file_bytes + size.wal_bytes > ROWS * 1000
        assert size.free_bytes > ROWS * 500
        assert (size.rows["headgate-control"], size.rows["headgate-events"]) == (1, 0)
