"""Pipelines with the installed program against a server: a new project from its first day to a rerun, and refusals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.program import PROGRAM, Server, run, until

DAY: Final = "2026-01-05"
FAILS: Final = """\
id: fails
trigger:
  type: workflow
  check_interval: 1s
  config: {workflow: break_down, input: "${date}"}
retry: {attempts: 1}
"""
BREAKS: Final = """

@app.workflow
async def break_down(day: str) -> int:
    raise ValueError(f"nothing for {day}")
"""


class Project:
    """A project that `headgate init` made, its server, and the program beside it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server

    def said(self, *arguments: str, exit_code: int = 0) -> str:
        ended = run(*arguments, folder=self.folder)
        assert ended.returncode == exit_code, ended.stdout + ended.stderr
        return ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.said(*arguments, "--json"))

    def refused(self, *arguments: str, exit_code: int, code: str, said: str) -> None:
        ended = run(*arguments, folder=self.folder)
        assert (ended.returncode, f"code: {code}" in ended.stderr) == (exit_code, True), ended.stderr
        assert said in ended.stderr
        assert "Traceback" not in ended.stderr

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def until_run(self, pipeline: str, status: str, *, attempts: int = 1) -> dict[str, Any]:
        """Wait until the latest run of a pipeline stands so, and return it."""

        def has_run() -> bool:
            runs = self.server.get(f"/pipelines/{pipeline}/runs")["runs"]
            return len(runs) >= attempts and runs[0]["status"] == status

        until(has_run, f"{pipeline} is {status}", 60)
        latest: dict[str, Any] = self.json("run", "ls", pipeline)[0]
        return latest


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("pipelines") / "shop"
    made = run("init", str(folder), folder=folder.parent)
    assert made.returncode == 0, made.stderr
    definition = folder / "pipelines" / "shop-daily.yaml"
    definition.write_text(definition.read_text().replace("\ntrigger:\n", "\ntrigger:\n  check_interval: 1s\n"))
    app = folder / "app.py"
    app.write_text(app.read_text() + BREAKS)
    (folder / "pipelines" / "broken.yaml").write_text("id: broken\nperiod: dayly\n")
    with Server(folder, "--app", "app:app", "--pipelines", "pipelines") as server:
        yield Project(folder, server)


@pytest.mark.timeout(240)
def test_project__from_its_first_day_to_a_rerun__every_step_is_one_command(project: Project) -> None:
    # One bad file affects no other, and is reported.
    assert [each["id"] for each in project.json("pipeline", "ls")] == ["shop-daily"]
    assert "broken.yaml" in project.server.stderr
    invalid = project.json("pipeline", "events", "--name", "PIPELINE_CONFIG_INVALID")
    assert len(invalid) == 1

    # It waits, and says why.
    project.said("run", "start", "shop-daily", "--date", DAY, "--reason", "the first day")
    until(lambda: "source-ready is missing" in project.said("why", "shop-daily", "--date", DAY), "it was evaluated", 60)
    assert project.json("pipeline", "evaluate", "shop-daily", "--date", DAY)["result"] == "not_ready"

    # The data comes, and everyone can watch what happens.
    with subprocess.Popen(
        [PROGRAM, "pipeline", "events", "shop-daily", "--follow", "--json"],
        cwd=project.folder,
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        text=True,
    ) as following:
        try:
            ready = ("--period", DAY, "--data", '{"status": "ready"}')
            project.said("sensor", "push", "shop-daily", "source-ready", *ready)
            done = project.until_run("shop-daily", "COMPLETED")
            assert following.stdout is not None
            seen: list[dict[str, Any]] = []
            while not seen or seen[-1]["name"] != "PIPELINE_COMPLETED":
                seen.append(json.loads(following.stdout.readline()))
            following.send_signal(signal.SIGINT)
            assert following.wait(30) == 0
        finally:
            following.kill()
    names = [each["name"] for each in seen]
    assert len({each["event_id"] for each in seen}) == len(seen)
    assert names.index("JOB_TRIGGERED") < names.index("JOB_COMPLETED")
    assert project.said("why", "shop-daily", "--date", DAY).startswith(f"shop-daily of {DAY} is done since ")
    assert (done["cause"], done["date"], done["definition_version"]) == ("manual", DAY, 1)

    # Once more, by request.
    project.said("run", "rerun", "shop-daily", "--date", DAY, "--reason", "a typo in the source")
    again = project.until_run("shop-daily", "COMPLETED", attempts=2)
    assert (again["attempt"], again["cause"]) == (2, "rerun")
    (rerun,) = project.json("run", "reruns", "shop-daily")
    assert (rerun["note"], rerun["run_id"] or again["run_id"]) == ("a typo in the source", again["run_id"])
    project.refused(
        "run", "cancel", again["run_id"], "--reason", "x", exit_code=3, code="illegal_transition", said="COMPLETED"
    )


@pytest.mark.timeout(240)
def test_job__that_fails__is_seen_with_its_reason(project: Project) -> None:
    file = project.write("fails.yaml", FAILS)
    assert "fails: new" in project.said("plan", file)
    assert project.said("pipeline", "apply", file, "--reason", "to see it fail") == "fails: version 1, new\n"

    project.said("run", "start", "fails", "--date", DAY, "--reason", "now")
    watched = project.said("run", "watch", "fails", "--date", DAY, "--timeout", "60s", exit_code=1)
    failed = project.until_run("fails", "FAILED")

    assert "FAILED  failed at" in watched.splitlines()[-1]
    assert f"nothing for {DAY}" in failed["reason"]
    assert project.said("why", "fails", "--date", DAY).startswith(f"fails of {DAY} failed at ")
    assert f"nothing for {DAY}" in project.said("period", "ls", "fails")
    assert project.json("run", "jobs", "fails", "--date", DAY)[0]["event"] == "fail"


@pytest.mark.timeout(240)
def test_backfill__of_some_days__does_each_once(project: Project) -> None:
    project.said("sensor", "push", "shop-daily", "source-ready", "--all-periods", "--data", '{"status": "ready"}')
    span = ("--from", "2026-02-02", "--to", "2026-02-04", "--concurrency", "2", "--reason", "history")
    made = project.json("backfill", "create", "shop-daily", *span)

    watched = project.said("backfill", "watch", made["backfill_id"], "--timeout", "90s", "--json")
    assert json.loads(watched.splitlines()[-1])["state"] == "COMPLETED"

    shown = project.json("backfill", "show", made["backfill_id"])
    assert (shown["succeeded"], shown["failed"]) == (3, {})
    logs = project.json("period", "ls", "shop-daily", "--dates", "2026-02")
    assert [(each["date"], each["status"], each["attempts"]) for each in logs] == [
        ("2026-02-04", "COMPLETED", 1),
        ("2026-02-03", "COMPLETED", 1),
        ("2026-02-02", "COMPLETED", 1),
    ]
    assert "3 completed" in project.said("backfill", "create", "shop-daily", *span, "--dry-run")


@pytest.mark.timeout(60)
def test_watch__on_a_terminal__is_coloured(project: Project) -> None:
    # A date of its own: other tests of the project run theirs before or after.
    project.said("period", "mark-success", "shop-daily", "2026-01-07", "--reason", "by hand")
    terminal, inner = pty.openpty()
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        ended = subprocess.run(
            [PROGRAM, "run", "watch", "shop-daily", "--date", "2026-01-07"],
            cwd=project.folder,
            env={"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLUMNS": "80"},
            stdout=inner,
            check=False,
            timeout=30,
        )
        os.close(inner)
        shown = screen.read(65_536).decode()

    assert ended.returncode == 0
    assert "\x1b[32mCOMPLETED\x1b[0m" in shown
    assert "marked by" in shown


@pytest.mark.timeout(120)
def test_refusals__of_every_family__have_their_exit_codes(project: Project) -> None:
    wrong = project.write("wrong.yaml", "id: wrong\nperiod: dayly\n")
    command = project.write("cmd.yaml", 'id: cmd\ntrigger:\n  type: command\n  config: {command: ["true"]}\n')

    project.refused("validate", wrong, exit_code=2, code="bad_definition", said="wrong.yaml:2:9: period")
    project.refused("pipeline", "apply", wrong, exit_code=2, code="bad_definition", said="wrong.yaml:2:9: period")
    project.refused(
        "pipeline", "apply", command, exit_code=2, code="bad_definition", said="runs a program on the server"
    )
    project.refused(
        "calendar", "put", "c", "--holidays", "Atlantis", exit_code=2, code="bad_definition", said="Atlantis"
    )
    project.refused("why", "nope", exit_code=4, code="not_found", said="nope")
    project.refused("why", "shop-daily", "--date", "05.01.2026", exit_code=2, code="bad_payload", said="05.01.2026")
    approve = ("period", "approve", "shop-daily", "2026-03-01", "--reason", "x")
    project.refused(*approve, exit_code=3, code="illegal_transition", said="it is not held")
    elsewhere = ("--server", "http://127.0.0.1:9")
    project.refused("pipeline", "ls", *elsewhere, exit_code=75, code="transient", said="no server is running there")
