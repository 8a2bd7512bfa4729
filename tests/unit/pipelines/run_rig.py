"""Runs, locks, reruns and what belongs to them on one real store, with a clock in the test's hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from headgate.clock import VirtualClock
from headgate.ids import IdMaker
from headgate.pipelines.enums import Cause, RunStatus
from headgate.pipelines.operations.backfills import Backfills
from headgate.pipelines.runs.controls import Controls
from headgate.pipelines.runs.directives import Directives
from headgate.pipelines.runs.job_log import JobLog
from headgate.pipelines.runs.late_data import LateData
from headgate.pipelines.runs.locks import Lock, Locks, evaluation_key
from headgate.pipelines.runs.markers import Markers
from headgate.pipelines.runs.reruns import Reruns
from headgate.pipelines.runs.rows import Run, RunLog, Slot
from headgate.pipelines.runs.store import Runs, RunStart
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Put, Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store
from headgate.store.sqlite.store import Synchronous
from tests.stores import open_sqlite

T = TypeVar("T")

SLOT = Slot("orders", "daily", "2026-03-03")
HOUR = 3_600.0
# What an event of the caller's looks like to the code under test: a write that it does not know.
EVENT = Put(PIPELINES, {"PK": "PIPELINE#orders", "SK": "EVENT#1#e1", "type": "TOLD"})


@dataclass
class Rig:
    """One process on a store."""

    store: Store
    clock: VirtualClock
    ids: IdMaker = field(init=False)

    def __post_init__(self) -> None:
        self.ids = IdMaker(self.clock)
        self.runs = Runs(self.store, self.clock, self.ids)
        self.locks = Locks(self.store, self.clock, self.ids)
        self.reruns = Reruns(self.store, self.clock, self.ids)
        self.job_log = JobLog(self.store)
        self.late_data = LateData(self.store)
        self.markers = Markers(self.store, self.clock)
        self.controls = Controls(self.store, self.clock)
        self.directives = Directives(self.store, self.clock)
        self.backfills = Backfills(self.store, self.clock, self.ids)

    @property
    def now_ms(self) -> int:
        return int(self.clock.seconds() * 1000)

    def lock(self, owner: str, slot: Slot = SLOT, seconds: float = HOUR) -> Lock:
        lock = self.locks.acquire(evaluation_key(slot), owner, seconds)
        assert lock is not None
        return lock

    def unlock(self, lock: Lock) -> None:
        assert self.locks.release(lock.key, lock.token)

    def begin(self, execution: str = "exec-1", slot: Slot = SLOT, cause: Cause = Cause.CRON, **more: Any) -> Run:
        """Take the lock and begin a run, as the lifecycle does."""
        lock = self.lock(execution, slot)
        start = RunStart(slot=slot, cause=cause, execution=execution, lock_token=lock.token, **more)
        return self.runs.create(start)

    def finish(self, run: Run, *statuses: RunStatus, **changes: Any) -> Run:
        """Bring a run through some statuses, and let go of its lock."""
        for status in statuses:
            self.clock.advance(1)
            run = self.runs.move(run, status, **(changes if status is statuses[-1] else {}))
        self.locks.release_owned(evaluation_key(run.slot), run.execution)
        return run

    def succeed(self, execution: str = "exec-1", **more: Any) -> Run:
        run = self.begin(execution, **more)
        return self.finish(run, RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED)

    def fail(self, execution: str = "exec-1", *, changes: dict[str, Any] | None = None, **more: Any) -> Run:
        return self.finish(self.begin(execution, **more), RunStatus.FAILED, **(changes or {}))

    def log(self, slot: Slot = SLOT) -> RunLog:
        log = self.runs.log(slot)
        assert log is not None
        return log

    def item(self, partition: str, sort: str) -> Item | None:
        return self.store.get(PIPELINES, Key(partition, sort), consistent=True)

    def items(self, partition: str) -> list[Item]:
        return self.store.query(Query(table=PIPELINES, partition=partition)).items

    def is_notified(self) -> bool:
        """Whether the caller's event was written."""
        return self.item("PIPELINE#orders", "EVENT#1#e1") is not None


@contextmanager
def opened_rig(folder: Path) -> Iterator[Rig]:
    clock = VirtualClock()
    with closing(open_sqlite(folder, clock=clock, synchronous=Synchronous.NORMAL)) as store:
        yield Rig(store, clock)


def at_once(calls: int, call: Callable[[int], T]) -> list[T | BaseException]:
    """Make the calls from as many threads, let loose together, and return what came of each."""
    barrier = threading.Barrier(calls)
    outcomes: list[T | BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            outcomes.append(call(number))
        except Exception as exc:
            outcomes.append(exc)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes
