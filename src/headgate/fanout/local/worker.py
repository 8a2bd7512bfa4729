"""Local worker: claims chunks from the store, runs them in child processes, and records the results.

One thread does all store access, with many chunks per commit. Handlers run in children only, so that a crash, an
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
from headgate.fanout.core.attempts import release_change, with_disposition
from headgate.fanout.core.chunk_workers import BEAT_SECONDS, ChunkWorkerRow, ChunkWorkers, described
from headgate.fanout.core.completed_index import CompletedIndex
from headgate.fanout.core.maintenance import MAINTENANCE_SECONDS, FanoutMaintenance, worker_name
from headgate.fanout.core.tracking import Claim
from headgate.fanout.core.transitions import ChunkChange, apply
from headgate.fanout.local.child_pool import Assignment, ChildPool, Unstarted
from headgate.fanout.local.chunk_results import job_of, result_change
from headgate.fanout.local.claims import Claims
from headgate.fanout.model.child_protocol import Done, Failed, Progress
from headgate.fanout.model.local_access import ANY, LocalAccess
from headgate.fanout.model.rows import MAIN_LANE, Fanout, Policy, slow_timeout, timestamp
from headgate.fanout.model.states import ChunkStatus, Disposition
from headgate.ids import IdMaker
from headgate.outage_log import OutageLog
from headgate.store.port import Store
from headgate.store.topics import Topic

LEASE_SECONDS: Final = 30.0
GRACE_SECONDS: Final = 10.0
IDLE_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 0.2
_log = structlog.get_logger(__name__)


class Options(Struct, frozen=True):
    """What a worker runs, and with which limits."""

    processes: int
    handler: str | None = None
    group: str | None = None
    run_id: str | None = None
    lane: str = MAIN_LANE
    memory_mb: int | None = None
    timeout_seconds: float | None = None
    # Installed packages from which a fan-out's handler may be loaded.
    trusted: tuple[str, ...] = ()


class _HeldClaim(Struct):
    """A claim that this worker runs, and when to renew its lease."""

    claim: Claim
    renew_at: float


class LocalWorker:
    """Runs chunks until it is stopped. `run` is for one thread, `stop` and `wake` for any."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        options: Options,
        *,
        maintenance: FanoutMaintenance,
        access: LocalAccess,
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
        self._completed = CompletedIndex(self._queries)
        # A handler named on the command line is trusted.
        packages = (*access.packages, *options.trusted) if options.handler is None else (ANY,)
        self._pool = ChildPool(clock, options.processes, access=replace(access, packages=packages))
        self._held: dict[int, _HeldClaim] = {}
        self._keys = count(1)
        self._ends: list[ChunkChange] = []
        self._refused_handlers: set[str] = set()
        self._due_at = 0.0
        self._stopping = threading.Event()
        self._maintain_at = 0.0
        self._workers = ChunkWorkers(store, clock)
        self._row = ChunkWorkerRow(
            worker_id=self.name,
            lane=options.lane,
            processes=options.processes,
            started_at=timestamp(int(1000 * clock.seconds())),
            handler=options.handler,
            group=options.group,
            run_id=options.run_id,
        )
        self._beat_at = 0.0
        self._grace_seconds = GRACE_SECONDS
        self._claim_outage = OutageLog(_log, "store unavailable; chunks not claimed", pause_seconds=PAUSE_SECONDS)
        self._record_outage = OutageLog(_log, "store unavailable; chunk results buffered", pause_seconds=PAUSE_SECONDS)

    @property
    def unusable(self) -> dict[str, str]:
        """Handlers that cannot be loaded here, with the error. Other workers run their fan-outs."""
        return dict(self._pool.unusable)

    def wake(self) -> None:
        """Look for work now: this process has written to the store."""
        self._pool.wake()

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """Claim no further chunk, and make `run` return once running chunks have ended, or after the grace period."""
        self._grace_seconds = grace_seconds
        self._stopping.set()
        self._pool.wake()

    def run(self, *, until_idle: bool = False) -> None:
        """Run chunks until `stop`, or until nothing is left to do.

        Raises `DefinitionError` if the handler cannot be loaded; its claimed chunks are released.
        """
        self._pool.open()
        listener = threading.Thread(target=self._listen, name="headgate-chunks", daemon=True)
        listener.start()
        try:
            while not self._stopping.is_set():
                self._cycle()
                if self._options.handler in self._pool.unusable:
                    raise DefinitionError(self._pool.unusable[self._options.handler])
                if until_idle and not self._held and not self._ends and self._is_idle():
                    break
            self._drain()
        finally:
            self._stopping.set()
            # Children end before their chunks are released, so that no chunk runs twice at once.
            self._pool.close()
            self._store.wake()
            listener.join()
            self._release(self._pool.take_back(started=True))
            self._leave()

    # One cycle.

    def _cycle(self) -> None:
        self._retry_unusable()
        try:
            self._maintain()
            self._take()
            self._renew()
            self._claim_outage.succeeded()
        except (TransientError, OutcomeUnknownError) as exc:
            self._pause(self._claim_outage.failed(exc))
        until = min(self._clock.monotonic() + IDLE_SECONDS, self._maintain_at, self._due_at)
        self._receive(0.0 if self._ends else self._pool.wait_seconds(until))
        self._record()

    def _retry_unusable(self) -> None:
        for handler in self._pool.retry_unusable():
            _log.info("handler is loaded again", handler=handler)
            self._refused_handlers.discard(handler)
            self._claims.refresh()

    def _pause(self, seconds: float) -> None:
        """Pause after a failure; `stop` ends the pause."""
        self._stopping.wait(seconds)

    def _maintain(self) -> None:
        now = self._clock.monotonic()
        if now >= self._maintain_at:
            self._maintain_at = now + MAINTENANCE_SECONDS
            self._beat(now)
            self._maintenance.run_once()

    def _beat(self, now: float) -> None:
        """Renew the worker's row if it is due, or if the handlers that it cannot load have changed."""
        row = replace(self._row, unusable=described(self._pool.unusable))
        if now >= self._beat_at or row != self._row:
            self._row, self._beat_at = row, now + BEAT_SECONDS
            self._workers.beat(row)

    def _leave(self) -> None:
        try:
            self._workers.leave(self.name)
        except (TransientError, OutcomeUnknownError) as exc:
            # The row expires by itself.
            _log.warning("store unavailable; worker row not deleted", error=str(exc))

    def _take(self) -> None:
        room = self._pool.room()
        self._due_at = float("inf")
        if room <= 0:
            return
        running: dict[str, int] = {}
        for held in self._held.values():
            run_id = held.claim.fanout.run_id
            running[run_id] = running.get(run_id, 0) + 1
        now = self._clock.monotonic()
        assignments = []
        for claim in self._claims.take(room, running):
            key = next(self._keys)
            self._held[key] = _HeldClaim(claim, now + self._heartbeat_interval(claim.fanout))
            assignments.append(self._assignment(key, claim))
        self._pool.add(assignments)
        if not assignments:
            self._wait_until_due()

    def _wait_until_due(self) -> None:
        """Set the wake-up time to when the next queued chunk becomes due."""
        due_ms = self._claims.next_due_ms()
        if due_ms is not None:
            # A due chunk that could not be claimed is limited by concurrency: poll it at the idle interval.
            left_ms = due_ms - self._queries.now_ms()
            self._due_at = self._clock.monotonic() + (left_ms / 1000 if left_ms > 0 else IDLE_SECONDS)

    def _receive(self, wait_seconds: float) -> None:
        messages, woken = self._pool.receive(wait_seconds)
        if woken:
            self._claims.refresh()
        unstarted: list[int] = []
        for answer in messages:
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
        """Release chunks whose handler cannot be loaded here, and leave their fan-outs to other workers."""
        for handler, why in self._pool.unusable.items():
            if handler not in self._refused_handlers:
                _log.error("handler cannot be loaded", handler=handler, error=why)
                self._refused_handlers.add(handler)
        self._release(keys)
        self._claims.refresh()

    def _progressed(self, progress: Progress) -> None:
        held = self._held.get(progress.key)
        if held is None:
            # A leftover thread of the handler reports on a job that has ended.
            return
        held.claim = Claim(held.claim.fanout, replace(held.claim.chunk, items_done=progress.items_done))
        held.renew_at = min(held.renew_at, self._clock.monotonic() + 1.0)

    def _ended(self, answer: Done | Failed) -> None:
        claim = self._held.pop(answer.key).claim
        self._ends.append(result_change(claim, answer, now_ms=self._queries.now_ms(), draw=self._claims.draw()))

    # Recording.

    def _record(self) -> None:
        if not self._ends:
            return
        try:
            self._ends = self._completed.listed(self._ends)
            refused = apply(self._store, self._ends)
        except (TransientError, OutcomeUnknownError) as exc:
            # Buffered for the next cycle; changes that were committed count as committed.
            self._pause(self._record_outage.failed(exc))
            return
        self._record_outage.succeeded()
        ends, self._ends = self._ends, []
        late = {id(one.change) for one in refused}
        for change in ends:
            if id(change) in late:
                _log.info("result dropped", run_id=change.after.run_id, chunk_id=change.after.chunk_id)
                continue
            self.done += change.after.status is ChunkStatus.COMPLETED
            self.failed += change.after.status is ChunkStatus.FAILED
        try:
            # A claim that was lost meanwhile ends later, and closes the fan-out then.
            running = {held.claim.fanout.run_id for held in self._held.values()}
            for run_id in dict.fromkeys(change.after.run_id for change in ends):
                self._maintenance.chunk_ended(run_id, is_open=run_id in running)
        except (TransientError, OutcomeUnknownError) as exc:
            # The next maintenance pass folds the counts.
            self._record_outage.failed(exc)

    def _renew(self) -> None:
        """Renew leases that are due, and stop chunks that were cancelled or whose claim was lost."""
        now = self._clock.monotonic()
        due = {key: held for key, held in self._held.items() if now >= held.renew_at}
        if not due:
            return
        now_ms = self._queries.now_ms()
        until = timestamp(now_ms + round(1000 * LEASE_SECONDS))
        changes: dict[int, ChunkChange] = {}
        for key, held in due.items():
            renewed = replace(held.claim.chunk, lease_expires_at=until, heartbeat_at=timestamp(now_ms))
            changes[key] = ChunkChange(
                held.claim.chunk, with_disposition(renewed, Disposition.RUNNING, timestamp(now_ms))
            )
        lost = {id(one.change) for one in apply(self._store, list(changes.values()))}
        run_ids = {held.claim.fanout.run_id for held in due.values()}
        fanouts = {run_id: self._queries.find(run_id) for run_id in run_ids}
        for key, held in due.items():
            fanout = fanouts[held.claim.fanout.run_id]
            if fanout is None:
                # Deleted while this process was suspended.
                self._pool.stop(key)
                continue
            held.renew_at = now + self._heartbeat_interval(fanout)
            held.claim = Claim(fanout, changes[key].after)
            if id(changes[key]) in lost or fanout.cancelled_at is not None:
                self._pool.stop(key)

    def _heartbeat_interval(self, fanout: Fanout) -> float:
        wanted = fanout.rules().heartbeat_seconds
        return LEASE_SECONDS / 3 if wanted is None else min(wanted, LEASE_SECONDS / 3)

    # Stopping.

    def _drain(self) -> None:
        deadline = self._clock.monotonic() + self._grace_seconds
        self._record()
        while True:
            self._release(self._pool.take_back(started=False))
            left = deadline - self._clock.monotonic()
            if not self._held or left <= 0:
                break
            self._receive(min(0.2, left))
            self._record()

    def _release(self, keys: Sequence[int]) -> None:
        now_ms = self._queries.now_ms()
        held = [self._held.pop(key) for key in keys]
        if not held:
            return
        try:
            apply(self._store, [release_change(each.claim.chunk, now_ms=now_ms) for each in held])
        except (TransientError, OutcomeUnknownError) as exc:
            # They are reclaimed when their lease expires, or as soon as this process is gone.
            _log.warning("store unavailable", chunks=len(held), error=str(exc))

    def _is_idle(self) -> bool:
        self._claims.refresh()
        return self._claims.next_due_ms() is None

    def _listen(self) -> None:
        """Wake the pool when another process has committed chunks."""
        seen: int | None = None
        while not self._stopping.is_set():
            try:
                if seen is None:
                    seen = self._store.generation(Topic.CHUNKS, others=True)
                now = self._store.wait(seen, IDLE_SECONDS, Topic.CHUNKS, others=True)
            except TransientError:
                self._clock.sleep(PAUSE_SECONDS)
                continue
            if now != seen:
                seen = now
                self._pool.wake()

    # Selection.

    def _wanted(self, fanout: Fanout) -> bool:
        options = self._options
        if options.run_id is not None and fanout.run_id != options.run_id:
            return False
        if options.group is not None and fanout.group != options.group:
            return False
        if options.handler is not None:
            return fanout.handler in (None, options.handler)
        return fanout.handler is not None and fanout.handler not in self._refused_handlers

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
