"""Chunk tracker: records starts, heartbeats and ends of chunks, each as one fenced transaction."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, DefinitionError, OutcomeUnknownError, StaleClaimError
from headgate.fanout.core.attempts import (
    AttemptFailure,
    AttemptResult,
    completion_change,
    failure_change,
    has_expired,
    lease_expiry_change,
    move_change,
    release_change,
    start_change,
    with_disposition,
)
from headgate.fanout.core.completed_index import CompletedIndex
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange, apply
from headgate.fanout.model.counts import counter_add
from headgate.fanout.model.rows import Chunk, Fanout, chunk_of, timestamp
from headgate.fanout.model.states import Admission, Disposition
from headgate.ids import IdMaker
from headgate.store.port import Store

if TYPE_CHECKING:
    from headgate.fanout.core.maintenance import FanoutMaintenance


class Claim(Struct, frozen=True):
    """A chunk that a worker holds until its lease expires."""

    fanout: Fanout
    chunk: Chunk
    # The items, if they came with the claim.
    items: Sequence[Any] | None = None


class Start(Struct, frozen=True):
    """The response to a start request. It holds a claim only if the admission is RUN."""

    admission: Admission
    claim: Claim | None = None


class Tracker:
    """Records attempts for local and remote workers. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        maintenance: FanoutMaintenance | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.queries = FanoutQueries(store, clock)
        self._completed = CompletedIndex(self.queries)
        self._maintenance = maintenance
        self._store = store
        self._ids = ids
        self._draw = draw

    def start(
        self,
        run_id: str,
        chunk_id: str,
        *,
        worker: str,
        receive_count: int = 0,
        message_id: str | None = None,
        lease_seconds: float | None = None,
        token: str | None = None,
    ) -> Start:
        """Start an attempt at a chunk if it may run now.

        A duplicate message finds its chunk ended or busy and changes nothing. A worker that chose its `token` may
        repeat the request, and gets the same claim. The lease is that of the policy, or `lease_seconds` if that is
        less: a killed worker blocks its chunk no longer. Raises `NotFoundError`, and `DefinitionError` for a fan-out
        that another program writes.
        """
        fanout = self.queries.fanout(run_id, consistent=True)
        if fanout.shards == 0:
            raise DefinitionError(f"fan-out {run_id}: it was created by another program, and is read-only here")
        chunk = self.queries.chunk(run_id, chunk_id)
        while True:
            now_ms = self.queries.now_ms()
            if token is not None and chunk.token == token and not chunk.status.is_terminal:
                # A repeated request. If its attempt has ended meanwhile, it must not start another one.
                is_held = chunk.disposition is Disposition.RUNNING
                return Start(Admission.RUN, Claim(fanout, chunk)) if is_held else Start(Admission.BUSY)
            admission = admission_for(fanout, chunk, now_ms)
            if admission is Admission.DUPLICATE:
                self._count_duplicate(chunk)
            closing = closing_change(fanout, chunk, admission, now_ms)
            if closing is not None:
                if apply(self._store, [closing]):
                    chunk = self.queries.chunk(run_id, chunk_id)
                    continue
                self._chunk_ended(run_id)
                return Start(Admission.CANCELLED if admission is Admission.CANCELLED else Admission.DUPLICATE)
            if admission is not Admission.RUN:
                return Start(admission)
            change = start_change(
                chunk,
                worker=worker,
                token=token or self._ids.ulid(),
                now_ms=now_ms,
                lease_seconds=lease_of(fanout) if lease_seconds is None else min(lease_seconds, lease_of(fanout)),
                receive_count=receive_count,
                message_id=message_id,
            )
            refused = apply(self._store, [change])
            if not refused:
                return Start(Admission.RUN, Claim(fanout, change.after))
            chunk = self._current(change, refused[0].current)

    def heartbeat(self, claim: Claim, *, items_done: int | None = None, lease_seconds: float | None = None) -> Claim:
        """Extend the lease and record the progress. Raises `StaleClaimError` if the worker lost the claim.

        The returned claim holds the current fan-out; `is_cancelled` of it tells the worker to stop.
        """
        fanout = self.queries.fanout(claim.fanout.run_id, consistent=True)
        now_ms = self.queries.now_ms()
        lease = lease_seconds if lease_seconds is not None else lease_of(fanout)
        renewed = replace(
            claim.chunk,
            heartbeat_at=timestamp(now_ms),
            items_done=claim.chunk.items_done if items_done is None else items_done,
            lease_expires_at=timestamp(now_ms + round(1000 * lease)),
        )
        renewed = with_disposition(renewed, Disposition.RUNNING, timestamp(now_ms))
        try:
            self._store.transact([renewed.put(claim.chunk.fence())])
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            raise _stale(claim.chunk, exc.current) from exc
        return Claim(fanout, renewed)

    def complete(self, claim: Claim, result: AttemptResult) -> Chunk:
        """Complete the chunk. Raises `StaleClaimError` if the worker lost the claim.

        Idempotent. Raises `InvalidPayloadError` for a result that names items of another chunk.
        """
        fanout, is_waiting = claim.fanout, claim.fanout.queue_url is not None
        now_ms = self.queries.now_ms()
        return self._end(
            completion_change(claim.chunk, result, now_ms=now_ms, width=fanout.width, is_waiting=is_waiting)
        )

    def fail(self, claim: Claim, failure: AttemptFailure) -> Chunk:
        """Record a failed attempt, and return the chunk: queued for a retry, dead, or quarantined.

        Raises `StaleClaimError` if the worker lost the claim.
        """
        policy = claim.fanout.rules()
        return self._end(failure_change(claim.chunk, failure, policy, now_ms=self.queries.now_ms(), draw=self._draw()))

    def release(self, claim: Claim) -> Chunk:
        """Return the chunk to the queue unfinished; the attempt does not count. Raises `StaleClaimError`."""
        return self._end(release_change(claim.chunk, now_ms=self.queries.now_ms()))

    def now_ms(self) -> int:
        """Return the time that stored times are compared with."""
        return self.queries.now_ms()

    def _end(self, change: ChunkChange) -> Chunk:
        refused = apply(self._store, self._completed.listed([change]))
        if refused:
            current = self._current(change, refused[0].current)
            raise _stale(change.after, {"disposition": current.disposition})
        self._chunk_ended(change.after.run_id)
        return change.after

    def _chunk_ended(self, run_id: str) -> None:
        if self._maintenance is not None:
            self._maintenance.chunk_ended(run_id)

    def _current(self, change: ChunkChange, current: dict[str, object] | None) -> Chunk:
        if current is not None:
            return chunk_of(current)
        return self.queries.chunk(change.after.run_id, change.after.chunk_id)

    def _count_duplicate(self, chunk: Chunk) -> None:
        """Count a duplicate message. A statistic only: a retry may count it twice."""
        counter = counter_add(chunk.run_id, chunk.shard, {"duplicates": 1})
        try:
            self._store.transact([counter], token=self._ids.ulid())
        except ConflictError:
            return


def admission_for(fanout: Fanout, chunk: Chunk, now_ms: int) -> Admission:
    """Return whether a worker that received this chunk may run it."""
    if chunk.disposition is Disposition.CANCELLED or fanout.cancelled_at is not None:
        return Admission.DUPLICATE if chunk.status.is_terminal and not _is_cancelled(chunk) else Admission.CANCELLED
    if chunk.status.is_terminal:
        return Admission.DUPLICATE
    if chunk.disposition is Disposition.RUNNING and not has_expired(chunk, now_ms):
        return Admission.BUSY
    return Admission.PAUSED if fanout.paused_at is not None else Admission.RUN


def closing_change(fanout: Fanout, chunk: Chunk, admission: Admission, now_ms: int) -> ChunkChange | None:
    """Return the change that ends a chunk which will not run again: cancelled, or lost too often."""
    is_idle = chunk.disposition is not Disposition.RUNNING or has_expired(chunk, now_ms)
    if admission is Admission.CANCELLED and not chunk.status.is_terminal and is_idle:
        cancelled = move_change(chunk, Disposition.CANCELLED, now_ms=now_ms)
        return replace(cancelled, is_overdue=chunk.disposition is Disposition.RUNNING)
    policy = fanout.rules()
    is_spent = chunk.disposition is Disposition.RUNNING and chunk.lost_attempts + 1 >= policy.lost_attempts_max
    if admission is Admission.RUN and is_spent:
        return lease_expiry_change(chunk, policy, now_ms=now_ms, draw=0.0)
    return None


def is_cancelled(fanout: Fanout) -> bool:
    """Whether workers must stop running the fan-out's chunks."""
    return fanout.cancelled_at is not None


def lease_of(fanout: Fanout) -> float:
    """Return the lease that each heartbeat grants, in seconds."""
    policy = fanout.rules()
    heartbeat = policy.heartbeat_seconds
    return policy.timeout_seconds if heartbeat is None else min(3 * heartbeat, policy.timeout_seconds)


def _is_cancelled(chunk: Chunk) -> bool:
    return chunk.disposition is Disposition.CANCELLED


def _stale(chunk: Chunk, current: dict[str, object] | None) -> StaleClaimError:
    state = "it was deleted" if current is None else f"it is {current.get('disposition')} under another claim"
    return StaleClaimError(
        f"chunk {chunk.chunk_id} of {chunk.run_id}: attempt {chunk.attempt} no longer holds it ({state}); "
        "drop the result, the current holder does the work"
    )
