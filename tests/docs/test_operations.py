"""The systemd unit that the pages for operators install is valid."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.program import PROGRAM

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
