"""Command jobs with the real program: they outlive the server, are found again, cancelled, and their output is read."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from headgate.triggers.local.command_records import CommandRecord
from headgate.triggers.local.command_supervisor import process_start
from tests.acceptance.program import Server, run, until

# Without a soak, each is killed first, second and last once. Read here, because tests see no setting of the machine.
ORDERS: Final = [
    kills
    for kills in itertools.permutations(["server", "supervisor", "job"])
    if "HEADGATE_TEST_KILL_ORDERS" in os.environ or "".join(kills) in "serversupervisorjobserversupervisorjob"
]

_DEFINITION = """
id: {id}
schedules: [{{name: daily, sensor: {{key: landed}}}}]
trigger:
  type: command
  config:
    command: [sh, -c, '{script}']
    timeout: 2h
    grace: 2s
retry: {{attempts: 1}}
"""
_SCRIPT = "echo begun $HEADGATE_ATTEMPT; echo x >> times; while [ ! -e go ]; do sleep 0.05; done; echo done"


class Site:
    """A project folder with command pipelines, and its server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server: Server
        (folder / "pipelines").mkdir()

    def define(self, name: str, script: str = _SCRIPT) -> None:
        (self.folder / "pipelines" / f"{name}.yaml").write_text(_DEFINITION.format(id=name, script=script))

    def serve(self) -> Server:
        self.server = Server(self.folder, "--pipelines", "pipelines")
        return self.server

    def kill(self) -> None:
        self.server.signal(signal.SIGKILL)
        self.server.exit_code()

    def cli(self, *arguments: str) -> str:
        ended = run(*arguments, folder=self.folder)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def begin(self, name: str) -> str:
        """Start a run and return its id once it is RUNNING."""
        self.cli("run", "start", name, "--date", "2026-03-03", "--force", "--reason", "test")
        until(lambda: [each["status"] for each in self.runs(name)] == ["RUNNING"], "the run is RUNNING")
        return str(self.runs(name)[0]["run_id"])

    def runs(self, name: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.server.url}/api/v1/pipelines/{name}/runs", verify=False).raise_for_status().json()
        found: list[dict[str, Any]] = answer["runs"]
        return found

    def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.server.url}/api/v1{path}", verify=False).raise_for_status().json()
        return found

    def record(self, run_id: str) -> CommandRecord:
        return CommandRecord(self.folder / ".headgate" / "commands", run_id)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    found = Site(tmp_path)
    yield found
    (tmp_path / "go").touch()


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_command__server_killed_twice__completes_once_with_its_output_and_duration(site: Site) -> None:
    site.define("loads")
    with site.serve():
        run_id = site.begin("loads")
        until(lambda: lines(site.folder / "times") == 1, "the job")
        site.kill()
    with site.serve():
        assert [each["status"] for each in site.runs("loads")] == ["RUNNING"]
        assert site.get(f"/runs/{run_id}/log")["text"] == "begun 1\n"
        site.kill()
    (site.folder / "go").touch()
    until(lambda: site.record(run_id).ended() is not None, "the end of the job")
    ended_at = time.time()
    with site.serve():
        until(lambda: [each["status"] for each in site.runs("loads")] == ["COMPLETED"], "the run is COMPLETED")
        found = site.runs("loads")[0]
        output = site.cli("run", "logs", run_id)

    ended = site.record(run_id).ended()
    assert ended is not None
    assert ended.seconds is not None
    assert lines(site.folder / "times") == 1
    assert output == "begun 1\ndone\n"
    # Of the process, not of the run, which ended after the restart.
    assert abs(found["duration_ms"] - 1000 * ended.seconds) < 500
    assert ended.ended_at_ms / 1000 <= ended_at


def test_command__ends_while_its_run_waits__run_is_completed_promptly_and_the_log_is_followed(site: Site) -> None:
    site.define("loads")
    with site.serve() as server:
        run_id = site.begin("loads")
        until(lambda: bool(site.get(f"/runs/{run_id}/log")["text"]), "the first output")
        first = site.get(f"/runs/{run_id}/log")
        (site.folder / "go").touch()
        following = f"{server.url}/api/v1/runs/{run_id}/log?wait=20s&offset={first['next_offset']}"
        rest = httpx.get(following, verify=False, timeout=60).json()
        # The interval of polls is far longer: the end itself wakes the run.
        until(lambda: [each["status"] for each in site.runs("loads")] == ["COMPLETED"], "COMPLETED", 20)
        assert site.cli("run", "logs", run_id, "--follow") == "begun 1\ndone\n"
        assert site.cli("run", "logs", run_id, "--tail", "5") == "done\n"

    assert (first["text"], first["is_complete"], rest["text"]) == ("begun 1\n", False, "done\n")


def test_cancel__job_whose_server_was_restarted__ends_the_group_and_frees_the_lock(site: Site) -> None:
    site.define("loads", "sleep 600 & echo $! > child; wait")
    with site.serve():
        run_id = site.begin("loads")
        until(lambda: lines(site.folder / "child") == 1, "the job")
        site.kill()
    child = int((site.folder / "child").read_text())
    begun = site.record(run_id).begun()
    assert begun is not None
    with site.serve():
        site.cli("run", "cancel", run_id, "--reason", "wrong day")
        until(lambda: process_start(child) is None and process_start(begun.pid) is None, "the end of its processes", 20)
        # A new run begins only when the lock is free.
        site.cli("run", "rerun", "loads", "--date", "2026-03-03", "--reason", "again", "--force")
        until(lambda: len(site.runs("loads")) == 2, "the next run")
        site.cli("run", "cancel", site.runs("loads")[0]["run_id"], "--reason", "enough")
        until(lambda: site.record(site.runs("loads")[0]["run_id"]).ended() is not None, "the end of the second job")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: process_start(pid) is None, f"the end of process {pid}")


def _is_over(record: CommandRecord) -> bool:
    return record.ended() is not None or not record.is_locked()


@pytest.mark.parametrize("kills", ORDERS, ids="-".join)
def test_kill_9__server_supervisor_and_job_in_every_order__run_fails_with_the_reason_and_nothing_runs_twice(
    site: Site, kills: tuple[str, ...]
) -> None:
    site.define("loads")
    with site.serve():
        run_id = site.begin("loads")
        until(lambda: lines(site.folder / "times") == 1, "the job")
        begun = site.record(run_id).begun()
        assert begun is not None
        for name in kills:
            if name == "server":
                site.kill()
            elif name == "supervisor":
                _kill(begun.supervisor)
            else:
                _kill(begun.pid)
                # A supervisor that lives records the end.
                record = site.record(run_id)
                until(partial(_is_over, record), "the end of the job")
    with site.serve():
        until(lambda: [each["status"] for each in site.runs("loads")] == ["FAILED"], "the run is FAILED")
        reason = site.runs("loads")[0]["reason"]

    is_recorded = kills.index("job") < kills.index("supervisor")
    assert ("killed by SIGKILL" if is_recorded else "exit code is unknown") in reason
    assert lines(site.folder / "times") == 1
