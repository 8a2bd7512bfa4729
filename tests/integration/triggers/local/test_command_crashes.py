"""Commands under kill -9: of the server, the supervisor and the job, in every order."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from headgate.clock import SystemClock
from headgate.triggers.contract import FailureCategory, JobState, PollResult
from headgate.triggers.local.command_ends import CommandEnds
from headgate.triggers.local.command_records import CommandRecord
from headgate.triggers.local.command_supervisor import process_start
from tests.unit.triggers.rigs import RUN_ID, kinds, order

SERVER = """
import sys, time
from pathlib import Path
from tests.unit.triggers.rigs import kinds, order
registry = kinds(Path(sys.argv[1]))
registry.start(order("command", {"command": sys.argv[2:]}))
print("started", flush=True)
time.sleep(600)
"""


def eventually(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at, "not in thirty seconds"
        time.sleep(0.01)


class World:
    """A server process that has started a command, and the processes of that command."""

    def __init__(self, folder: Path, server: subprocess.Popen[bytes], command: list[str]) -> None:
        self._folder = folder
        self._server = server
        self._command = command
        self.record = CommandRecord(folder / "commands", RUN_ID)
        begun = self.record.begun()
        assert begun is not None
        self._pids = {"supervisor": begun.supervisor, "job": begun.pid}

    def kill(self, name: str) -> None:
        if name == "server":
            self._server.kill()
            self._server.wait()
            return
        with suppress(ProcessLookupError):
            os.kill(self._pids[name], signal.SIGKILL)
        eventually(lambda: process_start(self._pids[name]) is None)

    def finish(self) -> None:
        (self._folder / "go").touch()

    def starts(self) -> int:
        return len((self._folder / "times").read_text().splitlines())

    def poll_after_restart(self) -> PollResult:
        """Return what a new server finds. It starts the job again, as after a crash, and waits for its end."""
        registry, asked = kinds(self._folder), order("command", {"command": self._command})
        registry.start(asked)
        eventually(lambda: registry.poll(asked, {}).state is not JobState.RUNNING)
        return registry.poll(asked, {})


@contextmanager
def world(folder: Path) -> Iterator[World]:
    go = folder / "go"
    script = f"echo output; echo x >> {folder}/times; while [ ! -e {go} ]; do sleep 0.02; done; echo end"
    command = ["sh", "-c", script]
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(folder), *command], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"started\n"
        eventually(lambda: (folder / "times").exists() and bool((folder / "times").read_text()))
        yield World(folder, server, command)
    finally:
        go.touch()
        server.kill()
        server.communicate()


@pytest.mark.parametrize("order_of_kills", list(itertools.permutations(["server", "supervisor", "job"])))
def test_kill__server_supervisor_and_job_in_any_order__fate_is_found_and_nothing_runs_twice(
    tmp_path: Path, order_of_kills: tuple[str, ...]
) -> None:
    with world(tmp_path) as site:
        record = site.record
        for name in order_of_kills:
            site.kill(name)
            if name == "job":
                # A supervisor that lives records the end at once.
                eventually(lambda: record.ended() is not None or not record.is_locked())
        polled = site.poll_after_restart()

        is_recorded = order_of_kills.index("job") < order_of_kills.index("supervisor")
        assert (polled.state, polled.category) == (JobState.FAILED, FailureCategory.TRANSIENT)
        assert ("killed by SIGKILL" if is_recorded else "exit code is unknown") in polled.reason
        assert site.starts() == 1


def test_kill__server_alone__job_ends_and_its_exit_code_and_output_are_on_disk(tmp_path: Path) -> None:
    with world(tmp_path) as site:
        site.kill("server")
        site.finish()
        eventually(lambda: site.record.ended() is not None)

        assert site.poll_after_restart().state is JobState.SUCCEEDED
        assert site.record.output.read_text() == "output\nend\n"
        assert site.starts() == 1


def test_kill__server_while_the_job_runs_on__restarted_server_finds_it_running(tmp_path: Path) -> None:
    with world(tmp_path) as site:
        site.kill("server")
        registry, asked = kinds(tmp_path), order("command", {"command": ["sh"]})
        registry.start(asked)
        assert registry.poll(asked, {}).state is JobState.RUNNING
        site.finish()
        assert site.poll_after_restart().state is JobState.SUCCEEDED
        assert site.starts() == 1


def test_kill__supervisor_alone__job_goes_on_and_its_output_is_kept(tmp_path: Path) -> None:
    with world(tmp_path) as site:
        site.kill("supervisor")
        registry, asked = kinds(tmp_path), order("command", {"command": ["sh"]})
        assert registry.poll(asked, {}).state is JobState.RUNNING
        site.finish()
        polled = site.poll_after_restart()

        assert "exit code is unknown" in polled.reason
        assert site.record.output.read_text() == "output\nend\n"
        assert site.starts() == 1


def test_cancel__after_server_and_supervisor_were_killed__ends_the_job(tmp_path: Path) -> None:
    with world(tmp_path) as site:
        site.kill("server")
        site.kill("supervisor")
        registry, asked = kinds(tmp_path), order("command", {"command": ["sh"], "grace": 1})
        registry.cancel(asked, {})

        assert not site.record.is_locked()
        assert "cancelled" in registry.poll(asked, {}).reason


def test_start__fork_server_killed__next_command_gets_a_new_one(tmp_path: Path) -> None:
    registry = kinds(tmp_path)
    asked = [order("command", {"command": "true"}, run_id=f"run_{number}") for number in range(2)]
    registry.start(asked[0])
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    fork_servers = [
        pid
        for pid in map(int, children.read_text().split())
        if b"command_supervisor" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert fork_servers
    for pid in fork_servers:
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(process_start(pid) is None for pid in fork_servers))

    registry.start(asked[1])

    for each in asked:
        eventually(lambda each=each: registry.poll(each, {}).state is JobState.SUCCEEDED)  # type: ignore[misc]


def test_poll__record_of_another_boot__has_failed_with_that_reason(tmp_path: Path) -> None:
    with world(tmp_path) as site:
        begun = site.record.begun()
        assert begun is not None
        site.kill("server")
        site.kill("supervisor")
        site.kill("job")
    path = site.record.folder / "begun"
    path.write_bytes(msgspec.json.encode({**msgspec.to_builtins(begun), "boot_id": "an earlier boot"}))
    registry, asked = kinds(tmp_path), order("command", {"command": ["sh"]})

    assert "the machine restarted" in registry.poll(asked, {}).reason


def test_poll__start_that_a_power_cut_left_empty__has_failed_and_is_not_run_again(tmp_path: Path) -> None:
    record = CommandRecord(tmp_path / "commands", RUN_ID)
    (tmp_path / "commands").mkdir()
    record.create()
    (record.folder / "begun").touch()
    registry, asked = kinds(tmp_path), order("command", {"command": f"touch {tmp_path}/ran"})
    registry.start(asked)

    assert "the machine restarted" in registry.poll(asked, {}).reason
    assert not (tmp_path / "ran").exists()


def test_ends__of_commands__are_reported_as_they_happen_and_after_a_restart(tmp_path: Path) -> None:
    reported: list[str] = []
    with world(tmp_path) as site:
        site.kill("server")
        ends = CommandEnds(tmp_path / "commands", SystemClock(), reported.append)
        ends.start()
        eventually((tmp_path / "commands" / "ended.fifo").exists)
        site.finish()
        eventually(lambda: reported == [RUN_ID])
        ends.stop()
        # Not noted by the run yet: the first scan of the next server reports it again.
        ends = CommandEnds(tmp_path / "commands", SystemClock(), reported.append)
        ends.start()
        eventually(lambda: reported == [RUN_ID, RUN_ID])
        site.poll_after_restart()
        ends.stop()
        CommandEnds(tmp_path / "commands", SystemClock(), reported.append).scan()

    assert reported == [RUN_ID, RUN_ID]
