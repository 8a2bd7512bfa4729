"""A project with what the how-to pages name, on one server and one worker, so that their commands run on it."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import httpx

from headgate.errors import HeadgateError
from tests.acceptance.program import PROGRAM, Server, until
from tests.docs.test_commands_shown import shown_in
from tests.unit.cli.program import invoke

HOW_TO: Final = Path(__file__).parents[2] / "docs" / "how-to"
DAY: Final = "2026-03-03"
_APP: Final = """\
import headgate as hg

app = hg.App("shop")


@app.activity
def charge(order: str) -> str:
    return f"{order} charged"


@app.workflow
async def fulfil(order: str) -> str:
    receipt = await charge(order)
    raise TypeError(f"no address for {receipt}")


def halve(numbers: list[int]) -> list[int]:
    if any(each % 2 for each in numbers):
        raise ValueError(f"{numbers} has an odd number")
    return [each // 2 for each in numbers]
"""
_SETTINGS: Final = """[pipelines.pools]
spark = 4
"""
_NIGHTLY: Final = """\
id: nightly
trigger:
  type: command
  config: {command: [echo, "loaded ${date}"]}
"""
_CONTRACT: Final = """\
apiVersion: v3.1.0
kind: DataContract
id: invoices-contract
version: 1.0.0
status: active
domain: shop
schema:
  - name: invoices
    properties:
      - {name: invoice_id, logicalType: integer, physicalType: BIGINT, required: true, primaryKey: true}
"""
_MANIFEST: Final = {
    "metadata": {
        "dbt_schema_version": "https://schemas.getdbt.com/dbt/manifest/v12.json",
        "invocation_id": "0b9d2f44-0000-4000-8000-000000000001",
        "generated_at": "2026-01-01T00:00:00Z",
        "adapter_type": "postgres",
        "project_name": "shop",
    },
    "nodes": {},
    "sources": {},
}
_RUN: Final = {
    "eventType": "COMPLETE",
    "eventTime": "2026-03-03T06:00:00Z",
    "run": {"runId": "0b9d2f44-0000-4000-8000-000000000002"},
    "job": {"namespace": "airflow", "name": "load_bills"},
    "inputs": [],
    "outputs": [{"namespace": "headgate", "name": "urn:dp:shop:bills"}],
    "producer": "https://example.org/airflow",
    "schemaURL": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent",
}
_MACHINE: Final = '{"StartAt": "Charge", "States": {"Charge": {"Type": "Pass", "End": true}}}'


class Project:
    """The running project. Commands run in this process, in its folder."""

    def __init__(self, folder: Path, server: Server, metrics: str) -> None:
        self.folder = folder
        self.server = server
        self.metrics = metrics

    def run(self, line: str) -> Any:
        """Run a line without `headgate`, and return how it ended."""
        with contextlib.chdir(self.folder):
            environ = {"HEADGATE_SERVER": self.server.url, "COLUMNS": "300", "HOME": str(self.folder)}
            return invoke(shlex.split(line), environ)

    def printed(self, line: str, exit_code: int = 0) -> str:
        """Run a line that ends so, and return what it printed."""
        ended = self.run(line)
        # The program ends with the code of the error.
        code = ended.exception.exit_code if isinstance(ended.exception, HeadgateError) else ended.exit_code
        assert code == exit_code, f"headgate {line}: {code} {ended.output} {ended.exception!r}"
        return str(ended.stdout)

    def until_closed(self, execution: str) -> None:
        """Wait until an execution has ended, with its commands carried out."""
        until(lambda: self.server.get(f"/executions/{execution}")["status"] == "FAILED", f"{execution} fails", 60.0)

    def run_id(self) -> str:
        """Return the completed run of the pipeline `nightly`."""
        (run,) = json.loads(self.printed("run ls nightly --json"))
        return str(run["run_id"])

    def job_id(self) -> str:
        """Return the job that reported its run over OpenLineage."""
        (job,) = json.loads(self.printed("job ls --json"))
        return str(job["job_id"])

    def worker_id(self) -> str:
        """Return a worker of the project."""
        return str(json.loads(self.printed("worker ls --json"))[0]["id"])


def _lay_out(folder: Path) -> None:
    for name in ("pipelines", "checks", "probes", "target", "backups"):
        (folder / name).mkdir(parents=True)
    (folder / "shop.py").write_text(_APP)
    (folder / "headgate.toml").write_text(_SETTINGS)
    (folder / "pipelines" / "nightly.yaml").write_text(_NIGHTLY)
    (folder / "orders.odcs.yaml").write_text(_CONTRACT)
    for name in ("load.toml", "eu-west-1.toml"):
        text = (HOW_TO / "operate-on-aws.md").read_text().split(f"```text\n# {name}\n")[1].partition("```")[0]
        (folder / name).write_text(text)
    (folder / "target" / "manifest.json").write_text(json.dumps(_MANIFEST))
    with closing(sqlite3.connect(folder / "shop.db")) as database, database:
        database.execute("CREATE TABLE orders (order_id, customer_id, total, status, day, created_at, updated_at)")
        database.execute("INSERT INTO orders VALUES (1, 1, 12.5, 'paid', '2026-03-03', 0, datetime('now'))")
    # The files of the pages, with a database that is here in place of their warehouse.
    for page, name in (("check-data.md", "checks/orders.yaml"), ("probe-data.md", "probes/orders.yaml")):
        text = (HOW_TO / page).read_text().split("```yaml\n")[1].partition("```")[0]
        text = text.partition("---\n")[0]
        lines = [line for line in text.splitlines(keepends=True) if "password:" not in line]
        local = "".join(lines).replace("postgresql+psycopg://reader@warehouse.internal/shop", "sqlite:///shop.db")
        (folder / name).write_text(local.replace("sales.orders", "orders"))


def _line(page: str, beginning: str) -> list[str]:
    """Return a command of a page as arguments: what runs in the background is started as the page shows it."""
    return shlex.split(next(line for line in shown_in(HOW_TO / page) if line.startswith(beginning)))


@contextmanager
def running_project(folder: Path) -> Iterator[Project]:
    """Lay out the project, and start its server and a worker with another build."""
    _lay_out(folder)
    with ExitStack() as exits:
        up = [*_line("deploy-new-code.md", "up --app shop:app")[1:], "--pipelines", "pipelines"]
        server = exits.enter_context(Server(folder, *up, HEADGATE_BUILD="2026.11.1"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            metrics = f"127.0.0.1:{free.getsockname()[1]}"
        worker = [*_line("deploy-new-code.md", "worker --app shop:app --build"), "--metrics", metrics]
        with (folder / "worker.log").open("wb") as log:
            process = subprocess.Popen([PROGRAM, *worker], cwd=folder, env=dict(os.environ), stdout=log, stderr=log)
        exits.callback(process.wait)
        exits.callback(process.kill)
        project = Project(folder, server, metrics)
        _begin(project)
        yield project


def _begin(project: Project) -> None:
    """Have happen what the pages tell of: a failed order and fan-out, a completed run, a state machine, and more."""
    project.printed("execution start fulfil --id order-7 --input '\"tea\"'")
    project.printed(f"run start nightly --date {DAY} --reason tried")
    for urn in ("urn:dp:shop:bills", "urn:dp:shop:bills-of-dbt", "urn:dp:shop:orders:v1"):
        project.printed(f"dataset register {urn}")
    project.printed("schedule create weekly --workflow fulfil --cron '0 6 * * 1' --input '\"tea\"'")
    project.printed("fanout submit --handler shop:halve --range 0..4 --chunk-size 2 --max-attempts 1 --run-id monday")
    (project.folder / "invoices.asl.json").write_text(_MACHINE)
    project.printed("asl put invoices invoices.asl.json")
    for path, body in (("machines/invoices/executions", {"name": "tuesday"}), ("lineage", _RUN)):
        sent = httpx.post(f"{project.server.url}/api/v1/{path}", json=body, timeout=20)
        assert sent.status_code < 300, sent.text
    project.until_closed("order-7")
    until(lambda: "load_bills" in project.printed("job ls"), "the job is known", 60.0)
    until(lambda: "2026.11.2" in project.printed("worker ls"), "the worker is there", 60.0)
    until(lambda: "COMPLETED" in project.printed("run ls nightly"), "the run is done", 60.0)
    until(lambda: project.server.get("/fanouts/monday")["is_finished"], "the fan-out has ended", 60.0)
