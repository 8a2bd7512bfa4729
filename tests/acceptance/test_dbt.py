"""dbt, dbt-ol and the OpenLineage client against the installed program: a project goes from red to green.

The tools are real and have an environment of their own, `.venv-dbt`, which `make test` creates.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from tests.acceptance.program import PROGRAM, Server, run, until

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "how-to" / "use-dbt.md"
DBT: Final = ROOT / ".venv-dbt" / "bin"
ORDERS, REVENUE, RAW, RATES = (
    f"urn:dp:duckdb+shop.duckdb:shop.main.{name}" for name in ("orders", "revenue", "raw_orders", "rates")
)
DAY: Final = "2026-01-05"
REPORT: Final = f"""\
id: report
readiness: {{rules: [{{dataset: "{ORDERS}"}}]}}
trigger: {{type: command, config: {{command: ["true"]}}}}
"""


class Shop:
    """A dbt project, its server, and the programs beside it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server

    def headgate(self, *arguments: str, exit_code: int = 0) -> str:
        ended = run(*arguments, folder=self.folder)
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        return ended.stdout

    def tool(self, *arguments: str | Path) -> None:
        """Run a program of the tools' environment, whatever it returns: dbt fails on purpose."""
        environ = os.environ | {
            "PATH": f"{DBT}:{os.environ['PATH']}",
            "DBT_SEND_ANONYMOUS_USAGE_STATS": "0",
            "OPENLINEAGE_URL": self.server.url,
            "OPENLINEAGE_NAMESPACE": "dbt",
            "DBT_PROFILES_DIR": str(self.folder),
        }
        subprocess.run(
            [DBT / arguments[0], *arguments[1:]],
            cwd=self.folder,
            env=environ,
            timeout=120,
            capture_output=True,
            check=False,
        )

    def signal(self, urn: str, signal_type: str) -> dict[str, Any]:
        found: dict[str, Any] = self.server.get(f"/datasets/{urn}/signals/{signal_type}")
        return found

    def until_state(self, urn: str, signal_type: str, state: str) -> None:
        def has_state() -> bool:
            answer = httpx.get(f"{self.server.url}/api/v1/datasets/{urn}/signals/{signal_type}", timeout=20)
            return answer.status_code == httpx.codes.OK and answer.json()["state"] == state

        until(has_state, f"{signal_type} of {urn} is {state}")

    def page(self, path: str) -> str:
        return html.unescape(httpx.get(f"{self.server.url}{path}", timeout=30).text)

    def open_incidents(self, urn: str) -> list[dict[str, Any]]:
        found = self.server.get(f"/incidents?dataset_urn={quote(urn)}")["items"]
        return [each for each in found if each["status"] != "RESOLVED"]

    def run_status(self) -> str:
        runs = self.server.get("/pipelines/report/runs")["runs"]
        return str(runs[0]["status"]) if runs else ""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("dbt") / "shop"
    shutil.copytree(ROOT / "tests" / "acceptance" / "dbt_shop", folder)
    (folder / "pipelines").mkdir()
    (folder / "pipelines" / "report.yaml").write_text(REPORT)
    path = f"{DBT}:{PROGRAM.parent}:{os.environ['PATH']}"
    with Server(folder, "--pipelines", "pipelines", PATH=path) as server:
        yield Shop(folder, server)


def test_dbt__a_project_that_fails_in_every_way__goes_from_red_to_green(shop: Shop) -> None:
    shop.tool("python", "run_dbt.py")

    # A model that fails: signal, evidence, incident and gate, each with the text of dbt.
    printed = shop.headgate("lineage", "dbt", "model_error")
    assert "3 datasets" in printed
    assert "5 results (1 failed)" in printed
    text = "Conversion Error: Could not convert string 'x' to INT32"
    assert text in shop.signal(ORDERS, "JOB_RUN")["message"]
    (incident,) = shop.open_incidents(ORDERS)
    assert text in shop.page(f"/ui/datasets/{ORDERS}")
    assert text in shop.page(f"/ui/incidents/{incident['incident_id']}")
    assert "BLOCK" in shop.headgate("gate", "check", ORDERS, exit_code=20)
    shop.headgate("run", "start", "report", "--date", DAY, "--reason", "the daily report")
    until(lambda: ORDERS in shop.headgate("why", "report", "--date", DAY), "the report is held by the dataset")

    # Tests that fail: one incident with both.
    shop.headgate("lineage", "dbt", "test_failure")
    assert shop.signal(ORDERS, "JOB_RUN")["state"] == "OK"
    assert shop.signal(ORDERS, "DATA_QUALITY")["failure_signatures"] == ["NOT_NULL:amount", "NOT_NULL:id"]
    named = [
        each["failure_signatures"] for each in shop.open_incidents(ORDERS) if "DATA_QUALITY" in each["signal_types"]
    ]
    assert named == [["NOT_NULL:amount", "NOT_NULL:id"]]
    listed = shop.headgate("dataset", "tests", ORDERS)
    assert listed.count("Got 1 result, configured to fail if != 0") == 2
    assert shop.run_status() not in ("COMPLETED", "FAILED")

    # A model that does not compile, and a source that is stale.
    shop.headgate("lineage", "dbt", "compile_error")
    assert "no such currency: EUX" in shop.page(f"/ui/datasets/{REVENUE}")
    shop.headgate("lineage", "dbt", "freshness")
    assert shop.signal(RAW, "FRESHNESS")["failure_signature"] == "STALE:max_loaded_at"
    assert "2020-01-01" in shop.signal(RAW, "FRESHNESS")["message"]

    # Fixed: every signal is OK, and the run that was held is released.
    shop.headgate("lineage", "dbt", "green")
    for urn, signal_type in ((ORDERS, "JOB_RUN"), (ORDERS, "DATA_QUALITY"), (REVENUE, "JOB_RUN")):
        assert (shop.signal(urn, signal_type)["state"], shop.signal(urn, signal_type)["message"]) == ("OK", None)
    until(lambda: shop.run_status() == "COMPLETED", "the held run is released", 60)
    history = shop.headgate("dataset", "tests", ORDERS, "--test", "NOT_NULL:id")
    assert history.count("CRITICAL") == 1, "in the history alone"


def test_dbt_ol__events_of_the_same_project__are_about_the_same_datasets(shop: Shop) -> None:
    before = {each["dataset_urn"] for each in shop.server.get("/datasets")["items"]}

    shop.tool("dbt-ol", "build", "--target-path", "target", "--vars", "{test_failure: true}")

    shop.until_state(ORDERS, "DATA_QUALITY", "CRITICAL")
    quality = shop.signal(ORDERS, "DATA_QUALITY")
    assert quality["failure_signatures"] == ["NOT_NULL:amount", "NOT_NULL:id"]
    assert (quality["metrics"]["evidence_count"], quality["metrics"]["fail_count"]) == (3, 2)
    assert {each["dataset_urn"] for each in shop.server.get("/datasets")["items"]} == before


def test_openlineage_python__a_run_that_fails_and_is_repeated__is_red_and_then_green(shop: Shop) -> None:
    shop.tool("python", "run_dbt.py", shop.server.url)
    shop.until_state(RATES, "JOB_RUN", "CRITICAL")
    assert shop.signal(RATES, "JOB_RUN")["message"] == "rates: HTTP 503 from the bank"

    shop.tool("python", "run_dbt.py", shop.server.url, "--fixed")
    shop.until_state(RATES, "JOB_RUN", "OK")


def test_dbt_page__source_recovers_and_a_test_fails__dbt_runs_and_its_results_are_uploaded(shop: Shop) -> None:
    blocks = re.findall(r"^```(?:sh|yaml)\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    project = shop.folder / "page"
    shutil.copytree(ROOT / "tests" / "acceptance" / "dbt_shop", project / "dbt")
    shutil.copy(shop.folder / "shop.duckdb", project / "dbt")
    for name, text in blocks:
        (project / name).parent.mkdir(exist_ok=True)
        # A model fails, so that the step fails as well; and it is not tried again.
        text = text.replace("day: ${date}", "{test_failure: true}").replace("attempts: 2", "attempts: 1")
        (project / name).write_text(text.replace("http://127.0.0.1:8400", shop.server.url))
    pipelines = shop.folder / "pipelines"
    definition = (project / "pipelines" / "dbt-shop.yaml").read_text()
    (pipelines / "dbt-shop.yaml").write_text(definition.replace("folder: dbt", "folder: page/dbt"))
    shop.headgate("validate", str(project / "pipelines"))
    shop.headgate("reload")
    shop.headgate("signal", "reset", ORDERS, "--reason", "only what the page does counts")

    shop.headgate("run", "start", "dbt-shop", "--date", DAY, "--reason", "the page")
    assert RAW in shop.headgate("period", "why", "dbt-shop", "--date", DAY), "held by its source"
    shop.headgate("signal", "reset", RAW, "--reason", "loaded again")
    shop.headgate("signal", "set", RAW, "FRESHNESS", "OK")

    def run() -> dict[str, Any]:
        found: dict[str, Any] = shop.server.get("/pipelines/dbt-shop/runs")["runs"][0]
        return found

    until(lambda: run()["status"] in ("COMPLETED", "FAILED"), "dbt runs", 60)
    commands = re.findall(r"^\$ headgate (.*)", PAGE.read_text(), re.MULTILINE)
    logs, tests, gate, downstream = (
        run_command.replace('"', "").replace("RUN", run()["run_id"]).split() for run_command in commands
    )
    printed = shop.headgate(*logs)
    assert run()["status"] == "FAILED", printed
    assert "Done. PASS=" in printed
    assert "datasets," in printed
    assert "configured to fail if != 0" in shop.headgate(*tests)
    assert "BLOCK" in shop.headgate(*gate, exit_code=20)
    assert REVENUE in shop.headgate(*downstream)
