"""Scenarios: small machines with Map, Parallel, Retry, Wait, tokens, continue-as-new and redrive."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.asl.machines.executions import ExecutionStatus, execution_id_of
from headgate.clock import VirtualClock
from headgate.errors import ConflictError
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.schema import Key
from tests.asl_rig import beside, check_events, each, machine, task
from tests.simulation.asl_processes import MACHINE, AslMachine, AslProcess, Outcome
from tests.simulation.durable_processes import Crash, Fault
from tests.simulation.durable_rows import Checks, check_quiet, check_received_once, check_replays

EXECUTION_ID = execution_id_of(MACHINE, "one")
BEGUN_AT = 1_750_000_000.0
ROUNDS_MAX = 60
RETRY = [{"ErrorEquals": ["Shaky"], "IntervalSeconds": 1, "MaxAttempts": 3}]
SHAKY = task("shaky", Parameters={"attempt.$": "$$.State.RetryCount", "fails": 2}, Retry=RETRY)
TOKEN = {
    "Type": "Task",
    "Resource": "${keep}.waitForTaskToken",
    "Parameters": {"token.$": "$$.Task.Token"},
    "TimeoutSeconds": 600,
}
FAILS = task("fail", Parameters={"error": "Refused"})
WAIT = {"Type": "Wait", "Seconds": 2}
CATCH = [{"ErrorEquals": ["Refused"], "ResultPath": "$.caught", "Next": "After"}]


@dataclass(frozen=True)
class Story:
    """A machine, what it is given, and which effects it has when nothing goes wrong."""

    definition: Mapping[str, Any]
    calls: int
    input: Any = None
    # Fails until an operator repairs it and redrives the execution.
    broken: frozenset[Any] = frozenset()
    # The machine that it calls.
    inner: Mapping[str, Any] | None = None
    # Whether its tokens stay unanswered, because what comes first would decide which events there are.
    is_racing: bool = False


STORIES = {
    "map": Story(
        machine(("M", each(("I", task("work")), MaxConcurrency=2, ItemsPath="$.items", ResultPath="$.done"))),
        calls=3,
        input={"items": ["x", "y", "z"]},
    ),
    "parallel": Story(
        machine(
            (
                "P",
                beside(
                    machine(("Pause", WAIT), ("Left", task("work", Parameters="left"))),
                    machine(("Right", task("work", Parameters="right"))),
                ),
            ),
        ),
        calls=2,
    ),
    "retry": Story(machine(("R", SHAKY)), calls=3),
    "wait": Story(machine(("W", WAIT), ("Last", task("echo"))), calls=1, input={"some": "thing"}),
    "token": Story(machine(("T", TOKEN), ("Last", {"Type": "Pass"})), calls=1),
    "siblings": Story(
        machine(
            (
                "P",
                beside(
                    machine(("Fails", FAILS)),
                    machine(("Long", {"Type": "Wait", "Seconds": 86_400})),
                    machine(("Told", TOKEN)),
                    Catch=CATCH,
                ),
            ),
            ("After", {"Type": "Pass"}),
        ),
        calls=2,
        input={},
        is_racing=True,
    ),
    "loop": Story(
        machine(
            ("Count", {"Type": "Pass", "Parameters": {"n.$": "States.MathAdd($.n, 1)"}}),
            ("Look", task("echo")),
            (
                "Enough",
                {
                    "Type": "Choice",
                    "Choices": [{"Variable": "$.n", "NumericLessThan": 4, "Next": "Count"}],
                    "Default": "End",
                },
            ),
            ("End", {"Type": "Succeed"}),
        ),
        calls=4,
        input={"n": 0},
    ),
    "child": Story(
        machine(("Outer", {"Type": "Task", "Resource": "machine:inner.sync:2", "OutputPath": "$.Output"})),
        calls=1,
        inner=machine(("Pause", WAIT), ("Do", task("work", Parameters="inner"))),
    ),
    "redrive": Story(
        machine(
            (
                "P",
                beside(
                    machine(("M", each(("I", task("work")), ItemsPath="$.items"))),
                    machine(("Fine", task("work", Parameters="fine"))),
                ),
            ),
        ),
        calls=3,
        input={"items": ["a", "b"]},
        broken=frozenset({"b"}),
    ),
}


class Telling:
    """A story on a machine of its own, lived by processes that follow each other."""

    def __init__(self, template: Path, folder: Path, story: Story) -> None:
        shutil.copytree(template, folder)
        self.story = story
        self.machine = AslMachine(folder, random.Random(7), VirtualClock(BEGUN_AT))
        self.machine.functions.broken = set(story.broken)

    def live(self, fault: Fault | None = None) -> list[str]:
        """Let a process live until the story is over or it dies, and return which calls it made."""
        process = AslProcess(self.machine)
        process.store.fault = fault
        act = process.patiently if fault is not None and not fault.crash else _once
        try:
            act(process.worker.join)
            act(lambda: self.tell(process))
            act(lambda: self.work(process))
        except Crash:
            # The rest of its lease has to pass before others take over.
            self.machine.clock.advance(11.0)
        finally:
            process.bury()
        return process.store.names

    def tell(self, process: AslProcess) -> None:
        """What a client says again until it is answered."""
        if self.story.inner is not None:
            process.executions.machines.put("inner", json.dumps(self.story.inner))
        process.start(self.story.definition, self.story.input, "one")

    def work(self, process: AslProcess) -> None:
        for _ in range(ROUNDS_MAX):
            if self.is_over():
                return
            process.worker.poll()
            while process.worker.engine.has_work:
                process.worker.turn()
            while process.worker.queue:
                process.begin()
            while process.held:
                process.finish()
            self._help(process)
            self.machine.clock.advance(2.0)

    def _help(self, process: AslProcess) -> None:
        """What people do: answer what they were asked, repair what is broken."""
        if not self.story.is_racing:
            for token in self.machine.functions.tokens:
                process.answer(token)
        if self.status() == "FAILED" and self.story.broken:
            self.machine.functions.broken.clear()
            with suppress(ConflictError):  # Someone has before.
                process.executions.redrive(EXECUTION_ID)

    def status(self) -> str:
        item = self.machine.store.get(EXECUTIONS, Key(EXECUTION_ID))
        return "" if item is None else str(item["status"])

    def is_over(self) -> bool:
        return self.status() == "SUCCEEDED" or (self.status() == "FAILED" and not self.story.broken)

    def effects(self) -> Counter[str]:
        """Return how often each function was called with what, tokens aside."""
        calls = self.machine.functions.calls
        return Counter(name if name == "keep" else f"{name} {given}" for name, given in calls)

    def end(self) -> Outcome:
        """Check what must hold of the rows, and return the outcome."""
        rows = self.machine.reader.read()
        Checks().check(rows)
        check_quiet(rows)
        check_received_once(rows)
        assert not rows.activities, "an activity was left behind"
        assert not rows.timers, "a timer was left behind"
        process = AslProcess(self.machine)
        check_replays(rows, process.app.workflows)
        outcome = process.outcome(EXECUTION_ID, self.story.definition)
        check_events(process.executions.history(EXECUTION_ID))
        process.bury()
        return outcome


def _once(act: Callable[[], None]) -> None:
    act()


def undisturbed(template: Path, folder: Path, story: Story) -> tuple[Telling, Outcome, list[str]]:
    telling = Telling(template, folder, story)
    calls = telling.live()
    outcome = telling.end()
    telling.machine.close()
    assert outcome.status is ExecutionStatus.SUCCEEDED, outcome
    assert len(telling.machine.functions.calls) == story.calls + len(story.broken)
    return telling, outcome, calls


def new_machine(folder: Path) -> Path:
    """Return the folder of a new machine, which takes longer to make than to copy."""
    folder.mkdir(exist_ok=True)
    AslMachine(folder, random.Random(7), VirtualClock(BEGUN_AT)).close()
    return folder
