"""The local worker: takes chunks from the store, has child processes run them, and records how they ended.

One thread does everything the store sees, many chunks to a commit. The children only compute, so that a crash, an
endless loop or too much memory costs one attempt at one chunk.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from itertools import count
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import DefinitionError, OutcomeUnknownError, TransientError
from headgate.fanout.core.attempts import placed, released
from headgate.fanout.core.maintenance import MAINTENANCE_SECONDS, FanoutMaintenance, worker_name
from headgate.fanout.core.tracking import Claim
from headgate.fanout.core.transitions import ChunkChange, apply
from headgate.fanout.local.child_pool import Assignment, ChildPool, Unstarted
from headgate.fanout.local.chunk_results import ended, job_of
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.child_protocol import Done, Failed, Progress
from headgate.fanout.model.rows import MAIN_LANE, Fanout, Policy, moment, slow_timeout
from headgate.fanout.model.states import ChunkStatus, Disposition
from headgate.ids import IdMaker
from headgate.store.port import Store
from headgate.store.topics import Topic

LEASE_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 0.2
_log = structlog.get_logger(__name__)


class Options(Struct, frozen=True):
    """How a worker works, and on what."""

    processes: int
    handler: str | None = None
    group: str | None = None
    run_id: str | None = None
    lane: str = MAIN_LANE
    memory_mb: int | None = None
    timeout_seconds: float | None = None
    # Packages outside of the current folder from which a handler that came with a fan-out may be taken.
    trusted: tuple[str, ...] = ()


class _InHand(Struct):
    """A claim that this worker has, and when to show a sign of life."""

    claim: Claim
    renew_at: float


class LocalWorker:
    """Works until it is told to stop. `run` is for one thread, `stop` for any."""

    def __init__(
        self, store: Store, clock: Clock, ids: IdMaker, options: Options, *, maintenance: FanoutMaintenance
    ) -> None:
        self.name = worker_name(os.getpid(), ids.ulid())
        self.done = 0
        self.failed = 0
        self._store = store
        self._clock = clock
        self._options = options
        self._maintenance = maintenance
        self._claims = Claims(
            store,
            clock,
            ids,
            worker=self.name,
            lane=options.lane,
            wanted=self._wanted,
            room_for=lambda fanout: self._pool.room_for(options.handler or fanout.handler or ""),
            lease_seconds=LEASE_SECONDS,
        )
        self._queries = self._claims.queries
        # What is named on the command line is the operator's own choice.
        trusted = options.trusted if options.handler is None else None
        self._pool = ChildPool(clock, options.processes, trusted=trusted)
        self._in_hand: dict[int, _InHand] = {}
        self._keys = count(1)
        self._ends: list[ChunkChange] = []
        self._left: set[str] = set()
        self._due_at = 0.0
        self._stopping = threading.Event()
        self._tend_at = 0.0
        self._grace_seconds = GRACE_SECONDS

    @property
    def unusable(self) -> dict[str, str]:
        """Handlers that cannot be loaded here, and why: fan-outs that need them are left to others."""
        return dict(self._pool.unusable)

    def wake(self) -> None:
        """Something was put into the store in this process: there may be work."""
        self._pool.ring()

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Take no further chunk, and let `run` return once those that run have ended, or after so long."""
        self._grace_seconds = grace_seconds
        self._stopping.set()
        self._pool.ring()

    def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop`, or until there is nothing left to do.

        Raises `DefinitionError` if the handler cannot be loaded; chunks that were claimed are given back.
        """
        self._pool.open()
        listener = threading.Thread(target=self._listen, name="headgate-chunks", daemon=True)
        listener.start()
        try:
            while not self._stopping.is_set():
                self._cycle()
                if self._options.handler in self._pool.unusable:
                    raise DefinitionError(self._pool.unusable[self._options.handler])
                if until_idle and not self._in_hand and not self._ends and self._nothing_left():
                    break
            self._drain()
        finally:
            self._stopping.set()
            # Ended before their chunks are given back, so that no two run the same.
            self._pool.close()
            self._store.wake()
            listener.join()
            self._give_back(self._pool.take_back(begun=True))

    # One round.

    def _cycle(self) -> None:
        try:
            self._tend()
            self._take()
            self._renew()
        except (TransientError, OutcomeUnknownError) as exc:
            _log.warning("the store is busy", error=str(exc))
            self._clock.sleep(PAUSE_SECONDS)
        until = min(self._clock.monotonic() + IDLE_SECONDS, self._tend_at, self._due_at)
        self._hear(0.0 if self._ends else self._pool.patience(until))
        self._record()

    def _tend(self) -> None:
        now = self._clock.monotonic()
        if now >= self._tend_at:
            self._tend_at = now + MAINTENANCE_SECONDS
            self._maintenance.run_once()

    def _take(self) -> None:
        room = self._pool.room()
        self._due_at = float("inf")
        if room <= 0:
            return
        running: dict[str, int] = {}
        for held in self._in_hand.values():
            run_id = held.claim.fanout.run_id
            running[run_id] = running.get(run_id, 0) + 1
        renew_at = self._clock.monotonic() + LEASE_SECONDS / 3
        assignments = []
        for claim in self._claims.take(room, running):
            key = next(self._keys)
            self._in_hand[key] = _InHand(claim, renew_at)
            assignments.append(self._assignment(key, claim))
        self._pool.add(assignments)
        if not assignments:
            self._await_due()

    def _await_due(self) -> None:
        """Wake when the first chunk that has to wait may be taken."""
        due_ms = self._claims.next_due_ms()
        if due_ms is not None:
            # One that is due and could not be taken has its reasons, and no look is worth it before others move.
            left_ms = due_ms - self._queries.now_ms()
            self._due_at = self._clock.monotonic() + (left_ms / 1000 if left_ms > 0 else IDLE_SECONDS)

    def _hear(self, patience_seconds: float) -> None:
        heard, rung = self._pool.hear(patience_seconds)
        if rung:
            self._claims.look_again()
        unstarted: list[int] = []
        for answer in heard:
            match answer:
                case Progress():
                    self._progressed(answer)
                case Unstarted():
                    unstarted.append(answer.key)
                case _:
                    self._ended(answer)
        if unstarted:
            self._refuse(unstarted)

    def _refuse(self, keys: Sequence[int]) -> None:
        """Give back what needs a handler that is not here, and leave its fan-out to others."""
        for handler, why in self._pool.unusable.items():
            if handler not in self._left:
                _log.error("handler cannot be loaded", handler=handler, error=why)
                self._left.add(handler)
        self._give_back(keys)
        self._claims.look_again()

    def _progressed(self, progress: Progress) -> None:
        held = self._in_hand.get(progress.key)
        if held is None:
            # A thread that the handler has left behind speaks of what is over.
            return
        held.claim = Claim(held.claim.fanout, replace(held.claim.chunk, items_done=progress.items_done))
        held.renew_at = min(held.renew_at, self._clock.monotonic() + 1.0)

    def _ended(self, answer: Done | Failed) -> None:
        claim = self._in_hand.pop(answer.key).claim
        self._ends.append(ended(claim, answer, now_ms=self._queries.now_ms(), draw=self._claims.draw()))

    # What the store is told.

    def _record(self) -> None:
        if not self._ends:
            return
        try:
            refused = apply(self._store, self._ends)
        except (TransientError, OutcomeUnknownError) as exc:
            # Kept, and recorded with the next round: what was recorded already counts as made.
            _log.warning("the store is busy", error=str(exc))
            self._clock.sleep(PAUSE_SECONDS)
            return
        ends, self._ends = self._ends, []
        late = {id(one.change) for one in refused}
        for change in ends:
            if id(change) in late:
                _log.info("result dropped", run_id=change.after.run_id, chunk_id=change.after.chunk_id)
                continue
            self.done += change.after.status is ChunkStatus.COMPLETED
            self.failed += change.after.status is ChunkStatus.FAILED
        try:
            for run_id in dict.fromkeys(change.after.run_id for change in ends):
                self._maintenance.chunk_ended(run_id)
        except (TransientError, OutcomeUnknownError) as exc:
            # Whoever tends next folds what this one did not.
            _log.warning("the store is busy", error=str(exc))

    def _renew(self) -> None:
        """Show a sign of life for what takes longer, and stop what is cancelled or no longer ours."""
        now = self._clock.monotonic()
        due = {key: held for key, held in self._in_hand.items() if now >= held.renew_at}
        if not due:
            return
        now_ms = self._queries.now_ms()
        until = moment(now_ms + round(1000 * LEASE_SECONDS))
        changes: dict[int, ChunkChange] = {}
        for key, held in due.items():
            beaten = replace(held.claim.chunk, lease_expires_at=until, heartbeat_at=moment(now_ms))
            changes[key] = ChunkChange(held.claim.chunk, placed(beaten, Disposition.RUNNING, moment(now_ms)))
        lost = {id(one.change) for one in apply(self._store, list(changes.values()))}
        run_ids = {held.claim.fanout.run_id for held in due.values()}
        fanouts = {run_id: self._queries.find(run_id) for run_id in run_ids}
        for key, held in due.items():
            fanout = fanouts[held.claim.fanout.run_id]
            if fanout is None:
                # Deleted while this process was stopped.
                self._pool.stop(key)
                continue
            held.renew_at = now + self._silence(fanout)
            held.claim = Claim(fanout, changes[key].after)
            if id(changes[key]) in lost or fanout.cancelled_at is not None:
                self._pool.stop(key)

    def _silence(self, fanout: Fanout) -> float:
        wanted = fanout.rules().heartbeat_seconds
        return LEASE_SECONDS / 3 if wanted is None else min(wanted, LEASE_SECONDS / 3)

    # Ending.

    def _drain(self) -> None:
        deadline = self._clock.monotonic() + self._grace_seconds
        self._record()
        while True:
            self._give_back(self._pool.take_back(begun=False))
            left = deadline - self._clock.monotonic()
            if not self._in_hand or left <= 0:
                break
            self._hear(min(0.2, left))
            self._record()

    def _give_back(self, keys: Sequence[int]) -> None:
        now_ms = self._queries.now_ms()
        held = [self._in_hand.pop(key) for key in keys]
        if not held:
            return
        try:
            apply(self._store, [released(each.claim.chunk, now_ms=now_ms) for each in held])
        except (TransientError, OutcomeUnknownError) as exc:
            # They are taken over when their lease runs out, or as soon as this process is gone.
            _log.warning("the store is busy", chunks_kept=len(held), error=str(exc))

    def _nothing_left(self) -> bool:
        self._claims.look_again()
        return self._claims.next_due_ms() is None

    def _listen(self) -> None:
        """Ring when something was committed elsewhere: there may be work."""
        seen = self._store.generation(Topic.CHUNKS, others=True)
        while not self._stopping.is_set():
            try:
                now = self._store.wait(seen, IDLE_SECONDS, Topic.CHUNKS, others=True)
            except TransientError:
                self._clock.sleep(PAUSE_SECONDS)
                continue
            if now != seen:
                seen = now
                self._pool.ring()

    # What to work on.

    def _wanted(self, fanout: Fanout) -> bool:
        options = self._options
        if options.run_id is not None and fanout.run_id != options.run_id:
            return False
        if options.group is not None and fanout.group != options.group:
            return False
        if options.handler is not None:
            return fanout.handler in (None, options.handler)
        return fanout.handler is not None and fanout.handler not in self._left

    def _assignment(self, key: int, claim: Claim) -> Assignment:
        policy = claim.fanout.rules()
        return Assignment(
            job=job_of(key, claim, self._options.lane),
            handler=self._options.handler or claim.fanout.handler or "",
            memory_mb=self._options.memory_mb or policy.memory_mb,
            timeout_seconds=self._options.timeout_seconds or self._timeout(policy),
        )

    def _timeout(self, policy: Policy) -> float:
        return policy.timeout_seconds if self._options.lane == MAIN_LANE else slow_timeout(policy)
