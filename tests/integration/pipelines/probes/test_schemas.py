"""Schemas of tables, as checks read them: real databases and table formats."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import deltalake
import duckdb
import pyarrow  # type: ignore[import-untyped]
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from headgate.pipelines.enums import Verdict
from tests.probe_rig import probe, runner


@pytest.mark.parametrize("table", ["orders", "main.orders"])
def test_columns__of_a_duckdb_table__have_their_types(tmp_path: Path, table: str) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as database:
        database.execute("CREATE TABLE orders (order_id BIGINT, note VARCHAR)")

    found = runner(tmp_path).run_schema(probe(sql={"url": "duckdb:///shop.duckdb", "query": "SELECT 1"}), table)

    assert found.seen == {"exists": True, "columns": {"order_id": "BIGINT", "note": "VARCHAR"}}, found.reason


def test_columns__of_a_sqlite_table__have_their_types(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (order_id INTEGER, note TEXT)")
    looked = probe(sql={"url": "sqlite:///shop.db", "query": "SELECT 1"})

    assert runner(tmp_path).run_schema(looked, "orders").seen["columns"] == {"order_id": "INTEGER", "note": "TEXT"}
    assert runner(tmp_path).run_schema(looked, "nothing").seen == {"exists": False}


def test_columns__of_delta_and_iceberg_tables__have_their_types(tmp_path: Path) -> None:
    rows = pyarrow.table({"order_id": [1, 2], "note": ["a", "b"]})
    deltalake.write_deltalake(str(tmp_path / "delta"), rows)
    catalog = SqlCatalog("here", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", schema=rows.schema)

    of_delta = runner(tmp_path).run_schema(probe(delta={"path": "delta"}))
    of_iceberg = runner(tmp_path).run_schema(probe(iceberg={"path": table.location().removeprefix("file://")}))

    assert of_delta.seen["columns"] == {"order_id": "long", "note": "string"}
    assert of_iceberg.seen["columns"] == {"order_id": "long", "note": "string"}, of_iceberg.reason


def test_columns__of_a_file_that_is_missing__are_unknown(tmp_path: Path) -> None:
    found = runner(tmp_path).run_schema(probe(sql={"url": "duckdb:///none.duckdb", "query": "SELECT 1"}), "orders")

    assert found.verdict is Verdict.UNKNOWN
    assert "there is no file" in found.reason
