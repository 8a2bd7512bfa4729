"""Rolling deploys with the installed program: workers with old and new code beside each other on one store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections import Counter, deque
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import httpx
import pytest

from tests.acceptance.program import PROGRAM, Server, run, until

OLD: Final = """
import headgate as hg

app = hg.App("shop")


@app.activity
def do(step: str) -> str:
    return step


@app.workflow
async def order(number: int) -> list[str]:
    done = [await do("reserve")]
    await hg.wait_signal("go")
    done.append(await do("charge"))
    # A timer fires in any worker of the fleet.
    for _ in range(4):
        await hg.sleep(0.2)
    done.append(await do("ship"))
    return done
"""
NEW: Final = OLD.replace(
    '    done.append(await do("charge"))\n',
    '    if hg.patched("check-first"):\n        done.append(await do("check"))\n    done.append(await do("charge"))\n',
)
PLAIN: Final = ["reserve", "charge", "ship"]
CHECKED: Final = ["reserve", "check", "charge", "ship"]


class CodeVersion:
    """A folder with the code of an app."""

    def __init__(self, folder: Path, source: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        (folder / "shop.py").write_text(source)


class WorkerProcess:
    """A running `headgate worker` with one version of the code."""

    def __init__(self, code: CodeVersion, home: Path, name: str, *options: str) -> None:
        self._log = code.folder / f"{name}.log"
        environ = {"PATH": os.environ["PATH"], "HEADGATE_WORKER_LEASE_SECONDS": "2"}
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [PROGRAM, "worker", "--home", home, "--app", "shop:app", *options],
                cwd=code.folder,
                env=environ,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        until(self._is_ready, f"worker {name}")

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"it ended: {self.log}"
        return "headgate worker ready" in self.log

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, self.log

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def old(tmp_path: Path) -> CodeVersion:
    return CodeVersion(tmp_path / "old", OLD)


@pytest.fixture
def new(tmp_path: Path) -> CodeVersion:
    return CodeVersion(tmp_path / "new", NEW)


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{server.url}/api/v1{path}", json=body, timeout=20.0)
    assert answer.status_code in {200, 201, 202}, answer.text
    return answer.json()


def start(server: Server, execution_id: str, workflow: str = "order") -> str:
    post(server, "/executions", {"workflow": workflow, "input": 1, "id": execution_id})
    return execution_id


def go(server: Server, execution_id: str) -> None:
    post(server, f"/executions/{execution_id}/signals", {"name": "go"})


def statuses(server: Server) -> Counter[str]:
    return Counter(each["status"] for each in server.get("/executions?workflow=order&limit=1000")["executions"])


def result(server: Server, execution_id: str) -> Any:
    return server.get(f"/executions/{execution_id}/result?wait=30s")["result"]


def test_rolling_deploy__old_worker_beside_new_server__no_execution_is_stuck(
    tmp_path: Path, old: CodeVersion, new: CodeVersion
) -> None:
    home = tmp_path / "home"
    with (
        Server(new.folder, "--home", str(home), "--app", "shop:app", HEADGATE_WORKER_LEASE_SECONDS="2") as server,
        WorkerProcess(old, home, "old"),
    ):
        ids = [start(server, f"order-{number}") for number in range(30)]
        for each in ids:
            go(server, each)
        until(lambda: statuses(server)["RUNNING"] == 0, "the end of all executions", 90)
        assert statuses(server) == {"SUCCEEDED": 30}
        assert {str(result(server, each)) for each in ids} <= {str(PLAIN), str(CHECKED)}


class Load(threading.Thread):
    """Starts an execution every few moments, and signals each a moment later."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._stopping = threading.Event()
        self.ids: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            waiting: deque[str] = deque()
            while not self._stopping.wait(0.05):
                waiting.append(start(self._server, f"load-{len(self.ids)}"))
                self.ids.append(waiting[-1])
                if len(waiting) > 5:
                    go(self._server, waiting.popleft())
            for each in waiting:
                go(self._server, each)
        except BaseException as exc:  # Reported by `stop`.
            self.error = exc

    def stop(self) -> None:
        self._stopping.set()
        self.join(60)
        assert self.error is None, self.error


def test_roll__fleet_from_old_to_new_and_back_under_load__no_execution_is_stuck_or_lost(
    tmp_path: Path, old: CodeVersion, new: CodeVersion
) -> None:
    home = tmp_path / "home"
    with ExitStack() as stack:
        server = stack.enter_context(Server(tmp_path / "server", "--home", str(home)))

        def join(code: CodeVersion, name: str) -> WorkerProcess:
            return stack.enter_context(WorkerProcess(code, home, name))

        first = [join(old, "old-1"), join(old, "old-2")]
        load = Load(server)
        load.start()
        second = []
        for place, worker in enumerate(first):
            second.append(join(new, f"new-{place}"))
            worker.stop()
        join(old, "old-3")
        second[0].stop()
        join(old, "old-4")
        load.stop()
        # Executions with the mark of the patch end before the last worker that knows it goes.
        until(lambda: statuses(server)["SUCCEEDED"] == len(load.ids), "the end of all executions", 90)
        second[1].stop()
        go(server, start(server, "last"))
        assert result(server, "last") == PLAIN
        assert statuses(server) == {"SUCCEEDED": len(load.ids) + 1}
        seen = Counter(str(result(server, each)) for each in load.ids)
        assert set(seen) == {str(PLAIN), str(CHECKED)}, "both versions took part"


PINNED: Final = OLD.replace("@app.workflow\n", '@app.workflow(versioning="pinned")\n')


def test_deploy__pinned_workflow__old_build_drains_and_then_can_be_removed(tmp_path: Path) -> None:
    first = CodeVersion(tmp_path / "first", PINNED)
    second = CodeVersion(tmp_path / "second", PINNED.replace('"charge"', '"bill"'))
    home = tmp_path / "home"
    with ExitStack() as stack:
        server = stack.enter_context(Server(tmp_path / "server", "--home", str(home)))

        def headgate(*arguments: str) -> str:
            ended = run(*arguments, "--server", server.url, folder=tmp_path)
            assert ended.returncode == 0, ended.stderr
            return ended.stdout

        v1 = stack.enter_context(WorkerProcess(first, home, "v1", "--build", "v1"))
        start(server, "early")
        until(lambda: server.get("/executions/early").get("build") == "v1", "the first turn")
        stack.enter_context(WorkerProcess(second, home, "v2", "--build", "v2"))
        assert headgate("deploy", "set-current", "v2") == "app shop: new executions start on build v2\n"
        shown = headgate("deploy", "show", "v1")
        assert "verdict       keep its workers: 1 pinned execution is open" in shown
        assert re.search(r"^order +1 +0 +early *$", shown, re.MULTILINE)
        go(server, "early")
        assert result(server, "early") == PLAIN
        listed = headgate("deploy", "ls")
        assert re.search(r"^shop +v1 +DRAINED +1 +0 +0 +safe to remove", listed, re.MULTILINE), listed
        v1.stop()
        go(server, start(server, "late"))
        assert result(server, "late") == ["reserve", "bill", "ship"]
        assert re.search(r"^shop +v2 +CURRENT +1 +0 +0 +takes new", headgate("deploy", "ls"), re.MULTILINE)
