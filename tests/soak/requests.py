"""Requests: generated from the OpenAPI document and sent to a server; each answer is compared with the document."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Final

from tests.soak.attacks import ROOT
from tests.soak.figures import Figure
from tests.soak.seeds import counted

_REQUESTS: Final = re.compile(r"([0-9,]+) requests to ([0-9,]+) operations")


def run(examples: int) -> list[Figure]:
    """Send so many examples to every operation, and all boundary values."""
    environ = {**os.environ, "HEADGATE_TEST_OPENAPI_EXAMPLES": str(examples)}
    command = [sys.executable, "-m", "pytest", "-s", "--timeout", "3600", "tests/acceptance/test_openapi.py"]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    found = _REQUESTS.findall(ended.stdout)
    count = sum(int(number.replace(",", "")) for number, _ in found)
    _, failed = counted(ended)
    return [
        Figure("generated requests", f"{count:,} to {found[0][1] if found else 0} operations", count > 0),
        Figure(
            "runs with a server error, or with an answer that the document does not describe",
            f"{len(failed)} {failed[:2] or ''}".strip(),
            ended.returncode == 0,
        ),
    ]
