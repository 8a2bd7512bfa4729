"""The verdict of the vulnerability scan: what was not checked never counts as safe."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

JUDGED = run_path(str(Path(__file__).parents[2] / "deploy" / "vulnerabilities.py"))["judged"]
SAFE = {"name": "httpx", "version": "0.28.1", "vulns": []}
BAD = {"name": "jinja2", "version": "3.1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.1.6"]}]}
SKIPPED = {"name": "rich", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "summary"),
    [
        ([SAFE], 0, "1 of 1 packages checked, 0 vulnerabilities"),
        ([SAFE, BAD], 1, "2 of 2 packages checked, 1 vulnerabilities"),
        ([SAFE, SKIPPED], 2, "1 of 2 packages checked, 0 vulnerabilities; no vulnerability database is reachable"),
        ([BAD, SKIPPED], 1, "1 of 2 packages checked, 1 vulnerabilities; no vulnerability database is reachable"),
        ([], 2, "0 of 0 packages checked, 0 vulnerabilities"),
    ],
)
def test_verdict__package_vulnerable_or_not_checked__is_not_0(
    packages: list[dict[str, Any]], code: int, summary: str
) -> None:
    found, lines = JUDGED({"dependencies": packages})

    assert found == code
    assert lines[-1].startswith(summary)


def test_verdict__vulnerable_package__names_the_fix() -> None:
    _, lines = JUDGED({"dependencies": [BAD]})

    assert lines[0] == "jinja2 3.1.0: PYSEC-1; fixed in 3.1.6"
