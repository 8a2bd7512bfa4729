"""Backfills: stores ranges of periods that run a few at a time, and can be paused, resumed and cancelled.

A batch is recorded as started before it is started under unique names, so none is lost and none starts twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, IllegalTransitionError, InvalidPayloadError, NotFoundError
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

# Writes for the same transaction, or a function that makes them from the changed backfill.
Also = Sequence[Write] | Callable[[Backfill], Sequence[Write]]

PREFIX: Final = "backfill"
# A batch is one transaction, with the start of each of its periods.
BATCH_MAX: Final = 10
_RACES_MAX: Final = 20
# How many years back a list of all backfills goes. Ended backfills are deleted after some months.
_YEARS_MAX: Final = 2


class BackfillPage(Struct, frozen=True):
    """A page of backfills of a pipeline, latest first and without their dates."""

    backfills: list[Backfill]
    cursor: str | None = None


class Backfills:
    """Stores backfills. Thread-safe."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids

    def create(self, spec: BackfillSpec, *, by: str, reason: str, also: Also = ()) -> Backfill:
        """Create a backfill. Raises `InvalidPayloadError` for an invalid specification."""
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
        self._store.transact([*backfill_writes(backfill), *_writes(also, backfill)])
        return backfill

    def advance(
        self,
        backfill_id: str,
        done: Collection[str],
        *,
        limit: int = BATCH_MAX,
        also: Callable[[Backfill, Batch], Sequence[Write]] = lambda _backfill, _batch: (),
    ) -> Batch:
        """Record the next batch as started, and return it. `also` makes the writes that start it.

        `done` are periods that are done already. After a lost race the batch is computed again. Raises `NotFoundError`,
        and `ConflictError` if a write of `also` is refused.
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
        """Record the end of a period. A repeated call changes nothing, and writes `also` once."""
        return self._change(backfill_id, lambda backfill, now_ms: settled(backfill, date, status, reason, now_ms), also)

    def pause(self, backfill_id: str, *, by: str, reason: str, also: Also = ()) -> Backfill:
        """Start no more periods for now. Raises `IllegalTransitionError` if it has ended."""
        return self._order(backfill_id, BackfillState.PAUSED, by, reason, also)

    def resume(self, backfill_id: str, *, by: str, reason: str, also: Also = ()) -> Backfill:
        """Continue a paused backfill. Raises `IllegalTransitionError` if it has ended."""
        return self._order(backfill_id, BackfillState.RUNNING, by, reason, also)

    def cancel(self, backfill_id: str, *, by: str, reason: str, also: Also = ()) -> Backfill:
        """End a backfill. The caller cancels periods that are running. Raises `IllegalTransitionError`."""
        return self._order(backfill_id, BackfillState.CANCELLED, by, reason, also)

    def get(self, backfill_id: str) -> Backfill:
        """Return a backfill. Raises `NotFoundError`."""
        item = self._store.get(PIPELINES, backfill_key(backfill_id), consistent=True)
        if item is None:
            raise NotFoundError(f"backfill {backfill_id}: there is none; 'headgate backfill ls' lists them")
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

    def ls_all(self, *, limit: int = 100, cursor: str | None = None) -> BackfillPage:
        """Return the backfills of all pipelines, the latest first, without their dates.

        The index holds one partition for a year; a page goes on into the years before.
        """
        this_year = datetime.fromtimestamp(self._clock.seconds(), UTC).year
        year_text, _, inner = (cursor or "").partition(":")
        if cursor is not None and not re.fullmatch(r"[0-9]{4}", year_text):
            raise InvalidPayloadError(f"cursor {cursor[:40]!r}: not of this list; use that of the page before")
        year = int(year_text) if cursor is not None else this_year
        found: list[Backfill] = []
        while year >= this_year - _YEARS_MAX:
            room = limit - len(found)
            page = self._store.query(
                Query(
                    table=PIPELINES,
                    index="GSI1",
                    partition=f"ALL-BACKFILLS#{year}",
                    # Of a full page, whether there is one more.
                    limit=max(1, room),
                    cursor=inner or None,
                    descending=True,
                )
            )
            if room <= 0 and page.items:
                return BackfillPage(found, f"{year}:")
            if room > 0:
                found += [backfill_of(item) for item in page.items]
                if page.cursor is not None:
                    return BackfillPage(found, f"{year}:{page.cursor}")
            year, inner = year - 1, ""
        return BackfillPage(found, None)

    def unfinished(self) -> list[str]:
        """Return the ids of all unfinished backfills, oldest first."""
        ids: list[str] = []
        cursor: str | None = None
        while True:
            page = self._store.query(Query(table=PIPELINES, index="GSI1", partition="BACKFILLS", cursor=cursor))
            ids += [item["backfill_id"] for item in page.items]
            cursor = page.cursor
            if cursor is None:
                return ids

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
            if after is before or self._replaced(after, _writes(also, after)):
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
    """Return the key of a backfill's main row."""
    return BACKFILL_STATE.key(backfill_id=backfill_id)


def backfill_writes(backfill: Backfill, *, replaces: int | None = None) -> list[Put]:
    """Return the writes of a backfill, main row first. Only unfinished ones are in the index."""
    index = {} if backfill.state.is_over else BACKFILL_STATE.index_attributes(backfill_id=backfill.backfill_id)
    copy = BACKFILL_COPY.key(pipeline_id=backfill.pipeline_id, backfill_id=backfill.backfill_id)
    condition = absent() if replaces is None else version_is(replaces)
    return [
        Put(PIPELINES, row(backfill_key(backfill.backfill_id), backfill, **index), condition),
        Put(PIPELINES, row(copy, replace(backfill, dates=()), **_listing_attributes(backfill))),
    ]


def _listing_attributes(backfill: Backfill) -> dict[str, str]:
    """Return the index attributes by which backfills of all pipelines are listed, by the year of their creation."""
    return BACKFILL_COPY.index_attributes(
        year=_year_of(backfill.created_at_ms), pipeline_id=backfill.pipeline_id, backfill_id=backfill.backfill_id
    )


def _year_of(at_ms: int) -> str:
    return str(datetime.fromtimestamp(at_ms / 1000, UTC).year)


def backfill_of(item: Mapping[str, Any]) -> Backfill:
    """Decode a backfill from its row or its copy."""
    return struct_of(item, Backfill)


def _writes(also: Also, backfill: Backfill) -> Sequence[Write]:
    return also(backfill) if callable(also) else also


def _busy(backfill_id: str) -> ConflictError:
    return ConflictError(f"backfill {backfill_id}: concurrent changes keep winning; try again")
