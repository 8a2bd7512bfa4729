"""What a user waits for before anything happens: importing the package, opening a store, asking for help."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import ROUNDS, Figure, seconds
from bench.rows import open_at
from headgate.clock import SystemClock

IMPORT_MS_MAX = 150
OPEN_MS_MAX = 50
COMMAND_MS_MAX = 300


def run() -> list[Figure]:
    bare, imported = [], []
    for _ in range(ROUNDS):
        bare.append(_interpreter("pass"))
        imported.append(_interpreter("import headgate"))
    difference = statistics.median(i - b for i, b in zip(imported, bare, strict=True))
    return [
        Figure(
            "import headgate, over a bare interpreter",
            f"{difference:.0f} ms",
            f"< {IMPORT_MS_MAX} ms",
            difference < IMPORT_MS_MAX,
            notes=f"bare {statistics.median(bare):.0f} ms, with the import {statistics.median(imported):.0f} ms",
        ),
        _opening(statistics.median(bare)),
        _command(),
    ]


def _command() -> Figure:
    """A command that finds no server: everything but the answer. Beside it, what a fuller client would load."""
    program = str(Path(sys.executable).parent / "headgate")
    command = [program, "execution", "ls", "--server", "http://127.0.0.1:1"]
    spent = [(_processor_ms(command), _processor_ms([sys.executable, "-c", "import httpx"])) for _ in range(ROUNDS)]
    ours, client = (statistics.median(each) for each in zip(*spent, strict=True))
    return Figure(
        "processor of a command that asks a server",
        f"{ours:.0f} ms",
        f"< {COMMAND_MS_MAX} ms",
        ours < COMMAND_MS_MAX,
        notes=f"an interpreter that imports httpx and does nothing: {client:.0f} ms",
    )


def _processor_ms(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _opening(bare_ms: float) -> Figure:
    with TemporaryDirectory(prefix="headgate-bench-") as folder:
        home, clock = Path(folder), SystemClock()
        created = seconds(lambda: open_at(home, clock).close()) * 1000
        opened = statistics.median(seconds(lambda: open_at(home, clock).close()) * 1000 for _ in range(ROUNDS))
    return Figure(
        "opening a store",
        f"{opened:.1f} ms",
        f"< {OPEN_MS_MAX} ms",
        opened < OPEN_MS_MAX,
        notes=f"creating it {created:.1f} ms; bare interpreter {bare_ms:.0f} ms",
    )


def _interpreter(statement: str) -> float:
    return seconds(lambda: subprocess.run([sys.executable, "-c", statement], check=True)) * 1000
