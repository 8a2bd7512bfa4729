"""Slots: how many async and isolated activities a worker claims."""

from __future__ import annotations

from collections import deque

from headgate.durable.model.records import Activity
from headgate.durable.model.worker_limits import WorkerLimits
from headgate.durable.sdk.activity_context import ActivityContext
from headgate.durable.worker.executor import RunningAttempt
from headgate.durable.worker.slots import SlotKind, Slots


class Held:
    """The queue and the running attempts of a worker, without its store. The name of an activity is its kind."""

    def __init__(self, **limits: int) -> None:
        self.queue: deque[Activity] = deque()
        self.running: dict[str, RunningAttempt] = {}
        self.slots = Slots(WorkerLimits(**limits), self.queue, self.running, lambda each: SlotKind[each.name])
        self.count = 0

    def activity(self, kind: str) -> Activity:
        self.count += 1
        return Activity(str(self.count), kind, "1", "{}", token=str(self.count), scheduled_at_ms=1)

    def run(self, kind: str) -> RunningAttempt:
        activity = self.activity(kind)
        context = ActivityContext(
            activity_id=activity.activity_id,
            name=kind,
            attempt=1,
            sign=str,
            execution_id="",
            details=None,
            clock_ms=lambda: 0,
            beat=lambda _context, _details: None,
            put_event=lambda *_: None,
        )
        attempt = RunningAttempt(activity, context, 0, None)
        self.running[activity.activity_id] = attempt
        return attempt

    def takes(self, kind: str) -> bool:
        return self.slots.take(self.activity(kind))


def test_take__within_one_batch__counts_what_it_has_reserved() -> None:
    held = Held(async_max=2)

    assert [held.takes("ASYNC") for _ in range(3)] == [True, True, False]
    assert all(held.takes("THREAD") for _ in range(500))
    held.slots.begin()
    assert held.takes("ASYNC")


def test_take__running_and_queued_ones__occupy_their_own_slots_only() -> None:
    held = Held(async_max=2, isolated_max=1)
    held.run("ASYNC")
    held.queue.append(held.activity("ASYNC"))
    held.queue.extend(held.activity("THREAD") for _ in range(10))

    assert not held.takes("ASYNC")
    assert held.takes("ISOLATED")
    assert not held.takes("ISOLATED")


def test_lacking__a_slot_is_freed__is_due_until_the_next_poll() -> None:
    held = Held(async_max=1)
    held.run("ASYNC")
    assert not held.takes("ASYNC")
    assert (held.slots.is_lacking, held.slots.is_freed()) == (True, False)

    held.running.clear()

    assert held.slots.is_freed()
    held.slots.begin_poll()
    assert (held.slots.is_lacking, held.slots.is_freed()) == (False, False)


def test_abandoned__attempts_that_ignore_their_cancellation__lose_their_slots_but_not_without_bound() -> None:
    held = Held(async_max=2)
    for _ in range(2):
        held.run("ASYNC").is_abandoned = True
    assert held.takes("ASYNC")
    assert held.takes("ASYNC")
    assert not held.takes("ASYNC")

    held.slots.begin()
    for _ in range(2):
        held.run("ASYNC").is_abandoned = True

    assert not held.takes("ASYNC")


def test_in_use__running_attempts__are_counted_by_kind() -> None:
    held = Held()
    for kind in ("ASYNC", "ASYNC", "ISOLATED", "THREAD"):
        held.run(kind)

    found = held.slots.in_use()

    assert (found[SlotKind.ASYNC], found[SlotKind.ISOLATED], found[SlotKind.THREAD]) == (2, 1, 1)


def test_take__turn_begins_during_a_poll__both_reserve_of_the_same_slots() -> None:
    held = Held(async_max=2)

    held.slots.begin_poll()
    polled = [held.slots.take(held.activity("ASYNC"), is_poll=True) for _ in range(2)]
    held.slots.begin()
    assert (polled, held.takes("ASYNC")) == ([True, True], False)
    held.slots.end_poll()
    assert held.takes("ASYNC")
