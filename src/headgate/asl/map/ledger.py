"""Map ledger: stores the iterations of a map run as chunks of a fan-out, with their claims and outcomes.

A chunk holds one iteration; in an EXPRESS map run of many items it holds several. Its output is the list of their
outcomes, also if some failed, so that a redrive repeats only the failed ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from headgate import typed_decode
from headgate.asl.expressions.scope import Json
from headgate.asl.map.items import batched
from headgate.asl.map.messages import FailureTolerance, IterationOutcome, MapRunOrder, MapRunProgress, MapRunVerdict
from headgate.errors import ConflictError, NotFoundError, StoreBusyError
from headgate.fanout.core.attempts import (
    AttemptFailure,
    AttemptResult,
    completion_change,
    failure_change,
    move_change,
    release_change,
    start_change,
)
from headgate.fanout.core.completed_index import CompletedIndex
from headgate.fanout.core.transitions import ChunkChange, TransitionGuard, apply
from headgate.fanout.model.rows import (
    MAIN_LANE,
    Chunk,
    Fanout,
    Policy,
    queue_position,
    run_key,
    timestamp,
    timestamp_ms,
)
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair.redrive import ChunkSelection
from headgate.fanout.service import FanoutService
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import all_of, exists, lacks
from headgate.store.model.requests import Check

# A claim does not expire: the execution of the Map tracks its iterations, and no execution lasts longer than a year.
LEASE_SECONDS: Final = 366 * 86_400.0
# A claim that lost every chunk to other workers reads this many times more chunks at its next try.
SPREAD: Final = 8
_READ_MAX: Final = 1000
_CANCEL_STEPS_MAX: Final = 1000
# The Retry of the iteration's machine decides on retries.
_ONCE: Final = Policy(max_attempts=1)
_outcomes: Final = msgspec.json.Decoder(list[IterationOutcome | None])


class ClaimedChunk(Struct, frozen=True):
    """A claimed chunk: its fan-out, its row, and its row before the claim."""

    fanout: Fanout
    chunk: Chunk
    before: Chunk

    @property
    def outcomes(self) -> list[IterationOutcome | None]:
        """The outcomes of its iterations; None for each that has to run, including those that failed."""
        return [None if each is None or each.error is not None else each for each in outcomes_of(self.chunk)]


class _Cause(Struct):
    message: str = field(name="errorMessage")


class ChunkOutcome(Struct, frozen=True):
    """A chunk with the outcomes of its iterations and, if known, the start of the first and the end of the last."""

    chunk: Chunk
    outcomes: Sequence[IterationOutcome | None]
    started_ms: int | None = None
    ended_ms: int | None = None


class MapLedger:
    """The chunks of map runs. Safe for use from many threads."""

    def __init__(self, fanouts: FanoutService, *, randrange: Callable[[int], int] = random.randrange) -> None:
        self._fanouts = fanouts
        self._queries = fanouts.queries
        self._completed = CompletedIndex(self._queries)
        self._randrange = randrange

    # Claims.

    def claim(
        self, run_id: str, count: int, name: Callable[[Chunk, str], str], *, claimants: int = 1
    ) -> list[ClaimedChunk]:
        """Claim up to `count` chunks. `name` returns the execution that runs a chunk, by its row and claim token.

        Several `claimants` start at a random place of the queue, a single one at its head.
        """
        fanout = self._queries.fanout(run_id, consistent=True)
        if fanout.cancelled_at is not None or fanout.paused_at is not None:
            return []
        if claimants > 1:
            claimed = self._claim(fanout, self._queued(run_id, count, after=self._random_place(fanout)), name)
            if claimed:
                return claimed
        read_count = count
        while True:
            queued = self._queued(run_id, read_count)
            # Behind the contended head of the queue the claims are drawn at random.
            chunks = queued if len(queued) <= count else random.sample(list(queued), count)
            claimed = self._claim(fanout, chunks, name)
            if claimed or len(queued) < read_count or read_count >= _READ_MAX:
                return claimed
            read_count = min(_READ_MAX, SPREAD * read_count)

    def _queued(self, run_id: str, count: int, after: str | None = None) -> Sequence[Chunk]:
        return self._queries.queued(run_id, MAIN_LANE, due_ms=self._queries.now_ms(), after=after, limit=count)

    def _random_place(self, fanout: Fanout) -> str:
        """Return a random place in the queue of a fan-out, so that concurrent claims rarely collide."""
        item = self._randrange(max(1, fanout.items_total))
        return queue_position(timestamp_ms(fanout.created_at), f"-{item:0{fanout.width}d}")

    def _claim(self, fanout: Fanout, chunks: Sequence[Chunk], name: Callable[[Chunk, str], str]) -> list[ClaimedChunk]:
        if not chunks:
            return []
        now_ms = self._queries.now_ms()
        changes: list[ChunkChange] = []
        for chunk in chunks:
            token = self._fanouts.ids.ulid()
            worker = name(chunk, token)
            change = start_change(chunk, worker=worker, token=token, now_ms=now_ms, lease_seconds=LEASE_SECONDS)
            changes.append(replace(change, after=replace(change.after, log_ref=worker)))
        is_running = all_of(exists(), lacks("paused_at"), lacks("cancelled_at"))
        guard = TransitionGuard((Check(FANOUT, run_key(fanout.run_id), is_running),))
        lost = {id(each.change) for each in apply(self._fanouts.store, changes, guard=guard)}
        pairs = zip(changes, chunks, strict=True)
        return [ClaimedChunk(fanout, change.after, chunk) for change, chunk in pairs if id(change) not in lost]

    # Outcomes.

    def record(self, outcomes: Iterable[ChunkOutcome]) -> None:
        """Store the outcomes of chunks. A chunk whose claim was lost stays unchanged."""
        now_ms = self._queries.now_ms()
        changes = [_change(each, now_ms) for each in outcomes]
        if not changes:
            return
        apply(self._fanouts.store, self._completed.listed(changes))
        self._fanouts.maintenance.chunk_ended(changes[0].after.run_id)

    def claimed(self, run_id: str, chunk_id: str, token: str) -> Chunk | None:
        """Return the running chunk of a claim token; None if it has ended or the claim was lost."""
        chunk = self._queries.chunk(run_id, chunk_id)
        is_held = chunk.token == token and chunk.disposition is Disposition.RUNNING
        return chunk if is_held else None

    # The map run as a whole.

    def progress(self, run_id: str, tolerance: FailureTolerance) -> MapRunProgress:
        """Return the counts of a map run, and whether to continue it."""
        fanout = self._queries.fanout(run_id, consistent=True)
        counts = self._queries.counts(fanout)
        verdict = MapRunVerdict.GO_ON if counts.pending else MapRunVerdict.DONE
        if tolerance.is_exceeded(counts.items_failed, counts.items_total):
            verdict = MapRunVerdict.EXCEEDED
        elif fanout.cancelled_at is not None:
            verdict = MapRunVerdict.CANCELLED
        elif fanout.paused_at is not None:
            verdict = MapRunVerdict.WAIT
        return MapRunProgress(verdict, counts.open, counts.items_total, counts.items_failed)

    def settle(self, run_id: str, tolerance: FailureTolerance) -> MapRunProgress:
        """Release the claims that ended workers left behind, and return the progress. No worker may be running."""
        orphans = list(self._queries.every_in_disposition(run_id, Disposition.RUNNING))
        now_ms = self._queries.now_ms()
        apply(self._fanouts.store, [release_change(chunk, now_ms=now_ms) for chunk in orphans])
        self._fanouts.maintenance.chunk_ended(run_id)
        return self.progress(run_id, tolerance)

    def cancel(self, run_id: str, reason: str) -> None:
        """Cancel the queued and running iterations of a map run. Raises `StoreBusyError` while an index lags."""
        try:
            self._fanouts.control.cancel(run_id, by="its execution", reason=reason)
        except (ConflictError, NotFoundError):
            # It has ended already, or was never created.
            return
        maintenance = self._fanouts.new_maintenance()
        for _ in range(_CANCEL_STEPS_MAX):
            now_ms = self._queries.now_ms()
            running = list(self._queries.every_in_disposition(run_id, Disposition.RUNNING))
            apply(self._fanouts.store, [move_change(chunk, Disposition.CANCELLED, now_ms=now_ms) for chunk in running])
            maintenance.maintain(run_id)
            if self._queries.fanout(run_id, consistent=True).is_finished:
                return
        raise StoreBusyError(f"map run {run_id}: not all of its iterations can be seen yet; try again")

    def reopen(self, run_id: str) -> None:
        """Queue every iteration again that did not succeed."""
        fanout = self._queries.find(run_id)
        if fanout is None or fanout.status is FanoutStatus.SUCCEEDED:
            return
        if fanout.cancelled_at is not None and not fanout.is_finished:
            self.cancel(run_id, fanout.reason or "")
        self._fanouts.redriver.redrive(run_id, ChunkSelection(all=True), by="its execution", reason="it was redriven")


def inputs_of(order: MapRunOrder, chunk: Chunk) -> list[Json]:
    """Return the inputs of the iterations of a chunk."""
    items = msgspec.json.decode(chunk.input or "[]")
    return [batched(order.batch_input, items)] if order.is_batched else items


def outcomes_of(chunk: Chunk) -> list[IterationOutcome | None]:
    """Return the outcomes of a chunk's iterations, None for each without one. Empty if none has ended."""
    return [] if chunk.output is None else _outcomes.decode(chunk.output)


def _change(outcome: ChunkOutcome, now_ms: int) -> ChunkChange:
    started_ms = outcome.started_ms
    # Chunks are claimed in batches; the wait for a turn does not count as processing time.
    chunk = outcome.chunk if started_ms is None else replace(outcome.chunk, started_at=timestamp(started_ms))
    change = _transition(chunk, outcome.outcomes, now_ms if outcome.ended_ms is None else outcome.ended_ms)
    return replace(change, before=outcome.chunk)


def _transition(chunk: Chunk, outcomes: Sequence[IterationOutcome | None], now_ms: int) -> ChunkChange:
    output = msgspec.json.encode(outcomes).decode()
    errors = {index: each for index, each in enumerate(outcomes) if each is not None and each.error is not None}
    if errors:
        return _failed(chunk, outcomes, errors, output, now_ms)
    if None in outcomes:
        change = release_change(chunk, now_ms=now_ms)
        return replace(change, after=replace(change.after, output=output))
    return completion_change(chunk, AttemptResult(output=output), now_ms=now_ms, width=0)


def _failed(
    chunk: Chunk,
    outcomes: Sequence[IterationOutcome | None],
    errors: Mapping[int, IterationOutcome],
    output: str,
    now_ms: int,
) -> ChunkChange:
    first = next(iter(errors.values()))
    # A batch has more items than iterations, and fails as a whole.
    is_batch = len(outcomes) < chunk.items
    messages = {chunk.start + index: f"{each.error}: {_message(each.cause)}" for index, each in errors.items()}
    failure = AttemptFailure(first.error or "", _message(first.cause), item_errors={} if is_batch else messages)
    change = failure_change(chunk, failure, _ONCE, now_ms=now_ms, draw=0.0)
    lost = chunk.items if is_batch else len(errors)
    done = 0 if is_batch else len(outcomes) - len(errors) - outcomes.count(None)
    after = replace(change.after, output=output, items_failed=lost, items_ok=done, items_done=lost + done)
    return replace(change, after=after)


def _message(cause: str) -> str:
    """Return the error message in a cause: a function's cause is JSON with a trace, which would defeat grouping."""
    try:
        return typed_decode.from_json(cause, _Cause).message
    except msgspec.DecodeError:
        return cause
