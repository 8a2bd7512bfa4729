"""Pools on every backend: the size is never exceeded, and every waiting run gets its slot in turn."""

from __future__ import annotations

import threading

from headgate.clock import VirtualClock
from headgate.ids import IdMaker
from headgate.pipelines.enums import Cause, RunStatus
from headgate.pipelines.runs.pool_decisions import LEASE_MS, PoolNeed
from headgate.pipelines.runs.pools import Pools
from headgate.pipelines.runs.rows import Run, Slot
from headgate.pipelines.runs.store import Runs, RunStart
from headgate.store.catalogue.tables import PIPELINES, STREAM_CHECKPOINTS
from tests.contract.conftest import AnyStore

TABLES = (PIPELINES, STREAM_CHECKPOINTS)
READS_INDEXES = False
SIZE = 2
NEED = PoolNeed("spark", SIZE, 1)


def runs_of(store: AnyStore, clock: VirtualClock, count: int) -> list[Run]:
    runs = Runs(store, clock, IdMaker(clock))
    made = []
    for number in range(count):
        clock.advance(0.01)
        made.append(runs.create(RunStart(slot=Slot(f"p{number}", "daily", "2026-03-03"), cause=Cause.CRON)))
    return made


def test_acquire__by_many_at_once__never_more_than_the_size_and_the_oldest_run_is_next(
    store: AnyStore, clock: VirtualClock
) -> None:
    runs = runs_of(store, clock, 6)
    pools = [Pools(store, clock) for _ in runs]
    waits = [False] * len(runs)

    def acquire(number: int) -> None:
        waits[number] = pools[number].acquire(runs[number], NEED) is not None

    threads = [threading.Thread(target=acquire, args=(number,)) for number in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    pool, queue = pools[0].get("spark"), pools[0].queue("spark")
    assert pool.used == SIZE
    assert {each.run_id for each in queue} | {each.run_id for each in pool.leases} == {each.run_id for each in runs}
    assert [each.run_id for each in queue] == sorted(each.run_id for each in queue)
    served = [each.run_id for each in pool.leases]
    while queue:
        holder = pools[0].get("spark").leases[0].run_id
        assert pools[0].free("spark", holder) is not None
        assert pools[0].serve("spark", SIZE) == 1
        served.append(queue[0].run_id)
        assert pools[0].get("spark").leases[-1].run_id == queue[0].run_id
        queue = pools[0].queue("spark")
        assert pools[0].get("spark").used == SIZE
    assert sorted(served) == sorted(each.run_id for each in runs)


def test_acquire__repeated_and_left__is_one_lease_and_then_none(store: AnyStore, clock: VirtualClock) -> None:
    first, second, third = runs_of(store, clock, 3)
    pools = Pools(store, clock)

    assert pools.acquire(first, NEED) is None
    assert pools.acquire(first, NEED) is None
    assert pools.acquire(second, NEED) is None
    wait = pools.acquire(third, NEED)
    assert wait is not None
    assert (wait.place, wait.pool.used) == (1, SIZE)
    assert pools.acquire(third, NEED) == wait
    assert pools.leave(third, "spark") is False
    assert pools.queue("spark") == []
    assert pools.leave(first, "spark") is True
    assert pools.acquire(third, NEED) is None


def test_serve__expired_leases__are_freed_only_if_their_run_has_ended(store: AnyStore, clock: VirtualClock) -> None:
    ended, active, waiting = runs_of(store, clock, 3)
    runs, pools = Runs(store, clock, IdMaker(clock)), Pools(store, clock)
    for run in (ended, active):
        assert pools.acquire(run, NEED) is None
    assert pools.acquire(waiting, NEED) is not None
    runs.move(ended, RunStatus.CANCELLED)

    assert pools.serve("spark", SIZE) == 0, "no lease has expired"
    clock.advance(LEASE_MS / 1000 + 1)
    assert pools.serve("spark", SIZE) == 1

    pool = pools.get("spark")
    assert [each.run_id for each in pool.leases] == [active.run_id, waiting.run_id]
    assert pool.leases[0].expires_at_ms > clock.seconds() * 1000, "renewed: its run is active"
    assert pools.acquire(waiting, NEED) is None


def test_sweep__run_that_ended_unseen__its_slot_goes_to_the_next(store: AnyStore, clock: VirtualClock) -> None:
    first, second, third = runs_of(store, clock, 3)
    runs, pools = Runs(store, clock, IdMaker(clock)), Pools(store, clock)
    for run in (first, second, third):
        pools.acquire(run, NEED)
    runs.move(first, RunStatus.CANCELLED)

    assert pools.sweep("spark", SIZE) == 1
    assert pools.is_offered(third.run_id, "spark")
    assert pools.sweep("idle", SIZE) == 0
