"""`headgate check` and `dataset import-contract` as installed programs, on a real DuckDB file."""

from __future__ import annotations

from pathlib import Path

import duckdb
import httpx

from tests.acceptance.program import Server, run, until

FILE = """\
dataset: urn:dp:orders:created
source:
  sql: {url: "duckdb:///shop.duckdb", table: orders}
every: 60s
checks:
  - id: key
    unique: {columns: [order_id]}
  - id: columns
    schema: {columns: {order_id: BIGINT, total: ""}}
"""
CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: orders-contract
version: 1.0.0
status: active
domain: shop
schema:
  - name: orders
    properties:
      - {name: order_id, logicalType: integer, physicalType: BIGINT, required: true, primaryKey: true}
    quality:
      - {metric: rowCount, mustBeGreaterThan: 1}
      - {type: text, description: Orders are real.}
servers:
  - {server: here, type: duckdb, database: shop.duckdb}
team: {name: order-platform}
"""


def project(folder: Path) -> Path:
    """Lay out a project with a table of three rows, two of which have one key."""
    for name in ("pipelines", "checks"):
        (folder / name).mkdir()
    with duckdb.connect(str(folder / "shop.duckdb")) as database:
        database.execute("CREATE TABLE orders AS SELECT unnest([1, 2, 2])::BIGINT AS order_id")
    return folder


def test_check_file__tried_and_validated__needs_no_server(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "checks" / "orders.yaml").write_text(FILE)

    tried = run("check", "try", "checks/orders.yaml", folder=folder)
    one = run("check", "try", "checks/orders.yaml", "columns", folder=folder)
    valid = run("validate", ".", folder=folder)
    (folder / "checks" / "orders.yaml").write_text(FILE.replace("columns: [order_id]", "columns: []"))
    invalid = run("validate", ".", folder=folder)

    assert tried.returncode == 1, tried.stderr
    assert "1 values of order_id occur more than once" in tried.stdout
    assert one.returncode == 1
    assert "missing: total" in one.stdout
    assert valid.returncode == 0, valid.stderr
    assert invalid.returncode == 2
    assert "checks/orders.yaml:7" in invalid.stderr


def test_contract__imported__is_checked_by_the_server_and_shown(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "orders.odcs.yaml").write_text(CONTRACT)
    with Server(folder, "--pipelines", "pipelines") as server:
        imported = run("dataset", "import-contract", "orders.odcs.yaml", "--server", server.url, folder=folder)
        assert imported.returncode == 0, imported.stderr
        assert "registered urn:dp:shop:orders; 3 checks in checks/shop-orders.yaml" in imported.stdout
        assert "schema[0].quality[1]" in imported.stdout
        again = run("dataset", "import-contract", "orders.odcs.yaml", "--server", server.url, folder=folder)
        assert "the file exists" in again.stderr
        run("dataset", "update", "urn:dp:shop:orders", "--tier", "2", "--server", server.url, folder=folder)
        forced = run(
            "dataset", "import-contract", "orders.odcs.yaml", "--force", "--server", server.url, folder=folder
        )  # fmt: skip
        assert forced.returncode == 0, forced.stderr
        # What the contract does not name is kept.
        assert server.get("/datasets/urn:dp:shop:orders")["tier"] == "TIER_2"

        assert run("reload", "--server", server.url, folder=folder).returncode == 0
        file = folder / "checks" / "shop-orders.yaml"
        file.write_text(file.read_text() + "- {id: one-more, unique: {columns: [order_id]}}\n")
        reloaded = run("reload", "--server", server.url, folder=folder)
        assert "check one-more of urn:dp:shop:orders: new (checks/shop-orders.yaml:" in reloaded.stdout, reloaded.stdout

        def states() -> dict[str, str]:
            return {each["id"]: each["state"] for each in server.get("/checks")["checks"]}

        expected = {
            "schema": "OK",
            "primary-key": "CRITICAL",
            "one-more": "CRITICAL",
            "row-count": "OK",
            "config.required.order_id": "OK",
        }
        until(lambda: states() == expected, "every check has run", 120)
        metrics = httpx.get(f"{server.url}/metrics", timeout=20.0).text
        assert 'headgate_check_runs_total{kind="unique",state="CRITICAL"}' in metrics
        assert "headgate_check_lag_seconds" in metrics
        listed = run("check", "ls", "urn:dp:shop:orders", "--server", server.url, folder=folder)
        assert "CRITICAL" in listed.stdout
        shown = run("check", "show", "urn:dp:shop:orders", "primary-key", "--server", server.url, folder=folder)
        assert "1 values of order_id occur more than once" in shown.stdout
        gate = run("gate", "check", "urn:dp:shop:orders", "--server", server.url, folder=folder)
        # Two checks fail; the gate names the first of them by name.
        assert "UNIQUE_CHECK:" in gate.stdout
        dataset = run("dataset", "show", "urn:dp:shop:orders", "--server", server.url, folder=folder)
        assert "order-platform" in dataset.stdout
