"""Commands of Tasks: found again after a crash, ended with their Task, left to the next worker by one that stops."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.asl.errors import StateError
from headgate.asl.tasks.resource_map import CommandTarget
from headgate.bootstrap.task_commands import TaskCommands
from headgate.clock import SystemClock
from headgate.durable.model.duration import Seconds
from headgate.durable.model.failures import Cancelled
from headgate.durable.sdk.activity_context import ActivityContext, enter, leave
from tests.process_state import is_alive

WAITING = """
import json, os, pathlib, time
with open("starts", "a") as starts:
    starts.write(f"{os.getpid()}\\n")
while not pathlib.Path("go").exists():
    time.sleep(0.01)
pathlib.Path(os.environ["HEADGATE_OUTPUT_FILE"]).write_text(json.dumps("done"))
"""


@pytest.fixture
def commands(tmp_path: Path) -> TaskCommands:
    (tmp_path / "home").mkdir()
    (tmp_path / "job.py").write_text(WAITING)
    return TaskCommands(SystemClock(), tmp_path / "home", {"PATH": os.environ["PATH"]}, tmp_path)


def context(attempt: int = 1) -> ActivityContext:
    return ActivityContext(
        activity_id="m:one#1#000001",
        name="headgate.asl.resource",
        attempt=attempt,
        sign=lambda: "",
        execution_id="m:one",
        details=None,
        clock_ms=lambda: 0,
        beat=lambda _, __: None,
        put_event=lambda *_: None,
    )


class Attempt(threading.Thread):
    """An attempt at a Task, in a thread of its own as in a worker."""

    def __init__(self, commands: TaskCommands, about: ActivityContext) -> None:
        super().__init__(daemon=True)
        self.about = about
        self.outcome: Any = None
        self._commands = commands
        self.start()

    def run(self) -> None:
        mark = enter(self.about)
        try:
            self.outcome = self._commands.run(CommandTarget([sys.executable, "job.py"]), {}, self.about)
        except (Cancelled, StateError) as exc:
            self.outcome = exc
        finally:
            leave(mark)


def until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def started(folder: Path) -> list[int]:
    file = folder / "starts"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_run__worker_stops__the_command_goes_on_and_the_next_attempt_waits_for_it(
    commands: TaskCommands, tmp_path: Path
) -> None:
    first = Attempt(commands, context())
    until(lambda: len(started(tmp_path)) == 1)
    first.about.is_interrupted = True
    first.join(30)
    assert isinstance(first.outcome, Cancelled)
    assert is_alive(started(tmp_path)[0])

    second = Attempt(commands, context(2))
    (tmp_path / "go").touch()
    second.join(30)

    assert second.outcome == "done"
    assert len(started(tmp_path)) == 1


def test_run__task_cancelled__ends_the_command(commands: TaskCommands, tmp_path: Path) -> None:
    attempt = Attempt(commands, context())
    until(lambda: len(started(tmp_path)) == 1)

    attempt.about.cancelled = True
    attempt.join(30)

    assert isinstance(attempt.outcome, Cancelled)
    until(lambda: not is_alive(started(tmp_path)[0]))


def test_run__longer_than_its_timeout__is_a_timeout(commands: TaskCommands) -> None:
    target = CommandTarget([sys.executable, "job.py"], timeout=Seconds(0.2), grace=Seconds(0))

    with pytest.raises(StateError) as failed:
        commands.run(target, {}, context())

    assert failed.value.error == "States.Timeout"
