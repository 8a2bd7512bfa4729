"""The demo: its story comes true from start to end, also when it is killed on the way."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

CHAPTERS = 10
SECONDS_MAX = 400
# Read here: tests start without the variables of Headgate.
KILLS = int(os.environ.get("HEADGATE_TEST_DEMO_KILLS", "0"))


def started(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headgate", "demo", "--home", str(folder), "--http", "127.0.0.1:0", "--once"]
    return subprocess.Popen(
        command, cwd=folder.parent, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )


def kill_servers(folder: Path) -> None:
    """Kill -9 every process of the demo: server, workers and watchdog."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_text()
        except OSError:
            continue
        if str(folder) in command and int(entry.parent.name) != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(int(entry.parent.name), signal.SIGKILL)


@pytest.mark.long
@pytest.mark.timeout(SECONDS_MAX + 60)
def test_demo__once__tells_every_chapter_and_exits_0(tmp_path: Path) -> None:
    process = started(tmp_path / "demo")
    said, _ = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == 0, said
    for number in range(1, CHAPTERS + 1):
        assert f"{number}. " in said
    assert said.rstrip().endswith("the story is over: every fact of it came true")
    assert "Traceback" not in (tmp_path / "demo" / "home" / "server.log").read_text()


@pytest.mark.skipif(KILLS == 0, reason="make soak runs it")
@pytest.mark.timeout(SECONDS_MAX + 60)
def test_demo__killed_with_its_server_on_the_way__goes_on_and_ends_the_same(tmp_path: Path) -> None:
    folder, rng = tmp_path / "demo", random.Random(7)
    for _ in range(KILLS):
        process = started(folder)
        time.sleep(rng.uniform(3, 9))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.communicate()
        kill_servers(folder)
    process = started(folder)
    said, _ = process.communicate(timeout=SECONDS_MAX)

    assert process.returncode == 0, said
    assert said.rstrip().endswith("the story is over: every fact of it came true")
