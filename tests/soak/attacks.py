"""Attacks: every attack of tests/security against this build, and generated requests against the API."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.soak.figures import Figure
from tests.soak.seeds import counted

ROOT: Final = Path(__file__).parents[2]


def run() -> list[Figure]:
    """Run the attacks and count them."""
    command = [sys.executable, "-m", "pytest", "-n", "2", "tests/security"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    passed, failed = counted(ended)
    return [
        Figure("attacks and abuses tried", f"{passed + len(failed):,}", passed > 0),
        Figure("attacks that succeeded", f"{len(failed)} {failed[:3] or ''}".strip(), not failed),
    ]
