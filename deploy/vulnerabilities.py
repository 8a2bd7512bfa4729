"""Scans the locked dependencies for known vulnerabilities with pip-audit, and says how many were really checked.

    python deploy/vulnerabilities.py requirements.lock

Exit codes: 0 all packages were checked and none is vulnerable, 1 at least one is, 2 not all could be checked. pip-audit
alone exits 0 where its database is not reachable: it skips each package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_SCAN: Final = ("--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json")


def judged(report: dict[str, Any]) -> tuple[int, list[str]]:
    """Return the exit code of a pip-audit report, and the lines to print."""
    packages: list[dict[str, Any]] = report.get("dependencies", [])
    checked = [each for each in packages if "skip_reason" not in each]
    lines = [
        f"{each['name']} {each['version']}: {found['id']}; fixed in {', '.join(found['fix_versions']) or 'no release'}"
        for each in checked
        for found in each["vulns"]
    ]
    summary = f"{len(checked)} of {len(packages)} packages checked, {len(lines)} vulnerabilities"
    if len(checked) < len(packages):
        summary += "; no vulnerability database is reachable for the others: run this where one is"
    code = 1 if lines else 0 if packages and len(checked) == len(packages) else 2
    return code, [*lines, summary]


def main(lock: Path) -> int:
    """Scan a lock file, print the result and return the exit code."""
    command = [sys.executable, "-m", "pip_audit", *_SCAN, "-r", str(lock)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(ended.stdout)
    except json.JSONDecodeError:
        last = ended.stderr.strip().splitlines()[-1:] or ["pip-audit printed nothing"]
        report = {}
        print(last[0], file=sys.stderr)  # noqa: T201 - a command
    code, lines = judged(report)
    print("\n".join(lines))  # noqa: T201 - a command
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
