"""A server that is killed in the middle of a fan-out: the next one goes on, and every chunk counts once."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.program import PROGRAM

CHUNKS = 300


class Site:
    """A folder with a handler, and a server that may be killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.server: subprocess.Popen[str] | None = None
        (folder / "work.py").write_text("import time\n\n\ndef slowly(items):\n    time.sleep(0.02)\n    return items\n")

    def up(self) -> None:
        command = [str(PROGRAM), "up", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        self.server = subprocess.Popen(command, cwd=self._folder, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        assert "ready" in self.server.stdout.readline()

    def kill(self) -> None:
        assert self.server is not None
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        assert self.server.stdout is not None
        self.server.stdout.close()

    def say(self, *arguments: str) -> dict[str, Any]:
        command = [str(PROGRAM), "fanout", *arguments, "--json"]
        said = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=True, timeout=60)
        found: dict[str, Any] = json.loads(said.stdout)
        return found


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.up()
    yield made
    made.kill()


def test_kill_9__of_the_server_in_the_middle_of_a_fan_out__the_next_one_ends_it(site: Site) -> None:
    site.say(
        "submit",
        "--group",
        "g",
        "--handler",
        "work:slowly",
        "--range",
        f"0..{CHUNKS}",
        "--chunk-size",
        "1",
        "--run-id",
        "r",
        # A killed server uses up none of a chunk's attempts.
        "--max-attempts",
        "1",
    )
    for _ in range(2):
        site.kill()
        site.up()

    command = [str(PROGRAM), "fanout", "watch", "r"]
    subprocess.run(command, cwd=site._folder, check=True, timeout=90, capture_output=True)

    shown = site.say("show", "r")
    assert shown["status"] == "SUCCEEDED"
    assert (shown["counts"]["done"], shown["counts"]["total"]) == (CHUNKS, CHUNKS)
    assert shown["counts"]["lost"] > 0
