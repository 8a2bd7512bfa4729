"""Reopening: queues ended chunks again and reopens their fan-out in the same transaction.

Maintenance and workers ignore fan-outs that have ended. Queueing a chunk and reopening its fan-out are therefore one
transaction: neither a crash nor a concurrent close can leave a queued chunk in a closed fan-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import ConflictError, NotFoundError, OutcomeUnknownError, UserError
from headgate.fanout.core.attempts import redrive_change
from headgate.fanout.core.observer import MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange, RefusedChange, refused_changes, transaction_groups, writes_of
from headgate.fanout.model.events import event
from headgate.fanout.model.rows import ACTIVE, Chunk, Fanout, run_key
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.repair.retention import PURGING
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import Condition, all_of, any_of, differs, equals, lacks
from headgate.store.model.requests import Put, Update
from headgate.store.port import Store


class AuditNote(Struct, frozen=True):
    """The audit event of an operation: what was done, by whom and why."""

    kind: str
    by: str | None = None
    reason: str | None = None


class Reopener:
    """Commits changes of chunks together with the reopening of their fan-out."""

    def __init__(self, store: Store, queries: FanoutQueries, ids: IdMaker) -> None:
        self._store = store
        self._queries = queries
        self._ids = ids

    def put_back(
        self, fanout: Fanout, changes: Sequence[ChunkChange], note: AuditNote, *, more_chunks: int = 0
    ) -> list[RefusedChange]:
        """Commit the changes whose chunk is unchanged, with the fan-out open, and return the others.

        Each transaction writes an audit event with its number of chunks; `more_chunks` is how many chunks each change
        adds to the fan-out. Raises `ConflictError` if the fan-out is cancelled meanwhile, and store errors; some
        changes may then be committed.
        """
        check_reopenable(fanout)
        refused: list[RefusedChange] = []
        for group in transaction_groups(changes):
            refused += self._commit(fanout, group, note, more_chunks)
        return refused

    def _commit(
        self, fanout: Fanout, group: Sequence[ChunkChange], note: AuditNote, more_chunks: int
    ) -> list[RefusedChange]:
        refused: list[RefusedChange] = []
        cancelled_at, left = fanout.cancelled_at, list(group)
        while left:
            writes = writes_of(left)
            is_rerun = any(not change.after.status.is_terminal for change in left)
            opening = reopen_write(
                fanout,
                self._queries.now(),
                is_rerun=is_rerun,
                more_chunks=more_chunks * len(left),
                is_isolating=any(change.after.is_isolating for change in left),
            )
            try:
                self._store.transact([*writes, opening, self.noted(fanout.run_id, note, len(left))])
            except OutcomeUnknownError:
                raise
            except ConflictError as exc:
                if len(writes) in exc.failures:
                    fanout = self._current(fanout.run_id, cancelled_at)
                    continue
                late = refused_changes(left, exc)
                if not late:
                    raise
                refused += late
                gone = {id(one.change) for one in late}
                left = [change for change in left if id(change) not in gone]
            else:
                return refused
        return refused

    def noted(self, run_id: str, note: AuditNote, count: int) -> Put:
        """Return the write of an audit event for so many chunks."""
        unique, now = self._ids.ulid(), self._queries.now()
        return event(run_id, unique, note.kind, now, by=note.by, reason=note.reason, count=count).put()

    def _current(self, run_id: str, cancelled_at: str | None) -> Fanout:
        fanout = self._queries.fanout(run_id, consistent=True)
        if fanout.cancelled_at not in (None, cancelled_at):
            raise ConflictError(f"fan-out {run_id}: it was cancelled meanwhile; chunks queued before that stay queued")
        check_reopenable(fanout)
        return fanout


def send_waiting(queries: FanoutQueries, run_id: str, send: MessageSender) -> None:
    """Send the queue messages of WAITING chunks, including those of an interrupted earlier call."""
    fanout = queries.fanout(run_id, consistent=True)
    counts = queries.counts(fanout)
    if fanout.queue_url is not None and (counts.waiting or counts.slow_waiting):
        send(fanout)


def check_reopenable(fanout: Fanout) -> None:
    """Raise `UserError` if the fan-out can never be reopened, `ConflictError` if it cannot yet."""
    if fanout.shards == 0:
        raise UserError(
            f"fan-out {fanout.run_id}: it has no counters, so it was created by another program; "
            "only fan-outs that Headgate has split can be changed"
        )
    if fanout.attention_pk == PURGING:
        raise NotFoundError(f"fan-out {fanout.run_id}: it is past its retention and is being deleted; split it anew")
    if fanout.cancelled_at is not None and not fanout.is_finished:
        raise ConflictError(f"fan-out {fanout.run_id}: it is being cancelled; try again when it has ended")


# A rerun lifts a cancellation and what was found of the earlier run.
_LIFTED: Final = ("finished_at", "ttl", "cancelled_at", "exceeded_at", "stalled_at", "failing_at", "reason")


def reopen_write(
    fanout: Fanout, now: str, *, is_rerun: bool, more_chunks: int = 0, is_isolating: bool = False
) -> Update:
    """Return the write that reopens a fan-out, or touches it if it is open.

    With `is_isolating` it records that maintenance has chunks to split until their failing item is alone.
    With `is_rerun` it also lifts a cancellation; otherwise the fan-out stays cancelled and will close again. The write
    is conditional: it fails if the fan-out was cancelled again, finished splitting or began to be deleted since it was
    read.
    """
    uncancelled: Condition = lacks("cancelled_at")
    if fanout.cancelled_at is not None:
        # Of several transactions, the first removes the mark.
        uncancelled = any_of(uncancelled, equals("cancelled_at", fanout.cancelled_at))
    splitting = FanoutStatus.SPLITTING.value
    if fanout.status is FanoutStatus.SPLITTING:
        # The splitter owns the row.
        condition = all_of(equals("status", splitting), uncancelled)
        touched: dict[str, Any] = {"updated_at": now} | ({"is_isolating": True} if is_isolating else {})
        return Update(FANOUT, run_key(fanout.run_id), touched, {"version": 1}, (), condition)
    values: dict[str, Any] = {
        # An incomplete split lacks chunks: the fan-out must not close before the split is resumed.
        "status": (FanoutStatus.SPLITTING if fanout.is_cut_short and is_rerun else FanoutStatus.RUNNING).value,
        "attention_pk": ACTIVE,
        "attention_sk": f"{fanout.created_at}#{fanout.run_id}",
        "updated_at": now,
    }
    if fanout.is_cut_short and is_rerun:
        values["split_error"] = "the split was cancelled before its end; request the same fan-out again"
    if is_isolating:
        values["is_isolating"] = True
    amounts = {"version": 1}
    if more_chunks:
        amounts |= {"jobs_total": more_chunks, "n_chunks": more_chunks}
    gone = _LIFTED if is_rerun else ("finished_at", "ttl")
    condition = all_of(differs("status", splitting), differs("attention_pk", PURGING), uncancelled)
    return Update(FANOUT, run_key(fanout.run_id), values, amounts, gone, condition)


def reopen_change(chunk: Chunk, *, token: str, at_ms: int, is_waiting: bool = False, heals: int = 0) -> ChunkChange:
    """Return the change that queues an ended chunk again from `at_ms` on, with all its attempts.

    The new token separates it from its earlier life for readers of a lagging index.
    """
    change = redrive_change(chunk, now_ms=at_ms, is_waiting=is_waiting, heals=heals)
    return replace(change, after=replace(change.after, token=token, message_id=None, receive_count=0))
