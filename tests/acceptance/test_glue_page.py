"""The page on Glue jobs: its pipeline and commands, with a Glue job of MiniStack that succeeds and one that fails.

`make soak` runs it, because MiniStack and the server take some ten seconds.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.program import Server, run, until
from tests.ministack import REGION, Ministack, aws_session, fresh_account

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "run-a-glue-job.md"
ORDERS: Final = "urn:dp:shop:orders:v1"
SILVER: Final = "urn:dp:shop:orders_silver:v1"


def shown(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def glue(tmp_path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    (tmp_path / "ministack").mkdir()
    emulator = Ministack.start(tmp_path / "ministack")
    account = fresh_account()
    environ = {
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "-",
        "HEADGATE_STORE_AWS_REGION": REGION,
        "HEADGATE_STORE_AWS_ENDPOINT_URL": emulator.endpoint,
    }
    yield aws_session(account).client("glue", endpoint_url=emulator.endpoint), environ
    emulator.stop()


@pytest.mark.skipif("HEADGATE_TEST_PAGES" not in os.environ, reason="make soak runs it")
def test_glue_page__job_that_succeeds_and_then_fails__runs_once_for_each_run(
    tmp_path: Path, glue: tuple[Any, dict[str, str]]
) -> None:
    client, environ = glue
    script = tmp_path / "script.py"
    command = {"Name": "pythonshell", "ScriptLocation": str(script)}
    client.create_job(Name="orders-silver", Role="arn:aws:iam::123456789012:role/glue", Command=command)
    folder = tmp_path / "project"
    (folder / "pipelines").mkdir(parents=True)
    definition = (
        shown("yaml").replace("check_interval: 30s", "check_interval: 1s").replace("attempts: 3", "attempts: 1")
    )
    (folder / "pipelines" / "orders-silver.yaml").write_text(definition)

    def headgate(*arguments: str) -> str:
        ended = run(*arguments, folder=folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    with Server(folder, "--pipelines", "pipelines", **environ) as server:

        def until_status(date: str, status: str) -> dict[str, Any]:
            def listed() -> list[dict[str, Any]]:
                runs = server.get("/pipelines/orders-silver/runs")["runs"]
                return [each for each in runs if each["date"] == date]

            until(lambda: any(each["status"] == status for each in listed()), f"{date} is {status}", 60)
            return listed()[0]

        headgate("dataset", "register", ORDERS)
        script.write_text("print('12 rows')")
        *before, why, ls = (line.removeprefix("$ headgate ") for line in shown("console").splitlines())
        for line in before:
            headgate(*re.findall(r'"[^"]*"|\S+', line.replace('"first run"', "first")))
        until_status("2026-01-05", "COMPLETED")
        assert "is done since" in headgate(*why.split())
        assert "COMPLETED" in headgate(*ls.split())

        script.write_text("raise KeyError('amount')")
        headgate("run", "start", "orders-silver", "--date", "2026-01-06", "--reason", "it fails")
        failed = until_status("2026-01-06", "FAILED")

        assert "KeyError" in json.dumps(failed)
        runs = client.get_job_runs(JobName="orders-silver")["JobRuns"]
        assert sorted(each["Arguments"]["--day"] for each in runs) == ["2026-01-05", "2026-01-06"]
        assert "BLOCK" in run("gate", "check", SILVER, folder=folder).stdout


def test_glue_page__policy__allows_what_the_trigger_calls() -> None:
    source = (PAGE.parents[2] / "src" / "headgate" / "triggers" / "aws" / "glue.py").read_text()
    calls = {name.replace("_", "") for name in re.findall(r"(?:glue|starter)\.(\w+_job_runs?)\b", source)}
    statements = json.loads(shown("json"))["Statement"]
    allowed = {action.partition(":")[2].lower() for action in statements[0]["Action"]}

    assert {"startjobrun", "getjobrun"} <= calls <= allowed
    assert statements[1]["Action"] == "logs:FilterLogEvents"
