"""Races and lapses that a seed rarely draws, each set up by hand on the same world of processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import Raw

import headgate as hg
from headgate.clock import VirtualClock
from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.history import Started, Woken
from headgate.durable.model.records import message
from headgate.durable.replay import sandbox
from headgate.errors import HeadgateError
from tests.simulation.durable_processes import Machine, Process
from tests.simulation.durable_rows import Checks, check_quiet

HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    sandbox.install()
    made = Machine(tmp_path, random.Random(1), VirtualClock(1_750_000_000.0))
    yield made
    made.close()


@pytest.fixture
def process(machine: Machine) -> Iterator[Process]:
    made = Process(machine)
    made.worker.join()
    yield made
    made.bury()


def work(process: Process, rounds: int = 3) -> None:
    """Do what there is to do now."""
    for _ in range(rounds):
        process.worker.poll()
        while process.worker.engine.has_work:
            process.worker.turn()
        while process.worker.queue:
            process.begin()
        while process.held:
            process.finish()


def work_for(process: Process, machine: Machine, seconds: float, step: float = 2.0) -> None:
    work(process)
    for _ in range(round(seconds / step)):
        machine.clock.advance(step)
        work(process, 2)


def status(process: Process, execution_id: str) -> hg.Status:
    return process.client.get(execution_id).status


def test_time_limit__clock_set_back_between_start_and_first_signal__still_ends_it(
    machine: Machine, process: Process
) -> None:
    handle = process.app.workflows["collector"].start(id="late", timeout="10s")
    machine.clock.step(-60.0)
    handle.signal("item", 1)
    work(process)
    machine.clock.step(60.0)

    work_for(process, machine, 14.0)

    assert status(process, "late") is hg.Status.TIMED_OUT


def test_cancel__accepted_under_a_clock_that_was_set_back__is_received(machine: Machine, process: Process) -> None:
    handle = process.app.workflows["collector"].start(id="unwanted")
    machine.clock.step(-60.0)
    handle.cancel("not any more")

    work_for(process, machine, 4.0)

    assert status(process, "unwanted") is hg.Status.CANCELLED


def test_time_limit__reached_while_an_activity_ends__closes_in_one_turn(machine: Machine, process: Process) -> None:
    process.app.workflows["serial"].start(4, id="slow", timeout="10s")
    process.worker.poll()
    process.worker.turn()
    process.begin()
    machine.clock.advance(11.0)
    process.finish()

    work_for(process, machine, 4.0)

    assert status(process, "slow") is hg.Status.TIMED_OUT
    check_quiet(machine.reader.read())


def test_queue__hundreds_wait_for_a_slot_that_is_taken_for_days__others_are_performed(
    machine: Machine, process: Process
) -> None:
    pooled = process.app.activities["pooled"]
    process.worker.stand_ins["pooled"] = later = object.__new__(type(pooled))
    later.__dict__.update(pooled.__dict__)
    later.function = _later
    for number in range(60):
        process.app.workflows["limited"].start(10, id=f"limited-{number}")
    work_for(process, machine, 4.0)

    process.app.workflows["serial"].start(4, id="serial")
    machine.clock.advance(1.0)
    work_for(process, machine, 4.0)

    assert status(process, "serial") is hg.Status.SUCCEEDED


def _later(value: int) -> object:
    del value
    return hg.complete_later()


def test_timers__hundreds_due_of_a_workflow_that_no_one_has__others_ring(machine: Machine, process: Process) -> None:
    for number in range(450):
        process.app.workflows["sleeper"].start(0.001, id=f"sleeper-{number}")
    work(process)
    lost = dict(process.app.workflows)
    del process.app.workflows["sleeper"]
    process.app.workflows["clockwork"].start(2, id="clockwork")

    work_for(process, machine, 30.0)

    assert status(process, "clockwork") is hg.Status.SUCCEEDED
    process.app.workflows.update(lost)
    work_for(process, machine, 20.0)
    assert all(status(process, f"sleeper-{number}") is hg.Status.SUCCEEDED for number in range(450))


def test_activity__ended_by_a_worker_without_the_workflow__is_received_by_one_that_has_it(machine: Machine) -> None:
    able, helper = Process(machine), Process(machine)
    able.worker.queues = ("other",)
    helper.app.workflows.clear()
    for process in (able, helper):
        process.worker.join()
    for number in range(8):
        able.app.workflows["serial"].start(2, id=f"serial-{number}")

    for _ in range(20):
        work(able, 1)
        work(helper, 1)
        machine.clock.advance(2.0)

    assert {status(able, f"serial-{number}") for number in range(8)} == {hg.Status.SUCCEEDED}
    for process in (able, helper):
        process.bury()


def test_stuck__with_more_mail_than_a_turn_takes__can_be_terminated(machine: Machine, process: Process) -> None:
    handle = process.app.workflows["brittle"].start(1, id="stuck")
    work(process)
    machine.journal.broken = True
    process.worker.engine.drop()
    for number in range(60):
        handle.signal("go", number)
    for _ in range(60):
        process.worker.poll()
        process.worker.turn()
        machine.clock.advance(2.0)
    assert status(process, "stuck") is hg.Status.STUCK

    handle.terminate("enough")
    for _ in range(3):
        process.worker.poll()
        process.worker.turn()
        machine.clock.advance(2.0)

    assert status(process, "stuck") is hg.Status.TERMINATED
    check_quiet(machine.reader.read())


def test_backing_off__with_more_mail_than_a_turn_takes__leaves_nothing_to_lead(
    machine: Machine, process: Process
) -> None:
    handle = process.app.workflows["brittle"].start(1, id="patient")
    work(process)
    machine.journal.broken = True
    process.worker.engine.drop()
    for number in range(60):
        handle.signal("go", number)
    process.worker.poll()

    for _ in range(10):
        process.worker.turn()

    assert not process.worker.engine.has_work


def test_mail__of_a_run_that_this_worker_has_not_known__is_kept(machine: Machine, process: Process) -> None:
    behind = Process(machine)
    behind.worker.join()
    handle = process.app.workflows["loop"].start(2, [], id="loop")
    # One worker knows the first run, and the other continues it as new and ends an activity of the second.
    behind.worker.engine.read_inbox("loop")
    behind.worker.turn()
    while behind.worker.queue:
        behind.begin()
        behind.finish()
    behind.worker.turn()
    handle.signal("tick", "one")
    process.worker.engine.read_inbox("loop")
    process.worker.turn()
    process.worker.engine.read_inbox("loop")
    process.worker.turn()
    activity = process.worker.queue.popleft()
    assert activity.run == 2
    process.worker.begin(activity)
    source = process.worker.activities.end_attempt(activity, AttemptResult(result=Raw(b"1001")))
    assert source is not None
    process.worker.activities.send_end(activity, source)
    process.worker.running.clear()

    behind.worker.engine.read_inbox("loop")
    behind.worker.turn()

    Checks().check(machine.reader.read())
    handle.signal("tick", "two")
    work_for(process, machine, 6.0)
    assert process.client.get("loop").result == '["one","two"]'
    behind.bury()


def test_worker_dies__no_attempt_left__the_activity_fails_and_is_not_performed_again(
    machine: Machine, process: Process
) -> None:
    handle = process.app.workflows["fragile"].start(1, id="fragile")
    doomed = Process(machine)
    doomed.worker.join()
    doomed.worker.engine.read_inbox("fragile")
    doomed.worker.turn()
    doomed.begin()
    doomed.store.is_dead = True

    work_for(process, machine, 60.0)

    assert handle.describe().result == '"WorkerDied"'
    Checks().check(machine.reader.read())


def test_mail__read_by_two_and_received_by_one__is_not_received_again(machine: Machine, process: Process) -> None:
    other = Process(machine)
    other.worker.join()
    for offset in range(1, 8):
        name = f"twice-{offset}"
        process.app.workflows["serial"].start(2, id=name)

        def overtake(name: str = name) -> None:
            other.worker.engine.read_inbox(name)
            other.worker.turn()

        process.store.meanwhile = (process.store.calls + offset, overtake)
        process.worker.engine.read_inbox(name)
        process.worker.turn()
        process.store.meanwhile = None
        for _ in range(3):
            work_for(process, machine, 6.0)
            work_for(other, machine, 6.0)
        row = process.client.get(name)
        assert row.status is hg.Status.SUCCEEDED
        starts = [e for turn in process.client.history(name) for e in turn.events if isinstance(e, Started)]
        assert len(starts) == 1, f"overtaken before call {offset}"
    other.bury()


def test_mail__of_an_id_used_again_while_its_end_is_looked_at__is_kept(machine: Machine, process: Process) -> None:
    other = Process(machine)
    for offset in range(1, 7):
        name = f"again-{offset}"
        process.app.workflows["serial"].start(1, id=name)
        work(process)
        with suppress(HeadgateError):
            # Left in the inbox of an execution that has ended.
            machine.store.transact([message(name, Woken("late"), 0, "x").put()])
        process.store.meanwhile = (process.store.calls + offset, lambda name=name: _restart(other, name))
        process.worker.engine.read_inbox(name)
        process.worker.turn()
        process.store.meanwhile = None
        _restart(other, name)
        work_for(process, machine, 6.0)
        row = process.client.get(name)
        assert (row.status, row.run) == (hg.Status.SUCCEEDED, 2), f"restarted before call {offset}: {row}"
    other.bury()


def test_archive__id_used_again_in_the_middle_of_it__the_new_run_begins(machine: Machine, process: Process) -> None:
    other = Process(machine)
    process.app.workflows["serial"].start(2, id="again")
    work(process)
    machine.clock.advance(8 * DAY)
    process.worker.poll()
    process.worker.poll()
    first = process.store.calls
    machine.clock.advance(100.0)

    for offset in range(1, 40):
        process.app.workflows["serial"].start(2, id=f"again-{offset}")
        work(process)
        machine.clock.advance(8 * DAY)
        process.store.meanwhile = (
            process.store.calls + offset,
            lambda offset=offset: _restart(other, f"again-{offset}"),
        )
        process.worker.poll()
        process.store.meanwhile = None
        _restart(other, f"again-{offset}")
        work_for(process, machine, 6.0)
        row = process.client.get(f"again-{offset}")
        assert (row.status, row.run) == (hg.Status.SUCCEEDED, 2), f"restarted before call {offset}: {row}"
        assert len(list(process.client.history(f"again-{offset}"))) == row.turn
    assert process.store.calls > first
    other.bury()


def _restart(process: Process, execution_id: str) -> None:
    process.app.workflows["serial"].start(
        2, id=execution_id, reuse="closed" if not _is_new(process, execution_id) else "never"
    )


def _is_new(process: Process, execution_id: str) -> bool:
    return process.client.get(execution_id).run > 1


def test_signal_id__used_again_with_the_execution__is_received_by_the_new_run(
    machine: Machine, process: Process
) -> None:
    for _ in range(2):
        handle = process.app.workflows["collector"].start(id="twice", reuse="closed")
        handle.signal("item", "hello", id="same")
        handle.signal("done", 1)
        work_for(process, machine, 4.0)
        assert process.client.get("twice").result == '["hello"]'


def test_restart__with_mail_of_the_earlier_run_left__only_what_is_its_own_is_received(
    machine: Machine, process: Process
) -> None:
    """A message can be accepted in the moment before the end: the next run must not obey it."""
    handle = process.app.workflows["serial"].start(1, id="reborn")
    other = Process(machine)
    process.worker.poll()
    process.worker.turn()
    process.begin()
    process.finish()
    handle.terminate("too late")
    # The worker does not know of the message yet, and ends the execution by its result.
    process.worker.turn()
    ended = process.client.get("reborn")
    assert ended.status in (hg.Status.SUCCEEDED, hg.Status.TERMINATED)

    other.app.workflows["serial"].start(1, id="reborn", reuse="closed")
    work_for(process, machine, 6.0)

    row = process.client.get("reborn")
    assert (row.run, row.status) == (2, hg.Status.SUCCEEDED)
    other.bury()


def test_continue_as_new__an_end_of_the_last_run_in_the_inbox__is_not_taken_for_the_next_runs(
    machine: Machine, process: Process
) -> None:
    handle = process.app.workflows["loop"].start(3, [], id="loop")
    process.worker.poll()
    process.worker.turn()
    activity = process.worker.queue.popleft()
    handle.signal("tick", "one")
    machine.clock.advance(0.01)
    # AttemptResult by someone who does not advance the execution: the end goes through the inbox, behind the signal.
    process.worker.begin(activity)
    source = process.worker.activities.end_attempt(activity, AttemptResult(result=Raw(b"3001")))
    assert source is not None
    process.worker.activities.send_end(activity, source)
    process.worker.running.clear()
    work_for(process, machine, 4.0)
    for number in range(3):
        process.client.signal("loop", "tick", Raw(str(number).encode()))
        work_for(process, machine, 4.0)
        if status(process, "loop").is_closed:
            break

    row = process.client.get("loop")
    assert row.status is hg.Status.SUCCEEDED
    assert row.result is not None
    assert "another run" not in row.result


def test_event__in_a_turn_for_more_subscriptions_than_fit__reaches_them_all(machine: Machine) -> None:
    process = Process(machine)
    received: list[int] = []
    for number in range(60):
        process.app.on_event("thing.made", name=f"watcher_{number}")(_watcher(received, number))
    process.worker.join()
    process.app.workflows["emitter"].start(1, id="emitter")

    work_for(process, machine, 10.0)

    assert sorted(received) == list(range(60))
    process.bury()


def _watcher(received: list[int], number: int) -> Callable[[hg.Event], None]:
    def watch(event: hg.Event) -> None:
        del event
        received.append(number)

    return watch


def test_clock__set_back_by_hours__a_dead_workers_activities_are_taken_over_within_leases(
    machine: Machine, process: Process
) -> None:
    dying = Process(machine)
    dying.worker.join()
    process.app.workflows["serial"].start(2, id="orphan")
    dying.worker.poll()
    dying.worker.engine.read_inbox("orphan")
    dying.worker.turn()
    assert dying.worker.queue
    dying.bury()
    machine.clock.step(-2 * HOUR)

    work_for(process, machine, 60.0)

    assert status(process, "orphan") is hg.Status.SUCCEEDED


def test_leave__with_activities_claimed_and_running__others_do_them_once(machine: Machine, process: Process) -> None:
    leaving = Process(machine)
    leaving.worker.join()
    process.app.workflows["fan"].start(5, id="fan")
    process.app.workflows["limited"].start(3, id="limited")
    for _ in range(3):
        leaving.worker.poll()
        leaving.worker.engine.read_inbox("fan")
        leaving.worker.turn()
    leaving.begin()
    leaving.worker.leave()
    while leaving.held:
        leaving.finish()

    work_for(process, machine, 30.0)

    assert status(process, "fan") is hg.Status.SUCCEEDED
    assert status(process, "limited") is hg.Status.SUCCEEDED
    rows = machine.reader.read()
    Checks().check(rows)
    check_quiet(rows)
