"""A worker whose threads take from its queue while it looks at it, and when its pump is to be woken."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import headgate as hg
from headgate.durable.agenda import Agenda
from headgate.durable.records import Activity


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.parametrize("look", ["adopt", "poll"])
def test_queue__taken_from_while_it_is_looked_at__harms_nobody(look: str) -> None:
    with hg.testing.Environment(hg.App("busy")) as env:
        worker = env.worker
        worker.queue.extend(
            Activity(str(number), "x", "1", "{}", token=str(number), scheduled_at_ms=1) for number in range(5_000)
        )
        stopping = threading.Event()

        def take_and_give() -> None:
            while not stopping.is_set():
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
    "overtake",
    [Agenda.look_again, Agenda.renew_soon, lambda agenda: agenda.timers_made([5])],
    ids=["look", "lease", "timer"],
)
def test_rest__something_comes_up__is_overtaken_until_the_next_one(overtake: Callable[[Agenda], None]) -> None:
    with hg.testing.Environment(hg.App("resting")) as env:
        agenda = env.worker.agenda
        env.worker.poll()
        assert agenda.rest_seconds() > 0
        assert not agenda.is_overtaken
        overtake(agenda)
        assert agenda.is_overtaken
        assert agenda.rest_seconds() == 0
        assert not agenda.is_overtaken


def test_rest__activities_run_or_wait_here__is_overtaken_for_as_long() -> None:
    activity = Activity("one", "x", "1", "{}", token="1", scheduled_at_ms=1)
    with hg.testing.Environment(hg.App("resting")) as env:
        worker, agenda = env.worker, env.worker.agenda
        agenda.rest_seconds()
        worker.queue.append(activity)
        assert agenda.is_overtaken
        worker.begin(worker.queue.popleft())
        assert agenda.is_overtaken
        worker.running.clear()
        assert not agenda.is_overtaken
