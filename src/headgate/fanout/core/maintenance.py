"""Fan-out maintenance: periodic work on every fan-out that has not ended.

It folds counters onto the fan-out's row, retries or kills chunks whose lease expired, cancels the chunks of cancelled
fan-outs, applies the heal policy, sends unsent queue messages, and closes a fan-out once all its chunks have ended.
Any process may run it; each write is fenced, so that each step happens once.
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
from headgate.errors import ConflictError, CorruptionError, OutcomeUnknownError, TransientError, UserError
from headgate.fanout.core.attempts import has_expired, lease_expiry_change, move_change
from headgate.fanout.core.observer import NO_OBSERVER, FanoutObserver, MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange, apply
from headgate.fanout.model.counts import Counts, all_ended, counts_dict, final_status, no_open_chunks_check
from headgate.fanout.model.events import event
from headgate.fanout.model.results import summary_json
from headgate.fanout.model.rows import (
    ERROR_CHARS_MAX,
    MAIN_LANE,
    SLOW_LANE,
    Chunk,
    Fanout,
    kept_days,
    timestamp,
    timestamp_ms,
)
from headgate.fanout.model.states import Disposition, FanoutStatus
from headgate.fanout.model.tolerance import FAIL, exceeded_reason
from headgate.ids import IdMaker
from headgate.store.model.requests import Poll, Write
from headgate.store.port import Store

FOLD_SECONDS: Final = 1.0
MAINTENANCE_SECONDS: Final = 1.0
# Pause after a queue has failed.
SEND_RETRY_SECONDS: Final = 30.0
STORE_TRIES_MAX: Final = 5
# Chunks of one fan-out moved in a pass before the next fan-out.
BATCH: Final = 900
# Running chunks of one fan-out checked in a pass for dead worker processes.
RUNNING_SEEN_MAX: Final = 5_000
# How long a fan-out stays open for dead chunks that are counted but not in the index yet.
HEALED_MS_MAX: Final = 60_000
_log = structlog.get_logger(__name__)
# Applies a fan-out's heal policy to its dead chunks; returns how many were healed or are counted but not listed yet.
Heal = Callable[[Fanout], int]


class FanoutMaintenance:
    """Maintains all fan-outs of a store. Safe to use from many threads and in many processes at once."""

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
        # When the messages of a fan-out are sent again whose queue failed.
        self._send_at: dict[str, float] = {}

    def run_once(self) -> int:
        """Maintain every fan-out that has not ended, and return their number."""
        cursor, seen = None, 0
        while True:
            page = self.queries.active(cursor=cursor, poll=Poll.PROMPT)
            for fanout in page.fanouts:
                seen += 1
                try:
                    self.maintain(fanout.run_id)
                except CorruptionError as exc:
                    # An unreadable fan-out must not block the others.
                    _log.error("fan-out maintenance failed", run_id=fanout.run_id, error=str(exc))
            cursor = page.cursor
            if cursor is None:
                return seen

    def maintain(self, run_id: str) -> None:
        """Run all maintenance steps on one fan-out."""
        fanout = self.queries.find(run_id)
        if fanout is None or fanout.is_finished:
            return
        if fanout.queue_url is None or fanout.cancelled_at is not None:
            self._expire(fanout)
        elif self._send is not None and fanout.status is not FanoutStatus.SPLITTING:
            # The process that was to send the messages may have died.
            self._send_waiting(fanout)
        if fanout.cancelled_at is not None:
            self._cancel_pending(fanout)
        self._heal_and_fold(fanout, self.queries.counts(fanout))

    def chunk_ended(self, run_id: str, *, is_open: bool = False) -> None:
        """Fold the counts if a second has passed, and close the fan-out if no chunk is open.

        With `is_open` the caller knows of further open chunks, so that nothing is read before a second has passed.
        """
        is_due = self._clock.monotonic() - self._folded_at.get(run_id, float("-inf")) >= FOLD_SECONDS
        if is_open and not is_due:
            return
        fanout = self.queries.find(run_id)
        if fanout is None or fanout.is_finished:
            return
        counts = self.queries.counts(fanout)
        if final_status(fanout, counts) is not None:
            # The heal policy applies before the fan-out is closed.
            self._heal_and_fold(fanout, counts)
        elif is_due:
            # Dead chunks that may be healed do not count as failures yet.
            self._fold(fanout, counts, may_close=not _may_heal(fanout))

    def _heal_and_fold(self, fanout: Fanout, counts: Counts) -> None:
        """Apply the heal policy to dead chunks, fold the counts, and close unless dead chunks may still be healed."""
        needs_healing = counts.dead + counts.slow_dead and fanout.cancelled_at is None and _may_heal(fanout)
        if not needs_healing or self._heal is None or not self._heal(fanout):
            self._fold(fanout, counts)
            return
        # Chunks that died last may not be in the index yet.
        is_within_grace = self.queries.now_ms() - timestamp_ms(fanout.updated_at or fanout.created_at) < HEALED_MS_MAX
        self._fold(fanout, self.queries.counts(fanout), may_close=not is_within_grace)

    # Folding and closing.

    def _fold(self, fanout: Fanout, counts: Counts, *, may_close: bool = True) -> None:
        self._folded_at[fanout.run_id] = self._clock.monotonic()
        while True:
            after = with_counts(fanout, counts, self.queries.now_ms(), may_close=may_close)
            if after is None:
                return
            try:
                self._store.transact(self._closing(fanout, after, counts))
            except OutcomeUnknownError:
                raise
            except ConflictError:
                current = self.queries.find(fanout.run_id)
                if current is None or current.is_finished:
                    return
                is_unchanged, fanout, counts = current.version == fanout.version, current, self.queries.counts(current)
                if is_unchanged and final_status(current, counts) is not None:
                    # The sum has no open chunk but a single counter has: a row was changed by another program.
                    _log.error("counters contradict each other; run 'headgate fanout reconcile'", run_id=fanout.run_id)
                    return
                continue
            self._closed(after)
            if is_exceeded_now(fanout, after):
                _log.warning("more failures than tolerated", run_id=after.run_id, reason=after.reason)
                self._observer.on_work_available(after.run_id)
            return

    def _closing(self, fanout: Fanout, after: Fanout, counts: Counts) -> list[Write]:
        writes: list[Write] = [after.replacing(fanout.version)]
        if is_exceeded_now(fanout, after):
            kind = "stopped: too many failures" if after.cancelled_at is not None else "paused: too many failures"
            writes.append(
                event(fanout.run_id, self._ids.ulid(), kind, after.exceeded_at or "", reason=after.reason).put()
            )
        if not after.is_finished:
            return writes
        # The checks keep the fan-out open if a chunk was queued meanwhile.
        writes += [no_open_chunks_check(fanout.run_id, shard) for shard in range(fanout.shards)]
        writes.append(event(fanout.run_id, self._ids.ulid(), f"ended as {after.status}", after.finished_at or "").put())
        if after.waiter is not None and after.waiter_signal is not None:
            signal = Signal(after.waiter_signal, summary_json(after, counts), after.run_id)
            now_ms, trace = self.queries.now_ms(), after.traceparent
            writes.append(message(after.waiter, signal, now_ms, self._ids.ulid(), traceparent=trace).put())
        return [*writes, *self._observer.closing_writes(after, counts)]

    def _closed(self, after: Fanout) -> None:
        if after.is_finished:
            self._folded_at.pop(after.run_id, None)
            self._send_at.pop(after.run_id, None)
            self._observer.on_closed(after)

    def _send_waiting(self, fanout: Fanout) -> None:
        counts = self.queries.counts(fanout)
        run_id, now = fanout.run_id, self._clock.monotonic()
        is_due = now >= self._send_at.get(run_id, now)
        if self._send is None or not counts.waiting + counts.slow_waiting or not is_due:
            return
        try:
            self._send(fanout)
        except (TransientError, UserError) as exc:
            # A queue that is missing or busy must not stop the maintenance of other fan-outs.
            _log.warning("messages not sent", run_id=run_id, queue_url=fanout.queue_url, error=str(exc))
            self._send_at[run_id] = self._clock.monotonic() + SEND_RETRY_SECONDS
            self._store_send_error(run_id, str(exc)[:ERROR_CHARS_MAX])
        else:
            self._send_at.pop(run_id, None)
            self._store_send_error(run_id, None)

    def _store_send_error(self, run_id: str, error: str | None) -> None:
        """Store why messages were not sent. If the row keeps changing, the next call does."""
        for _ in range(STORE_TRIES_MAX):
            fanout = self.queries.find(run_id)
            if fanout is None or fanout.send_error == error:
                return
            after = replace(fanout, send_error=error, version=fanout.version + 1)
            try:
                self._store.transact([after.replacing(fanout.version)])
            except OutcomeUnknownError:
                raise
            except ConflictError:
                continue
            return

    # Abandoned and cancelled chunks.

    def _expire(self, fanout: Fanout) -> None:
        now_ms = self.queries.now_ms()
        policy = fanout.rules()
        overdue = self.queries.in_disposition(fanout.run_id, Disposition.RUNNING, before=timestamp(now_ms), limit=BATCH)
        gone = [chunk for chunk in overdue.chunks if has_expired(chunk, now_ms)]
        if len(gone) < BATCH:
            # A worker process of this machine that has died is detected without waiting for its lease.
            every = self.queries.every_in_disposition(fanout.run_id, Disposition.RUNNING)
            gone += [
                chunk
                for chunk in islice(every, RUNNING_SEEN_MAX)
                if not has_expired(chunk, now_ms) and is_worker_process_gone(chunk)
            ]
        if not gone:
            return
        refused = apply(
            self._store, [lease_expiry_change(chunk, policy, now_ms=now_ms, draw=self._draw()) for chunk in gone]
        )
        _log.warning("chunks lost", run_id=fanout.run_id, chunks=len(gone) - len(refused))

    def _cancel_pending(self, fanout: Fanout) -> None:
        now_ms = self.queries.now_ms()
        found: list[Chunk] = []
        for lane in (MAIN_LANE, SLOW_LANE):
            found += self.queries.queued(fanout.run_id, lane, limit=BATCH)
        if not found and fanout.queue_url is not None:
            counts = self.queries.counts(fanout)
            if counts.waiting or counts.slow_waiting:
                found += islice(self.queries.every_unsent(fanout), BATCH)
        self._cancel(found, now_ms)

    def _cancel(self, chunks: Sequence[Chunk], now_ms: int) -> None:
        changes: list[ChunkChange] = [move_change(chunk, Disposition.CANCELLED, now_ms=now_ms) for chunk in chunks]
        if changes:
            apply(self._store, changes)


def with_counts(fanout: Fanout, counts: Counts, now_ms: int, *, may_close: bool = True) -> Fanout | None:
    """Return the fan-out's row with these counts, closed if no chunk is open; None if nothing changes."""
    now = timestamp(now_ms)
    change: dict[str, Any] = {
        "counts": counts_dict(counts),
        "chunks_completed": counts.completed,
        "chunks_failed": counts.failed,
    }
    if fanout.status is not FanoutStatus.SPLITTING:
        change |= {"chunks_total": counts.total, "chunks": counts.total}
    if fanout.started_at is None and counts.attempts:
        change["started_at"] = now
    if (counts.completed, counts.failed) != (fanout.chunks_completed, fanout.chunks_failed):
        change["progressed_at"] = now
    change |= _exceeded(fanout, counts, now) if may_close else {}
    status = final_status(fanout, counts)
    if status is not None and may_close:
        change["status"] = status
        if all_ended(counts):
            change |= {"finished_at": now, **_expiry_attributes(fanout, now_ms)}
            change["is_cut_short"] = fanout.is_cut_short or fanout.status is FanoutStatus.SPLITTING
    after = replace(fanout, **change)
    if after == fanout:
        return None
    return replace(after, version=fanout.version + 1, updated_at=now)


def _exceeded(fanout: Fanout, counts: Counts, now: str) -> dict[str, str]:
    """Return the change of an open fan-out once more chunks have failed than tolerated: it stops, or is paused."""
    policy = fanout.rules()
    if fanout.exceeded_at is not None or fanout.cancelled_at is not None:
        return {}
    reason = exceeded_reason(
        policy, counts.failures(policy), is_split=fanout.status is not FanoutStatus.SPLITTING or not fanout.shards
    )
    if reason is None:
        return {}
    decided = {"exceeded_at": now, "reason": reason}
    if all_ended(counts):
        return decided
    return {**decided, **({"cancelled_at": now} if policy.failures_action == FAIL else {"paused_at": now})}


def is_exceeded_now(before: Fanout, after: Fanout) -> bool:
    """Whether this change finds more failures than tolerated."""
    return before.exceeded_at is None and after.exceeded_at is not None


EXPIRING: Final = "EXPIRING"


def _expiry_attributes(fanout: Fanout, now_ms: int) -> dict[str, str]:
    """Return the index attributes by which the purge finds an ended fan-out at the end of its retention."""
    until = timestamp(now_ms + round(86_400_000 * kept_days(fanout.rules())))
    return {"attention_pk": EXPIRING, "attention_sk": f"{until}#{fanout.run_id}"}


def worker_name(pid: int, unique: str) -> str:
    """Return the name under which a process of this machine claims chunks."""
    return f"{this_host()}|{pid}|{unique}"


def is_worker_process_gone(chunk: Chunk) -> bool:
    """Whether a running chunk's worker was a process of this machine that no longer exists."""
    return is_process_gone(chunk.worker)


def is_process_gone(worker: str | None) -> bool:
    """Whether a name of `worker_name` is that of a process of this machine that no longer exists."""
    host, _, rest = (worker or "").partition("|")
    pid = rest.partition("|")[0]
    return host == this_host() and pid.isdigit() and not is_running(int(pid))


def _may_heal(fanout: Fanout) -> bool:
    """Whether dead chunks of the fan-out may be treated: by its policy, or by a bisection that is under way."""
    return fanout.rules().heal_redrives_max > 0 or fanout.is_isolating
