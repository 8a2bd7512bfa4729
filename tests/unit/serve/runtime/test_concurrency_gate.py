"""The gate before the pool: a bounded number inside, others wait shortly, and no place is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from headgate.errors import ServerBusyError
from headgate.serve.runtime.concurrency_gate import ConcurrencyGate
from headgate.serve.runtime.thread_pool import WorkPool


@pytest.fixture
def pool() -> Iterator[WorkPool]:
    made = WorkPool(threads_max=8, waiting_max=8)
    yield made
    made.close()


def test_run__more_than_may_be_inside__wait_for_those_who_are(pool: WorkPool) -> None:
    gate = ConcurrencyGate(pool, "queries", calls_max=2, wait_seconds=20)
    lock = threading.Lock()
    inside = most = 0

    def work() -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.02)
        with lock:
            inside -= 1
        return 1

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*(gate.run(work) for _ in range(10))))

    assert asyncio.run(all_of_them()) == 10
    assert most == 2


def test_run__no_one_leaves_in_time__is_busy_and_the_place_is_kept_for_the_next(pool: WorkPool) -> None:
    gate = ConcurrencyGate(pool, "queries", calls_max=1, wait_seconds=0.05)
    release = threading.Event()

    async def talk() -> list[str]:
        blocking = asyncio.create_task(gate.run(lambda: release.wait(20)))
        await asyncio.sleep(0)
        said = []
        for _ in range(3):
            try:
                await gate.run(lambda: None)
            except ServerBusyError as exc:
                said.append(str(exc))
        release.set()
        await blocking
        await gate.run(lambda: None)
        return said

    said = asyncio.run(talk())
    assert len(said) == 3
    assert said[0].startswith("queries: 1 calls in progress and none ended within 0.05 s")
    # In another loop, too.
    assert asyncio.run(gate.run(lambda: "open")) == "open"


def test_run__work_that_raises_or_a_pool_that_is_busy__leaves_no_place_taken() -> None:
    pool = WorkPool(threads_max=1, waiting_max=0)
    gate = ConcurrencyGate(pool, "queries", calls_max=2, wait_seconds=0.05)
    release = threading.Event()

    async def talk() -> None:
        with pytest.raises(ZeroDivisionError):
            await gate.run(lambda: 1 // 0)
        blocking = asyncio.create_task(pool.run(lambda: release.wait(20)))
        await asyncio.sleep(0)
        for _ in range(5):
            with pytest.raises(ServerBusyError, match="requests queued"):
                await gate.run(lambda: None)
        release.set()
        await blocking
        while pool.accepted:
            await asyncio.sleep(0.001)
        assert await gate.run(lambda: "open") == "open"

    try:
        asyncio.run(talk())
    finally:
        pool.close()
