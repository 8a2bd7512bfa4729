"""Map books: the iterations of a map run as chunks of its fan-out. Who does what, and how each ended.

A chunk is what one iteration is given; in an EXPRESS map run of many items it is a few iterations together. Its output
is a list with the ending of each, also when some of them failed: what succeeded is not done again.
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
from headgate.asl.map.messages import Ending, MapOrder, Standing, Tolerance, Verdict
from headgate.errors import ConflictError, NotFoundError, StoreBusyError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult, begun, completed, failed, moved_to, released
from headgate.fanout.core.transitions import ChunkChange, Guard, apply
from headgate.fanout.model.rows import MAIN_LANE, Chunk, Fanout, Policy, moment, moment_ms, queue_place, run_key
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.repair.redrive import Selection
from headgate.fanout.service import FanoutService
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import all_of, exists, lacks
from headgate.store.model.requests import Check

# No execution of Step Functions lasts longer than a year. Until then its chunk is nobody else's: what has become of it
# the execution of the Map knows, and no lease.
LEASE_SECONDS: Final = 366 * 86_400.0
# Others take from the head of the queue too: whoever was too late looks so much further.
SPREAD: Final = 8
_READ_MAX: Final = 1000
_CANCEL_STEPS_MAX: Final = 1000
# Whether to try again is for the machine of the iteration to say.
_ONCE: Final = Policy(max_attempts=1)
_endings: Final = msgspec.json.Decoder(list[Ending | None])


class Work(Struct, frozen=True):
    """A chunk that was taken: the fan-out, the row, and the row as it was before."""

    fanout: Fanout
    chunk: Chunk
    before: Chunk

    @property
    def endings(self) -> list[Ending | None]:
        """How its iterations have ended so far: None for those that are still to be done, or again."""
        found = endings_of(self.chunk)
        return [None if ending is None or ending.error is not None else ending for ending in found]


class _Cause(Struct):
    message: str = field(name="errorMessage")


class Ended(Struct, frozen=True):
    """A chunk whose iterations have ended; if that is known, also when the first of them began and the last ended."""

    chunk: Chunk
    endings: Sequence[Ending | None]
    began_ms: int | None = None
    ended_ms: int | None = None


class MapBooks:
    """Keeps the books of map runs. Safe to use from many threads."""

    def __init__(self, fanouts: FanoutService, *, draw: Callable[[int], int] = random.randrange) -> None:
        """Take `draw`, which returns any number from 0 on below the one it is given."""
        self._fanouts = fanouts
        self._queries = fanouts.queries
        self._draw = draw

    # Taking chunks.

    def take(self, run_id: str, count: int, name: Callable[[Chunk, str], str], *, takers: int = 1) -> list[Work]:
        """Take up to `count` chunks; `name` gives, by the chunk and its token, the execution that does it.

        `takers` is how many may want some at once: one alone is given those at the head of the queue.
        """
        fanout = self._queries.fanout(run_id, consistent=True)
        if fanout.cancelled_at is not None or fanout.paused_at is not None:
            return []
        if takers > 1:
            taken = self._begin(fanout, self._queued(run_id, count, after=self._somewhere(fanout)), name)
            if taken:
                return taken
        look = count
        while True:
            found = self._queued(run_id, look)
            taken = self._begin(fanout, _spread(found, count), name)
            if taken or len(found) < look or look >= _READ_MAX:
                return taken
            look = min(_READ_MAX, SPREAD * look)

    def _queued(self, run_id: str, count: int, after: str | None = None) -> Sequence[Chunk]:
        return self._queries.queued(run_id, MAIN_LANE, due_ms=self._queries.now_ms(), after=after, limit=count)

    def _somewhere(self, fanout: Fanout) -> str:
        """Return a place in the queue of a fan-out that is as good as any other, so that few want the same chunk."""
        drawn = self._draw(max(1, fanout.items_total))
        return queue_place(moment_ms(fanout.created_at), f"-{drawn:0{fanout.width}d}")

    def _begin(self, fanout: Fanout, chunks: Sequence[Chunk], name: Callable[[Chunk, str], str]) -> list[Work]:
        if not chunks:
            return []
        now_ms = self._queries.now_ms()
        changes: list[ChunkChange] = []
        for chunk in chunks:
            token = self._fanouts.ids.ulid()
            worker = name(chunk, token)
            change = begun(chunk, worker=worker, token=token, now_ms=now_ms, lease_seconds=LEASE_SECONDS)
            changes.append(replace(change, after=replace(change.after, log_ref=worker)))
        runs = all_of(exists(), lacks("paused_at"), lacks("cancelled_at"))
        refused = apply(self._fanouts.store, changes, guard=Guard((Check(FANOUT, run_key(fanout.run_id), runs),)))
        late = {id(one.change) for one in refused}
        taken = zip(changes, chunks, strict=True)
        return [Work(fanout, change.after, chunk) for change, chunk in taken if id(change) not in late]

    # Ending them.

    def end(self, ended: Iterable[Ended]) -> None:
        """Write down how chunks ended. One that is no longer whose it was is left as it is."""
        now_ms = self._queries.now_ms()
        changes = [_change(each, now_ms) for each in ended]
        if not changes:
            return
        apply(self._fanouts.store, changes)
        self._fanouts.maintenance.chunk_ended(changes[0].after.run_id)

    def taken(self, run_id: str, chunk_id: str, token: str) -> Chunk | None:
        """Return a chunk that was taken with this token, or None if it has ended or is another's."""
        chunk = self._queries.chunk(run_id, chunk_id)
        is_held = chunk.token == token and chunk.disposition is Disposition.RUNNING
        return chunk if is_held else None

    # Looking at the whole.

    def standing(self, run_id: str, tolerance: Tolerance) -> Standing:
        """Return how a map run stands, and whether to go on with it."""
        fanout = self._queries.fanout(run_id, consistent=True)
        counts = self._queries.counts(fanout)
        verdict = Verdict.GO_ON if counts.pending else Verdict.DONE
        if tolerance.is_exceeded(counts.items_failed, counts.items_total):
            verdict = Verdict.EXCEEDED
        elif fanout.cancelled_at is not None:
            verdict = Verdict.CANCELLED
        elif fanout.paused_at is not None:
            verdict = Verdict.WAIT
        return Standing(verdict, counts.open, counts.items_total, counts.items_failed)

    def settle(self, run_id: str, tolerance: Tolerance) -> Standing:
        """Put back what was taken by those who are gone, now that nobody works, and return how the map run stands."""
        orphans = list(self._queries.every_watched(run_id, Disposition.RUNNING))
        now_ms = self._queries.now_ms()
        apply(self._fanouts.store, [released(chunk, now_ms=now_ms) for chunk in orphans])
        self._fanouts.maintenance.chunk_ended(run_id)
        return self.standing(run_id, tolerance)

    # Beginning and ending all.

    def cancel(self, run_id: str, reason: str) -> None:
        """End a map run: what waits and what runs is cancelled. Raises `StoreBusyError` if an index lags behind."""
        try:
            self._fanouts.control.cancel(run_id, by="its execution", reason=reason)
        except (ConflictError, NotFoundError):
            # It has ended by itself, or was never made.
            return
        maintenance = self._fanouts.new_maintenance()
        for _ in range(_CANCEL_STEPS_MAX):
            now_ms = self._queries.now_ms()
            running = list(self._queries.every_watched(run_id, Disposition.RUNNING))
            apply(self._fanouts.store, [moved_to(chunk, Disposition.CANCELLED, now_ms=now_ms) for chunk in running])
            maintenance.maintain(run_id)
            if self._queries.fanout(run_id, consistent=True).is_finished:
                return
        raise StoreBusyError(f"map run {run_id}: not all of its iterations can be seen yet; try again")

    def reopen(self, run_id: str) -> None:
        """Have all iterations done again that did not succeed."""
        fanout = self._queries.find(run_id)
        if fanout is None or fanout.status is FanoutStatus.SUCCEEDED:
            return
        if fanout.cancelled_at is not None and not fanout.is_finished:
            self.cancel(run_id, fanout.reason or "")
        self._fanouts.redriver.redrive(run_id, Selection(all=True), by="its execution", reason="it was redriven")


def inputs_of(order: MapOrder, chunk: Chunk) -> list[Json]:
    """Return what the iterations of a chunk are given."""
    items = msgspec.json.decode(chunk.input or "[]")
    return [batched(order.batch_input, items)] if order.is_batched else items


def endings_of(chunk: Chunk) -> list[Ending | None]:
    """Return how the iterations of a chunk ended, as far as they have. Empty if none has."""
    return [] if chunk.output is None else _endings.decode(chunk.output)


def _change(ended: Ended, now_ms: int) -> ChunkChange:
    began_ms = ended.began_ms
    # Taken with others, it had to wait for its turn, which is no time that was spent on it.
    chunk = ended.chunk if began_ms is None else replace(ended.chunk, started_at=moment(began_ms))
    change = _ended(chunk, ended.endings, now_ms if ended.ended_ms is None else ended.ended_ms)
    return replace(change, before=ended.chunk)


def _ended(chunk: Chunk, endings: Sequence[Ending | None], now_ms: int) -> ChunkChange:
    output = msgspec.json.encode(endings).decode()
    errors = {place: ending for place, ending in enumerate(endings) if ending is not None and ending.error is not None}
    if errors:
        return _failed(chunk, endings, errors, output, now_ms)
    if None in endings:
        change = released(chunk, now_ms=now_ms)
        return replace(change, after=replace(change.after, output=output))
    return completed(chunk, AttemptResult(output=output), now_ms=now_ms, width=0)


def _failed(
    chunk: Chunk, endings: Sequence[Ending | None], errors: Mapping[int, Ending], output: str, now_ms: int
) -> ChunkChange:
    first = next(iter(errors.values()))
    # With more items than iterations it was a batch, and all of it failed.
    is_batch = len(endings) < chunk.items
    said = {chunk.start + place: f"{ending.error}: {_message(ending.cause)}" for place, ending in errors.items()}
    failure = AttemptFailure(first.error or "", _message(first.cause), item_errors={} if is_batch else said)
    change = failed(chunk, failure, _ONCE, now_ms=now_ms, draw=0.0)
    lost = chunk.items if is_batch else len(errors)
    done = 0 if is_batch else len(endings) - len(errors) - endings.count(None)
    after = replace(change.after, output=output, items_failed=lost, items_ok=done, items_done=lost + done)
    return replace(change, after=after, counted={**change.counted, "items_failed": lost, "items_ok": done})


def _message(cause: str) -> str:
    """Return what a cause says to people: that of a function is JSON, with a trace that no two of them share."""
    try:
        return typed_decode.from_json(cause, _Cause).message
    except msgspec.DecodeError:
        return cause


def _spread(found: Sequence[Chunk], count: int) -> Sequence[Chunk]:
    """Return as many as are wanted. Whoever was too late at the head of the queue takes from where chance puts it."""
    return found if len(found) <= count else random.sample(list(found), count)
