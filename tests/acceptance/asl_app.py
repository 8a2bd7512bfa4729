"""The functions that state machines call in worker processes: each call is a line in a file, written before it ends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import headgate as hg

JOURNAL = Path(os.environ.get("JOURNAL", "journal"))

app = hg.App("machines")


def record(*words: object) -> None:
    """Add a line in one write, which the kernel keeps whole between processes."""
    descriptor = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{' '.join(map(str, words))}\n".encode())
    finally:
        os.close(descriptor)


@app.activity
def work(event: Any) -> str:
    """Take a moment, so that some are under way whenever a worker is killed."""
    context = hg.activity()
    record(context.activity_id, context.attempt, event["key"])
    time.sleep(0.02)
    return f"did {event['what']}"


class Shaky(Exception):
    """What a machine retries."""


@app.activity
def shaky(event: Any) -> str:
    context = hg.activity()
    record(context.activity_id, context.attempt, event["key"])
    if event["attempt"] < 2:
        raise Shaky(str(event["attempt"]))
    return "steady"


@app.activity
def ask(event: Any) -> None:
    context = hg.activity()
    record(context.activity_id, context.attempt, event["key"])
    record("token", event["token"])
