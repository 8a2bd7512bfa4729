"""One small story of a fan-out, and a process that dies at each of its calls to the store in turn: the same end."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.errors import OutcomeUnknownError, StaleClaimError, TransientError
from headgate.fanout.core import splitter
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult
from headgate.fanout.core.splitter import Order
from headgate.fanout.core.tracking import Claim
from headgate.fanout.model.rows import Policy
from headgate.fanout.model.sources import ListSource
from headgate.fanout.model.states import Disposition, FanoutStatus
from tests.fanout_books import Books, check_books, check_found, read_books
from tests.simulation.durable_processes import Crash, Fault
from tests.simulation.fanout_world import Held, Machine, Process, shrink_limits

ORDER = Order("g", 2, policy=Policy(max_attempts=4, timeout_seconds=10.0, backoff_seconds=1.0))
ITEMS = 10
SOURCE = ListSource(list(range(ITEMS)))
SKIPPED = "chunk-0000008"
FAILS, DEFERS, RELEASED = 2, 4, 6
CALLS_MAX = 400
ROUNDS_MAX = 60


class Teller:
    """A process that lives a story of one fan-out on a machine."""

    def __init__(self, machine: Machine, run_id: str) -> None:
        self.machine = machine
        self.run_id = run_id
        self.process = Process(machine)

    @property
    def is_over(self) -> bool:
        return self.books().fanout.is_finished

    def books(self) -> Books:
        return read_books(self.machine.store, self.run_id)


Story = Callable[[Teller], None]


def followed(teller: Teller) -> None:
    """A client and an operator who repeat themselves until they are answered, and workers until all has ended."""
    process, run_id = teller.process, teller.run_id
    process.splitter.split(ORDER, SOURCE, run_id=run_id)
    if not teller.is_over:
        process.control.pause(run_id, by="someone", reason="to look")
        process.control.resume(run_id)
    process.control.skip(run_id, [SKIPPED])
    work(teller)


def cancelled(teller: Teller) -> None:
    """The same, but cancelled once some chunks have run."""
    process, run_id = teller.process, teller.run_id
    process.splitter.split(ORDER, SOURCE, run_id=run_id)
    work(teller, rounds=1, room=1)
    if not teller.is_over:
        process.control.cancel(run_id, reason="no longer wanted")
    work(teller)


def work(teller: Teller, *, rounds: int = ROUNDS_MAX, room: int = 3) -> None:
    process, machine = teller.process, teller.machine
    for _ in range(rounds):
        if teller.is_over:
            return
        for held in list(process.held):
            end(teller, held)
        for lane in process.lanes.values():
            for claim in lane.take(room, {}):
                held = Held(claim, 0.0)
                process.held.append(held)
                end(teller, held)
        process.maintenance.run_once()
        machine.clock.advance(2.0)
        machine.catch_up()


def end(teller: Teller, held: Held) -> None:
    claim = held.claim
    try:
        perform(teller.process, claim)
    except StaleClaimError:
        # Its lease ran out in the hands of a process that had to wait.
        row = teller.books().chunks[claim.chunk.chunk_id]
        assert (row.token, row.disposition) != (claim.chunk.token, Disposition.RUNNING)
    teller.process.held.remove(held)


def perform(process: Process, claim: Claim) -> None:
    chunk, tracker = claim.chunk, process.tracker
    if chunk.lane == "slow":
        tracker.complete(claim, AttemptResult(output='"slow"'))
    elif chunk.start == FAILS and chunk.attempt == 1:
        tracker.fail(claim, AttemptFailure("ValueError", "the first time"))
    elif chunk.start == RELEASED:
        tracker.heartbeat(claim, items_done=1)
        tracker.release(claim)
        again = tracker.start(chunk.run_id, chunk.chunk_id, worker="second").claim
        if again is not None:
            tracker.complete(again, AttemptResult(output='"ok"'))
    elif chunk.start == DEFERS:
        tracker.complete(claim, AttemptResult(output='"ok"', deferred=[DEFERS + 1]))
    else:
        tracker.complete(claim, AttemptResult(output='"ok"'))


def live(machine: Machine, run_id: str, story: Story, fault: Fault | None) -> int:
    """Run a process that may die; return how many calls it made."""
    teller = Teller(machine, run_id)
    teller.process.store.fault = fault
    try:
        story(teller)
    except Crash:
        # The rest of its leases has to pass before others take over.
        machine.clock.advance(11.0)
        machine.catch_up()
    finally:
        teller.process.bury()
    return teller.process.store.calls


def live_patiently(machine: Machine, run_id: str, story: Story, fault: Fault) -> int:
    """Run a process that gets that the store is busy, or never learns how a call ended, and goes on."""
    teller = Teller(machine, run_id)
    teller.process.store.fault = fault
    for _ in range(3):
        try:
            story(teller)
            break
        except (TransientError, OutcomeUnknownError):
            continue
    teller.process.bury()
    return teller.process.store.calls


def check_end(machine: Machine, run_id: str, story: Story, fault: Fault | None) -> None:
    books = read_books(machine.store, run_id)
    check_books(books)
    check_found(machine.store, books)
    assert books.fanout.is_finished, f"{fault}: {books.fanout}"
    by_state = {chunk.chunk_id: chunk.disposition for chunk in books.chunks.values()}
    assert sum(chunk.items for chunk in books.main) == ITEMS
    if story is cancelled:
        assert set(by_state.values()) <= {Disposition.DONE, Disposition.DEFERRED, Disposition.CANCELLED}, f"{fault}"
        assert books.fanout.status is FanoutStatus.CANCELLED, f"{fault}: {books.fanout.status}"
        return
    assert books.fanout.status is FanoutStatus.SUCCEEDED, f"{fault}: {books.fanout.status} {by_state}"
    assert by_state.pop(SKIPPED) is Disposition.SKIPPED
    assert set(by_state.values()) == {Disposition.DONE}, f"{fault}: {by_state}"
    # One fails once; what a process that died had in hand is tried once more, and nothing else is.
    tries = sum(chunk.attempt - 1 for chunk in books.chunks.values() if chunk.attempt)
    assert 1 <= tries <= 1 + 3, f"{fault}: {tries} more tries than needed"
    assert [event["kind"] for event in books.events].count("skipped") <= 1


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_limits(monkeypatch.setattr)
    monkeypatch.setattr(splitter, "PIECES_MAX", 3)


def at_every_call(folder: Path, run: Callable[[Machine, str, int], int]) -> None:
    """Live the story once for each of its calls to the store, by turns with one counter, several, and lagging."""
    machines = []
    for number, (lags, shards) in enumerate([(False, 1), (False, 4), (True, 1)]):
        (folder / str(number)).mkdir()
        machines.append(Machine(folder / str(number), random.Random(number), lags=lags, shards=shards))
    try:
        for number in range(1, CALLS_MAX):
            if run(machines[number % 3], f"story-{number}", number) < number:
                assert number > 30, "the story has more calls than that"
                return
        pytest.fail(f"the story makes more than {CALLS_MAX} calls")
    finally:
        for machine in machines:
            machine.close()


@pytest.mark.parametrize(
    ("story", "is_done"),
    [(followed, False), (followed, True), (cancelled, False), (cancelled, True)],
    ids=["before", "after", "before-cancel", "after-cancel"],
)
def test_crash__at_every_call_to_the_store__the_same_end(tmp_path: Path, is_done: bool, story: Story) -> None:
    def run(machine: Machine, run_id: str, number: int) -> int:
        fault = Fault(number, is_done=is_done)
        calls = live(machine, run_id, story, fault)
        if calls >= number:
            live(machine, run_id, story, None)
        check_end(machine, run_id, story, fault)
        return calls

    at_every_call(tmp_path, run)


@pytest.mark.parametrize(
    ("story", "is_done"),
    [(followed, False), (followed, True), (cancelled, False), (cancelled, True)],
    ids=["refused", "unknown", "refused-cancel", "unknown-cancel"],
)
def test_store_busy__at_every_call__the_same_end(tmp_path: Path, is_done: bool, story: Story) -> None:
    def run(machine: Machine, run_id: str, number: int) -> int:
        fault = Fault(number, crash=False, is_done=is_done)
        calls = live_patiently(machine, run_id, story, fault)
        check_end(machine, run_id, story, fault)
        return calls

    at_every_call(tmp_path, run)


def test_crash__one_process_after_the_other__they_get_it_done_between_them(tmp_path: Path) -> None:
    machine = Machine(tmp_path, random.Random(1))
    for number in range(100):
        live(machine, "story", followed, Fault(9 + number % 13, is_done=bool(number % 2)))
        books = read_books(machine.store, "story")
        check_books(books)
        if books.fanout.is_finished:
            break
    assert books.fanout.status is FanoutStatus.SUCCEEDED
    assert number > 3, "each of them should have died before the end"
    machine.close()
