"""Seeds: simulated histories with injected faults, as many as fit into a time, each checked after every step."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from tests.soak.figures import Figure

ROOT: Final = Path(__file__).parents[2]
# Of each simulation at a time. The first ones are those of every test run.
BATCH: Final = 40
FIRST: Final = 1_000
_PASSED: Final = re.compile(r"(\d+) passed")
_FAILED: Final = re.compile(r"^FAILED (\S+)", re.MULTILINE)


def run(seconds: float, *, first: int = FIRST, workers: int = 2) -> list[Figure]:
    """Run batches of seeds of every simulation until the time is over."""
    give_up_at, histories, failures = time.monotonic() + seconds, 0, list[str]()
    seed = first
    while time.monotonic() < give_up_at:
        passed, failed = _batch(seed, workers)
        histories, seed = histories + passed + len(failed), seed + BATCH
        failures += failed
    return [
        Figure("seeds of every simulation", f"{first:,} to {seed - 1:,}, in {seconds / 60:,.0f} minutes", seed > first),
        Figure("simulated histories with injected faults", f"{histories:,}", histories > 0),
        Figure("histories that violated an invariant", f"{len(failures)} {failures[:3] or ''}".strip(), not failures),
    ]


def _batch(seed: int, workers: int) -> tuple[int, list[str]]:
    environ = {**os.environ, "HEADGATE_TEST_SEEDS": str(BATCH), "HEADGATE_TEST_FIRST_SEED": str(seed)}
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "-m", "seeded", "tests/simulation"]
    ended = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    return counted(ended)


def counted(ended: subprocess.CompletedProcess[str]) -> tuple[int, list[str]]:
    """Return how many tests of a pytest run passed, and which failed."""
    passed = _PASSED.search(ended.stdout)
    failed = _FAILED.findall(ended.stdout)
    if passed is None and not failed:
        failed = [ended.stdout[-500:] + ended.stderr[-500:]]
    return 0 if passed is None else int(passed.group(1)), failed
