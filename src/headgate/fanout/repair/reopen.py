"""Reopening: chunks that were given up go back to work, and their fan-out with them, in one transaction.

Nobody looks at a fan-out that has ended. So whatever queues a chunk of it again opens it in the same transaction: there
is no moment at which a crash, or someone closing it just then, leaves a queued chunk in a fan-out that counts as over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import ConflictError, NotFoundError, OutcomeUnknownError, UserError
from headgate.fanout.core.attempts import redriven
from headgate.fanout.core.observer import MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange, RefusedChange, grouped, late_of, writes_of
from headgate.fanout.model.events import event
from headgate.fanout.model.rows import ACTIVE, Chunk, Fanout, run_key
from headgate.fanout.model.states import FanoutStatus
from headgate.fanout.repair.retention import PURGING
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import Condition, all_of, any_of, differs, equals, lacks
from headgate.store.model.requests import Put, Update
from headgate.store.port import Store


class Note(Struct, frozen=True):
    """What is done to chunks, by whom and why, as it is noted with their fan-out."""

    kind: str
    by: str | None = None
    reason: str | None = None


class Reopener:
    """Puts chunks back to work."""

    def __init__(self, store: Store, queries: FanoutQueries, ids: IdMaker) -> None:
        self._store = store
        self._queries = queries
        self._ids = ids

    def put_back(
        self, fanout: Fanout, changes: Sequence[ChunkChange], note: Note, *, more_chunks: int = 0
    ) -> list[RefusedChange]:
        """Make the changes that are still right, with the fan-out open, and return the others.

        Each transaction is noted with how many chunks it moves; `more_chunks` is by how many the fan-out grows with
        each change. Raises `ConflictError` if it is cancelled meanwhile, and what the store raises; some changes may
        then have been made.
        """
        check_reopenable(fanout)
        refused: list[RefusedChange] = []
        for group in grouped(changes):
            refused += self._commit(fanout, group, note, more_chunks)
        return refused

    def _commit(
        self, fanout: Fanout, group: Sequence[ChunkChange], note: Note, more_chunks: int
    ) -> list[RefusedChange]:
        refused: list[RefusedChange] = []
        cancelled_at, left = fanout.cancelled_at, list(group)
        while left:
            writes = writes_of(left)
            is_rerun = any(not change.after.status.is_terminal for change in left)
            opening = reopened(fanout, self._queries.now(), is_rerun=is_rerun, more_chunks=more_chunks * len(left))
            try:
                self._store.transact([*writes, opening, self.noted(fanout.run_id, note, len(left))])
            except OutcomeUnknownError:
                raise
            except ConflictError as exc:
                if len(writes) in exc.failures:
                    fanout = self._current(fanout.run_id, cancelled_at)
                    continue
                late = late_of(left, exc)
                if not late:
                    raise
                refused += late
                gone = {id(one.change) for one in late}
                left = [change for change in left if id(change) not in gone]
            else:
                return refused
        return refused

    def noted(self, run_id: str, note: Note, count: int) -> Put:
        """Return the write that keeps a note, of so many chunks."""
        unique, now = self._ids.ulid(), self._queries.now()
        return event(run_id, unique, note.kind, now, by=note.by, reason=note.reason, count=count).put()

    def _current(self, run_id: str, cancelled_at: str | None) -> Fanout:
        fanout = self._queries.fanout(run_id, consistent=True)
        if fanout.cancelled_at not in (None, cancelled_at):
            raise ConflictError(f"fan-out {run_id}: it was cancelled meanwhile; what was put back before that stays so")
        check_reopenable(fanout)
        return fanout


def send_waiting(queries: FanoutQueries, run_id: str, send: MessageSender) -> None:
    """Have the messages sent that chunks wait for, also those of an earlier call that did not get so far."""
    fanout = queries.fanout(run_id, consistent=True)
    counts = queries.counts(fanout)
    if fanout.queue_url is not None and (counts.waiting or counts.slow_waiting):
        send(fanout)


def check_reopenable(fanout: Fanout) -> None:
    """Raise if chunks of a fan-out cannot be put back now: `UserError` if ever, `ConflictError` if not yet."""
    if fanout.shards == 0:
        raise UserError(
            f"fan-out {fanout.run_id}: it has no counters, so it was made by another program; "
            "only what Headgate has split can be put back to work"
        )
    if fanout.attention_pk == PURGING:
        raise NotFoundError(f"fan-out {fanout.run_id}: it is past its retention and is being deleted; split it anew")
    if fanout.cancelled_at is not None and not fanout.is_finished:
        raise ConflictError(f"fan-out {fanout.run_id}: it is being cancelled; ask again when it has ended")


def reopened(fanout: Fanout, now: str, *, is_rerun: bool, more_chunks: int = 0) -> Update:
    """Return the write that has a fan-out looked at again, whether it had ended or not.

    If chunks are to run again, it is no longer cancelled; otherwise it stays so, and only ends anew. The write is
    refused if since it was read the fan-out was cancelled anew, or was split to its end, or is being deleted.
    """
    uncancelled: Condition = lacks("cancelled_at")
    if fanout.cancelled_at is not None:
        # Put back in several transactions, of which the first takes the mark off.
        uncancelled = any_of(uncancelled, equals("cancelled_at", fanout.cancelled_at))
    splitting = FanoutStatus.SPLITTING.value
    if fanout.status is FanoutStatus.SPLITTING:
        # Whoever splits it keeps its row.
        condition = all_of(equals("status", splitting), uncancelled)
        return Update(FANOUT, run_key(fanout.run_id), {"updated_at": now}, {"version": 1}, (), condition)
    values: dict[str, Any] = {
        # One whose split was cut short lacks chunks, and must not end before someone has asked for the rest.
        "status": (FanoutStatus.SPLITTING if fanout.is_cut_short and is_rerun else FanoutStatus.RUNNING).value,
        "attention_pk": ACTIVE,
        "attention_sk": f"{fanout.created_at}#{fanout.run_id}",
        "updated_at": now,
    }
    if fanout.is_cut_short and is_rerun:
        values["split_error"] = "the split was cancelled before its end; ask for the same fan-out again"
    amounts = {"version": 1}
    if more_chunks:
        amounts |= {"jobs_total": more_chunks, "n_chunks": more_chunks}
    gone = ("finished_at", "ttl", "cancelled_at", "reason") if is_rerun else ("finished_at", "ttl")
    condition = all_of(differs("status", splitting), differs("attention_pk", PURGING), uncancelled)
    return Update(FANOUT, run_key(fanout.run_id), values, amounts, gone, condition)


def again(chunk: Chunk, *, token: str, at_ms: int, is_waiting: bool = False, heals: int = 0) -> ChunkChange:
    """Return the change of a chunk that was given up and has all its tries again from `at_ms` on.

    Its new token tells this life of it from the one before, whoever reads an index that lags.
    """
    change = redriven(chunk, now_ms=at_ms, is_waiting=is_waiting, heals=heals)
    after = replace(change.after, token=token, item_errors=None, message_id=None, receive_count=0)
    uncounted = {
        "items_ok": after.items_ok - chunk.items_ok,
        "items_failed": after.items_failed - chunk.items_failed,
    }
    return replace(change, after=after, counted={**change.counted, **uncounted})
