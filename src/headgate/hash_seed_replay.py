"""Replay under another hash seed: the program that `hg.testing` runs in a process with other hashes of strings."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import msgspec

from headgate import typed_decode
from headgate.durable.model.history import Turn
from headgate.durable.sdk.app import App
from headgate.errors import DeterminismError
from headgate.testing import RecordedHistory, SeedOutcome, replay


def replayed(recorded: RecordedHistory) -> SeedOutcome:
    """Replay a history with the code that its module has in this process."""
    try:
        members = vars(importlib.import_module(recorded.module)).values()
    except Exception as exc:  # noqa: BLE001 - reported to the process that asks
        return SeedOutcome(error=f"module {recorded.module}: {type(exc).__name__}: {exc}")
    app: Any = next((each for each in members if isinstance(each, App) and each.name == recorded.app), None)
    if app is None or recorded.workflow not in app.workflows:
        return SeedOutcome(
            error=f"workflow {recorded.workflow}: module {recorded.module} has no global app {recorded.app!r} with it"
        )
    turns = typed_decode.from_json(bytes(recorded.turns), list[Turn])
    try:
        replay(app.workflows[recorded.workflow], recorded.execution_id, turns)
    except DeterminismError as exc:
        return SeedOutcome(difference=exc.message)
    return SeedOutcome()


def main() -> None:
    """Read histories as JSON from standard input, and print how each replay ended."""
    histories = typed_decode.from_json(sys.stdin.buffer.read(), list[RecordedHistory])
    sys.stdout.write(f"{msgspec.json.encode([replayed(each) for each in histories]).decode()}\n")


if __name__ == "__main__":
    main()
