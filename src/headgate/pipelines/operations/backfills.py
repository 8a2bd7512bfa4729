"""Backfills: ranges of periods, done a few at a time, paused, resumed and cancelled.

A batch is noted as begun in the transaction that begins it, so that none is forgotten and none begun twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, IllegalTransitionError, NotFoundError
from headgate.ids import IdMaker
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.operations.backfill_plans import (
    CONCURRENCY_MAX,
    Backfill,
    BackfillSpec,
    BackfillState,
    Batch,
    advanced,
    check_spec,
    next_batch,
    ordered,
    settled,
)
from headgate.pipelines.row_codec import required, row, struct_of
from headgate.store.catalogue.tables import BACKFILL_COPY, BACKFILL_STATE, PIPELINES
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

# What goes into the same transaction: writes, or what makes them from the backfill as it will be.
Also = Sequence[Write] | Callable[[Backfill], Sequence[Write]]

PREFIX: Final = "backfill"
# A batch is one transaction, with what begins each of its periods.
BATCH_MAX: Final = 10
_RACES_MAX: Final = 20


class BackfillPage(Struct, frozen=True):
    """Some backfills of a pipeline, the latest first and without their dates."""

    backfills: list[Backfill]
    cursor: str | None = None


class Backfills:
    """The backfills of one store. Safe to use from many threads."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    def create(self, spec: BackfillSpec, *, by: str, reason: str, also: Also = ()) -> Backfill:
        """Ask for a range of periods. Raises `InvalidPayloadError` for what cannot be asked."""
        check_spec(spec)
        now_ms = self._now_ms()
        backfill = Backfill(
            backfill_id=self._ids.make(PREFIX),
            pipeline_id=spec.pipeline_id,
            schedule_id=spec.schedule_id,
            dates=ordered(spec),
            dates_count=len(spec.dates),
            concurrency=spec.concurrency,
            redo=spec.redo,
            while_paused=spec.while_paused,
            stop_on_failure=spec.stop_on_failure,
            state=BackfillState.RUNNING,
            version=1,
            created_at_ms=now_ms,
            updated_at_ms=now_ms,
            by=required(f"backfill of {spec.pipeline_id}", "by", by),
            reason=required(f"backfill of {spec.pipeline_id}", "reason", reason),
        )
        self._store.transact([*backfill_writes(backfill), *_made(also, backfill)])
        return backfill

    def advance(
        self,
        backfill_id: str,
        done: Collection[str],
        *,
        limit: int = BATCH_MAX,
        also: Callable[[Backfill, Batch], Sequence[Write]] = lambda _backfill, _batch: (),
    ) -> Batch:
        """Begin what comes next, as far as there is room, and return it. `also` makes the writes that begin it.

        `done` are periods that are done already. Who loses a race against another begins nothing of the other's.
        Raises `NotFoundError`, and `ConflictError` if `also` is refused.
        """
        for _ in range(_RACES_MAX):
            backfill = self.get(backfill_id)
            batch = next_batch(backfill, done, limit=min(limit, CONCURRENCY_MAX))
            if batch == Batch():
                return batch
            after = advanced(backfill, batch, self._now_ms())
            if self._replaced(after, also(after, batch)):
                return batch
        raise _busy(backfill_id)

    def settle(self, backfill_id: str, date: str, status: RunStatus, *, reason: str = "", also: Also = ()) -> Backfill:
        """Note that a period has ended. Told twice, it is noted once, and `also` written once."""
        return self._change(backfill_id, lambda backfill, now_ms: settled(backfill, date, status, reason, now_ms), also)

    def pause(self, backfill_id: str, *, by: str, reason: str, also: Also = ()) -> Backfill:
        """Begin nothing more for now. Raises `IllegalTransitionError` if it is over."""
        return self._order(backfill_id, BackfillState.PAUSED, by, reason, also)

    def resume(self, backfill_id: str, *, by: str, reason: str, also: Also = ()) -> Backfill:
        """Go on. Raises `IllegalTransitionError` if it is over."""
        return self._order(backfill_id, BackfillState.RUNNING, by, reason, also)

    def cancel(self, backfill_id: str, *, by: str, reason: str, also: Also = ()) -> Backfill:
        """Begin nothing more, ever. What is under way is for the caller to cancel. Raises `IllegalTransitionError`."""
        return self._order(backfill_id, BackfillState.CANCELLED, by, reason, also)

    def get(self, backfill_id: str) -> Backfill:
        """Return the backfill as it stands. Raises `NotFoundError`."""
        item = self._store.get(PIPELINES, backfill_key(backfill_id), consistent=True)
        if item is None:
            raise NotFoundError(f"backfill {backfill_id}: there is none; list those of the pipeline to find its id")
        return backfill_of(item)

    def ls(self, pipeline_id: str, *, limit: int = 100, cursor: str | None = None) -> BackfillPage:
        """Return the backfills of a pipeline, the latest first, without their dates."""
        query = Query(
            table=PIPELINES,
            partition=f"PIPELINE#{pipeline_id}",
            sort=Sort(Range.BEGINS_WITH, "BACKFILL#"),
            limit=limit,
            cursor=cursor,
            descending=True,
        )
        page = self._store.query(query)
        return BackfillPage([backfill_of(item) for item in page.items], page.cursor)

    def unfinished(self) -> list[str]:
        """Return the ids of all backfills that are not over, oldest first, for who sees to them."""
        found: list[str] = []
        cursor: str | None = None
        while True:
            page = self._store.query(Query(table=PIPELINES, index="GSI1", partition="BACKFILLS", cursor=cursor))
            found += [item["backfill_id"] for item in page.items]
            cursor = page.cursor
            if cursor is None:
                return found

    def _order(self, backfill_id: str, to: BackfillState, by: str, reason: str, also: Also) -> Backfill:
        by, reason = required(backfill_id, "by", by), required(backfill_id, "reason", reason)

        def decide(backfill: Backfill, now_ms: int) -> Backfill:
            if backfill.state is to:
                return backfill
            if backfill.state.is_over:
                raise IllegalTransitionError(f"backfill {backfill_id}: it is {backfill.state}; ask for a new one")
            ended_at_ms = now_ms if to.is_over else None
            changed = replace(backfill, state=to, by=by, reason=reason, ended_at_ms=ended_at_ms)
            return replace(changed, version=backfill.version + 1, updated_at_ms=now_ms)

        return self._change(backfill_id, decide, also)

    def _change(self, backfill_id: str, decide: Callable[[Backfill, int], Backfill], also: Also) -> Backfill:
        for _ in range(_RACES_MAX):
            before = self.get(backfill_id)
            after = decide(before, self._now_ms())
            if after is before or self._replaced(after, _made(also, after)):
                return after
        raise _busy(backfill_id)

    def _replaced(self, after: Backfill, more: Sequence[Write]) -> bool:
        try:
            self._store.transact([*backfill_writes(after, replaces=after.version - 1), *more])
        except ConflictError as exc:
            if 0 not in exc.failures:
                raise
            return False
        return True

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def backfill_key(backfill_id: str) -> Key:
    """Return where the truth about a backfill is kept."""
    return BACKFILL_STATE.key(backfill_id=backfill_id)


def backfill_writes(backfill: Backfill, *, replaces: int | None = None) -> list[Put]:
    """Return the writes of a backfill, truth first. Only what is not over is in the index."""
    index = {} if backfill.state.is_over else BACKFILL_STATE.index_attributes(backfill_id=backfill.backfill_id)
    copy = BACKFILL_COPY.key(pipeline_id=backfill.pipeline_id, backfill_id=backfill.backfill_id)
    condition = absent() if replaces is None else version_is(replaces)
    return [
        Put(PIPELINES, row(backfill_key(backfill.backfill_id), backfill, **index), condition),
        Put(PIPELINES, row(copy, replace(backfill, dates=()))),
    ]


def backfill_of(item: Mapping[str, Any]) -> Backfill:
    """Return the backfill that a row, or its copy, stands for."""
    return struct_of(item, Backfill)


def _made(also: Also, backfill: Backfill) -> Sequence[Write]:
    return also(backfill) if callable(also) else also


def _busy(backfill_id: str) -> ConflictError:
    return ConflictError(f"backfill {backfill_id}: it keeps changing; try again")
