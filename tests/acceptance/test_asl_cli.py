"""`headgate asl` as the installed program: alone on a home of its own, and against a server that really runs."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.program import PROGRAM, Server, _environ, run, until

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
APP: Final = "examples.asl.app:app"
WAITS: Final = {
    "StartAt": "First",
    "States": {
        "First": {"Type": "Task", "Resource": "evaluate", "ResultPath": None, "Next": "Long"},
        "Long": {"Type": "Wait", "SecondsPath": "$.seconds", "Next": "Last"},
        "Last": {"Type": "Task", "Resource": "start_job", "End": True},
    },
}


class Place:
    """A folder with the examples and tables, and the program run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(EXAMPLES, folder / "examples", dirs_exist_ok=True)
        (folder / "tables").mkdir()
        (folder / "tables" / "orders").write_text("june july !august")
        (folder / "waits.json").write_text(json.dumps(WAITS))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run("asl", *arguments, folder=self.folder)

    def said(self, *arguments: str) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.said(*arguments, "--json"))

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start the program, and leave it running with what it says of its progress in a file."""
        with (self.folder / "progress").open("w") as progress:
            return subprocess.Popen(
                [PROGRAM, "asl", "run", *arguments],
                cwd=self.folder,
                env=_environ({}),
                stdout=subprocess.PIPE,
                stderr=progress,
                text=True,
            )

    @property
    def progress(self) -> str:
        return (self.folder / "progress").read_text()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("served")
    made = Place(folder)
    with Server(folder, "--app", APP):
        yield made


def _eventually(condition: Callable[[], bool], what: str) -> None:
    until(condition, what, 20)


# Alone


def test_run__file__shows_every_state_and_prints_the_output(place: Place) -> None:
    file = "examples/asl/check-partitions.asl.json"

    ended = place.run("run", file, "--app", APP, "--input", '{"table": "orders"}', "--name", "one")

    assert (ended.returncode, json.loads(ended.stdout)) == (
        0,
        {"table": "orders", "count": 3, "missing": ["!august"]},
    ), ended.stderr
    for words in ("✓ ListPartitions", "CheckPartitions: 3 items", "[2] ✗ CheckPartition  Partition.Missing: august"):
        assert words in ended.stderr
    assert ended.stderr.index("▶ ListPartitions") < ended.stderr.index("▶ Summarize")


def test_run__interrupted__stops_the_execution(place: Place) -> None:
    running = place.begin("waits.json", "--app", APP, "--input", '{"seconds": 600, "pipeline": "p"}', "--name", "one")
    _eventually(lambda: "▶ Long" in place.progress, "the long wait")

    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=30)

    assert (running.returncode, output) == (130, "")
    assert "✗ Long  aborted" in place.progress
    assert "ended ABORTED: interrupted" in place.progress
    again = place.run(
        "run", "waits.json", "--app", APP, "--input", '{"seconds": 600, "pipeline": "p"}', "--name", "one"
    )
    assert (again.returncode, "ended ABORTED" in again.stderr) == (1, True)


def test_run__killed_in_the_middle__goes_on_under_the_same_name(place: Place) -> None:
    given = ("waits.json", "--app", APP, "--input", '{"seconds": 3, "pipeline": "p", "job": "j"}', "--name", "one")
    running = place.begin(*given)
    _eventually(lambda: "▶ Long" in place.progress, "the wait")
    running.kill()
    running.communicate(timeout=30)

    ended = place.run("run", *given)

    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"started": "j"}), ended.stderr
    assert ended.stderr.startswith("waits:one already exists\n")
    assert ended.stderr.count("▶ First") == 1


# With a server


def test_machine__kept_and_run_by_name__is_shown_in_the_words_of_step_functions(served: Place) -> None:
    file = "examples/asl/check-partitions.asl.json"

    assert served.said("put", "check", file) == "check: version 1\n"
    assert served.said("put", "check", file) == "check: version 1\n"
    ended = served.run("run", "check", "--input", '{"table": "orders"}', "--name", "one")

    assert (ended.returncode, json.loads(ended.stdout)["count"]) == (0, 3), ended.stderr
    assert "✓ Summarize" in ended.stderr
    assert "check" in served.said("ls")
    # The lifecycle of pipelines is a machine too.
    assert [each["name"] for each in served.json("ls")] == ["check", "headgate-lifecycle"]
    assert served.json("show", "check")["definition"] == json.loads((served.folder / file).read_text())
    assert [each["id"] for each in served.json("executions", "check")] == ["check:one"]
    assert served.json("describe", "check:one")["status"] == "SUCCEEDED"
    types = [each["type"] for each in served.json("history", "check:one")["events"]]
    assert (types[0], types[-1], types.count("MapIterationSucceeded")) == ("ExecutionStarted", "ExecutionSucceeded", 3)
    backwards = [each["type"] for each in served.json("history", "check:one", "--reverse")["events"]]
    assert backwards == types[::-1]
    assert "[2] CheckPartition" in served.said("history", "check:one")
    assert "↷ CheckPartition" in served.said("graph", "check", "--execution", "check:one")
    served.said("graph", "check", "--execution", "check:one", "-o", "check.svg")
    assert (served.folder / "check.svg").read_text().startswith("<svg")


def test_machine__failed_and_redriven__goes_on(served: Place) -> None:
    served.said("put", "mended", "examples/asl/check-partitions.asl.json")
    failed = served.run("run", "mended", "--input", '{"table": "returns"}', "--name", "one")
    (served.folder / "tables" / "returns").write_text("june")

    said = served.said("redrive", "mended:one")
    _eventually(lambda: served.json("describe", "mended:one")["status"] == "SUCCEEDED", "the end")

    assert (failed.returncode, failed.stdout) == (1, "")
    assert "ended FAILED: FileNotFoundError" in failed.stderr
    assert said == "mended:one: resumed, redrive 1\n"
    refused = served.run("redrive", "mended:one")
    assert (refused.returncode, "code: conflict" in refused.stderr) == (3, True)


def test_task__reported_by_its_token__ends_the_wait(served: Place) -> None:
    served.said("put", "approval", "examples/asl/ask-for-approval.asl.json")
    started = served.said("run", "approval", "--input", '{"table": "t", "reminders": 0}', "--name", "one", "--detach")
    token = served.folder / "approval.token"
    _eventually(token.exists, "the token")
    _eventually(lambda: served.json("describe", "approval:one").get("states") == ["Ask"], "the question")

    assert started == "approval:one\n"
    assert served.said("task", "heartbeat", token.read_text()) == "heartbeat reported\n"
    assert served.json("task", "succeed", token.read_text(), "--output", '{"approved": true}') == {"told": "success"}
    _eventually(lambda: served.json("describe", "approval:one")["status"] == "SUCCEEDED", "the end")
    late = served.run("task", "fail", token.read_text(), "--error", "E")
    assert (late.returncode, "code: stale_claim" in late.stderr) == (3, True)
    forged = served.run("task", "heartbeat", "x.y.z")
    assert (forged.returncode, "code: bad_signature" in forged.stderr) == (2, True)


def test_stop__running__is_aborted(served: Place) -> None:
    served.said("put", "waits", "waits.json")
    served.said("run", "waits", "--input", '{"seconds": 600, "pipeline": "p"}', "--name", "one", "--detach")
    _eventually(lambda: served.json("describe", "waits:one").get("states") == ["Long"], "the long wait")

    assert served.said("stop", "waits:one", "--cause", "enough") == "waits:one: stop requested\n"
    _eventually(lambda: served.json("describe", "waits:one")["status"] == "ABORTED", "the end")
    assert [each["id"] for each in served.json("executions", "waits", "--status", "ABORTED")] == ["waits:one"]
    assert served.said("executions", "waits", "--status", "FAILED") == "no executions\n"


def test_run__interrupted_while_a_server_runs_it__stops_it_there(served: Place) -> None:
    served.said("put", "interrupted", "waits.json")
    running = served.begin("interrupted", "--input", '{"seconds": 600, "pipeline": "p"}', "--name", "one")
    _eventually(lambda: "▶ Long" in served.progress, "the long wait")

    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)

    assert running.returncode == 130
    assert served.json("describe", "interrupted:one")["status"] == "ABORTED"
