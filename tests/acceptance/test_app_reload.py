"""`headgate up --reload`: changed code answers, and what runs is not lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.program import Server, run, until

_APP = """
import time
from pathlib import Path

import headgate as hg

app = hg.App("shop")


@app.activity
def hold() -> str:
    with Path("held").open("a") as file:
        file.write("x")
    while not Path("go").exists():
        time.sleep(0.05)
    return "held by VERSION"


@app.workflow
async def slow() -> str:
    return await hold()


@app.workflow
async def answer() -> str:
    return "VERSION"
"""


def answered(folder: Path) -> str:
    """Start an execution, and return its result."""
    started = run("execution", "start", "answer", "--json", folder=folder)
    assert started.returncode == 0, started.stderr
    result = run("execution", "result", json.loads(started.stdout)["id"], "--wait", "20s", folder=folder)
    assert result.returncode == 0, result.stderr
    return str(json.loads(result.stdout))


def test_reload__code_changes_while_an_activity_runs__new_code_answers_and_the_activity_ends(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(_APP.replace("VERSION", "v1"))
    with Server(tmp_path, "--reload", "--app", "shop:app") as server:
        # As soon as the server says that it is ready.
        assert answered(tmp_path) == "v1"
        assert run("execution", "start", "slow", "--id", "e", folder=tmp_path).returncode == 0
        until((tmp_path / "held").exists, "the activity runs")

        (tmp_path / "shop.py").write_text("def broken(:\n")
        until(lambda: "app not loaded; the code loaded before stays in use" in server.stderr, "the error")
        assert "shop.py, line 1: SyntaxError" in server.stderr
        assert answered(tmp_path) == "v1"

        (tmp_path / "shop.py").write_text(_APP.replace("VERSION", "v2"))
        until(lambda: "app reloaded" in server.stderr, "the new code")
        assert answered(tmp_path) == "v2"
        assert server.get("/executions/e")["status"] == "RUNNING"
        (tmp_path / "go").touch()
        until(lambda: server.get("/executions/e")["status"] == "SUCCEEDED", "the execution ends")

        assert run("execution", "result", "e", folder=tmp_path).stdout == '"held by v1"\n'
        assert (tmp_path / "held").read_text() == "x"


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        (
            ["--http", "0.0.0.0:0", "--behind-proxy"],
            {"HEADGATE_ALLOWED_HOSTS": "a.example"},
            "is not a loopback address",
        ),
        ([], {"HEADGATE_AUTH_REQUIRED": "true"}, "not with auth.required"),
    ],
)
def test_reload__not_in_development__is_refused(
    tmp_path: Path, arguments: list[str], environ: dict[str, str], said: str
) -> None:
    ended = run("up", "--reload", *arguments, folder=tmp_path, **environ)

    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
