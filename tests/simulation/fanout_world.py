"""A seeded world of splitters, workers, tenders and operators that crash, freeze and race over fan-outs on one store.

Order, faults, ids and jitter are drawn from the seed, so that a seed that fails once fails always.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headgate.clock import VirtualClock
from headgate.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    StaleClaimError,
    TransientError,
    UserError,
)
from headgate.fanout.core import completed_index, maintenance, splitter
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult, item_indexes
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.splitter import Order, Splitter
from headgate.fanout.core.tracking import Claim, Tracker
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.rows import Chunk, Policy, run_key, timestamp_ms
from headgate.fanout.model.sources import ListSource, RangeSource, Source
from headgate.fanout.model.states import Admission, Disposition, FanoutStatus
from headgate.fanout.repair.bisect import Bisector
from headgate.fanout.repair.control import FanoutControl
from headgate.fanout.repair.redrive import ChunkSelection, Redriver
from headgate.store.blobs.folder import FolderBlobs
from headgate.store.blobs.spill import Spill
from headgate.store.catalogue.tables import FANOUT
from headgate.store.keyring import Keyring
from headgate.store.model.cursors import Cursors
from headgate.store.sqlite.store import SqliteStore, Synchronous
from headgate.store.table_names import TableNames
from tests.fanout_books import COMPLETED, FAILED, OPEN, Books, check_books, check_found, read_books
from tests.iterable_source import IterableSource
from tests.simulation.durable_processes import Crash, ProcessStore, SeededIds
from tests.stores import open_sqlite

# An index may be behind, but not for as long as a lease.
LAG_SECONDS = 2.0
ROUNDS_MAX = 300
_BUSY = (TransientError, OutcomeUnknownError)


class Machine:
    """What outlives processes: the store, an eye on it whose indexes lag, and the clock."""

    def __init__(self, folder: Path, draw: random.Random, *, lags: bool = False, shards: int = 1) -> None:
        self.draw = draw
        self.shards = shards
        self.clock = VirtualClock(1_750_000_000.0)
        self.store = open_sqlite(folder, clock=self.clock, synchronous=Synchronous.NORMAL)
        self.lagging = self._open_lagging(folder) if lags else None
        self.caught_up_at = 0.0

    def _open_lagging(self, folder: Path) -> SqliteStore:
        return SqliteStore.open(
            folder / "headgate.db",
            names=TableNames(),
            clock=self.clock,
            cursors=Cursors(Keyring.open(folder / "keys.json", self.clock)),
            spill=Spill(FolderBlobs(folder / "blobs"), self.clock),
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
        if self.lagging is not None:
            self.lagging.close()
        self.store.close()


@dataclass
class Held:
    """A claim in a worker's hands, and what the worker knows of it."""

    claim: Claim
    # The latest that the clock has been since the worker got its lease.
    latest_seconds: float
    # What was said of its end, if no answer has come yet: the same is said again.
    said: tuple[str, AttemptResult] | None = None

    @property
    def name(self) -> tuple[str, str]:
        return self.claim.chunk.run_id, self.claim.chunk.chunk_id


class Process:
    """A process that can do everything that is done to fan-outs, a step at a time."""

    def __init__(self, machine: Machine) -> None:
        self.store = ProcessStore(machine.store, machine.lagging)
        store: Any = self.store
        clock = machine.clock
        ids = SeededIds(clock, random.Random(machine.draw.getrandbits(64)))
        draw = machine.draw.random
        self.name = ids.ulid()[-6:]
        self.splitter = Splitter(store, clock, ids, shards=machine.shards)
        self.maintenance = FanoutMaintenance(store, clock, ids, draw=draw)
        self.tracker = Tracker(store, clock, ids, maintenance=self.maintenance, draw=draw)
        self.control = FanoutControl(store, clock, ids)
        self.redriver = Redriver(store, clock, ids)
        self.bisector = Bisector(store, clock, ids)
        self.lanes = {
            lane: Claims(store, clock, ids, worker=f"{self.name}-{lane}", lane=lane, draw=draw)
            for lane in ("main", "slow")
        }
        self.held: list[Held] = []
        self.frozen_until = 0.0
        self.is_busy = False
        self._clock = clock

    @property
    def is_frozen(self) -> bool:
        return self._clock.monotonic() < self.frozen_until

    def bury(self) -> None:
        self.store.is_dead = True
        self.held.clear()


@dataclass(frozen=True)
class Asked:
    """A fan-out as its client asks for it, again and again with the same words."""

    run_id: str
    order: Order
    source: Source
    items: int


@dataclass
class Acknowledged:
    """What someone was promised: the call returned. What was cut off in between may have happened or not."""

    split: set[str] = field(default_factory=set)
    # The output, and how often the chunk had been redriven.
    completed: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    maybe_cancelled: set[str] = field(default_factory=set)
    skipped: set[tuple[str, str]] = field(default_factory=set)


class World:
    """Steps drawn from a seed, and what must hold after each."""

    def __init__(self, seed: int, folder: Path, *, faults: bool = True, jumps: bool = True) -> None:
        self.draw = random.Random(seed)
        lags = self.draw.random() < 0.3
        self.machine = Machine(folder, self.draw, lags=lags, shards=self.draw.choice([1, 1, 4, 16]))
        self.clock = self.machine.clock
        self.faults = faults
        self.jumps = jumps
        self.acknowledged = Acknowledged()
        self.asked: dict[str, Asked] = {}
        self.books: dict[str, Books] = {}
        self.log: list[str] = []
        self.latest_seconds = 0.0
        # Chunks that someone may have given back or skipped since the last look.
        self.released: set[tuple[str, str]] = set()
        self.violations: list[str] = []
        self._performed: set[str] = set()
        self._count = 0
        self._checked = -1
        self.processes = [Process(self.machine) for _ in range(self.draw.choice([2, 3, 4]))]
        self._ask_for_new(self.processes[0])

    def close(self) -> None:
        for process in self.processes:
            process.bury()
        self.machine.close()

    # Steps.

    def run(self, steps: int) -> None:
        """Take that many steps, checking after each; then let everything come to its end, and check that."""
        try:
            for _ in range(steps):
                self.step()
                self.check()
            self.finish()
        except AssertionError as exc:
            raise AssertionError(f"{exc}; after {self.log[-14:]}") from exc

    def step(self) -> None:
        choices: list[tuple[int, Callable[[], None]]] = [
            (3, lambda: self._drive(self._ask_for_new)),
            (6, lambda: self._drive(self._ask_again)),
            (20, lambda: self._drive(self._take)),
            (16, lambda: self._drive(self._deliver)),
            (40, lambda: self._drive(self._end_some)),
            (10, lambda: self._drive(self._beat)),
            (14, lambda: self._drive(self._tend)),
            (7, lambda: self._drive(self._steer)),
            (2, self._race_for_a_lease),
            (12, self._pass_time),
            (5, self.machine.catch_up),
        ]
        if self.faults:
            choices += [(8, self._arm), (3, self._freeze), (9, self._interleave)]
        if self.jumps:
            choices += [(1, self._jump)]
        weights, acts = zip(*choices, strict=True)
        self.draw.choices(acts, weights)[0]()

    def _drive(self, act: Callable[[Process], None]) -> None:
        able = [process for process in self.processes if not process.is_frozen]
        if not able or (len(self.processes) < 4 and self.draw.random() < 0.02):
            self.processes.append(Process(self.machine))
            return
        self.guarded(self.draw.choice(able), act)

    def guarded(self, process: Process, act: Callable[[Process], None]) -> None:
        """Have a process do something, and take it away if that was its end. One that is at something does not."""
        if process.is_busy:
            return
        self.log.append(f"{act.__name__} {process.name}")
        process.is_busy = True
        try:
            act(process)
        except Crash:
            self.log.append(f"crash {process.name} in {act.__name__}")
            process.bury()
            if process in self.processes:
                self.processes.remove(process)
        except _BUSY:
            self.log.append(f"busy {process.name} in {act.__name__}")
        finally:
            process.is_busy = False

    # Splitting.

    def _ask_for_new(self, process: Process) -> None:
        if len(self.asked) >= 4:
            return
        asked = self._new(f"run-{len(self.asked)}")
        self.asked[asked.run_id] = asked
        self.split(process, asked)

    def _new(self, run_id: str) -> Asked:
        items = self.draw.choice([0, 1, 5, 17, 40, 60])
        policy = Policy(
            max_attempts=self.draw.choice([1, 2, 3, 5]),
            timeout_seconds=self.draw.choice([10.0, 60.0]),
            heartbeat_seconds=self.draw.choice([None, 4.0]),
            backoff_seconds=self.draw.choice([0.0, 1.0, 8.0]),
            concurrency=self.draw.choice([None, None, 3]),
        )
        values = list(range(items))
        made_anew = IterableSource(lambda: iter(values), name=run_id)
        sources: list[Source] = [ListSource(values), RangeSource(0, items), made_anew]
        order = Order("g", self.draw.choice([1, 2, 3]), policy=policy)
        return Asked(run_id, order, self.draw.choice(sources), items)

    def _ask_again(self, process: Process) -> None:
        """A client that got no answer, or simply asks twice."""
        if self.asked:
            self.split(process, self.draw.choice(list(self.asked.values())))

    def split(self, process: Process, asked: Asked) -> None:
        fanout = process.splitter.split(asked.order, asked.source, run_id=asked.run_id)
        is_cancelled = asked.run_id in self.acknowledged.maybe_cancelled
        if fanout.status is FanoutStatus.SPLITTING and not is_cancelled:
            self.violations.append(f"{asked.run_id}: split returned, and {fanout.split_through} items are split")
        if not is_cancelled:
            self.acknowledged.split.add(asked.run_id)

    # Working.

    def _take(self, process: Process) -> None:
        paused = set(self.acknowledged.paused)
        lane = self.draw.choice(["main", "main", "main", "slow"])
        for claim in process.lanes[lane].take(self.draw.choice([1, 3, 10]), {}):
            self._perform(process, claim, paused)

    def _deliver(self, process: Process) -> None:
        """A message comes, once or several times at once."""
        if (name := self._any_chunk()) is not None:
            self._start(process, name, self.draw.choice([1, 1, 5]))

    def _start(self, process: Process, name: tuple[str, str], times: int) -> None:
        paused = set(self.acknowledged.paused)
        begun = 0
        for _ in range(times):
            start = process.tracker.start(*name, worker=process.name)
            if start.claim is not None:
                begun += 1
                self._perform(process, start.claim, paused)
            assert (start.claim is not None) is (start.admission is Admission.RUN)
        assert begun <= 1, f"{name}: one message was begun {begun} times at once"

    def _perform(self, process: Process, claim: Claim, paused: set[str]) -> None:
        held = Held(claim, self.clock.seconds())
        process.held.append(held)
        chunk = claim.chunk
        # Only a redrive of its failed items begins a completed chunk again.
        _, redrives = self.acknowledged.completed.get(held.name, ("", -1))
        is_item_redrive = chunk.rerun_items is not None and chunk.redrives > redrives
        if held.name in self.acknowledged.completed and not is_item_redrive:
            self.violations.append(f"{held.name}: begun again after it was completed")
        if held.name in self.acknowledged.skipped:
            self.violations.append(f"{held.name}: begun after it was skipped")
        if chunk.token in self._performed:
            self.violations.append(f"{held.name}: begun twice under one token")
        if chunk.run_id in paused and chunk.run_id in self.acknowledged.paused:
            self.violations.append(f"{held.name}: begun while the fan-out is paused")
        self._performed.add(chunk.token)

    def _any_chunk(self) -> tuple[str, str] | None:
        names = [(run_id, chunk_id) for run_id, books in self.books.items() for chunk_id in books.chunks]
        return self.draw.choice(names) if names else None

    def _beat(self, process: Process) -> None:
        for held in [held for held in process.held if held.said is None]:
            try:
                claim = process.tracker.heartbeat(held.claim, items_done=self.draw.choice([None, 1]))
            except StaleClaimError:
                self._drop_stale(process, held)
            else:
                held.claim, held.latest_seconds = claim, self.clock.seconds()

    def _end_some(self, process: Process) -> None:
        for _ in range(self.draw.choice([1, 1, 4])):
            if process.held:
                self.end(process, self.draw.choice(process.held), self._draw_ending())

    def _draw_ending(self) -> str:
        return self.draw.choices(["complete", "defer", "spoil", "fail", "reject", "release"], [50, 12, 8, 16, 3, 6])[0]

    def end(self, process: Process, held: Held, how: str) -> None:
        """Say how a chunk ended. A worker that gets no answer holds on to it, and says the same again later."""
        how, result = held.said or (how, self._result(held.claim.chunk, how))
        held.said = (how, result)
        claim, tracker = held.claim, process.tracker
        try:
            match how:
                case "fail" | "reject":
                    tracker.fail(claim, AttemptFailure("ValueError", f"bad {claim.chunk.chunk_id}", how == "reject"))
                case "release":
                    self.released.add(held.name)
                    tracker.release(claim)
                case _:
                    tracker.complete(claim, result)
                    self.acknowledged.completed[held.name] = (result.output or "", claim.chunk.redrives)
        except StaleClaimError:
            self._drop_stale(process, held)
        else:
            process.held.remove(held)

    def _result(self, chunk: Chunk, how: str) -> AttemptResult:
        own = list(item_indexes(chunk))
        self._count += 1
        output = f'"{self._count}"'
        if how == "defer" and chunk.lane == "main" and chunk.rerun_items is None:
            return AttemptResult(output=output, deferred=own[: self.draw.randint(1, len(own))])
        if how == "spoil":
            bad = own[: self.draw.randint(1, len(own))]
            return AttemptResult(output=output, item_errors={index: f"E{index % 2}: bad {index}" for index in bad})
        return AttemptResult(output=output)

    def _drop_stale(self, process: Process, held: Held) -> None:
        process.held.remove(held)
        item = self.machine.store.get(FANOUT, held.claim.chunk.key, consistent=True)
        assert item is not None
        found = (item["token"], Disposition(item["disposition"]))
        token = held.claim.chunk.token
        assert found != (token, Disposition.RUNNING), f"{held.name}: refused, although it is still this worker's"
        if held.said is not None and held.said[0] in ("complete", "defer", "spoil"):
            ended = [(token, disposition) for disposition in COMPLETED]
            assert found not in ended, f"{held.name}: refused, although this worker has completed it"

    # Tending and steering.

    def _tend(self, process: Process) -> None:
        process.maintenance.run_once()

    def _steer(self, process: Process) -> None:
        if not self.asked:
            return
        run_id = self.draw.choice(list(self.asked))
        acts = [self._pause, self._resume, self._cancel, self._skip, self._redrive, self._bisect]
        act = self.draw.choices(acts, [4, 6, 1, 4, 5, 3])[0]
        self.log.append(f"{act.__name__} {run_id}")
        try:
            act(process, run_id)
        except OutcomeUnknownError:
            raise
        except (NotFoundError, ConflictError, UserError):
            # Not there yet, or over by now, or not to be split.
            self.log.append("refused")

    def _pause(self, process: Process, run_id: str) -> None:
        process.control.pause(run_id)
        self.acknowledged.paused.add(run_id)

    def _resume(self, process: Process, run_id: str) -> None:
        self.acknowledged.paused.discard(run_id)
        process.control.resume(run_id)

    def _cancel(self, process: Process, run_id: str) -> None:
        self.acknowledged.maybe_cancelled.add(run_id)
        process.control.cancel(run_id)
        self.acknowledged.cancelled.add(run_id)

    def _skip(self, process: Process, run_id: str) -> None:
        books = self.books.get(run_id)
        if books is None or not books.main:
            return
        chosen = self.draw.sample(sorted(chunk.chunk_id for chunk in books.main), min(2, len(books.main)))
        skipped = process.control.skip(run_id, chosen)
        assert set(skipped) <= set(chosen)
        self.acknowledged.skipped.update((run_id, chunk_id) for chunk_id in skipped)

    def _redrive(self, process: Process, run_id: str) -> None:
        # Earlier acknowledgements no longer hold: it runs again.
        self.acknowledged.cancelled.discard(run_id)
        items = self.asked[run_id].items
        selections = [
            ChunkSelection(all=True),
            ChunkSelection(failed=True),
            ChunkSelection(error_class="E1"),
            *([ChunkSelection(items=(self.draw.randrange(items),))] if items else []),
        ]
        selection = self.draw.choice(selections)
        self.log.append(str(selection))
        process.redriver.redrive(run_id, selection)

    def _bisect(self, process: Process, run_id: str) -> None:
        books = self.books.get(run_id)
        failed = [] if books is None else [chunk.chunk_id for chunk in books.main if chunk.disposition in FAILED]
        if failed:
            self.acknowledged.cancelled.discard(run_id)
            process.bisector.isolate(run_id, self.draw.choice(failed))

    # Faults and time.

    def _race_for_a_lease(self) -> None:
        """A worker shows a sign of life at the very moment at which another takes its chunk for lost."""
        holders = [process for process in self.processes if process.held and not process.is_frozen]
        if not holders or len(self.processes) < 2:
            return
        holder = self.draw.choice(holders)
        rival = self.draw.choice([process for process in self.processes if process is not holder])
        held = self.draw.choice(holder.held)
        late_ms = timestamp_ms(held.claim.chunk.lease_expires_at or "") - round(1000 * self.clock.seconds())
        if not 0 <= late_ms <= 100_000:
            return
        self.clock.advance(late_ms / 1000 + 0.001)
        self._note_time()
        self.machine.catch_up()
        at = rival.store.calls + self.draw.randint(1, 6)
        rival.store.meanwhile = (at, lambda: self.guarded(holder, self._beat) if holder in self.processes else None)
        if self.draw.random() < 0.5:
            self.guarded(rival, self._tend)
        else:
            self.guarded(rival, lambda process: self._start(process, held.name, 1))

    def _arm(self) -> None:
        process = self.draw.choice(self.processes) if self.processes else None
        if process is not None:
            crash, is_done = self.draw.random() < 0.6, self.draw.random() < 0.5
            process.store.fail_in(self.draw.randint(1, 9), crash=crash, is_done=is_done)
            self.log.append(f"arm {process.name} {process.store.fault}")

    def _freeze(self) -> None:
        process = self.draw.choice(self.processes) if self.processes else None
        if process is not None:
            process.frozen_until = self.clock.monotonic() + self.draw.choice([5.0, 15.0, 70.0])
            self.log.append(f"freeze {process.name}")

    def _interleave(self) -> None:
        """Have another process act in the middle of what one does."""
        if len(self.processes) < 2:
            return
        first, second = self.draw.sample(self.processes, 2)
        acts = [self._take, self._deliver, self._end_some, self._beat, self._tend, self._tend, self._steer]
        act = self.draw.choice([*acts, self._ask_again, self._ask_again])
        at = first.store.calls + self.draw.randint(1, 6)
        first.store.meanwhile = (at, lambda: self.guarded(second, act) if second in self.processes else None)
        self.log.append(f"interleave {first.name} with {act.__name__} of {second.name}")

    def _pass_time(self) -> None:
        seconds = self.draw.choice([4.0, 11.0, 30.0, 70.0] if self.draw.random() < 0.2 else [0.05, 0.5, 1.0, 2.0])
        self.clock.advance(seconds)
        self._note_time()
        self.log.append(f"advance {seconds}")
        if self.clock.monotonic() >= self.machine.caught_up_at + LAG_SECONDS:
            self.machine.catch_up()

    def _jump(self) -> None:
        seconds = self.draw.choice([-7200.0, -30.0, 30.0, 7200.0])
        self.latest_seconds = max(self.latest_seconds, self.clock.seconds())
        self.clock.step(seconds)
        self._note_time()
        self.log.append(f"jump {seconds}")

    def _note_time(self) -> None:
        for held in self._all_held():
            held.latest_seconds = max(held.latest_seconds, self.clock.seconds())

    def _all_held(self) -> Iterator[Held]:
        for process in self.processes:
            yield from process.held

    # What must hold.

    def check(self) -> None:
        assert not self.violations, self.violations
        generation = self.machine.store.generation()
        if generation == self._checked:
            # Nothing was committed since.
            return
        self._checked = generation
        for run_id in self.asked:
            if self.machine.store.get(FANOUT, run_key(run_id), consistent=True) is None:
                continue
            books = read_books(self.machine.store, run_id)
            check_books(books)
            check_found(self.machine.store, books)
            if run_id in self.books:
                self._check_course(self.books[run_id], books)
            self.books[run_id] = books
        self._check_leases()
        self._check_promises()
        self.released.clear()

    def _check_course(self, before: Books, after: Books) -> None:
        """Nothing that has ended moves, attempts only grow, and a fan-out that is over stays so."""
        run_id = before.fanout.run_id
        missing = before.chunks.keys() - after.chunks.keys()
        assert not missing, f"{run_id}: chunks are gone: {missing}"
        for chunk_id, was in before.chunks.items():
            now = after.chunks[chunk_id]
            name = f"{run_id} {chunk_id}"
            if was.disposition is Disposition.DONE and now.redrives > was.redrives:
                assert was.items_failed, f"{name}: redriven without failed items: {was} -> {now}"
                assert now.items_ok >= was.items_ok, f"{name}: items that were ok are not: {was} -> {now}"
            elif was.disposition is Disposition.DONE and was.lane == "slow":
                # Its failed items may run again in the chunk that deferred them.
                unchanged = ("disposition", "output", "token", "attempt", "items_ok")
                moved = [each for each in unchanged if getattr(now, each) != getattr(was, each)]
                assert not moved, f"{name}: {moved} changed: {was} -> {now}"
            elif was.disposition in (Disposition.DONE, Disposition.SKIPPED):
                assert now == was, f"{name}: was {was.disposition}, and has changed: {was} -> {now}"
            elif was.disposition is Disposition.DEFERRED:
                kept = (now.output, now.token, now.attempt, now.completed_at)
                assert now.disposition in COMPLETED, f"{name}: was DEFERRED, is {now.disposition}"
                assert kept == (was.output, was.token, was.attempt, was.completed_at), f"{name}: {was} -> {now}"
            lowest = was.attempt - (1 if (run_id, chunk_id) in self.released else 0)
            assert now.attempt >= lowest, f"{name}: attempt {was.attempt} became {now.attempt}"
            is_split = now.items < was.items and now.redrives > was.redrives
            same = (now.start, now.items, now.input) == (was.start, was.items, was.input)
            assert same or is_split, f"{name}: another input"

    def _check_leases(self) -> None:
        """A chunk is its worker's until the end of the lease that the worker was given."""
        for held in self._all_held():
            lease = held.claim.chunk.lease_expires_at
            assert lease is not None
            if held.said is not None or timestamp_ms(lease) <= held.latest_seconds * 1000:
                continue
            row = self.books[held.name[0]].chunks[held.name[1]]
            is_ours = row.token == held.claim.chunk.token and row.disposition is Disposition.RUNNING
            assert is_ours, f"{held.name}: taken away before {lease}: now {row.disposition} of {row.worker}"

    def _check_promises(self) -> None:
        for (run_id, chunk_id), (output, redrives) in self.acknowledged.completed.items():
            row = self.books[run_id].chunks[chunk_id]
            if row.redrives > redrives:
                # Its failed items were redriven.
                continue
            assert row.disposition in COMPLETED, f"{run_id} {chunk_id}: was completed, is {row.disposition}"
            assert row.output == output, f"{run_id} {chunk_id}: completed with {output}, holds {row.output}"
        for run_id, chunk_id in self.acknowledged.skipped:
            row = self.books[run_id].chunks[chunk_id]
            assert row.disposition is Disposition.SKIPPED, f"{run_id} {chunk_id}: was skipped, is {row.disposition}"
        for books in self.books.values():
            if books.fanout.status is FanoutStatus.SUCCEEDED:
                items, asked = sum(chunk.items for chunk in books.main), self.asked[books.fanout.run_id]
                assert items == asked.items, f"{asked.run_id}: SUCCEEDED with {items} of {asked.items} items"
        for run_id in self.acknowledged.split:
            books = self.books[run_id]
            items = sum(chunk.items for chunk in books.main)
            assert items == self.asked[run_id].items, f"{run_id}: split, and has {items} items"

    # To the end.

    def finish(self) -> None:
        """Heal everything, let time pass, and see that all comes to its end within bounded steps."""
        self.log.append("heal")
        # A clock that was set back catches up in the end; until then what is due is not due.
        self.clock.step(max(0.0, self.latest_seconds - self.clock.seconds()))
        self._note_time()
        self.processes = self.processes or [Process(self.machine)]
        for process in self.processes:
            process.store.fault = process.store.meanwhile = None
            process.frozen_until = 0.0
        for asked in self.asked.values():
            self._settle_course(asked)
        for _ in range(ROUNDS_MAX):
            self.machine.catch_up()
            if all(books.fanout.is_finished for books in self.books.values()):
                break
            self._work()
            self.check()
        for books in self.books.values():
            still_open = [chunk for chunk in books.chunks.values() if chunk.disposition in OPEN]
            assert books.fanout.is_finished, f"{books.fanout}: never ends; open {still_open[:3]}"
        for run_id in self.acknowledged.cancelled:
            assert self.books[run_id].fanout.cancelled_at is not None, f"{run_id}: the cancellation was lost"

    def _settle_course(self, asked: Asked) -> None:
        """Paused fan-outs are resumed, and submissions are repeated until it is split."""
        process = self.processes[0]
        process.splitter.split(asked.order, asked.source, run_id=asked.run_id)
        try:
            self._resume(process, asked.run_id)
        except ConflictError:
            assert process.maintenance.queries.fanout(asked.run_id).is_finished
        self.check()

    def _work(self) -> None:
        for process in self.processes:
            for lane in process.lanes.values():
                for claim in lane.take(50, {}):
                    self._perform(process, claim, set())
            for held in list(process.held):
                self.end(process, held, "complete")
            process.maintenance.run_once()
        self.clock.advance(20.0)
        self._note_time()


def shrink_limits(patch: Callable[[object, str, object], None]) -> None:
    """Make small fan-outs take several transactions, as large ones do."""
    patch(splitter, "PIECES_MAX", 7)
    patch(maintenance, "BATCH", 6)
    patch(completed_index, "PRECEDING_MAX", 1)
