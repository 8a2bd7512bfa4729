"""The app that worker processes run in tests: every effect is a line in a file, written before the activity ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import headgate as hg

JOURNAL = Path(os.environ.get("JOURNAL", "journal"))

app = hg.App("processes")


def record(what: str) -> None:
    """Add a line in one write, which the kernel keeps whole between processes."""
    descriptor = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{what}\n".encode())
    finally:
        os.close(descriptor)


@app.activity(retry=hg.Retry(attempts=0, first="50ms", most="200ms"))
def effect(name: str) -> str:
    record(f"{name} {hg.activity().attempt}")
    return name


@app.workflow
async def journey(number: int) -> str:
    """Steps one after the other, a timer, two at once, and a signal that was sent at the start."""
    name = hg.info().execution_id
    await effect(f"{name}/first")
    await hg.sleep(0.2)
    await asyncio.gather(effect(f"{name}/left"), effect(f"{name}/right"))
    word = await hg.wait_signal("go")
    await effect(f"{name}/last")
    return f"{number} {word}"
