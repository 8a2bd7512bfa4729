"""Tracking: what a worker says of a chunk it was handed, each time as one fenced transaction."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, DefinitionError, OutcomeUnknownError, StaleClaimError
from headgate.fanout.core.attempts import (
    AttemptFailure,
    AttemptResult,
    begun,
    completed,
    failed,
    has_expired,
    lost,
    moved_to,
    placed,
    released,
    tries,
)
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange, apply
from headgate.fanout.model.counts import added
from headgate.fanout.model.rows import Chunk, Fanout, chunk_of, moment
from headgate.fanout.model.states import Admission, Disposition
from headgate.ids import IdMaker
from headgate.store.port import Store

if TYPE_CHECKING:
    from headgate.fanout.core.maintenance import FanoutMaintenance


class Claim(Struct, frozen=True):
    """A chunk that is a worker's for as long as its lease."""

    fanout: Fanout
    chunk: Chunk


class Start(Struct, frozen=True):
    """The answer to a worker that wants to start a chunk. It has a claim only if it is to RUN."""

    admission: Admission
    claim: Claim | None = None


class Tracker:
    """Keeps the books of chunks for workers of any kind. Safe to use from many threads."""

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
    ) -> Start:
        """Begin an attempt at a chunk, if it is to be run now.

        A message that comes again finds its chunk ended or busy and changes nothing. Raises `NotFoundError`, and
        `DefinitionError` for a fan-out of another program, of which the counts are not ours.
        """
        fanout = self.queries.fanout(run_id, consistent=True)
        if fanout.shards == 0:
            raise DefinitionError(f"fan-out {run_id}: it was made by another program, which keeps its books; only look")
        chunk = self.queries.chunk(run_id, chunk_id)
        while True:
            now_ms = self.queries.now_ms()
            admission = admitted(fanout, chunk, now_ms)
            if admission is Admission.DUPLICATE:
                self._count_duplicate(chunk)
            settling = settled(fanout, chunk, admission, now_ms)
            if settling is not None:
                if apply(self._store, [settling]):
                    chunk = self.queries.chunk(run_id, chunk_id)
                    continue
                self._chunk_ended(run_id)
                return Start(Admission.CANCELLED if admission is Admission.CANCELLED else Admission.DUPLICATE)
            if admission is not Admission.RUN:
                return Start(admission)
            change = begun(
                chunk,
                worker=worker,
                token=self._ids.ulid(),
                now_ms=now_ms,
                lease_seconds=lease_seconds if lease_seconds is not None else lease_of(fanout),
                receive_count=receive_count,
                message_id=message_id,
            )
            refused = apply(self._store, [change])
            if not refused:
                return Start(Admission.RUN, Claim(fanout, change.after))
            chunk = self._current(change, refused[0].current)

    def heartbeat(self, claim: Claim, *, items_done: int | None = None, lease_seconds: float | None = None) -> Claim:
        """Extend the lease and note the progress. Raises `StaleClaimError` if the chunk is no longer this worker's.

        The claim that is returned has the fan-out as it is now: `is_cancelled` says whether to stop.
        """
        fanout = self.queries.fanout(claim.fanout.run_id, consistent=True)
        now_ms = self.queries.now_ms()
        lease = lease_seconds if lease_seconds is not None else lease_of(fanout)
        beaten = replace(
            claim.chunk,
            heartbeat_at=moment(now_ms),
            items_done=claim.chunk.items_done if items_done is None else items_done,
            lease_expires_at=moment(now_ms + round(1000 * lease)),
        )
        beaten = placed(beaten, Disposition.RUNNING, moment(now_ms))
        try:
            self._store.transact([beaten.put(claim.chunk.fence())])
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            raise _stale(claim.chunk, exc.current) from exc
        return Claim(fanout, beaten)

    def complete(self, claim: Claim, result: AttemptResult) -> Chunk:
        """Record that the chunk is done. Raises `StaleClaimError` if it was no longer this worker's to end.

        Saying it twice is harmless. Raises `InvalidPayloadError` for a result about items of another chunk.
        """
        fanout, is_waiting = claim.fanout, claim.fanout.queue_url is not None
        now_ms = self.queries.now_ms()
        return self._end(completed(claim.chunk, result, now_ms=now_ms, width=fanout.width, is_waiting=is_waiting))

    def fail(self, claim: Claim, failure: AttemptFailure) -> Chunk:
        """Record that the attempt failed, and return the chunk: to be tried again, or given up.

        Raises `StaleClaimError` as `complete` does.
        """
        policy = claim.fanout.rules()
        return self._end(failed(claim.chunk, failure, policy, now_ms=self.queries.now_ms(), draw=self._draw()))

    def release(self, claim: Claim) -> Chunk:
        """Give the chunk back unfinished; the attempt does not count. Raises `StaleClaimError`."""
        return self._end(released(claim.chunk, now_ms=self.queries.now_ms()))

    def _end(self, change: ChunkChange) -> Chunk:
        refused = apply(self._store, [change])
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
        """Note that a message came again. Only a statistic: whoever is counted twice by a retry does no harm."""
        counter = added(chunk.run_id, chunk.shard, {"duplicates": 1})
        try:
            self._store.transact([counter], token=self._ids.ulid())
        except ConflictError:
            return


def admitted(fanout: Fanout, chunk: Chunk, now_ms: int) -> Admission:
    """Return whether a chunk is to be run by whoever was handed it just now."""
    if chunk.disposition is Disposition.CANCELLED or fanout.cancelled_at is not None:
        return Admission.DUPLICATE if chunk.status.is_terminal and not _is_cancelled(chunk) else Admission.CANCELLED
    if chunk.status.is_terminal:
        return Admission.DUPLICATE
    if chunk.disposition is Disposition.RUNNING and not has_expired(chunk, now_ms):
        return Admission.BUSY
    return Admission.PAUSED if fanout.paused_at is not None else Admission.RUN


def settled(fanout: Fanout, chunk: Chunk, admission: Admission, now_ms: int) -> ChunkChange | None:
    """Return the change of a chunk that is handed out and will not be run again, if it has not ended yet."""
    is_idle = chunk.disposition is not Disposition.RUNNING or has_expired(chunk, now_ms)
    if admission is Admission.CANCELLED and not chunk.status.is_terminal and is_idle:
        cancelled = moved_to(chunk, Disposition.CANCELLED, now_ms=now_ms)
        return replace(cancelled, is_overdue=chunk.disposition is Disposition.RUNNING)
    policy = fanout.rules()
    is_spent = chunk.disposition is Disposition.RUNNING and tries(chunk) >= policy.max_attempts
    if admission is Admission.RUN and is_spent:
        return lost(chunk, policy, now_ms=now_ms, draw=0.0)
    return None


def is_cancelled(fanout: Fanout) -> bool:
    """Whether workers are to stop what they do for a fan-out."""
    return fanout.cancelled_at is not None


def lease_of(fanout: Fanout) -> float:
    """Return for how long a chunk is a worker's after each sign of life."""
    policy = fanout.rules()
    silence = policy.heartbeat_seconds
    return policy.timeout_seconds if silence is None else min(3 * silence, policy.timeout_seconds)


def _is_cancelled(chunk: Chunk) -> bool:
    return chunk.disposition is Disposition.CANCELLED


def _stale(chunk: Chunk, current: dict[str, object] | None) -> StaleClaimError:
    found = "it is gone" if current is None else f"it is {current.get('disposition')} under another claim"
    return StaleClaimError(
        f"chunk {chunk.chunk_id} of {chunk.run_id}: attempt {chunk.attempt} no longer holds it ({found}); "
        "drop the result, whoever holds it now will do the work"
    )
