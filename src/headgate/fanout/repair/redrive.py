"""Redrive: queues failed or cancelled chunks again, on request."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import ConflictError, DefinitionError, NotFoundError
from headgate.fanout.core.observer import NO_OBSERVER, FanoutObserver, MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.rows import Chunk, Fanout, chunk_key, chunk_of, timestamp, timestamp_ms
from headgate.fanout.model.sources import check_input
from headgate.fanout.model.states import Disposition, FanoutStatus
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

    Without `dispositions`, the failed ones; `all` includes cancelled ones. Ages are in seconds since the chunk ended.
    """

    chunk_ids: tuple[str, ...] = ()
    dispositions: tuple[Disposition, ...] = ()
    fingerprint: str | None = None
    error_class: str | None = None
    older_than_seconds: float | None = None
    all: bool = False

    def __post_init__(self) -> None:
        others = (self.dispositions, self.fingerprint, self.error_class, self.older_than_seconds is not None, self.all)
        if not self.chunk_ids and not any(others):
            raise DefinitionError("selection of chunks: it is empty; give chunk ids, a filter, or all")
        if self.chunk_ids and self.all:
            raise DefinitionError("selection of chunks: it has both chunk ids and all; choose one")
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
        return REDRIVABLE if self.all or self.chunk_ids else _INDEXED

    def admits(self, chunk: Chunk, now_ms: int) -> bool:
        """Whether a chunk matches the selection."""
        if chunk.disposition not in self.wanted:
            return False
        if self.fingerprint is not None and chunk.error_fingerprint != self.fingerprint:
            return False
        if self.error_class is not None and chunk.error_class != self.error_class:
            return False
        age_ms = now_ms - timestamp_ms(chunk.completed_at or chunk.created_at)
        return self.older_than_seconds is None or age_ms > 1000 * self.older_than_seconds


class RedriveReport(Struct, frozen=True):
    """The result of a redrive, or of its dry run.

    `ids` and `refused` list the first chunks; the counts cover all. `until` is when the last chunk may start.
    """

    run_id: str
    is_dry_run: bool
    redriven: int = 0
    ids: tuple[str, ...] = ()
    refused_count: int = 0
    refused: dict[str, str] = {}
    # Selected by id but queued or running already; and changed concurrently.
    already: int = 0
    overtaken: int = 0
    # Whether the limit excluded some.
    is_cut_off: bool = False
    until: str | None = None


class _RedriveTally:
    """Accumulates the result of a redrive."""

    def __init__(self, now_ms: int, rate_per_second: float | None, limit: int | None) -> None:
        self.now_ms = now_ms
        self.ids: list[str] = []
        self.redriven = 0
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

    def count(self, chunks: Sequence[Chunk]) -> None:
        self.redriven += len(chunks)
        self.ids += [chunk.chunk_id for chunk in chunks[: NAMED_MAX - len(self.ids)]]

    def result(self, run_id: str, *, is_dry_run: bool) -> RedriveReport:
        return RedriveReport(
            run_id=run_id,
            is_dry_run=is_dry_run,
            redriven=self.redriven,
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

        A chunk whose input is missing is refused; the others proceed. Chunks that fail after the call began are not
        included. `rate_per_second` paces the starts, and `limit` bounds their number. Raises `NotFoundError` for an
        unknown fan-out or chunk, `ConflictError` for a completed chunk or a fan-out that has SUCCEEDED or is being
        cancelled, and `DefinitionError` for an invalid rate or limit.
        """
        _check_numbers(rate_per_second, limit)
        fanout = self._redrivable(run_id, rate_per_second, dry_run=dry_run)
        tally = _RedriveTally(self.queries.now_ms(), rate_per_second, limit)
        note = None if dry_run else AuditNote("redriven", by, reason)
        batch: list[tuple[Chunk, int]] = []
        for chunk in self._found(run_id, selection, tally):
            refusal = _refusal(chunk)
            if refusal is not None:
                tally.refuse(chunk, refusal)
                continue
            if not tally.has_room():
                tally.is_cut_off = True
                break
            batch.append((chunk, tally.next_at_ms()))
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
        if fanout.status is FanoutStatus.SUCCEEDED:
            raise ConflictError(f"fan-out {run_id}: it has SUCCEEDED; there is nothing to redrive")
        if fanout.queue_url is not None and self._send is None and not dry_run:
            raise DefinitionError(f"fan-out {run_id}: it has a queue, and nothing here can send to {fanout.queue_url}")
        if fanout.queue_url is not None and rate_per_second is not None:
            raise DefinitionError(
                f"fan-out {run_id}: its queue decides when messages are delivered; give a limit, not a rate"
            )
        return fanout

    def _found(self, run_id: str, selection: ChunkSelection, tally: _RedriveTally) -> Iterator[Chunk]:
        if selection.chunk_ids:
            candidates = self._named(run_id, selection.chunk_ids, tally)
        else:
            candidates = self._listed(run_id, selection, tally.now_ms)
        return (chunk for chunk in candidates if selection.admits(chunk, tally.now_ms))

    def _named(self, run_id: str, chunk_ids: Sequence[str], tally: _RedriveTally) -> Iterator[Chunk]:
        """Return the chunks with these ids. All are read before the first is changed, so that an error changes none."""
        ids = list(dict.fromkeys(chunk_ids))
        found: list[Chunk] = []
        for start in range(0, len(ids), READ_AT_ONCE):
            keys = [chunk_key(run_id, chunk_id) for chunk_id in ids[start : start + READ_AT_ONCE]]
            items = self._store.get_many(FANOUT, keys, consistent=True)
            found += [chunk_of(item) for item in items if item is not None]
        missing = set(ids) - {chunk.chunk_id for chunk in found}
        if missing:
            raise NotFoundError(f"fan-out {run_id}: it has no {_some(sorted(missing))}; none was redriven")
        ended = [chunk.chunk_id for chunk in found if chunk.disposition not in (*REDRIVABLE, *_OPEN)]
        if ended:
            raise ConflictError(f"fan-out {run_id}: {_some(ended)} has completed or was skipped; none was redriven")
        tally.already += sum(1 for chunk in found if chunk.disposition in _OPEN)
        return iter(found)

    def _listed(self, run_id: str, selection: ChunkSelection, now_ms: int) -> Iterator[Chunk]:
        """Yield the chunks in the selected dispositions, each once even if it fails again meanwhile."""
        before = timestamp(now_ms + 1 - round(1000 * (selection.older_than_seconds or 0)))
        for disposition in selection.wanted:
            if disposition in _INDEXED:
                yield from self.queries.every_in_disposition(run_id, disposition, before=before)
        unlisted = [disposition for disposition in selection.wanted if disposition not in _INDEXED]
        if unlisted:
            for slow in (False, True):
                every = self.queries.every_chunk(run_id, slow=slow)
                yield from (chunk for chunk in every if chunk.disposition in unlisted)

    def _put_back(
        self, fanout: Fanout, batch: Sequence[tuple[Chunk, int]], tally: _RedriveTally, note: AuditNote | None
    ) -> None:
        if note is None or not batch:
            tally.count([chunk for chunk, _ in batch])
            return
        is_waiting = fanout.queue_url is not None
        changes = [
            reopen_change(chunk, token=self._ids.ulid(), at_ms=at_ms, is_waiting=is_waiting) for chunk, at_ms in batch
        ]
        late = {one.change.after.sk for one in self._reopener.put_back(fanout, changes, note)}
        tally.overtaken += len(late)
        tally.count([change.after for change in changes if change.after.sk not in late])


def _refusal(chunk: Chunk) -> str | None:
    """Return why a chunk cannot run again, or None."""
    try:
        check_input(chunk.input)
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
