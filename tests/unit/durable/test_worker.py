"""A worker whose threads take from its queue while it looks at it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

import headgate as hg
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
