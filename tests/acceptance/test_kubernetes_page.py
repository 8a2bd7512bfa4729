"""The page on Kubernetes Jobs: its script against a stand-in for kubectl, which keeps Jobs in files.

No cluster runs here; what is tested is the script and the definition.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.program import run, until

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "run-a-kubernetes-job.md"
NAME: Final = "score-2026-01-05t06"
KUBECTL: Final = """\
#!{python}
import json, sys
from pathlib import Path

jobs, verb, rest = Path("jobs"), sys.argv[1], sys.argv[2:]
with Path("calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:3]) + "\\n")
if Path("down").exists():
    Path("down").unlink()
    sys.exit("Unable to connect to the server: dial tcp: connection refused")
if verb == "create":
    job = json.load(sys.stdin)
    path = jobs / job["metadata"]["name"]
    if path.exists():
        sys.exit("Error from server (AlreadyExists)")
    path.write_text(json.dumps(job))
elif verb == "logs":
    print("scored 12 orders")
else:
    path = jobs / rest[1]
    if not path.exists() and "--ignore-not-found" not in rest:
        sys.exit("Error from server (NotFound): jobs.batch not found")
    if verb == "get" and path.exists():
        print(path.read_text())
    elif verb == "delete":
        path.unlink(missing_ok=True)
"""


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs").mkdir()
        (folder / "bin").mkdir()
        kubectl = folder / "bin" / "kubectl"
        kubectl.write_text(KUBECTL.format(python=sys.executable))
        kubectl.chmod(0o755)
        (script,) = re.findall(r"^```python\n# jobs/run_job.py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        (folder / "run_job.py").write_text(script.replace("POLL_SECONDS = 5.0", "POLL_SECONDS = 0.02"))
        self.running: list[subprocess.Popen[str]] = []

    def start(self) -> subprocess.Popen[str]:
        environ = {
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HEADGATE_PIPELINE": "score",
            "HEADGATE_DATE": "2026-01-05T06",
        }
        command = [sys.executable, "run_job.py", "registry.example/score:1.4", "--date", "2026-01-05T06"]
        process = subprocess.Popen(command, cwd=self.folder, env=environ, text=True, stdout=subprocess.PIPE)
        self.running.append(process)
        return process

    def job(self) -> dict[str, Any] | None:
        path = self.folder / "jobs" / NAME
        return json.loads(path.read_text()) if path.exists() and path.read_text() else None

    def end(self, kind: str, message: str = "") -> None:
        """End the Job, as the cluster does."""
        until(lambda: self.job() is not None, "the Job is created")
        condition = {"type": kind, "status": "True", "message": message}
        written = self.folder / "ended"
        written.write_text(json.dumps({**(self.job() or {}), "status": {"conditions": [condition]}}))
        written.replace(self.folder / "jobs" / NAME)

    def calls(self, call: str) -> int:
        path = self.folder / "calls"
        return path.read_text().splitlines().count(call) if path.exists() else 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    yield found
    for process in found.running:
        process.kill()
        process.communicate()


def test_kubernetes__job_that_completes__prints_its_output_and_exits_0(cluster: Cluster) -> None:
    process = cluster.start()
    until(lambda: cluster.calls("get job") > 2, "the script polls")
    job = cluster.job()
    assert job is not None
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["template"]["spec"]["containers"][0]["args"] == ["--date", "2026-01-05T06"]
    (cluster.folder / "down").touch()
    until(lambda: not (cluster.folder / "down").exists(), "the cluster did not answer once")
    cluster.end("Complete")

    printed, _ = process.communicate(timeout=20)

    assert process.returncode == 0, printed
    assert "connection refused" in printed
    assert printed.endswith(f"scored 12 orders\njob {NAME}: Complete\n")


def test_kubernetes__job_that_fails__exits_1_with_the_reason_and_the_next_attempt_replaces_it(cluster: Cluster) -> None:
    process = cluster.start()
    cluster.end("Failed", "Job has reached the specified backoff limit")
    printed, _ = process.communicate(timeout=20)
    assert (process.returncode, printed.splitlines()[-1]) == (
        1,
        f"job {NAME}: Failed Job has reached the specified backoff limit",
    )

    again = cluster.start()
    until(lambda: cluster.calls("create --filename=-") == 2, "the Job is created again")
    cluster.end("Complete")
    assert again.wait(20) == 0


def test_kubernetes__script_was_killed__next_attempt_waits_for_the_same_job(cluster: Cluster) -> None:
    first = cluster.start()
    until(lambda: cluster.job() is not None, "the Job is created")
    first.kill()
    first.wait()

    second = cluster.start()
    until(lambda: cluster.calls("get job") > 2, "the script polls")
    cluster.end("Complete")

    assert second.wait(20) == 0
    assert cluster.calls("create --filename=-") == 1


def test_kubernetes__run_is_cancelled__job_is_deleted(cluster: Cluster) -> None:
    process = cluster.start()
    until(lambda: cluster.calls("get job") > 1, "the script polls")

    process.send_signal(signal.SIGTERM)

    assert process.wait(20) == 143
    assert cluster.job() is None


def test_kubernetes__definition_of_the_page__is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "score.yaml").write_text(text)

    ended = run("pipeline", "validate", "score.yaml", folder=tmp_path)

    assert ended.returncode == 0, ended.stdout + ended.stderr
