"""One small story, and a process that dies at each of its calls to the store in turn: the end is always the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.replay import sandbox
from headgate.store.catalogue.tables import EXECUTIONS
from headgate.store.model.schema import Key
from tests.simulation.durable_processes import Crash, Fault, Machine, Process
from tests.simulation.durable_rows import Checks, check_quiet, check_received_once, check_replays

EXECUTION_ID = "story"
RESULT = '[2,"woke","approved"]'
CALLS_MAX = 400
ROUNDS_MAX = 30


def tell(process: Process) -> None:
    """What a client does that retries until it is answered: each of it may be sent twice."""
    process.app.workflows["story"].start(1, id=EXECUTION_ID)
    process.app.workflows["story"].handle(EXECUTION_ID).signal("approved", "approved", id="approval")


def work(process: Process, machine: Machine) -> None:
    """Do everything there is to do, until the story has ended."""
    for _ in range(ROUNDS_MAX):
        if has_ended(machine):
            return
        process.worker.poll()
        while process.worker.engine.has_work:
            process.worker.turn()
        while process.worker.queue:
            process.begin()
        while process.held:
            process.finish()
        machine.clock.advance(2.0)


def has_ended(machine: Machine) -> bool:
    item = machine.store.get(EXECUTIONS, Key(EXECUTION_ID))
    return item is not None and item["status"] != hg.Status.RUNNING


def live(machine: Machine, fault: Fault | None) -> int:
    """Run a process that may die; return how many calls it made. Callers without an answer ask the next process."""
    process = Process(machine)
    process.store.fault = fault
    try:
        process.worker.join()
        tell(process)
        work(process, machine)
    except Crash:
        # The rest of its lease has to pass before others take over.
        machine.clock.advance(11.0)
    finally:
        process.bury()
    return process.store.calls


def story(machine: Machine, fault: Fault | None) -> int:
    calls = live(machine, fault)
    rows = machine.reader.read()
    Checks().check(rows)
    if not has_ended(machine):
        live(machine, None)
    item = machine.store.get(EXECUTIONS, Key(EXECUTION_ID))
    assert item is not None
    assert (item["status"], item.get("result")) == (hg.Status.SUCCEEDED, RESULT), f"{fault}: {item}"
    return calls


def check_end(machine: Machine) -> None:
    rows = machine.reader.read()
    Checks().check(rows)
    check_quiet(rows)
    check_received_once(rows)
    finder = Process(machine)
    check_replays(rows, finder.app.workflows)
    finder.bury()
    done = [attempt for attempt in machine.journal.attempts if attempt.name == "add"]
    assert 1 <= len(done) <= 2, f"the activity was performed {len(done)} times"
    assert len({attempt.token for attempt in done}) == len(done)


def new_machine(folder: Path, number: int) -> Machine:
    home = folder / str(number)
    home.mkdir()
    return Machine(home, random.Random(number), VirtualClock(1_750_000_000.0), workflows=("story", "sleeper"))


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_crash__at_every_call_to_the_store__the_same_end(tmp_path: Path, is_done: bool) -> None:
    sandbox.install()
    for number in range(1, CALLS_MAX):
        machine = new_machine(tmp_path, number)
        calls = story(machine, Fault(number, is_done=is_done))
        check_end(machine)
        machine.close()
        if calls < number:
            assert number > 50, "the story has more calls than that"
            return
    pytest.fail(f"the story makes more than {CALLS_MAX} calls")


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "unknown"])
def test_store_busy__at_every_call__the_same_end(tmp_path: Path, is_done: bool) -> None:
    """The process lives on: the caller gets that the store is busy, or never learns how the call ended."""
    sandbox.install()
    for number in range(1, CALLS_MAX):
        machine = new_machine(tmp_path, number)
        calls = patient_story(machine, Fault(number, crash=False, is_done=is_done))
        check_end(machine)
        machine.close()
        if calls < number:
            assert number > 50, "the story has more calls than that"
            return
    pytest.fail(f"the story makes more than {CALLS_MAX} calls")


def patient_story(machine: Machine, fault: Fault) -> int:
    process = Process(machine)
    process.store.fault = fault
    process.patiently(process.worker.join)
    process.patiently(lambda: tell(process))
    process.patiently(lambda: work(process, machine))
    item = machine.store.get(EXECUTIONS, Key(EXECUTION_ID))
    assert item is not None
    assert (item["status"], item.get("result")) == (hg.Status.SUCCEEDED, RESULT), f"{fault}: {item}"
    process.bury()
    return process.store.calls
