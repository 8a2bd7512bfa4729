"""Processes that can crash at any call to their store, on a machine that outlives them.

Nothing is random but the seed: ids and jitter are drawn from it. A process that crashes loses what it had in memory and
nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import Raw

from headgate.clock import VirtualClock
from headgate.durable.bus.bus import Bus
from headgate.durable.client.client import Client
from headgate.durable.engine.activity_store import AttemptResult
from headgate.durable.model.archive import Archive, Archiver
from headgate.durable.model.records import Activity
from headgate.durable.model.worker_limits import WorkerLimits
from headgate.durable.sdk.definitions import Activity as Definition
from headgate.durable.worker.executor import perform
from headgate.durable.worker.worker import Worker
from headgate.errors import OutcomeUnknownError, StoreBusyError, TransientError
from headgate.ids import IdMaker
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.model.requests import Page, Query
from headgate.store.sqlite.store import SqliteStore, Synchronous
from headgate.store.table_names import TableNames
from tests.simulation.durable_app import Journal, make_app
from tests.simulation.durable_rows import Reader
from tests.stores import open_sqlite

LEASE_SECONDS = 10.0
_WRITES = frozenset({"put", "update", "delete", "transact", "transact_many", "batch_write"})


class Crash(BaseException):
    """The process is gone. Not an `Exception`: no code of the process gets to handle it."""


@dataclass(frozen=True)
class Fault:
    """What happens at the `at`th call of a process to its store.

    `crash` ends the process; otherwise the call fails. With `is_done`, what was asked for has happened all the same.
    """

    at: int
    crash: bool = True
    is_done: bool = False


class ProcessStore:
    """The store as one process sees it: every call is counted, and one of them may be its last."""

    def __init__(self, store: SqliteStore, lagging: SqliteStore | None = None) -> None:
        self.calls = 0
        self.fault: Fault | None = None
        self.is_dead = False
        # Called before a given call, so that others act in the middle of what this process does.
        self.meanwhile: tuple[int, Callable[[], None]] | None = None
        self._store = store
        self._lagging = lagging

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: object, **kwargs: object) -> Any:
            return self._call(name, method, args, kwargs)

        return call

    def query(self, query: Query) -> Page:
        lags = query.index is not None and self._lagging is not None
        page: Page = self._call("query", (self._lagging if lags else self._store).query, (query,), {})  # type: ignore[union-attr]
        return page

    def fail_in(self, calls: int, *, crash: bool, is_done: bool) -> None:
        self.fault = Fault(self.calls + calls, crash=crash, is_done=is_done)

    def _call(self, name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.is_dead:
            raise Crash
        self.calls += 1
        if self.meanwhile is not None and self.calls >= self.meanwhile[0]:
            (_, act), self.meanwhile = self.meanwhile, None
            act()
        fault = self.fault
        if fault is None or self.calls < fault.at:
            return method(*args, **kwargs)
        self.fault = None
        if fault.is_done:
            method(*args, **kwargs)
        if fault.crash:
            self.is_dead = True
            raise Crash
        if fault.is_done and name in _WRITES and name != "transact_many":
            raise OutcomeUnknownError("simulated: the answer was lost")
        raise StoreBusyError("simulated: the store is busy")


class SeededIds(IdMaker):
    """Ids as the product's, with the random part drawn from the seed."""

    def __init__(self, clock: VirtualClock, draw: random.Random) -> None:
        super().__init__(clock)
        self._draw = draw
        self._wall = clock

    def ulid(self) -> str:
        now_ms = int(self._wall.seconds() * 1000)
        if now_ms > self._last_ms:
            self._last_ms, self._last_random = now_ms, self._draw.getrandbits(79)
        else:
            self._last_random += 1
        number = (self._last_ms << 80) | self._last_random
        return "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[number >> shift & 31] for shift in range(125, -1, -5))


@dataclass
class Machine:
    """What outlives processes: the store, the keys, the clock, and the journal of what was really done."""

    folder: Path
    draw: random.Random
    clock: VirtualClock
    lags: bool = False
    journal: Journal = field(default_factory=Journal)
    # What its processes know, none for all. A worker looks through the source of each of them when it joins, which
    # takes longer than all else that a process of a small story does.
    workflows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.store = open_sqlite(self.folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.keyring = Keyring.open(self.folder / "keys.json", self.clock)
        self.blobs = FolderBlobs(self.folder / "blobs")
        self.reader = Reader(self.folder / "headgate.db")
        self.lagging = self._open_lagging() if self.lags else None
        self.caught_up_at = 0.0

    def _open_lagging(self) -> SqliteStore:
        return SqliteStore.open(
            self.folder / "headgate.db",
            names=TableNames(),
            clock=self.clock,
            cursors=Cursors(self.keyring),
            spill=Spill(self.blobs, self.clock),
            synchronous=Synchronous.NORMAL,
            # For ever, until `catch_up`: a lag of real time would differ from run to run.
            index_lag_seconds=1e12,
        )

    def catch_up(self) -> None:
        """Let the indexes see everything that was committed so far."""
        self.caught_up_at = self.clock.monotonic()
        if self.lagging is not None and self.lagging._index_reader is not None:
            self.lagging._index_reader._taken_at = -1e13

    def close(self) -> None:
        self.reader.close()
        if self.lagging is not None:
            self.lagging.close()
        self.store.close()


class Process:
    """A process with a client and a worker, driven a step at a time."""

    def __init__(self, machine: Machine, *, live_max: int = 2_000, replay_always: bool = False) -> None:
        self.store = ProcessStore(machine.store, machine.lagging)
        self.frozen_until = 0.0
        self.held: list[tuple[Activity, AttemptResult | None]] = []
        self._machine = machine
        store: Any = self.store
        clock, keyring = machine.clock, machine.keyring
        self.app = make_app(machine.journal)
        for name in self.app.workflows.keys() - (machine.workflows or self.app.workflows):
            del self.app.workflows[name]
        ids = SeededIds(clock, random.Random(machine.draw.getrandbits(64)))
        self.bus = Bus(store, clock, ids)
        archive = Archive(machine.blobs)
        self.client = Client(store, clock, ids, keyring, archive, workflows=self.app.workflows)
        self.app.bind(self.client, self.bus)
        self.worker = Worker(
            self.app,
            store,
            clock,
            ids,
            keyring,
            self.bus,
            archiver=Archiver(store, clock, archive),
            limits=WorkerLimits(cached_max=live_max),
            replay_always=replay_always,
            lease_seconds=LEASE_SECONDS,
            draw=machine.draw.random,
        )

    @property
    def is_frozen(self) -> bool:
        return self._machine.clock.monotonic() < self.frozen_until

    def begin(self) -> None:
        """Call the code of the next activity; what it answered is reported later, by `finish`."""
        activity = self.worker.queue.popleft()
        if not self.worker.still_holds(activity):
            return
        running = self.worker.begin(activity)
        definition: Definition[..., Any] = self.worker.definition(activity)
        self.held.append((activity, perform(definition, Raw(activity.input.encode()), running.context)))

    def finish(self, place: int = 0) -> None:
        self.worker.finish(*self.held.pop(place))

    def patiently(self, act: Callable[[], None]) -> None:
        """Do something again for as long as the store is busy, or the outcome unknown."""
        while True:
            try:
                act()
            except (TransientError, OutcomeUnknownError):
                continue
            return

    def bury(self) -> None:
        """Forget everything that was in memory."""
        self.store.is_dead = True
        self.worker.engine.drop()
