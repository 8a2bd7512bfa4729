"""Reports: how an activity ended is reported once, whatever the store does meanwhile. No process crashes here."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import Raw

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.records import Activity, activity_id
from headgate.durable.replay import sandbox
from headgate.errors import NotFoundError, StaleClaimError, TransientError
from tests.simulation.durable_processes import Machine, Process
from tests.simulation.durable_rows import Checks, check_quiet, check_received_once, check_replays, ended_activities

NAME = "reported"
# From the first report on: what comes later is the same once more.
CALLS_MAX = 70
ROUNDS_MAX = 60
STEP_SECONDS = 0.5
TIMEOUT_SECONDS = 20.0


@dataclass(frozen=True)
class Story:
    """An execution whose activities are reported in a certain way, and how it ends."""

    workflow: str
    input: object
    result: str
    # How often code of activities and handlers is called for it.
    performed: int
    # Between the worker's rounds: what is done from outside.
    meanwhile: Callable[[Worked], None] = lambda _: None


def complete_outside(process: Worked) -> None:
    """Complete what waits for it; again, if the answer was lost."""
    tokens = process.machine.journal.tokens
    while tokens:
        with suppress(NotFoundError, StaleClaimError):
            process.client.complete_activity(tokens[-1], Raw(b"77"))
        tokens.pop()


STORIES = {
    # Reported to the engine in memory, and committed with the turn.
    "in the turn": Story("serial", 2, "2", 2),
    # Through the inbox, with the slot that is freed.
    "with a slot": Story("limited", 1, "2", 2),
    # Queued again after two of the attempts, and ended for good after the last.
    "as a failure": Story("failing", 5, "[6,3]", 6),
    # Handed over, and ended by someone else.
    "from outside": Story("outside", 5, "[77,77]", 2, complete_outside),
    # Gone with its event, which is no part of any execution.
    "as delivered": Story("emitter", 1, "1", 3),
}


class Worked(Process):
    """A process with an activity that may hang."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self.machine = machine
        app, journal = self.app, machine.journal

        @app.activity(retry=hg.Retry(attempts=2, first=0.5), timeout=TIMEOUT_SECONDS)
        def hang(value: int) -> int:
            journal.note()
            return value

        @app.workflow(check=False)
        async def hanging(value: int) -> str:
            try:
                return str(await hang(value))
            except hg.ActivityTimeout as exc:
                return f"{exc.kind} after {exc.attempts}"


@pytest.fixture
def new_machine(tmp_path: Path) -> Iterator[Callable[[], Machine]]:
    sandbox.install()
    made: list[Machine] = []

    def make() -> Machine:
        home = tmp_path / str(len(made))
        home.mkdir()
        workflows = (*(story.workflow for story in STORIES.values()), "family", "sleeper")
        made.append(Machine(home, random.Random(1), VirtualClock(1_750_000_000.0), workflows=workflows))
        return made[-1]

    yield make
    for machine in made:
        machine.close()


def begun(machine: Machine, story: Story) -> Worked:
    """Return a process that has called the code of the first activity, and not reported it yet."""
    process = Worked(machine)
    process.worker.join()
    process.app.workflows[story.workflow].start(story.input, id=NAME)
    process.worker.poll()
    process.worker.turn()
    process.worker.poll()
    while process.worker.queue:
        process.begin()
    assert process.held, "nothing to report"
    return process


def work(process: Worked, story: Story) -> None:
    """Do everything there is to do until the execution has ended and nothing is left to perform."""
    for _ in range(ROUNDS_MAX):
        while process.held:
            process.finish()
        story.meanwhile(process)
        advance(process)
        if process.client.get(NAME).status.is_closed and not process.machine.reader.read().activities:
            return
        process.machine.clock.advance(STEP_SECONDS)


def advance(process: Worked) -> None:
    """Do what there is to do now, but for telling how activities ended."""
    process.worker.poll()
    while process.worker.engine.has_work:
        process.worker.turn()
    while process.worker.queue:
        process.begin()


def check(process: Worked, story: Story) -> None:
    row = process.client.get(NAME)
    assert (row.status, row.result) == (hg.Status.SUCCEEDED, story.result)
    rows = process.machine.reader.read()
    Checks().check(rows)
    check_quiet(rows)
    check_received_once(rows)
    check_replays(rows, process.app.workflows)
    performed = Counter((attempt.activity_id, attempt.attempt) for attempt in process.machine.journal.attempts)
    assert sum(performed.values()) == story.performed, f"performed: {performed}"
    for (run, seq), ended in ended_activities(rows.turns[NAME]).items():
        name = activity_id(NAME, run, seq)
        attempts = [attempt for identifier, attempt in performed if identifier == name]
        assert attempts == list(range(1, ended.attempts + 1)), f"{name}: {ended}"


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "unknown"])
@pytest.mark.parametrize("name", STORIES)
def test_report__store_busy_at_any_call__is_reported_once_and_nothing_is_performed_again(
    new_machine: Callable[[], Machine], name: str, is_done: bool
) -> None:
    story = STORIES[name]
    for number in range(1, CALLS_MAX):
        process = begun(new_machine(), story)
        process.store.fail_in(number, crash=False, is_done=is_done)

        process.patiently(lambda process=process: work(process, story))  # type: ignore[misc]

        was_met = process.store.fault is None
        process.store.fault = None
        check(process, story)
        process.bury()
        if not was_met:
            break
    assert number > 10, "the report and what follows it are more calls than that"


def test_report__store_busy_for_minutes__is_reported_once_when_it_recovers(new_machine: Callable[[], Machine]) -> None:
    """Longer than a lease: others would have taken over, but there are none."""
    story = STORIES["with a slot"]
    process = begun(new_machine(), story)
    process.store.fail_in(1, crash=False, is_done=False)
    while process.held:
        process.finish()
        process.store.fail_in(1, crash=False, is_done=False)

    for _ in range(30):
        process.machine.clock.advance(0.5)
        process.store.fail_in(1, crash=False, is_done=False)
        with suppress(TransientError):
            process.worker.poll()
    assert not process.client.get(NAME).status.is_closed

    process.store.fault = None
    work(process, story)
    check(process, story)
    process.bury()


# Time-outs.


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "unknown"])
def test_time_out__store_busy_at_any_call__is_tried_again_and_recorded_once(
    new_machine: Callable[[], Machine], is_done: bool
) -> None:
    """The code of the first attempt hangs; that of the second answers."""
    story = Story("hanging", 7, '"7"', 2)
    for number in range(1, CALLS_MAX):
        process = begun(new_machine(), story)
        (late,) = process.held
        process.held.clear()
        process.machine.clock.advance(TIMEOUT_SECONDS + 1)
        process.store.fail_in(number, crash=False, is_done=is_done)

        process.patiently(lambda process=process: work(process, story))  # type: ignore[misc]
        # It returns late, and its result is discarded.
        process.worker.finish(*late)
        process.patiently(lambda process=process: advance(process))  # type: ignore[misc]

        was_met = process.store.fault is None
        process.store.fault = None
        check(process, story)
        process.bury()
        if not was_met:
            break
    assert number > 10, "the time-out and what follows it are more calls than that"


@pytest.mark.parametrize("is_done", [False, True], ids=["refused", "unknown"])
def test_time_out__of_the_last_attempt_and_store_busy_at_any_call__is_recorded_once(
    new_machine: Callable[[], Machine], is_done: bool
) -> None:
    story = Story("hanging", 7, '"start_to_close after 2"', 2)
    for number in range(1, CALLS_MAX):
        process = begun(new_machine(), story)
        late = [process.held.pop()]
        hang_until_begun(process, late)
        process.machine.clock.advance(TIMEOUT_SECONDS + 1)
        process.store.fail_in(number, crash=False, is_done=is_done)

        for _ in range(5):
            process.patiently(lambda process=process: advance(process))  # type: ignore[misc]
            process.machine.clock.advance(STEP_SECONDS)
        for activity, outcome in late:
            process.worker.finish(activity, outcome)
        process.patiently(lambda process=process: advance(process))  # type: ignore[misc]

        was_met = process.store.fault is None
        process.store.fault = None
        check(process, story)
        (ended,) = ended_activities(process.machine.reader.read().turns[NAME]).values()
        assert (ended.timeout, ended.attempts) == ("start_to_close", 2)
        process.bury()
        if not was_met:
            break
    assert number > 10, "the time-out and what follows it are more calls than that"


def hang_until_begun(process: Worked, late: list[tuple[Activity, AttemptResult | None]]) -> None:
    """Let the first attempt run out of time, and begin the second."""
    process.machine.clock.advance(TIMEOUT_SECONDS + 1)
    for _ in range(3):
        advance(process)
        process.machine.clock.advance(STEP_SECONDS)
    late.append(process.held.pop())
    assert [activity.attempt for activity, _ in late] == [1, 2]


# A store that takes its time, while the other threads of the worker go on.


def go_on_elsewhere(process: Worked) -> None:
    """Do what the pump and other performers do while one thread waits for the store."""
    for _ in range(3):
        process.machine.clock.advance(2.1)
        process.worker.poll()
        while process.worker.queue:
            process.begin()


class SlowCall:
    """The call of a performer or leader to the store, counted from the first report on, that takes seconds."""

    def __init__(self, process: Worked, number: int) -> None:
        self.left = number
        self._process = process

    def within(self, act: Callable[[], object]) -> None:
        """Do something in which the call may be."""
        store = self._process.store
        before = store.calls
        if self.left > 0:
            store.meanwhile = (before + self.left, lambda: go_on_elsewhere(self._process))
        act()
        self.left = 0 if store.meanwhile is None else self.left - (store.calls - before)
        store.meanwhile = None


@pytest.mark.parametrize("name", STORIES)
def test_report__store_slow_at_any_call__no_one_takes_the_claim_for_lost(
    new_machine: Callable[[], Machine], name: str
) -> None:
    story = STORIES[name]
    for number in range(1, CALLS_MAX):
        process = begun(new_machine(), story)
        slow = SlowCall(process, number)
        for _ in range(ROUNDS_MAX):
            while process.held:
                slow.within(process.finish)
            story.meanwhile(process)
            process.worker.poll()
            while process.worker.engine.has_work:
                slow.within(process.worker.turn)
            while process.worker.queue:
                process.begin()
            process.machine.clock.advance(STEP_SECONDS)

        check(process, story)
        process.bury()
        if slow.left > 0:
            break
    assert number > 2, "a report is more calls than that"


def test_sign_of_life__its_answer_is_lost__nothing_that_runs_is_given_up(new_machine: Callable[[], Machine]) -> None:
    story = STORIES["in the turn"]
    for number in range(1, 8):
        process = begun(new_machine(), story)
        name = process.worker.worker_id
        process.machine.clock.advance(4.0)
        process.store.fail_in(number, crash=False, is_done=True)
        process.patiently(lambda process=process: advance(process))  # type: ignore[misc]

        work(process, story)

        assert process.worker.worker_id == name
        check(process, story)
        process.bury()


def test_turn__store_busy_for_the_children_of_another__its_activities_are_performed_at_once(
    new_machine: Callable[[], Machine],
) -> None:
    for number in range(1, 20):
        process = Worked(new_machine())
        process.worker.join()
        process.worker.poll()
        process.app.workflows["family"].start(1, id="parent")
        process.app.workflows["serial"].start(1, id=NAME)
        for name in ("parent", NAME):
            process.worker.engine.read_inbox(name)
        process.store.fail_in(number, crash=False, is_done=False)

        for _ in range(6):
            process.patiently(lambda process=process: advance(process))  # type: ignore[misc]
            while process.held:
                process.finish()

        assert process.client.get(NAME).result == "1", f"busy at call {number}"
        process.bury()
