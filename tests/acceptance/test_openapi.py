"""OpenAPI document of the installed program: schemathesis finds no server error and no answer it does not describe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.acceptance.program import Server

FOLDER: Final = Path(__file__).parent
SCHEMATHESIS: Final = Path(sys.executable).parent / "schemathesis"
# `make soak` sets the number of random requests for each operation.
SOAK_EXAMPLES: Final = int(os.environ.get("HEADGATE_TEST_OPENAPI_EXAMPLES", "0"))
EXAMPLES: Final = SOAK_EXAMPLES or 1
# Coverage makes some fifty requests for each operation: without a soak, only for operations of each form.
COVERED: Final = "" if SOAK_EXAMPLES else r"^/health|^/$|/machines|/api-keys|/alerts|/topics"
pytestmark = pytest.mark.timeout(3600 if SOAK_EXAMPLES else 120)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("openapi") / "home") as started:
        yield started


def _asked(server: Server, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run schemathesis, and return its report. Fails with its findings."""
    report = folder / "report.json"
    command: list[str | Path] = [
        SCHEMATHESIS, "--config-file", FOLDER / "schemathesis.toml", "run", f"{server.url}/api/openapi.json",
        "--seed", "20260115", "--warnings", "off", "--continue-on-failure", "--request-timeout", "20",
        "--report", "json", "--report-json-path", report, *arguments,
    ]  # fmt: skip
    environ = {**os.environ, "SCHEMATHESIS_HOOKS": str(FOLDER / "openapi_rules.py"), "COLUMNS": "200"}
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    found: dict[str, Any] = json.loads(report.read_text())
    print(f"{found['test_cases']['generated']:,} requests to {found['operations']['tested']} operations")
    return found


def test_document__random_requests_to_every_operation__answers_are_as_described(server: Server, tmp_path: Path) -> None:
    phases = ("--phases", "examples,fuzzing,stateful", "--no-shrink")
    report = _asked(server, tmp_path, *phases, "--max-examples", str(EXAMPLES))

    assert report["operations"]["tested"] == report["operations"]["total"] > 200
    assert report["test_cases"]["generated"] > 400


def test_document__boundary_values_and_unexpected_methods__answers_are_as_described(
    server: Server, tmp_path: Path
) -> None:
    report = _asked(server, tmp_path, "--phases", "coverage", "--include-path-regex", COVERED)

    assert report["test_cases"]["generated"] > 400
