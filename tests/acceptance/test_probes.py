"""Probes with the installed program: tried from a file, polled by a server, read by a pipeline, shown by commands."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.acceptance.program import Server, run, until

ORDERS: Final = """\
id: orders-loaded
description: Orders of the day are loaded
every: 1s
period: daily
sql:
  url: sqlite:///shop.db
  query: select count(*) from orders where day <= :date
expect: [{check: gte, value: 2}]
---
id: lake
every: 1s
http: {url: "https://lake.example.invalid/", headers: {authorization: "Bearer ${env:HG_SECRET_LAKE}"}}
"""
SILVER: Final = """\
id: {id}
readiness: {{rules: [{{key: "probe:orders-loaded"}}], interval: 1h, window: 2h}}
trigger: {{type: command, config: {{command: ["true"]}}, check_interval: 1s}}
"""


class Project:
    """A project with probes and two pipelines that read one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("pipelines", "probes"):
            (folder / name).mkdir(parents=True)
        (folder / "probes" / "shop.yaml").write_text(ORDERS)
        for name in ("silver", "gold"):
            (folder / "pipelines" / f"{name}.yaml").write_text(SILVER.format(id=name))
        self.sql("create table orders (day text)", "insert into orders values ('2026-01-01')")

    def sql(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def said(self, *arguments: str, exit_code: int = 0) -> str:
        ended = run(*arguments, folder=self.folder, HG_SECRET_LAKE="s3cret-of-the-lake")
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        assert "s3cret-of-the-lake" not in ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        return ended.stdout + ended.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.said(*arguments, "--json"))


def until_completed(server: Server, name: str) -> None:
    def is_completed() -> bool:
        return bool(server.get(f"/pipelines/{name}/runs")["runs"][0]["status"] == "COMPLETED")

    until(is_completed, f"{name} is completed", 60)


def _check_reload(project: Project, server: Server) -> None:
    """A changed file is loaded and looked at; one with a problem leaves the probe as it is."""
    file = project.folder / "probes" / "shop.yaml"
    file.write_text(ORDERS.replace("every: 1s", "every: 1h", 1).replace("value: 2", "value: 3"))
    assert "probe orders-loaded: changed (probes/shop.yaml)" in project.said("reload")

    def verdict() -> str:
        return str(server.get("/probes/orders-loaded")["results"][0]["verdict"])

    until(lambda: verdict() == "FAIL", "it was looked at by the new definition", 60)
    file.write_text(ORDERS.replace("sql:", "sqll:"))
    assert "probes/shop.yaml:6:" in project.said("reload", exit_code=2)
    assert server.get("/probes/orders-loaded")["every_seconds"] == 3600
    text = "id: bronze\nreadiness: {rules: [{key: 'probe:orders-load'}]}\n"
    headers = {"content-type": "application/yaml"}
    refused = httpx.put(f"{server.url}/api/v1/pipelines/bronze", content=text, headers=headers, timeout=20.0)
    assert refused.status_code == 400, refused.text
    assert "there is no probe 'orders-load'; did you mean orders-loaded?" in refused.text


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "shop")


@pytest.mark.timeout(240)
def test_probe__data_arrives__both_waiting_pipelines_complete(project: Project) -> None:
    folder = project.folder
    with Server(folder, "--pipelines", "pipelines", HG_SECRET_LAKE="s3cret-of-the-lake") as server:
        today = json.loads(project.said("probe", "try", "orders-loaded", "--json", exit_code=1))["period"]
        for name in ("silver", "gold"):
            project.said("run", "start", name, "--date", today, "--reason", "test")
        until(lambda: "at least 2 is needed" in project.said("why", "silver", "--date", today), "it was evaluated", 60)
        until(lambda: "UNKNOWN" in project.said("probe", "ls"), "the lake was looked at", 60)

        project.sql("insert into orders values ('2026-01-02')")
        for name in ("silver", "gold"):
            until_completed(server, name)
        shown = project.json("probe", "show", "orders-loaded")
        assert shown["readers"] == ["gold", "silver"]
        assert (shown["results"][0]["verdict"], shown["results"][0]["seen"]) == ("PASS", {"value": 2})
        assert "value is 2" in project.said("probe", "try", "orders-loaded")
        lake = project.json("probe", "show", "lake")
        assert lake["results"][0]["verdict"] == "UNKNOWN"
        assert "did you mean orders-loaded?" in project.said("probe", "show", "order-loaded", exit_code=4)
        _check_reload(project, server)
        metrics = httpx.get(f"{server.url}/metrics", timeout=20.0).text
        assert 'headgate_probe_looks_total{probe="orders-loaded",verdict="PASS"}' in metrics
    assert "s3cret-of-the-lake" not in server.stderr


def test_try__file__runs_without_a_server(project: Project) -> None:
    said = project.said("probe", "try", "probes/shop.yaml", "--id", "orders-loaded", exit_code=1)
    assert "FAIL for" in said
    assert "value is 1, at least 2 is needed" in said
    assert "name one with --id" in project.said("probe", "try", "probes/shop.yaml", exit_code=2)
    unknown = project.said("probe", "try", "probes/shop.yaml", "--id", "lake", exit_code=75)
    assert unknown.startswith("UNKNOWN in ")


def test_validate__probes_and_references__are_checked_by_file_and_line(project: Project) -> None:
    assert "valid; 2 pipelines" in project.said("validate", ".")
    (project.folder / "pipelines" / "silver.yaml").write_text(
        SILVER.format(id="silver").replace("orders-loaded", "orders-load")
    )
    (project.folder / "probes" / "bad.yaml").write_text("id: bad\nfiles:\n  path: in/${date}\n")
    said = project.said("validate", ".", exit_code=2)
    assert "pipelines/silver.yaml:2:" in said
    assert "there is no probe 'orders-load'; did you mean orders-loaded?" in said
    assert "probes/bad.yaml:3:9: files.path: ${date} has no value" in said
    assert "files.path" in project.said("validate", "probes/bad.yaml", exit_code=2)
