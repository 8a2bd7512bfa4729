"""A reset by a process that dies at each of its calls to the store in turn: none of it happens, or all of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.model.history import Reset
from headgate.durable.replay import sandbox
from headgate.errors import OutcomeUnknownError, TransientError
from tests.simulation.durable_processes import Crash, Fault, Machine, Process
from tests.simulation.durable_rows import Checks, check_quiet, check_received_once, check_replays

EXECUTION_ID = "repairable"
RESULT = '[3,null,"woke"]'
CALLS_MAX = 300
ROUNDS_MAX = 40

Request = Callable[[Process], object]


def from_failure(process: Process) -> object:
    return process.client.retry_from_failure(EXECUTION_ID, request_id="once")


def to_an_activity(process: Process) -> object:
    return process.client.reset(EXECUTION_ID, "add#4", request_id="once")


def work(process: Process, machine: Machine, until: hg.Status) -> None:
    """Do everything there is to do until the execution has this status."""
    for _ in range(ROUNDS_MAX):
        if machine.reader.read().executions[EXECUTION_ID].status is until:
            return
        process.worker.poll()
        while process.worker.engine.has_work:
            process.worker.turn()
        while process.worker.queue:
            process.begin()
        while process.held:
            process.finish()
        machine.clock.advance(2.0)


def failed_machine(folder: Path, number: int) -> Machine:
    """Return a machine with an execution that an error in its code has ended."""
    home = folder / str(number)
    home.mkdir()
    machine = Machine(home, random.Random(number), VirtualClock(1_750_000_000.0), workflows=("repairable", "sleeper"))
    machine.journal.broken = True
    process = Process(machine)
    process.worker.join()
    process.app.workflows["repairable"].start(0, id=EXECUTION_ID)
    work(process, machine, hg.Status.FAILED)
    for _ in range(5):  # The child ends with its parent.
        process.worker.poll()
        process.worker.turn()
    process.bury()
    machine.journal.broken = False
    machine.clock.advance(20.0)
    return machine


def check_all_or_nothing(machine: Machine) -> None:
    rows = machine.reader.read()
    row = rows.executions[EXECUTION_ID]
    marks = [event for turn in rows.turns[EXECUTION_ID] for event in turn.events if isinstance(event, Reset)]
    if row.run == 1:
        assert (row.status, marks, row.kept_turns) == (hg.Status.FAILED, [], "")
    else:
        assert (row.run, len(marks), row.reset_id) == (2, 1, "once")
    Checks().check(rows)


def check_end(machine: Machine, performed: dict[str, int]) -> None:
    rows = machine.reader.read()
    row = rows.executions[EXECUTION_ID]
    assert (row.run, row.status, row.result) == (2, hg.Status.SUCCEEDED, RESULT)
    Checks().check(rows)
    check_quiet(rows)
    check_received_once(rows)
    finder = Process(machine)
    check_replays(rows, finder.app.workflows)
    finder.bury()
    ended = Counter(attempt.activity_id for attempt in machine.journal.attempts)
    for activity_id, count in performed.items():
        assert ended[activity_id] == count, f"{activity_id}: it had ended, and ran again"


def live(machine: Machine, request: Request, fault: Fault | None) -> int:
    process = Process(machine)
    process.store.fault = fault
    try:
        while True:
            try:
                request(process)
                process.worker.join()
                work(process, machine, hg.Status.SUCCEEDED)
            except (TransientError, OutcomeUnknownError):
                continue
            break
    except Crash:
        machine.clock.advance(11.0)
    finally:
        process.bury()
    return process.store.calls


@pytest.mark.parametrize("request_reset", [from_failure, to_an_activity])
@pytest.mark.parametrize(
    ("crash", "is_done"),
    [(True, False), (True, True), (False, False), (False, True)],
    ids=["killed before", "killed after", "refused", "unknown"],
)
def test_reset__fault_at_every_call_to_the_store__none_or_all_of_it(
    tmp_path: Path, request_reset: Request, crash: bool, is_done: bool
) -> None:
    sandbox.install()
    for number in range(1, CALLS_MAX):
        machine = failed_machine(tmp_path, number)
        # What had ended before the failure never runs again, unless it is the activity that is repeated.
        performed = Counter(attempt.activity_id for attempt in machine.journal.attempts)
        calls = live(machine, request_reset, Fault(number, crash=crash, is_done=is_done))
        check_all_or_nothing(machine)
        if machine.reader.read().executions[EXECUTION_ID].status is not hg.Status.SUCCEEDED:
            live(machine, request_reset, None)
        check_end(machine, performed)
        machine.close()
        if calls < number:
            assert number > 20, "the story has more calls than that"
            return
    pytest.fail(f"the story makes more than {CALLS_MAX} calls")
