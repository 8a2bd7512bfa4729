"""The loop with the installed program, without a restart: a failed fan-out is redriven, definitions are reloaded."""

from __future__ import annotations

import html
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.acceptance.program import Server, run, until

DAY: Final = "2026-01-05"
ORDERS: Final = "urn:dp:shop:orders:v1"
BROKEN: Final = """\
import json

def count(lines: list[str]) -> int:
    return sum(json.loads(line)["amount"] for line in lines)

def add(numbers: list[int]) -> int:
    return sum(numbers)
"""
FIXED: Final = BROKEN.replace('["amount"]', '.get("amount", 0)')
BRONZE: Final = """\
id: bronze
writes: [urn:dp:shop:orders:v1]
trigger:
  type: fan-out
  check_interval: 1s
  config: {handler: "totals:count", lines: LINES, chunk_size: 1, policy: {max_attempts: 1}}
retry: {attempts: 1}
"""
SILVER: Final = """\
id: silver
schedules: [{upstream: [{pipeline: bronze}]}]
readiness: {rules: [{dataset: urn:dp:shop:orders:v1}]}
trigger: {type: fan-out, check_interval: 1s, config: {handler: "totals:add", range: [0, 2]}}
"""
COMMAND: Final = 'id: tidy\nretry: {attempts: 1}\ntrigger: {type: command, config: {command: ["%s"]}}\n'


class Shop:
    """A project folder, its server, and the program beside it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server

    def ended(self, *arguments: str) -> tuple[int, str, str]:
        ended = run(*arguments, folder=self.folder)
        assert "Traceback" not in ended.stderr, ended.stderr
        return ended.returncode, ended.stdout, ended.stderr

    def said(self, *arguments: str) -> str:
        exit_code, stdout, stderr = self.ended(*arguments)
        assert exit_code == 0, stdout + stderr
        return stdout

    def define(self, name: str, text: str) -> None:
        (self.folder / "pipelines" / f"{name}.yaml").write_text(text)

    def version(self, pipeline: str) -> int:
        return int(self.server.get(f"/pipelines/{pipeline}")["version"])

    def runs(self, pipeline: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.server.get(f"/pipelines/{pipeline}/runs")["runs"]
        return found

    def until_run(self, pipeline: str, status: str) -> str:
        until(lambda: [each["status"] for each in self.runs(pipeline)[:1]] == [status], f"{pipeline} is {status}", 60)
        return str(self.runs(pipeline)[0]["run_id"])


def write_project(folder: Path) -> None:
    (folder / "pipelines").mkdir(parents=True)
    (folder / "totals.py").write_text(BROKEN)
    (folder / "app.py").write_text('import headgate as hg\n\napp = hg.App("shop")\n')
    lines = folder / "lines.jsonl"
    lines.write_text("".join(json.dumps(each) + "\n" for each in ({"amount": 1}, {"total": 2}, {"amount": 3})))
    (folder / "pipelines" / "bronze.yaml").write_text(BRONZE.replace("LINES", str(lines)))
    (folder / "pipelines" / "silver.yaml").write_text(SILVER)
    (folder / "pipelines" / "tidy.yaml").write_text(COMMAND % "true")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("loop") / "shop"
    write_project(folder)
    with Server(folder, "--app", "app:app", "--pipelines", "pipelines") as server:
        yield Shop(folder, server)


def test_redrive__of_a_failed_run__completes_it_and_everything_downstream(shop: Shop) -> None:
    shop.said("run", "start", "bronze", "--date", DAY, "--reason", "a first try")
    run_id = shop.until_run("bronze", "FAILED")
    command = f"headgate fanout redrive {run_id} --failed"
    assert f"1 of 3 chunks failed; see: headgate fanout failures {run_id}" in shop.said("why", "bronze", "--date", DAY)
    assert command in shop.said("why", "bronze", "--date", DAY)
    until(lambda: "BLOCK" in shop.ended("gate", "check", ORDERS)[1], "the dataset is blocked")

    (shop.folder / "totals.py").write_text(FIXED)
    shop.said(*command.split()[1:])

    shop.until_run("bronze", "COMPLETED")
    shop.until_run("silver", "COMPLETED")
    why = shop.said("why", "bronze", "--date", DAY)
    assert f"bronze of {DAY} is done since" in why
    assert f"by {run_id} after a repair of its job; it had failed: fan-out {run_id} ended as PARTIAL" in why
    (own,) = shop.runs("bronze")
    assert [each["status"] for each in own["transitions"]][-2:] == ["FAILED", "COMPLETED"]
    # The incident resolves itself after a quiet time; until then the gate warns.
    signal_path = f"/datasets/{ORDERS}/signals/PIPELINE_RUN"
    until(lambda: shop.server.get(signal_path)["state"] == "OK", "the dataset is healthy")
    assert "BLOCK" not in shop.ended("gate", "check", ORDERS)[1]


def test_reload__command_pipeline_changed_and_one_file_broken__loads_the_rest_and_says_so(shop: Shop) -> None:
    tidy, bronze = shop.version("tidy"), shop.version("bronze")
    shop.define("tidy", COMMAND % "false")
    shop.define("gold", "id: gold\nperiod: dayly\n")

    exit_code, stdout, stderr = shop.ended("reload")

    assert (exit_code, shop.version("tidy"), shop.version("bronze")) == (2, tidy + 1, bronze)
    assert f"tidy: changed, version {tidy + 1}" in stdout
    assert "gold.yaml:2:9: period" in stderr
    (shop.folder / "headgate.toml").write_text('[pipelines]\nfolder = "pipelines"\n')
    assert "gold.yaml:2:9: period" in shop.ended("doctor")[1]
    # It may run: the seal is that of the new version.
    shop.said("run", "start", "tidy", "--date", DAY, "--reason", "does it run")
    shop.until_run("tidy", "FAILED")

    (shop.folder / "pipelines" / "gold.yaml").unlink()
    shop.define("tidy", COMMAND % "true")
    shop.server.signal(signal.SIGHUP)
    until(lambda: shop.version("tidy") == tidy + 2, "SIGHUP loads the folder")
    assert shop.server.process.poll() is None


def test_apply__changed_over_the_api__stays_until_the_file_changes(shop: Shop) -> None:
    file = shop.folder / "pipelines" / "silver.yaml"
    other = shop.folder / "silver-v2.yaml"
    other.write_text(f"{SILVER}description: over the API\n")
    version = shop.version("silver")
    shop.said("pipeline", "apply", str(other))

    reloaded = shop.said("reload")
    shown = shop.said("pipeline", "show", "silver")

    assert shop.version("silver") == version + 1
    assert "silver: kept, version" in reloaded
    assert "API: by" in shown
    assert "silver.yaml@" in shown
    assert "stays in force until the file changes" in shown

    file.write_text(f"{SILVER}description: from the file\n")
    assert f"silver: replaced, version {version + 2}: replaced version {version + 1} of the API" in shop.said("reload")
    events = shop.server.get("/pipelines/silver/events?limit=50")["events"]
    assert "PIPELINE_REPLACED" in [each["name"] for each in events]


def test_rerun__beyond_its_budget__is_rejected_with_exit_code_and_reason(shop: Shop) -> None:
    day = "2026-01-06"
    rerun = ("run", "rerun", "tidy", "--date", day, "--reason", "once more")

    def ended() -> int:
        return sum(each["date"] == day and each["ended_at"] is not None for each in shop.runs("tidy"))

    shop.said("run", "start", "tidy", "--date", day, "--reason", "a first run")
    until(lambda: ended() == 1, "the first run ended")
    shop.said(*rerun)
    until(lambda: ended() == 2, "the rerun ended")

    exit_code, _, stderr = shop.ended(*rerun)

    assert exit_code == 3
    assert "REJECTED, 1 of 1 manual reruns of the period are used up; force it, or raise budgets.manual" in stderr
    assert "was rejected at" in shop.said("why", "tidy", "--date", day)


READER: Final = """\
id: reader
schedules: [{cron: "0 6 * * *"}]
readiness: {rules: [{dataset: urn:dp:shop:ordres:v1}]}
trigger: {type: fan-out, config: {handler: "totals:add", range: [0, 2]}}
"""


def test_dataset_rule__not_registered__is_reported_by_plan_apply_reload_why_and_the_pages(shop: Shop) -> None:
    name = "urn:dp:shop:ordres:v1"
    warning = f"dataset {name} of a rule is not registered, and no pipeline writes it; did you mean {ORDERS}?"
    remedy = f"headgate dataset register {name}"
    applied = shop.folder / "reader.yaml"
    applied.write_text(READER)

    for arguments in (("plan", str(applied)), ("pipeline", "apply", str(applied))):
        exit_code, _, stderr = shop.ended(*arguments)
        assert exit_code == 0, stderr
        assert f"reader.yaml:1: warning: {warning}" in stderr, arguments
        assert remedy in stderr, arguments
    planned = httpx.post(f"{shop.server.url}/api/v1/pipelines/plan", content=READER).json()
    assert warning in planned["warnings"][0]["text"]
    # The dataset of silver has a writer.
    assert "warning" not in shop.ended("plan", str(shop.folder / "pipelines" / "silver.yaml"))[2]

    shop.define("reader", READER.replace("0 6", "0 7"))
    exit_code, _, stderr = shop.ended("reload")
    assert (exit_code, f"reader.yaml:1: warning: {warning}" in stderr) == (0, True), stderr
    assert warning in html.unescape(httpx.get(f"{shop.server.url}/ui/pipelines").text)

    shop.said("run", "start", "reader", "--date", DAY, "--reason", "a look")
    fact = f"{name} is not registered; correct the name, or run '{remedy}'"
    until(lambda: fact in shop.said("why", "reader", "--date", DAY), "why names the dataset and the remedy", 60)
    assert f"UNKNOWN  {name}" in shop.ended("gate", "check", name)[1]

    shop.said("dataset", "register", name)
    assert "warning" not in shop.ended("reload")[2]
    (shop.folder / "pipelines" / "reader.yaml").unlink()
