"""Fan-out queries: read-only access to fan-outs, chunks and attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import NotFoundError
from headgate.fanout.model.counts import Counts, counts_of
from headgate.fanout.model.rows import (
    ACTIVE,
    Attempt,
    AttemptLog,
    Chunk,
    Fanout,
    attempt_of,
    attention_partition,
    chunk_id_at,
    chunk_key,
    chunk_of,
    counter_key,
    failed_items_partition,
    fanout_of,
    is_unsent_since_split,
    log_of,
    printed_log,
    queue_partition,
    run_key,
    sort_key,
    timestamp,
)
from headgate.fanout.model.states import ChunkStatus, Disposition
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Poll, Query, Range, Sort
from headgate.store.port import Store

PAGE: Final = 100
PAGE_MAX: Final = 1000
# Page size for full scans: rows may hold their items, so that large pages could fill the memory.
ROWS_AT_ONCE: Final = 200
# The logs of the last attempts: each may have some 20 KB.
LOGS_MAX: Final = 20
# Each request for the state of a fan-out without counters reads so many of its chunks.
FOREIGN_CHUNKS_MAX: Final = 5_000


class ChunkRows(Struct, frozen=True):
    """A page of chunks, with the cursor of the next page if there is one."""

    chunks: list[Chunk]
    cursor: str | None = None


class FanoutRows(Struct, frozen=True):
    """A page of fan-outs, with the cursor of the next page if there is one."""

    fanouts: list[Fanout]
    cursor: str | None = None


class FanoutQueries:
    """Reads fan-outs from the store. Every list is paged, and its cost is proportional to the result."""

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
        """Return a fan-out by a consistent read, or None."""
        item = self._store.get(FANOUT, run_key(run_id), consistent=True)
        return None if item is None else fanout_of(item)

    def counts(self, fanout: Fanout) -> Counts:
        """Return the current counts, which may be a second ahead of the fan-out's own row."""
        keys = [counter_key(fanout.run_id, shard) for shard in range(fanout.shards)]
        if not keys:
            return self._foreign_counts(fanout)
        return counts_of(self._store.get_many(FANOUT, keys, consistent=True))

    def _foreign_counts(self, fanout: Fanout) -> Counts:
        """Return the counts of a fan-out that another program has written: it has no counters, only chunks.

        Of more than `FOREIGN_CHUNKS_MAX` chunks, those that the row does not count as ended count as queued.
        """
        if fanout.chunks_total > FOREIGN_CHUNKS_MAX:
            total, done, dead = fanout.chunks_total, fanout.chunks_completed, fanout.chunks_failed
            left = max(0, total - done - dead)
            return Counts(total=total, done=done, dead=dead, queued=left, items_total=fanout.items_total)
        found = dict.fromkeys((each.bucket for each in Disposition), 0)
        items = dict.fromkeys(("items_ok", "items_failed"), 0)
        total = 0
        for chunk in islice(self.every_chunk(fanout.run_id), FOREIGN_CHUNKS_MAX):
            total += 1
            found[chunk.disposition.bucket] += 1
            if chunk.disposition is Disposition.DONE:
                items["items_ok"] += chunk.items_ok or chunk.items - chunk.items_failed
                items["items_failed"] += chunk.items_failed
            elif chunk.status is ChunkStatus.FAILED:
                items["items_ok"] += chunk.items_ok
                items["items_failed"] += chunk.items - chunk.items_ok
        # Chunks that it has not written yet are waiting too.
        missing = max(0, fanout.chunks_total - total)
        found["queued"] += missing
        return Counts(total=total + missing, items_total=fanout.items_total, **found, **items)

    def by_group(
        self,
        group: str,
        *,
        since: str | None = None,
        until: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> FanoutRows:
        """Return the fan-outs of a group, newest first."""
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

    def active(self, *, limit: int = PAGE_MAX, cursor: str | None = None, poll: Poll | None = None) -> FanoutRows:
        """Return the fan-outs that have not ended, oldest first. Eventually consistent (index)."""
        page = self._store.query(
            Query(table=FANOUT, index="attention-index", partition=ACTIVE, limit=limit, cursor=cursor, poll=poll)
        )
        return FanoutRows([fanout_of(item) for item in page.items], page.cursor)

    def every_active(self) -> Iterator[Fanout]:
        """Iterate over the fan-outs that have not ended, a page at a time."""
        cursor = None
        while True:
            page = self.active(cursor=cursor, poll=Poll.PROMPT)
            yield from page.fanouts
            cursor = page.cursor
            if cursor is None:
                return

    def chunk(self, run_id: str, chunk_id: str) -> Chunk:
        """Return a chunk by a consistent read. Raises `NotFoundError`, or `InvalidIdError` for a malformed id."""
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
        after: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> ChunkRows:
        """Return a page of chunks in item order. `status` filters the page, so that it may hold fewer than `limit`.

        `after` is a chunk id of this lane to begin with.
        """
        prefix = "SLOW#" if slow else "CHUNK#"
        sort = Sort(Range.BEGINS_WITH, prefix) if after is None else Sort(Range.BETWEEN, sort_key(after), f"{prefix}~")
        page = self._store.query(
            Query(
                table=FANOUT,
                partition=run_id,
                sort=sort,
                limit=limit,
                cursor=cursor,
                consistent=True,
            )
        )
        found = [chunk_of(item) for item in page.items]
        return ChunkRows([chunk for chunk in found if status is None or chunk.status is status], page.cursor)

    def matching(
        self,
        run_id: str,
        matches: Callable[[Chunk], bool],
        *,
        slow: bool = False,
        after: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> ChunkRows:
        """Return the next chunks that match, in item order, of the next `ROWS_AT_ONCE` rows."""
        page = self.chunks(run_id, slow=slow, after=after, limit=ROWS_AT_ONCE, cursor=cursor)
        found = [(place, chunk) for place, chunk in enumerate(page.chunks) if matches(chunk)]
        if len(found) <= limit:
            return ChunkRows([chunk for _, chunk in found], page.cursor)
        # A cursor is that of a page: the page that ends with the last chunk that is returned has the right one.
        last = found[limit - 1][0]
        cut = self.chunks(run_id, slow=slow, after=after, limit=last + 1, cursor=cursor)
        return ChunkRows([chunk for _, chunk in found[:limit]], cut.cursor)

    def in_queue(self, run_id: str, lane: str, *, limit: int = PAGE, cursor: str | None = None) -> ChunkRows:
        """Return the chunks in the queue of a lane, also retries, in its order. Eventually consistent (index)."""
        page = self._store.query(
            Query(
                table=FANOUT,
                index="queue-index",
                partition=queue_partition(run_id, lane),
                limit=limit,
                cursor=cursor,
            )
        )
        return ChunkRows([chunk_of(item) for item in page.items], page.cursor)

    def unsent_from(self, fanout: Fanout) -> str:
        """Return the id of the first chunk whose message may not have been sent since the split."""
        return chunk_id_at(fanout.sent_through, fanout.width)

    def every_unsent(self, fanout: Fanout) -> Iterator[Chunk]:
        """Iterate over the WAITING chunks of a fan-out, a page at a time.

        The index lists those whose message is to be sent again, and those of the slow lane. The others are at the end,
        because messages are sent in item order.
        """
        if fanout.lists_unsent:
            yield from self.every_in_disposition(fanout.run_id, Disposition.WAITING)
            rows = self.every_chunk(fanout.run_id, after=self.unsent_from(fanout))
            yield from (chunk for chunk in rows if is_unsent_since_split(chunk))
        else:
            yield from self.every_unsent_row(fanout.run_id)

    def every_unsent_row(self, run_id: str) -> Iterator[Chunk]:
        """Iterate over the WAITING chunks among all chunks of a fan-out, a page at a time."""
        for is_slow in (False, True):
            rows = self.every_chunk(run_id, slow=is_slow)
            yield from (chunk for chunk in rows if chunk.disposition is Disposition.WAITING)

    def every_chunk(self, run_id: str, *, slow: bool = False, after: str | None = None) -> Iterator[Chunk]:
        """Iterate over all chunks of a fan-out in item order, a page at a time; `after` is one to begin with."""
        cursor = None
        while True:
            page = self.chunks(run_id, slow=slow, after=after, limit=ROWS_AT_ONCE, cursor=cursor)
            yield from page.chunks
            cursor = page.cursor
            if cursor is None:
                return

    def in_disposition(
        self,
        run_id: str,
        about: Disposition,
        *,
        before: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> ChunkRows:
        """Return the chunks in an indexed disposition, longest in it first. Eventually consistent (index).

        For RUNNING, `before` is compared with the end of the lease.
        """
        sort = None if before is None else Sort(Range.LESS_THAN, before)
        page = self._store.query(
            Query(
                table=FANOUT,
                index="attention-index",
                partition=attention_partition(run_id, about),
                sort=sort,
                limit=limit,
                cursor=cursor,
            )
        )
        return ChunkRows([chunk_of(item) for item in page.items], page.cursor)

    def with_failed_items(
        self, run_id: str, *, before: str | None = None, limit: int = PAGE, cursor: str | None = None
    ) -> ChunkRows:
        """Return the completed chunks that have failed items, oldest first. Eventually consistent (index)."""
        sort = None if before is None else Sort(Range.LESS_THAN, before)
        page = self._store.query(
            Query(
                table=FANOUT,
                index="attention-index",
                partition=failed_items_partition(run_id),
                sort=sort,
                limit=limit,
                cursor=cursor,
            )
        )
        return ChunkRows([chunk_of(item) for item in page.items], page.cursor)

    def every_with_failed_items(self, run_id: str, *, before: str | None = None) -> Iterator[Chunk]:
        """Iterate over all chunks that `with_failed_items` finds, a page at a time."""
        cursor = None
        while True:
            page = self.with_failed_items(run_id, before=before, limit=ROWS_AT_ONCE, cursor=cursor)
            yield from page.chunks
            cursor = page.cursor
            if cursor is None:
                return

    def chunk_with_item(self, fanout: Fanout, index: int) -> Chunk:
        """Return the chunk of the main lane that has an item. Raises `NotFoundError`."""
        last = sort_key(chunk_id_at(index, fanout.width))
        page = self._store.query(
            Query(
                table=FANOUT,
                partition=fanout.run_id,
                sort=Sort(Range.BETWEEN, sort_key(chunk_id_at(0, fanout.width)), last),
                limit=1,
                consistent=True,
                descending=True,
            )
        )
        found = [chunk_of(item) for item in page.items]
        if not found or index >= found[0].start + found[0].items:
            raise NotFoundError(f"fan-out {fanout.run_id}: it has no item {index}; it has {fanout.items_total} from 0")
        return found[0]

    def failures(self, run_id: str) -> Iterator[Chunk]:
        """Iterate over the failed chunks, DEAD before QUARANTINED, a page at a time."""
        for about in (Disposition.DEAD, Disposition.QUARANTINED):
            yield from self.every_in_disposition(run_id, about)

    def every_in_disposition(self, run_id: str, about: Disposition, *, before: str | None = None) -> Iterator[Chunk]:
        """Iterate over all chunks that `in_disposition` finds, a page at a time."""
        cursor = None
        while True:
            page = self.in_disposition(run_id, about, before=before, limit=PAGE_MAX, cursor=cursor)
            yield from page.chunks
            cursor = page.cursor
            if cursor is None:
                return

    def queued(
        self, run_id: str, lane: str, *, due_ms: int | None = None, after: str | None = None, limit: int = PAGE
    ) -> Sequence[Chunk]:
        """Return queued chunks that may be claimed by `due_ms`, in that order. Eventually consistent (index).

        `after` is the queue position to start from.
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
            Query(table=FANOUT, index="queue-index", partition=queue_partition(run_id, lane), sort=sort, limit=limit)
        )
        return [chunk_of(item) for item in page.items]

    def attempts(self, chunk: Chunk) -> list[Attempt]:
        """Return the attempts of a chunk that have rows: all except a successful first one."""
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

    def logs(self, chunk: Chunk) -> list[AttemptLog]:
        """Return the logs of the attempts of a chunk that printed something or have a traceback, in their order."""
        page = self._store.query(
            Query(
                table=FANOUT,
                partition=chunk.run_id,
                sort=Sort(Range.BEGINS_WITH, f"LOG#{chunk.chunk_id}#"),
                limit=LOGS_MAX,
                consistent=True,
                descending=True,
            )
        )
        logs = [log_of(item) for item in reversed(page.items)]
        last = printed_log(chunk)
        return logs if last is None else [*logs, last]

    def now(self) -> str:
        """Return the current time as rows store it."""
        return timestamp(self.now_ms())

    def now_ms(self) -> int:
        """Return the current time in milliseconds since 1970."""
        return int(self._clock.seconds() * 1000)
