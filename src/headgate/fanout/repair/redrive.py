"""Redrive: queues failed or cancelled chunks, and failed items of completed chunks, again on request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import ConflictError, DefinitionError, NotFoundError
from headgate.fanout.core.attempts import item_indexes
from headgate.fanout.core.observer import NO_OBSERVER, FanoutObserver, MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.item_errors import ItemError
from headgate.fanout.model.rows import (
    SLOW_LANE,
    Chunk,
    Fanout,
    chunk_id_at,
    chunk_key,
    chunk_of,
    timestamp,
    timestamp_ms,
)
from headgate.fanout.model.sources import check_input
from headgate.fanout.model.states import ChunkStatus, Disposition, FanoutStatus
from headgate.fanout.repair import item_redrive
from headgate.fanout.repair.item_redrive import FailedItems, failed_items
from headgate.fanout.repair.reopen import AuditNote, Reopener, check_reopenable, reopen_change, send_waiting
from headgate.ids import IdMaker
from headgate.store.catalogue.tables import FANOUT
from headgate.store.port import Store

REDRIVABLE: Final = (Disposition.DEAD, Disposition.QUARANTINED, Disposition.CANCELLED)
# Listed by the attention index; other dispositions need a scan of all rows.
_INDEXED: Final = (Disposition.DEAD, Disposition.QUARANTINED)
_OPEN: Final = (Disposition.WAITING, Disposition.QUEUED, Disposition.RETRYING, Disposition.RUNNING)
BATCH: Final = 500
READ_AT_ONCE: Final = 100
# Chunk ids listed in a report; its counts cover all.
NAMED_MAX: Final = 1000


class ChunkSelection(Struct, frozen=True, kw_only=True):
    """The chunks to redrive: those that match every given criterion. Raises `DefinitionError` if it is invalid.

    Without `dispositions`, the failed ones, and the failed items of completed ones; `all` includes cancelled ones.
    `items` are indexes within the fan-out; the item of a failed chunk runs again with its chunk. Ages are in seconds
    since the chunk ended.
    """

    chunk_ids: tuple[str, ...] = ()
    items: tuple[int, ...] = ()
    failed: bool = False
    dispositions: tuple[Disposition, ...] = ()
    fingerprint: str | None = None
    error_class: str | None = None
    older_than_seconds: float | None = None
    all: bool = False

    def __post_init__(self) -> None:
        filters = (self.dispositions, self.fingerprint, self.error_class, self.older_than_seconds is not None)
        named = (self.chunk_ids, self.items, self.all, self.failed)
        if not any(filters) and not any(named):
            raise DefinitionError("selection of chunks: it is empty; give chunk ids, items, a filter, failed or all")
        if sum(map(bool, named)) > 1:
            raise DefinitionError("selection of chunks: give one of chunk ids, items, failed and all")
        if any(index < 0 for index in self.items):
            raise DefinitionError(f"selection of chunks: item {min(self.items)}; indexes of items begin at 0")
        for disposition in self.dispositions:
            if disposition not in REDRIVABLE:
                allowed = ", ".join(REDRIVABLE)
                raise DefinitionError(f"selection of chunks: {disposition} cannot be redriven; choose from {allowed}")
        if self.older_than_seconds is not None and not 0 <= self.older_than_seconds < math.inf:
            raise DefinitionError(f"selection of chunks: older_than is {self.older_than_seconds}; it is at least 0")

    @property
    def wanted(self) -> tuple[Disposition, ...]:
        """The dispositions it selects."""
        if self.dispositions:
            return self.dispositions
        return REDRIVABLE if self.all or self.chunk_ids or self.items else _INDEXED

    @property
    def wants_items(self) -> bool:
        """Whether it selects failed items of completed chunks."""
        return not self.dispositions

    def admits(self, chunk: Chunk, now_ms: int) -> bool:
        """Whether a chunk matches the selection."""
        if chunk.disposition not in self.wanted:
            return False
        if self.fingerprint is not None and chunk.error_fingerprint != self.fingerprint:
            return False
        if self.error_class is not None and chunk.error_class != self.error_class:
            return False
        return self.admits_age(chunk, now_ms)

    def admits_age(self, chunk: Chunk, now_ms: int) -> bool:
        """Whether a chunk ended long enough ago."""
        age_ms = now_ms - timestamp_ms(chunk.completed_at or chunk.created_at)
        return self.older_than_seconds is None or age_ms > 1000 * self.older_than_seconds

    def admits_item(self, error: ItemError) -> bool:
        """Whether a failed item of a completed chunk matches the selection."""
        if self.items and error.index not in self.items:
            return False
        if self.fingerprint is not None and error.fingerprint != self.fingerprint:
            return False
        return self.error_class is None or error.error_class == self.error_class


class RedriveReport(Struct, frozen=True):
    """The result of a redrive, or of its dry run.

    `ids` and `refused` list the first chunks; the counts cover all. `until` is when the last chunk may start.
    """

    run_id: str
    is_dry_run: bool
    redriven: int = 0
    # Of the redriven chunks, those that run only failed items again, and the number of these items.
    rerun_chunks: int = 0
    rerun_items: int = 0
    ids: tuple[str, ...] = ()
    refused_count: int = 0
    refused: dict[str, str] = {}
    # Selected by id but queued or running already; and changed concurrently.
    already: int = 0
    overtaken: int = 0
    # Whether the limit excluded some.
    is_cut_off: bool = False
    until: str | None = None


class _Chosen(Struct, frozen=True):
    """A chunk to redrive: whole, or with some of its failed items."""

    chunk: Chunk
    items: FailedItems | None = None


class _RedriveTally:
    """Accumulates the result of a redrive."""

    def __init__(self, now_ms: int, rate_per_second: float | None, limit: int | None) -> None:
        self.now_ms = now_ms
        self.ids: list[str] = []
        self.redriven = 0
        self.rerun_chunks = 0
        self.rerun_items = 0
        self.refused: dict[str, str] = {}
        self.refused_count = 0
        self.already = 0
        self.overtaken = 0
        self.is_cut_off = False
        self._rate = rate_per_second
        self._room = limit
        self._placed = 0

    def has_room(self) -> bool:
        return self._room is None or self._placed < self._room

    def next_at_ms(self) -> int:
        """Return when the next chunk may start: now, or paced by the rate."""
        number, self._placed = self._placed, self._placed + 1
        return self.at_ms(number)

    def at_ms(self, number: int) -> int:
        return self.now_ms if self._rate is None else self.now_ms + math.floor(1000 * number / self._rate)

    def refuse(self, chunk: Chunk, reason: str) -> None:
        self.refused_count += 1
        if len(self.refused) < NAMED_MAX:
            self.refused[chunk.chunk_id] = reason

    def count(self, chosen: Sequence[_Chosen]) -> None:
        self.redriven += len(chosen)
        self.ids += [one.chunk.chunk_id for one in chosen[: NAMED_MAX - len(self.ids)]]
        found = [one.items for one in chosen if one.items is not None]
        self.rerun_chunks += len(found)
        self.rerun_items += sum(len(each.indexes) for each in found)

    def result(self, run_id: str, *, is_dry_run: bool) -> RedriveReport:
        return RedriveReport(
            run_id=run_id,
            is_dry_run=is_dry_run,
            redriven=self.redriven,
            rerun_chunks=self.rerun_chunks,
            rerun_items=self.rerun_items,
            ids=tuple(self.ids),
            refused_count=self.refused_count,
            refused=self.refused,
            already=self.already,
            overtaken=self.overtaken,
            is_cut_off=self.is_cut_off,
            until=timestamp(self.at_ms(self._placed - 1)) if self._placed else None,
        )


class Redriver:
    """Queues ended chunks again. Idempotent: chunks that are queued already are left alone."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        *,
        send: MessageSender | None = None,
        observer: FanoutObserver = NO_OBSERVER,
    ) -> None:
        self.queries = FanoutQueries(store, clock)
        self._send = send
        self._observer = observer
        self._store = store
        self._ids = ids
        self._reopener = Reopener(store, self.queries, ids)

    def redrive(
        self,
        run_id: str,
        selection: ChunkSelection,
        *,
        dry_run: bool = False,
        rate_per_second: float | None = None,
        limit: int | None = None,
        by: str | None = None,
        reason: str | None = None,
    ) -> RedriveReport:
        """Queue the selected chunks again with all their attempts, and reopen the fan-out if it has ended.

        Of a completed chunk, the selected failed items run again. A chunk whose input is missing is refused; the others
        proceed. Chunks that fail after the call began are not included. `rate_per_second` paces the starts, and `limit`
        bounds their number. Raises `NotFoundError` for an unknown fan-out, chunk or item, `ConflictError` for a chunk
        or item that has not failed and a fan-out that has SUCCEEDED or is being cancelled, and `DefinitionError` for
        an invalid rate or limit.
        """
        _check_numbers(rate_per_second, limit)
        fanout = self._redrivable(run_id, rate_per_second, dry_run=dry_run)
        tally = _RedriveTally(self.queries.now_ms(), rate_per_second, limit)
        note = None if dry_run else AuditNote("redriven", by, reason)
        batch: list[tuple[_Chosen, int]] = []
        for chosen in self._found(fanout, selection, tally):
            refusal = _refusal(chosen)
            if refusal is not None:
                tally.refuse(chosen.chunk, refusal)
                continue
            if not tally.has_room():
                tally.is_cut_off = True
                break
            batch.append((chosen, tally.next_at_ms()))
            if len(batch) >= BATCH:
                self._put_back(fanout, batch, tally, note)
                batch = []
        self._put_back(fanout, batch, tally, note)
        if not dry_run:
            if self._send is not None:
                send_waiting(self.queries, run_id, self._send)
            if tally.redriven:
                self._observer.on_work_available(run_id)
        return tally.result(run_id, is_dry_run=dry_run)

    def _redrivable(self, run_id: str, rate_per_second: float | None, *, dry_run: bool) -> Fanout:
        fanout = self.queries.fanout(run_id, consistent=True)
        check_reopenable(fanout)
        # It may have succeeded with tolerated failures.
        has_failures = fanout.chunks_failed or fanout.counts.get("items_failed")
        if fanout.status is FanoutStatus.SUCCEEDED and not has_failures:
            raise ConflictError(f"fan-out {run_id}: it has SUCCEEDED; there is nothing to redrive")
        if fanout.queue_url is not None and self._send is None and not dry_run:
            raise DefinitionError(f"fan-out {run_id}: it has a queue, and nothing here can send to {fanout.queue_url}")
        if fanout.queue_url is not None and rate_per_second is not None:
            raise DefinitionError(
                f"fan-out {run_id}: its queue decides when messages are delivered; give a limit, not a rate"
            )
        return fanout

    def _found(self, fanout: Fanout, selection: ChunkSelection, tally: _RedriveTally) -> Iterator[_Chosen]:
        run_id = fanout.run_id
        if selection.items:
            yield from self._with_items(fanout, selection, tally)
            return
        if selection.chunk_ids:
            candidates = self._named(run_id, selection, tally)
        else:
            candidates = self._listed(run_id, selection, tally.now_ms)
        seen: set[int] = set()
        for chunk in candidates:
            if chunk.status is not ChunkStatus.COMPLETED:
                if selection.admits(chunk, tally.now_ms):
                    yield _Chosen(chunk)
            elif chunk.start not in seen and selection.admits_age(chunk, tally.now_ms):
                found = self._failed_items(fanout, chunk, selection)
                # A chunk and its slow-lane chunk may both be listed.
                seen.add(chunk.start)
                if found.chunk.status is not ChunkStatus.COMPLETED:
                    # Other items of the chunk run again.
                    tally.already += 1
                elif found.indexes:
                    yield _Chosen(found.chunk, found)

    def _failed_items(self, fanout: Fanout, listed: Chunk, selection: ChunkSelection) -> FailedItems:
        """Return the failed items of a completed chunk that match, with those of its slow-lane chunk."""
        chunk, piece = listed, None
        if listed.lane == SLOW_LANE:
            chunk = self.queries.chunk(fanout.run_id, chunk_id_at(listed.start, fanout.width))
        if chunk.deferred is not None:
            # Read after the chunk, whose token changes whenever errors leave this row.
            piece = self.queries.chunk(fanout.run_id, chunk_id_at(listed.start, fanout.width, slow=True))
        return failed_items(chunk, piece, selection.admits_item)

    def _with_items(self, fanout: Fanout, selection: ChunkSelection, tally: _RedriveTally) -> Iterator[_Chosen]:
        """Return the chunks of these items. All are read before the first is changed, so that an error changes none."""
        found: dict[str, _Chosen] = {}
        in_slow_lane: set[int] = set()
        for index in dict.fromkeys(selection.items):
            chunk = self.queries.chunk_with_item(fanout, index)
            if chunk.disposition is Disposition.DEFERRED:
                chunk = self._chunk_that_runs(fanout, chunk, index)
                in_slow_lane |= {index} if chunk.lane == SLOW_LANE else set()
            if chunk.chunk_id in found:
                continue
            if chunk.status is not ChunkStatus.COMPLETED:
                tally.already += chunk.disposition in _OPEN
                if selection.admits(chunk, tally.now_ms):
                    found[chunk.chunk_id] = _Chosen(chunk)
                continue
            items = self._failed_items(fanout, chunk, selection)
            found[chunk.chunk_id] = _Chosen(chunk, items)
        for one in found.values():
            if one.items is None:
                continue
            own = range(one.chunk.start, one.chunk.start + one.chunk.items)
            asked = [index for index in selection.items if index in own and index not in in_slow_lane]
            wrong = [index for index in asked if index not in one.items.indexes]
            if wrong:
                which = f"item {wrong[0]} of {one.chunk.chunk_id}"
                raise ConflictError(f"fan-out {fanout.run_id}: {which} has not failed; none was redriven")
        return iter(found.values())

    def _chunk_that_runs(self, fanout: Fanout, chunk: Chunk, index: int) -> Chunk:
        """Return the chunk that has an item of a deferring chunk: that one, or its slow-lane chunk until it is done."""
        piece = self.queries.chunk(fanout.run_id, chunk_id_at(chunk.start, fanout.width, slow=True))
        is_in_piece = piece.status is not ChunkStatus.COMPLETED and index in item_indexes(piece)
        return piece if is_in_piece else chunk

    def _named(self, run_id: str, selection: ChunkSelection, tally: _RedriveTally) -> Iterator[Chunk]:
        """Return the chunks with these ids. All are read before the first is changed, so that an error changes none."""
        ids = list(dict.fromkeys(selection.chunk_ids))
        found: list[Chunk] = []
        for start in range(0, len(ids), READ_AT_ONCE):
            keys = [chunk_key(run_id, chunk_id) for chunk_id in ids[start : start + READ_AT_ONCE]]
            items = self._store.get_many(FANOUT, keys, consistent=True)
            found += [chunk_of(item) for item in items if item is not None]
        missing = set(ids) - {chunk.chunk_id for chunk in found}
        if missing:
            raise NotFoundError(f"fan-out {run_id}: it has no {_some(sorted(missing))}; none was redriven")
        can_run = (*REDRIVABLE, *_OPEN)
        ended = [
            chunk.chunk_id
            for chunk in found
            if chunk.disposition not in can_run and not (selection.wants_items and chunk.items_failed)
        ]
        if ended:
            raise ConflictError(
                f"fan-out {run_id}: {_some(ended)} has completed without failed items, or was skipped; "
                "none was redriven"
            )
        tally.already += sum(1 for chunk in found if chunk.disposition in _OPEN)
        return iter(found)

    def _listed(self, run_id: str, selection: ChunkSelection, now_ms: int) -> Iterator[Chunk]:
        """Yield the chunks in the selected dispositions, each once even if it fails again meanwhile."""
        before = timestamp(now_ms + 1 - round(1000 * (selection.older_than_seconds or 0)))
        for disposition in selection.wanted:
            if disposition in _INDEXED:
                yield from self.queries.every_in_disposition(run_id, disposition, before=before)
        if selection.wants_items:
            yield from self.queries.every_with_failed_items(run_id, before=before)
            deferred = self.queries.every_in_disposition(run_id, Disposition.DEFERRED, before=before)
            yield from (chunk for chunk in deferred if chunk.item_errors is not None)
        unlisted = [disposition for disposition in selection.wanted if disposition not in _INDEXED]
        if unlisted:
            for slow in (False, True):
                every = self.queries.every_chunk(run_id, slow=slow)
                yield from (chunk for chunk in every if chunk.disposition in unlisted)

    def _put_back(
        self, fanout: Fanout, batch: Sequence[tuple[_Chosen, int]], tally: _RedriveTally, note: AuditNote | None
    ) -> None:
        if note is None or not batch:
            tally.count([chosen for chosen, _ in batch])
            return
        changes = [self._change(fanout, chosen, at_ms) for chosen, at_ms in batch]
        late = {one.change.after.sk for one in self._reopener.put_back(fanout, changes, note)}
        tally.overtaken += len(late)
        tally.count([chosen for chosen, _ in batch if chosen.chunk.sk not in late])

    def _change(self, fanout: Fanout, chosen: _Chosen, at_ms: int) -> ChunkChange:
        token, is_waiting = self._ids.ulid(), fanout.queue_url is not None
        if chosen.items is None:
            return reopen_change(chosen.chunk, token=token, at_ms=at_ms, is_waiting=is_waiting)
        return item_redrive.change_of(chosen.items, token=token, at_ms=at_ms, is_waiting=is_waiting)


def _refusal(chosen: _Chosen) -> str | None:
    """Return why a chunk cannot run again, or None."""
    if chosen.items is not None:
        reason = item_redrive.refusal(chosen.chunk)
        if reason is not None:
            return reason
    try:
        check_input(chosen.chunk.input)
    except NotFoundError as exc:
        return str(exc)
    return None


def _check_numbers(rate_per_second: float | None, limit: int | None) -> None:
    if rate_per_second is not None and not 0 < rate_per_second < math.inf:
        raise DefinitionError(f"rate is {rate_per_second} a second: it must be more than 0")
    if limit is not None and limit < 1:
        raise DefinitionError(f"limit is {limit}: it must be at least 1")


def _some(chunk_ids: Sequence[str]) -> str:
    more = f" and {len(chunk_ids) - 10} more" if len(chunk_ids) > 10 else ""
    return ", ".join(chunk_ids[:10]) + more
