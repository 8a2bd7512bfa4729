"""Tending: what has to happen to fan-outs whether or not a worker is at hand to do it.

Counts are folded onto the fan-out's row, a chunk whose worker is gone is tried again or given up, what was cancelled
comes to its end, and a fan-out whose chunks have all ended is closed. Everyone who works may tend; each step is
fenced, so that it happens once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

import structlog
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.engine.membership import is_running, this_host
from headgate.durable.model.history import Signal
from headgate.durable.model.records import message
from headgate.errors import ConflictError, CorruptionError, OutcomeUnknownError
from headgate.fanout.core.attempts import has_expired, lost, moved_to
from headgate.fanout.core.observer import NO_OBSERVER, FanoutObserver, MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange, apply
from headgate.fanout.model.counts import Counts, folded, is_over, nothing_open, verdict
from headgate.fanout.model.events import event
from headgate.fanout.model.results import summary
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, moment, moment_ms
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.ids import IdMaker
from headgate.store.model.requests import Write
from headgate.store.port import Store

FOLD_SECONDS: Final = 1.0
MAINTENANCE_SECONDS: Final = 1.0
# How many chunks of a fan-out are moved before the next one has its turn.
BATCH: Final = 900
# So many running chunks of a fan-out are looked at, a second, for workers that are gone.
RUNNING_SEEN_MAX: Final = 5_000
# For so long a fan-out is kept open for dead chunks that are counted and that no index shows yet.
HEALED_MS_MAX: Final = 60_000
_log = structlog.get_logger(__name__)
# Applies a fan-out's heal policy to its dead chunks; returns how many were healed or are counted but not listed yet.
Heal = Callable[[Fanout], int]


class FanoutMaintenance:
    """Tends all fan-outs of a store. Safe to use from many threads, and beside other tenders."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        send: MessageSender | None = None,
        heal: Heal | None = None,
        observer: FanoutObserver = NO_OBSERVER,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.queries = FanoutQueries(store, clock)
        self._send = send
        self._heal = heal
        self._observer = observer
        self._store = store
        self._clock = clock
        self._ids = ids
        self._draw = draw
        self._folded_at: dict[str, float] = {}

    def run_once(self) -> int:
        """See to every fan-out that has not ended, and return how many there are."""
        cursor, seen = None, 0
        while True:
            page = self.queries.active(cursor=cursor)
            for fanout in page.fanouts:
                seen += 1
                try:
                    self.maintain(fanout.run_id)
                except CorruptionError as exc:
                    # One that cannot be read must not keep the others waiting.
                    _log.error("fan-out cannot be tended", run_id=fanout.run_id, error=str(exc))
            cursor = page.cursor
            if cursor is None:
                return seen

    def maintain(self, run_id: str) -> None:
        """Do for one fan-out what is due."""
        fanout = self.queries.find(run_id)
        if fanout is None or fanout.is_finished:
            return
        if fanout.queue_url is None or fanout.cancelled_at is not None:
            self._expire(fanout)
        elif self._send is not None and fanout.status is not FanoutStatus.SPLITTING:
            # Whoever was to send them may have died before.
            self._send_waiting(fanout)
        if fanout.cancelled_at is not None:
            self._cancel_pending(fanout)
        self._heal_and_fold(fanout, self.queries.counts(fanout))

    def chunk_ended(self, run_id: str) -> None:
        """A chunk has ended: fold if that is due, and close the fan-out if it was the last."""
        fanout = self.queries.find(run_id)
        if fanout is None or fanout.is_finished:
            return
        counts = self.queries.counts(fanout)
        is_due = self._clock.monotonic() - self._folded_at.get(run_id, float("-inf")) >= FOLD_SECONDS
        if verdict(fanout, counts) is not None:
            # Before it is closed, what the policy says of those that died.
            self._heal_and_fold(fanout, counts)
        elif is_due:
            self._fold(fanout, counts)

    def _heal_and_fold(self, fanout: Fanout, counts: Counts) -> None:
        """Do for those that died what the policy says, and fold; closed only if none of them may still be mended."""
        wants = counts.dead + counts.slow_dead and fanout.cancelled_at is None and fanout.rules().heal_redrives_max
        if not wants or self._heal is None or not self._heal(fanout):
            self._fold(fanout, counts)
            return
        # Those that died last may not be in the index yet, and be found a moment later.
        is_patient = self.queries.now_ms() - moment_ms(fanout.updated_at or fanout.created_at) < HEALED_MS_MAX
        self._fold(fanout, self.queries.counts(fanout), may_close=not is_patient)

    # Counting and closing.

    def _fold(self, fanout: Fanout, counts: Counts, *, may_close: bool = True) -> None:
        self._folded_at[fanout.run_id] = self._clock.monotonic()
        while True:
            after = folded_onto(fanout, counts, self.queries.now_ms(), may_close=may_close)
            if after is None:
                return
            try:
                self._store.transact(self._closing(fanout, after, counts))
            except OutcomeUnknownError:
                raise
            except ConflictError:
                again = self.queries.find(fanout.run_id)
                if again is None or again.is_finished:
                    return
                was_ours, fanout, counts = again.version == fanout.version, again, self.queries.counts(again)
                if was_ours and verdict(again, counts) is not None:
                    # The sums say that it is over, and one of the counters does not: someone has tampered with them.
                    _log.error("counters contradict each other; reconcile", run_id=fanout.run_id)
                    return
                continue
            self._settled(after)
            return

    def _closing(self, fanout: Fanout, after: Fanout, counts: Counts) -> list[Write]:
        writes: list[Write] = [after.replacing(fanout.version)]
        if not after.is_finished:
            return writes
        # Whoever has queued a chunk meanwhile keeps the fan-out open.
        writes += [nothing_open(fanout.run_id, shard) for shard in range(fanout.shards)]
        writes.append(event(fanout.run_id, self._ids.ulid(), f"ended as {after.status}", after.finished_at or "").put())
        if after.waiter is not None and after.waiter_signal is not None:
            signal = Signal(after.waiter_signal, summary(after, counts), after.run_id)
            writes.append(message(after.waiter, signal, self.queries.now_ms(), self._ids.ulid()).put())
        return [*writes, *self._observer.closing_writes(after, counts)]

    def _settled(self, after: Fanout) -> None:
        if after.is_finished:
            self._folded_at.pop(after.run_id, None)
            self._observer.on_closed(after)

    def _send_waiting(self, fanout: Fanout) -> None:
        counts = self.queries.counts(fanout)
        if self._send is not None and counts.waiting + counts.slow_waiting:
            self._send(fanout)

    # Chunks that nobody works on any more.

    def _expire(self, fanout: Fanout) -> None:
        now_ms = self.queries.now_ms()
        policy = fanout.rules()
        overdue = self.queries.watched(fanout.run_id, Disposition.RUNNING, before=moment(now_ms), limit=BATCH)
        gone = [chunk for chunk in overdue.chunks if has_expired(chunk, now_ms)]
        if len(gone) < BATCH:
            # Those of processes of this machine that are gone need not wait for their lease.
            every = self.queries.every_watched(fanout.run_id, Disposition.RUNNING)
            gone += [
                chunk for chunk in islice(every, RUNNING_SEEN_MAX) if not has_expired(chunk, now_ms) and is_gone(chunk)
            ]
        if not gone:
            return
        refused = apply(self._store, [lost(chunk, policy, now_ms=now_ms, draw=self._draw()) for chunk in gone])
        _log.warning("chunks lost", run_id=fanout.run_id, chunks=len(gone) - len(refused))

    def _cancel_pending(self, fanout: Fanout) -> None:
        now_ms = self.queries.now_ms()
        found: list[Chunk] = []
        for lane in (MAIN_LANE, SLOW_LANE):
            found += self.queries.queued(fanout.run_id, lane, limit=BATCH)
        if not found and fanout.queue_url is not None and self.queries.counts(fanout).waiting:
            every = self.queries.every_chunk(fanout.run_id)
            found = [chunk for chunk in every if chunk.disposition is Disposition.WAITING][:BATCH]
        self._cancel(found, now_ms)

    def _cancel(self, chunks: Sequence[Chunk], now_ms: int) -> None:
        changes: list[ChunkChange] = [moved_to(chunk, Disposition.CANCELLED, now_ms=now_ms) for chunk in chunks]
        if changes:
            apply(self._store, changes)


def folded_onto(fanout: Fanout, counts: Counts, now_ms: int, *, may_close: bool = True) -> Fanout | None:
    """Return the fan-out's row with these counts, and closed if they say so; None if nothing would change."""
    now = moment(now_ms)
    change: dict[str, Any] = {
        "counts": folded(counts),
        "chunks_completed": counts.completed,
        "chunks_failed": counts.failed,
    }
    if fanout.status is not FanoutStatus.SPLITTING:
        change |= {"chunks_total": counts.total, "chunks": counts.total}
    if fanout.started_at is None and counts.attempts:
        change["started_at"] = now
    if (counts.completed, counts.failed) != (fanout.chunks_completed, fanout.chunks_failed):
        change["progressed_at"] = now
    status = verdict(fanout, counts)
    if status is not None and may_close:
        change["status"] = status
        if is_over(counts):
            change |= {"finished_at": now, **_laid_by(fanout, now_ms)}
            change["is_cut_short"] = fanout.is_cut_short or fanout.status is FanoutStatus.SPLITTING
    after = replace(fanout, **change)
    if after == fanout:
        return None
    return replace(after, version=fanout.version + 1, updated_at=now)


EXPIRING: Final = "EXPIRING"


def _laid_by(fanout: Fanout, now_ms: int) -> dict[str, str]:
    """Return where a fan-out that has ended waits for the end of its retention."""
    until = moment(now_ms + round(86_400_000 * fanout.rules().retention_days))
    return {"attention_pk": EXPIRING, "attention_sk": f"{until}#{fanout.run_id}"}


def worker_name(pid: int, unique: str) -> str:
    """Return the name under which a process of this machine takes chunks."""
    return f"{this_host()}|{pid}|{unique}"


def is_gone(chunk: Chunk) -> bool:
    """Whether the worker of a running chunk was a process of this machine that is no longer there."""
    host, _, rest = (chunk.worker or "").partition("|")
    pid = rest.partition("|")[0]
    return host == this_host() and pid.isdigit() and not is_running(int(pid))
