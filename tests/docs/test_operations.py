"""Pages for operators: the systemd unit that they install is valid, and the server starts as they say."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.acceptance.program import PROGRAM, Server
from tests.docs.shown_project import HOW_TO
from tests.docs.test_commands_shown import shown_in

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "headgate.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_unit__verified_by_systemd__has_no_fault(tmp_path: Path) -> None:
    # systemd looks whether the program and the user exist.
    text = UNIT.read_text().replace("/opt/headgate/bin/headgate", str(PROGRAM))
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("User=headgate", "User=daemon").replace("Group=headgate", "Group=daemon"))

    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)

    assert f"{unit.name}:" not in done.stderr, done.stderr
    assert "Unknown" not in done.stderr
    assert done.returncode == 0, done.stderr


def test_size_page__its_command__serves_with_as_many_processes(tmp_path: Path) -> None:
    command, processes = next(shown_in(HOW_TO / "size-the-server.md")).rsplit(maxsplit=1)

    with Server(tmp_path, *shlex.split(command)[1:], processes) as server:
        shown = httpx.get(f"{server.url}/metrics", timeout=60).text

    assert f"headgate_serving_processes {processes}.0\n" in shown
