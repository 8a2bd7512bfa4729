"""Library: fan-outs, chunks and attempts as they are looked up. Reads only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import NotFoundError
from headgate.fanout.model.counts import Counts, counts_of
from headgate.fanout.model.rows import (
    ACTIVE,
    Attempt,
    Chunk,
    Fanout,
    attempt_of,
    attention,
    chunk_key,
    chunk_of,
    counter_key,
    fanout_of,
    moment,
    queue,
    run_key,
)
from headgate.fanout.model.states import ChunkStatus, Disposition
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.port import Store

PAGE: Final = 100
PAGE_MAX: Final = 1000
# Where all are gone through: rows may hold their items, and few large ones fill the memory.
ROWS_AT_ONCE: Final = 200


class ChunkRows(Struct, frozen=True):
    """Some chunks, and the cursor to the next ones if there are more."""

    chunks: list[Chunk]
    cursor: str | None = None


class FanoutRows(Struct, frozen=True):
    """Some fan-outs, and the cursor to the next ones if there are more."""

    fanouts: list[Fanout]
    cursor: str | None = None


class FanoutQueries:
    """Answers questions about fan-outs. Every list is paged and costs what its answer costs."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def fanout(self, run_id: str, *, consistent: bool = False) -> Fanout:
        """Return a fan-out. Raises `NotFoundError`."""
        item = self._store.get(FANOUT, run_key(run_id), consistent=consistent)
        if item is None:
            raise NotFoundError(f"fan-out {run_id}: there is none; 'headgate fanout ls' lists them")
        return fanout_of(item)

    def find(self, run_id: str) -> Fanout | None:
        """Return a fan-out as it stands now, or None."""
        item = self._store.get(FANOUT, run_key(run_id), consistent=True)
        return None if item is None else fanout_of(item)

    def counts(self, fanout: Fanout) -> Counts:
        """Return the counts as they stand now, which may be a second ahead of the fan-out's own row."""
        keys = [counter_key(fanout.run_id, shard) for shard in range(fanout.shards)]
        if not keys:
            total, done, dead = fanout.chunks_total, fanout.chunks_completed, fanout.chunks_failed
            left = max(0, total - done - dead)
            return Counts(total=total, done=done, dead=dead, queued=left, items_total=fanout.items_total)
        return counts_of(self._store.get_many(FANOUT, keys, consistent=True))

    def by_group(
        self,
        group: str,
        *,
        since: str | None = None,
        until: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> FanoutRows:
        """Return the fan-outs of a group, the newest first."""
        sort = None
        if since is not None and until is not None:
            sort = Sort(Range.BETWEEN, since, until)
        elif since is not None:
            sort = Sort(Range.AT_LEAST, since)
        elif until is not None:
            sort = Sort(Range.AT_MOST, until)
        page = self._store.query(
            Query(table=FANOUT, index="GSI1", partition=group, sort=sort, limit=limit, cursor=cursor, descending=True)
        )
        return FanoutRows([fanout_of(item) for item in page.items], page.cursor)

    def active(self, *, limit: int = PAGE_MAX, cursor: str | None = None) -> FanoutRows:
        """Return the fan-outs that have not ended, in the order of their making. An index: it may lag."""
        page = self._store.query(
            Query(table=FANOUT, index="attention-index", partition=ACTIVE, limit=limit, cursor=cursor)
        )
        return FanoutRows([fanout_of(item) for item in page.items], page.cursor)

    def every_active(self) -> Iterator[Fanout]:
        """Go through the fan-outs that have not ended, a page at a time."""
        cursor = None
        while True:
            page = self.active(cursor=cursor)
            yield from page.fanouts
            cursor = page.cursor
            if cursor is None:
                return

    def chunk(self, run_id: str, chunk_id: str) -> Chunk:
        """Return a chunk as it stands now. Raises `NotFoundError`, or `InvalidIdError` for what is no chunk's id."""
        item = self._store.get(FANOUT, chunk_key(run_id, chunk_id), consistent=True)
        if item is None:
            self.fanout(run_id)
            raise NotFoundError(f"chunk {chunk_id} of fan-out {run_id}: there is none")
        return chunk_of(item)

    def chunks(
        self,
        run_id: str,
        *,
        status: ChunkStatus | None = None,
        slow: bool = False,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> ChunkRows:
        """Return chunks of a fan-out in the order of their items.

        With a `status` other than those that the attention index holds, the page is what remains of a page of all.
        """
        prefix = "SLOW#" if slow else "CHUNK#"
        page = self._store.query(
            Query(
                table=FANOUT,
                partition=run_id,
                sort=Sort(Range.BEGINS_WITH, prefix),
                limit=limit,
                cursor=cursor,
                consistent=True,
            )
        )
        found = [chunk_of(item) for item in page.items]
        return ChunkRows([chunk for chunk in found if status is None or chunk.status is status], page.cursor)

    def every_chunk(self, run_id: str, *, slow: bool = False) -> Iterator[Chunk]:
        """Go through all chunks of a fan-out in the order of their items, a page at a time."""
        cursor = None
        while True:
            page = self.chunks(run_id, slow=slow, limit=ROWS_AT_ONCE, cursor=cursor)
            yield from page.chunks
            cursor = page.cursor
            if cursor is None:
                return

    def watched(
        self,
        run_id: str,
        about: Disposition,
        *,
        before: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> ChunkRows:
        """Return the chunks in a disposition that someone may have to look at, those that are so the longest first.

        For RUNNING it is the end of their lease that `before` is compared with. An index: it may lag.
        """
        sort = None if before is None else Sort(Range.LESS_THAN, before)
        page = self._store.query(
            Query(
                table=FANOUT,
                index="attention-index",
                partition=attention(run_id, about),
                sort=sort,
                limit=limit,
                cursor=cursor,
            )
        )
        return ChunkRows([chunk_of(item) for item in page.items], page.cursor)

    def failures(self, run_id: str) -> Iterator[Chunk]:
        """Go through the chunks that were given up, the dead before those put aside, a page at a time."""
        for about in (Disposition.DEAD, Disposition.QUARANTINED):
            yield from self.every_watched(run_id, about)

    def every_watched(self, run_id: str, about: Disposition, *, before: str | None = None) -> Iterator[Chunk]:
        """Go through all chunks that `watched` finds, a page at a time."""
        cursor = None
        while True:
            page = self.watched(run_id, about, before=before, limit=PAGE_MAX, cursor=cursor)
            yield from page.chunks
            cursor = page.cursor
            if cursor is None:
                return

    def queued(
        self, run_id: str, lane: str, *, due_ms: int | None = None, after: str | None = None, limit: int = PAGE
    ) -> Sequence[Chunk]:
        """Return chunks that wait for a worker and may be taken by `due_ms`, in that order. An index: it may lag.

        `after` starts further along: at that place of the queue.
        """
        low = after or ""
        high = None if due_ms is None else f"{due_ms:013d}#~"
        if high is not None and low > high:
            return []
        sort = None
        if high is not None:
            sort = Sort(Range.BETWEEN, low, high) if low else Sort(Range.AT_MOST, high)
        elif low:
            sort = Sort(Range.AT_LEAST, low)
        page = self._store.query(
            Query(table=FANOUT, index="queue-index", partition=queue(run_id, lane), sort=sort, limit=limit)
        )
        return [chunk_of(item) for item in page.items]

    def attempts(self, chunk: Chunk) -> list[Attempt]:
        """Return the attempts at a chunk that have rows of their own: all but a first one that went well."""
        page = self._store.query(
            Query(
                table=FANOUT,
                partition=chunk.run_id,
                sort=Sort(Range.BEGINS_WITH, f"ATT#{chunk.chunk_id}#"),
                limit=PAGE_MAX,
                consistent=True,
            )
        )
        return [attempt_of(item) for item in page.items]

    def now(self) -> str:
        """Return the present moment as rows have it."""
        return moment(self.now_ms())

    def now_ms(self) -> int:
        """Return the present moment in milliseconds."""
        return int(self._clock.seconds() * 1000)
