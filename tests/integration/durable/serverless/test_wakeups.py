"""Calls in the place of standing workers: what is too early, limited, overdue or dead, on a store of any kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

import headgate as hg
from headgate.aws.worker_invocation import run_worker
from headgate.clock import SystemClock, VirtualClock
from headgate.durable.engine.membership import list_members
from headgate.durable.model.records import Activity, activity_of
from headgate.durable.schedules.cron import Recurrence
from headgate.durable.schedules.slots import Spec
from headgate.durable.serverless.activity_handler import LIMITED_SECONDS_MIN, InvokedActivities
from headgate.durable.serverless.sqs import GROUP_CHARS_MAX, group_of
from headgate.durable.serverless.turn_handler import InvokedTurns
from headgate.durable.serverless.wake_sweep import WakeSweep, is_wake_due
from headgate.durable.serverless.wakeups import ActivityWake, Due, TurnWake, WorkerWake, dump_due, load_due, wake_for
from headgate.durable.service import Service
from headgate.errors import CorruptionError
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.catalogue.tables import ACTIVITIES, INBOXES, TIMERS, WORKERS
from headgate.store.keyring import Keyring
from headgate.store.model.schema import Key, Table
from tests.aws_rig import until
from tests.stores import open_sqlite

app = hg.App("calls")


@app.activity(limit=hg.Limit(concurrency=1))
def guarded(number: int) -> int:
    return number


@app.activity(schedule_to_start="10s")
def impatient() -> str:
    return "begun"


@app.workflow
async def nap() -> None:
    await hg.sleep("1h")


@app.workflow
async def pass_guard(number: int) -> int:
    return await guarded(number)


@app.workflow
async def hurry() -> str:
    try:
        return await impatient()
    except TimeoutError:
        return "too late"


during: list[Callable[[], str]] = []


@app.activity
def long() -> str:
    return during[0]()


@app.workflow
async def last() -> str:
    return await long()


@app.workflow
async def carry(load: str) -> int:
    return len(load)


@app.workflow
async def share(load: str) -> int:
    length: int = await carry(load)
    return length


def never() -> bool:
    return False


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def service(tmp_path: Path, clock: VirtualClock) -> Iterator[Service]:
    store = open_sqlite(tmp_path, clock=clock)
    yield Service(app, store, clock, Keyring.generate(clock), FolderBlobs(tmp_path / "blobs"))
    app.bind(None, None)
    store.close()


def rows(service: Service, table: Table, *keys: Key) -> list[Due]:
    """Return what rows ask for, as a stream would deliver it."""
    found = [service.store.get(table, key, consistent=True) for key in keys]
    asked = [wake_for(table, item) for item in found if item is not None]
    return [due for due in asked if due is not None]


def looked_at(execution_id: str) -> TurnWake:
    return TurnWake(execution_id, "test")


def activity(service: Service, execution_id: str) -> Activity:
    item = service.store.get(ACTIVITIES, Key(f"{execution_id}#1#000001"), consistent=True)
    assert item is not None
    return activity_of(item)


def test_timer__woken_too_early__is_put_off_under_a_cause_of_its_own_and_fires_once(
    service: Service, clock: VirtualClock
) -> None:
    handle = nap.start(id="n-1")
    turns = InvokedTurns(service)
    turns([looked_at("n-1")], never)
    (due,) = rows(service, TIMERS, Key("n-1#1#000001"))
    assert isinstance(due.wake, TurnWake)

    (early,), left = turns([due.wake], never)

    assert (early.at_ms, left) == (due.at_ms, set())
    assert isinstance(early.wake, TurnWake)
    # Within five minutes a FIFO queue takes the same cause for the same message.
    assert early.wake.cause != due.wake.cause
    assert early.wake.timer_id == due.wake.timer_id
    clock.advance(3600)
    assert turns([early.wake, due.wake], never) == ([], set())
    assert turns([due.wake], never) == ([], set())
    assert handle.status() is hg.Status.SUCCEEDED
    assert handle.describe().turn == 2


def test_activity__its_limit_is_full__is_asked_for_again_after_growing_pauses(
    service: Service, clock: VirtualClock
) -> None:
    for number in (1, 2):
        pass_guard.start(number, id=f"g-{number}")
    InvokedTurns(service)([looked_at("g-1"), looked_at("g-2")], never)
    other = service.worker()
    other.join()
    held = other.activities.claim_one(activity(service, "g-1"))
    assert held is not None
    perform = InvokedActivities(service, ["default"])
    wake = ActivityWake("g-2#1#000001", "default")

    first = perform(wake, never)
    clock.advance(60)
    second = perform(wake, never)

    assert first is not None
    assert second is not None
    now_ms = int(clock.seconds() * 1000)
    assert first.at_ms == now_ms - 60_000 + 1000 * LIMITED_SECONDS_MIN
    assert second.at_ms == now_ms + 30_000
    other.activities.release(held)
    assert perform(wake, never) is None
    # Ended: its row is gone, and what it came to is in the inbox.
    assert service.store.get(ACTIVITIES, Key("g-2#1#000001"), consistent=True) is None
    InvokedTurns(service)([looked_at("g-2")], never)
    assert service.client.get("g-2").result == "2"


def test_turns__that_start_a_child__leave_it_to_a_call_of_its_own(service: Service) -> None:
    share.start("xyz", id="s-1")
    turns = InvokedTurns(service)

    turns([looked_at("s-1")], never)

    (child,) = service.client.list(workflow="carry").executions
    assert child.turn == 0
    turns([looked_at(child.execution_id)], never)
    turns([looked_at("s-1")], never)
    assert service.client.get("s-1").result == "3"


def test_turns__of_one_whose_payload_is_gone__are_reported_again_and_hold_up_no_other(
    service: Service, tmp_path: Path
) -> None:
    carry.start("x" * 500_000, id="lost")
    carry.start("x", id="well")
    turns = InvokedTurns(service)
    for blob in [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]:
        blob.unlink()

    assert turns([looked_at("lost"), looked_at("well")], never) == ([], {"lost"})

    assert service.client.get("well").status is hg.Status.SUCCEEDED
    with pytest.raises(CorruptionError):
        turns([looked_at("lost")], never)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_activity__that_outlasts_its_lease__keeps_it_by_beating_unless_it_was_given_up(
    tmp_path: Path, *, is_given_up: bool
) -> None:
    clock = SystemClock()
    with closing(open_sqlite(tmp_path, clock=clock)) as store:
        service = Service(app, store, clock, Keyring.generate(clock), FolderBlobs(tmp_path / "blobs"))
        last.start(id="l-1")
        InvokedTurns(service)([looked_at("l-1")], never)
        worker_ids = []

        def work() -> str:
            (member,) = list_members(store)
            worker_ids.append(member.worker_id)
            if is_given_up:
                store.update(WORKERS, Key(member.worker_id), set={"is_given_up": True})
            until("it has beaten, or was told", lambda: hg.activity().cancelled or list_members(store)[0].beats > 3)
            return "done"

        during[:] = [work]
        perform = InvokedActivities(service, ["default"], lease_seconds=0.3)

        assert perform(ActivityWake("l-1#1#000001", "default"), never) is None

        InvokedTurns(service)([looked_at("l-1")], never)
        # Who was given up leaves its row: what it claimed is found by that.
        assert [member.worker_id for member in list_members(store)] == (worker_ids if is_given_up else [])
        assert service.client.get("l-1").result == (None if is_given_up else '"done"')
        app.bind(None, None)


def test_activity__cancelled_while_it_runs__is_reported_when_its_lease_is_renewed(tmp_path: Path) -> None:
    clock = SystemClock()
    with closing(open_sqlite(tmp_path, clock=clock)) as store:
        service = Service(app, store, clock, Keyring.generate(clock), FolderBlobs(tmp_path / "blobs"))
        handle = last.start(id="l-1")
        InvokedTurns(service)([looked_at("l-1")], never)

        def work() -> str:
            handle.cancel()
            InvokedTurns(service)([looked_at("l-1")], never)
            until("it was told", lambda: hg.activity().cancelled)
            return "too late"

        during[:] = [work]

        assert (
            InvokedActivities(service, ["default"], lease_seconds=0.3)(ActivityWake("l-1#1#000001", "default"), never)
            is None
        )

        assert handle.status() is hg.Status.CANCELLED
        assert list_members(store) == []
        app.bind(None, None)


def test_sweep__what_is_done_by_the_clock__is_done(service: Service, clock: VirtualClock) -> None:
    hurry.start(id="h-1")
    service.schedules.create("hourly", Spec(workflow="nap", recurrence=Recurrence("0 * * * *")))
    turns, sweep = InvokedTurns(service), WakeSweep(service, ["default"])
    turns([looked_at("h-1")], never)

    clock.advance(3600)
    sweep.run_maintenance(never)
    turns([looked_at("h-1")], never)
    assert service.client.get("h-1").result == '"too late"'
    (started,) = service.client.list(workflow="nap").executions
    assert started.status is hg.Status.RUNNING


def test_sweep__stuck_with_another_build__is_released_and_with_this_one_is_not(
    service: Service, clock: VirtualClock
) -> None:
    handles = {build: nap.start(id=f"n-{place}") for place, build in enumerate(("older", service.build))}
    for build, handle in handles.items():
        row = handle.describe()
        stuck = replace(row, version=row.version + 1, status=hg.Status.STUCK, failures=5, failed_builds=(build,))
        service.store.transact([stuck.replacing(row.version)])

    WakeSweep(service, ["default"]).run_maintenance(never)

    assert handles["older"].status() is hg.Status.RUNNING
    assert handles[service.build].status() is hg.Status.STUCK
    InvokedTurns(service)([looked_at(handle.id) for handle in handles.values()], never)
    assert [handle.describe().turn for handle in handles.values()] == [1, 0]


def test_sweep__what_was_reported_and_forgotten__is_reported_again_at_growing_intervals(
    service: Service, clock: VirtualClock
) -> None:
    nap.start(id="n-2")
    sweep = WakeSweep(service, ["default"])
    received = []
    for minute in range(130):
        if sweep.overdue():
            received.append(minute)
        clock.advance(60)

    assert received == [1, 2, 4, 8, 16, 32, 61, 64, 122, 128]
    assert not is_wake_due(59_999)


def test_watch__a_worker_that_is_dead__is_given_up_then_buried(service: Service, clock: VirtualClock) -> None:
    pass_guard.start(1, id="g-3")
    InvokedTurns(service)([looked_at("g-3")], never)
    dead = service.worker(host="another machine")
    dead.join()
    assert dead.activities.claim_one(activity(service, "g-3")) is not None
    watch = WakeSweep(service, ["default"]).workers
    (seen,) = watch.checks()
    assert isinstance(seen.wake, WorkerWake)
    assert seen.at_ms == int((clock.seconds() + dead.fleet.lease_seconds) * 1000)

    again = watch.check(seen.wake)

    assert again is not None
    assert isinstance(again.wake, WorkerWake)
    assert activity(service, "g-3").queue_pk == "Q#default"
    assert not dead.fleet.renew()
    assert watch.check(again.wake) is None
    assert service.store.get(WORKERS, Key(dead.worker_id), consistent=True) is None
    assert watch.check(again.wake) is None


def test_deliveries__held_by_an_invocation_that_was_killed__are_made_by_a_later_one(
    service: Service, clock: VirtualClock
) -> None:
    pass_guard.start(1, id="g-4")
    InvokedTurns(service)([looked_at("g-4")], never)
    killed = service.worker(lease_seconds=240, host="another machine")
    killed.join()
    assert killed.activities.claim_one(activity(service, "g-4")) is not None
    clock.advance(300)
    # It may still be there: no check waits long enough to know.
    assert run_worker(service, never) == 0

    clock.advance(900)
    assert run_worker(service, never) == 1

    assert service.client.get("g-4").result == "1"
    clock.advance(60)
    run_worker(service, never)
    assert list_members(service.store) == []


def test_wake__as_a_message__comes_back_as_it_was() -> None:
    dues = [
        Due(TurnWake("o-1", "c", "t"), 7),
        Due(ActivityWake("a", "default"), 0),
        Due(WorkerWake("w", 3, is_revoked=True), 9_000),
    ]

    assert [load_due(dump_due(due)) for due in dues] == dues
    assert [due.seconds_left(8_001) for due in dues] == [0, 0, 1]
    assert (group_of("o-1"), len(group_of("x" * 1000))) == ("o-1", 64)
    assert group_of("x" * GROUP_CHARS_MAX) == "x" * GROUP_CHARS_MAX
    assert wake_for(INBOXES, {"execution_id": "o-1", "message_id": "U#1"}) is None
