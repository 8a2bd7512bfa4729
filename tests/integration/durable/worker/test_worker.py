"""Worker: its queue under concurrent use, and when its polling thread is woken."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec
import pytest

import headgate as hg
from headgate.durable.model.records import Activity
from headgate.durable.worker.poll_schedule import PollSchedule

app = hg.App("turning")


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("look", ["adopt_lost_claims", "poll"])
def test_queue__taken_from_while_it_is_looked_at__harms_no_other(look: str) -> None:
    with hg.testing.Environment(hg.App("busy")) as env:
        worker = env.worker
        worker.queue.extend(
            Activity(str(number), "x", "1", "{}", token=str(number), scheduled_at_ms=1) for number in range(5_000)
        )
        stopping = threading.Event()

        def take_and_give() -> None:
            while not stopping.is_set():
                # A sweep throws them out: the store has none of them.
                with suppress(IndexError):
                    worker.queue.append(worker.queue.popleft())

        thread = threading.Thread(target=take_and_give)
        thread.start()
        try:
            for _ in range(200):
                getattr(worker, look)()
        finally:
            stopping.set()
            thread.join()
            worker.queue.clear()


@pytest.mark.parametrize(
    "bring_forward",
    [PollSchedule.poll_soon, PollSchedule.renew_soon, lambda schedule: schedule.on_timers_scheduled([5])],
    ids=["look", "lease", "timer"],
)
def test_rest__something_comes_up__is_stale_until_the_next_one(bring_forward: Callable[[PollSchedule], None]) -> None:
    with hg.testing.Environment(hg.App("resting")) as env:
        schedule = env.worker.schedule
        env.worker.poll()
        assert schedule.plan_wait() > 0
        assert not schedule.may_be_due_in(60.0)
        bring_forward(schedule)
        assert schedule.may_be_due_in(60.0)
        assert schedule.plan_wait() == 0
        assert not schedule.may_be_due_in(60.0)


@pytest.mark.parametrize("limits", [{"start_to_close": 30}, {"heartbeat": 10}, {"schedule_to_close": 90}])
def test_rest__activities_with_a_deadline_run_here__may_be_due_for_as_long(limits: dict[str, int]) -> None:
    options = msgspec.json.encode(limits).decode()
    activity = Activity("one", "x", "1", options, token="1", scheduled_at_ms=1)
    with hg.testing.Environment(hg.App("resting")) as env:
        worker, schedule = env.worker, env.worker.schedule
        schedule.plan_wait()
        worker.begin(activity)
        assert schedule.may_be_due_in(60.0)
        worker.running.clear()
        assert not schedule.may_be_due_in(60.0)


def test_rest__a_claim_with_a_deadline_waits_here__may_be_due() -> None:
    options = msgspec.json.encode({"schedule_to_start": 5}).decode()
    claim = Activity("one", "x", "1", options, token="1", scheduled_at_ms=1, attempt=1)
    with hg.testing.Environment(hg.App("resting")) as env:
        worker, schedule = env.worker, env.worker.schedule
        schedule.plan_wait()
        worker.claims.enqueue([claim])
        worker.claims.watch_deadlines([claim])
        assert schedule.may_be_due_in(60.0)


def test_rest__activities_without_a_deadline__may_be_due_when_they_become_surplus_and_not_before() -> None:
    claims = [Activity(f"{number}", "x", "1", "{}", token="1", scheduled_at_ms=1) for number in range(3)]
    with hg.testing.Environment(hg.App("resting")) as env:
        worker, schedule = env.worker, env.worker.schedule
        schedule.plan_wait()
        worker.claims.enqueue(claims[:1])
        assert not schedule.may_be_due_in(60.0)
        worker.claims.enqueue(claims[1:])
        assert not schedule.may_be_due_in(0.9)
        assert schedule.may_be_due_in(1.1)
        worker.begin(worker.queue.popleft())
        worker.queue.clear()
        assert not schedule.may_be_due_in(60.0)


@app.activity
def plain(number: int) -> int:
    return number


@app.activity(limit=hg.Limit(concurrency=1, key="one-at-a-time"))
def limited(number: int) -> int:
    return number


@app.workflow
async def wide(width: int) -> int:
    return sum(await asyncio.gather(*(plain(number) for number in range(width))))


@app.workflow
async def narrow() -> int:
    return await limited(1)


@pytest.mark.parametrize(
    ("start", "claimed"), [(lambda: wide.start(100), 92), (narrow.start, 0)], ids=["wide", "limit"]
)
def test_turn__activities_that_no_one_has_claimed_with_it__are_looked_for_at_once(
    start: Callable[[], object], claimed: int
) -> None:
    with hg.testing.Environment(app) as env:
        worker = env.worker
        worker.poll()
        start()
        assert worker.turn() in range(claimed - 2, claimed + 3)
        assert worker.is_due, "or they wait for the next look that is made anyway, for up to a second"


def test_claim__no_room__is_looked_for_as_soon_as_there_is() -> None:
    with hg.testing.Environment(app) as env:
        worker = env.worker
        worker.poll()
        waiting = [Activity(f"a{number}", "plain", "1", "{}", token="1", scheduled_at_ms=1) for number in range(300)]
        worker.queue.extend(waiting)
        assert worker.claim(waiting[0]) is None
        assert not worker.is_due
        worker.queue.clear()
        assert worker.is_due
