"""Chunk API: list and show chunks, and the protocol of remote workers, which hold chunks by token."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from headgate.durable.model.duration import optional_seconds
from headgate.errors import PayloadTooLargeError, StaleClaimError
from headgate.fanout.core.attempts import AttemptFailure, AttemptResult, item_indexes
from headgate.fanout.core.queries import ChunkRows
from headgate.fanout.core.tracking import Claim, is_cancelled
from headgate.fanout.handlers import OUTPUT_BYTES_MAX
from headgate.fanout.insight.stuck import stuck
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, is_listed_completed, is_unsent_since_split
from headgate.fanout.model.sources import Piece, read_items
from headgate.fanout.model.states import Admission, ChunkStatus, Disposition
from headgate.fanout.service import FanoutService
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.http.raw_json import checked, missing
from headgate.serve.http.views import shown
from headgate.serve.rest.fanout.models import (
    ChunkDetail,
    ChunkLogs,
    ChunkPage,
    ChunkView,
    StuckList,
    chunk_detail,
    chunk_logs,
    chunk_total,
    chunk_view,
    stuck_view,
)
from headgate.serve.rest.parameters import Cursor, DurationText, Limit, Name, PageQuery
from headgate.serve.runtime.chained_pages import Fetch, Stage, chained_page, counted

_DONE: Final = (Disposition.DONE, Disposition.DEFERRED)
_UINT32_MAX: Final = 2**32 - 1
# A page of chunks by status is full if so many reads can fill it, of 200 rows each: it is short from two million on.
_PAGE_READS_MAX: Final = 10_000
_GIVEN_UP: Final = (Disposition.RETRYING, Disposition.DEAD, Disposition.QUARANTINED)
# Dispositions whose chunks are searched for among all chunks, in item order, until as many are found as are counted.
# The chunks in any other disposition are read from an index, and of the done ones those that it lists.
_SEARCHED: Final = (Disposition.WAITING, Disposition.DONE)
_FAILED_ITEMS: Final = "FAILED_ITEMS"
_SLOW_ROWS: Final = "slow rows"
_UNSENT: Final = "unsent"
_CANCELLED: Final = (Disposition.CANCELLED, Disposition.SKIPPED)
LeaseSeconds = Annotated[float, Meta(gt=0, le=7 * 86_400)]
Token = Annotated[str, Meta(min_length=1, max_length=200)]
LogText = Annotated[str, Meta(max_length=16_000)]
# Errors by index of the item within the fan-out.
ItemErrors = Annotated[dict[int, str], Meta(extra_json_schema={"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,8})$"}})]


class ChunkQuery(Struct, forbid_unknown_fields=True):
    """Filter of chunks. Without a status they come in item order, with one each disposition by itself."""

    status: ChunkStatus | None = None
    lane: Literal["main", "slow"] = "main"
    limit: Limit = 100
    cursor: Cursor | None = None


class FailureQuery(Struct, forbid_unknown_fields=True):
    """Filter: failed chunks, or with `items` completed chunks with failed items."""

    items: bool = False
    limit: Limit = 100
    cursor: Cursor | None = None


class StuckQuery(Struct, forbid_unknown_fields=True):
    """Minimum running time, by default the timeout or 10 times p99; or time without a worker, by default a minute.

    A chunk that waits for its turn is not stuck.
    """

    older_than: DurationText | None = None
    limit: Limit = 100


class LetterView(Struct, frozen=True):
    """A dead-lettered message, and its chunk."""

    chunk_id: str
    message: str
    receive_count: int
    attempt: int
    dead_at: str | None
    error_class: str | None
    error: str | None


class LetterPage(Struct, frozen=True):
    """A page of dead letters, oldest first. A page may be short."""

    dead_letters: list[LetterView]
    cursor: str | None = None


class CellsView(Struct, frozen=True):
    """All chunks of the main lane in item order, for a heat map.

    `cells` has the number of the disposition in `states`, a byte a chunk, and `durations` the milliseconds of the last
    attempt, four bytes a chunk, little-endian; both as base64.
    """

    ids: list[str]
    states: list[Disposition]
    cells: bytes
    durations: bytes


class StartChunk(Struct, forbid_unknown_fields=True):
    """A claim of a worker, with the delivery data of its queue."""

    worker: Name
    receive_count: Annotated[int, Meta(ge=0)] = 0
    message_id: Name | None = None
    lease_seconds: LeaseSeconds | None = None
    # Chosen by the worker, new for each attempt: a repeated request then returns the same claim.
    token: Token | None = None


class StartedChunk(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Whether to run the chunk; if so, the token of the claim and the input.

    `items` has the items themselves, unless they are in a file; `input` then names the file and the range.
    """

    admission: Admission
    run_id: str
    chunk_id: str
    token: str | None = None
    attempt: int = 0
    lease_expires_at: str | None = None
    group: str = ""
    handler: str | None = None
    params: dict[str, Any] = {}
    timeout_seconds: float | None = None
    heartbeat_seconds: float | None = None
    queue_url: str | None = None
    lane: str = MAIN_LANE
    start: int = 0
    item_count: int = 0
    input_key: str = ""
    input: Raw | None = None
    places: list[int] = []
    # Only these failed items of a completed chunk run again.
    is_rerun: bool = False
    items: list[Any] | None = None


class BeatChunk(Struct, forbid_unknown_fields=True):
    """A heartbeat."""

    token: Token
    items_done: Annotated[int, Meta(ge=0)] | None = None
    lease_seconds: LeaseSeconds | None = None


class BeatenChunk(Struct, frozen=True):
    """Expiry of the lease, and whether the chunk was cancelled."""

    cancelled: bool
    lease_expires_at: str


class CompleteChunk(Struct, forbid_unknown_fields=True):
    """Completion of a chunk. Items are identified by index within the fan-out."""

    token: Token
    output: Raw = msgspec.field(default_factory=missing)
    output_key: str | None = None
    item_errors: ItemErrors = {}
    deferred: list[int] = []
    memory_mb: Annotated[int, Meta(ge=0)] | None = None
    duration_ms: Annotated[int, Meta(ge=0)] | None = None
    # What the attempt wrote to standard output and error.
    printed: LogText = ""


class FailChunk(Struct, forbid_unknown_fields=True):
    """Failure of an attempt. `is_final` disables further retries."""

    token: Token
    error_class: Name
    message: str = ""
    is_final: bool = False
    item_errors: ItemErrors = {}
    traceback: LogText = ""
    # What the attempt wrote to standard output and error.
    printed: LogText = ""
    memory_mb: Annotated[int, Meta(ge=0)] | None = None
    duration_ms: Annotated[int, Meta(ge=0)] | None = None


class ReleaseChunk(Struct, forbid_unknown_fields=True):
    """Release of an unfinished chunk."""

    token: Token


class FanoutChunks:
    """Operations on chunks, for users and workers."""

    def __init__(self, fanouts: FanoutService) -> None:
        self._queries = fanouts.queries
        self._tracker = fanouts.tracker
        self._letters = fanouts.dead_letters
        self._workers = fanouts.chunk_workers

    def operations(self) -> list[Operation]:
        """Return the operations."""
        run, shown = "/fanouts/{id}", {200: ChunkView}
        one = f"{run}/chunks/{{chunk_id}}"
        return [
            Operation("GET", f"{run}/chunks", "List chunks", self.ls, {200: ChunkPage}, query=ChunkQuery),
            Operation("GET", f"{run}/cells", "Show the state of every chunk", self.cells, {200: CellsView}),
            Operation("GET", one, "Show a chunk and its attempts", self.show, {200: ChunkDetail}),
            Operation("GET", f"{one}/logs", "Show the output and tracebacks of a chunk", self.logs, {200: ChunkLogs}),
            Operation("GET", f"{run}/stuck", "List stuck chunks", self.stuck, {200: StuckList}, query=StuckQuery),
            Operation("GET", f"{run}/failures", "List failures", self.failures, {200: ChunkPage}, query=FailureQuery),
            Operation(
                "GET",
                f"{run}/dead-letters",
                "List dead letters of the queue",
                self.dead_letters,
                {200: LetterPage},
                query=PageQuery,
            ),
            Operation("POST", f"{one}/start", "Start an attempt", self.start, {200: StartedChunk}, body=StartChunk),
            Operation(
                "POST", f"{one}/heartbeat", "Send a heartbeat of a chunk", self.beat, {200: BeatenChunk}, body=BeatChunk
            ),
            Operation("POST", f"{one}/complete", "Complete a chunk", self.complete, shown, body=CompleteChunk),
            Operation("POST", f"{one}/fail", "Fail an attempt", self.fail, shown, body=FailChunk),
            Operation("POST", f"{one}/release", "Release a chunk", self.release, shown, body=ReleaseChunk),
        ]

    def ls(self, call: Call[None, ChunkQuery]) -> Answer:
        run_id, asked = call.path["id"], call.query
        fanout = self._queries.fanout(run_id)
        wanted = [each for each in Disposition if asked.status in (None, each.status)]
        counts = self._queries.counts(fanout)
        total = chunk_total(counts, wanted, lanes=[asked.lane])
        if not total and asked.cursor is None and fanout.shards:
            # The counters of our own fan-outs are exact: no row has to be read to find none.
            return Answer(ChunkPage([], None, total))
        stages = self._stages(fanout, asked, wanted, counts)
        found, cursor = chained_page(stages, asked.limit, asked.cursor, reads_max=_PAGE_READS_MAX)
        return Answer(ChunkPage([chunk_view(chunk) for chunk in found], cursor, total))

    def cells(self, call: Call[None, NoQuery]) -> Answer:
        fanout = self._queries.fanout(call.path["id"])
        states = list(Disposition)
        numbers = {state: number for number, state in enumerate(states)}
        ids, cells, durations = list[str](), bytearray(), array("I")
        for chunk in self._queries.every_chunk(fanout.run_id):
            ids.append(chunk.chunk_id)
            cells.append(numbers[chunk.disposition])
            durations.append(min(chunk.duration_ms or 0, _UINT32_MAX))
        if sys.byteorder == "big":
            durations.byteswap()
        return Answer(CellsView(ids, states, bytes(cells), durations.tobytes()))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        chunk = self._queries.chunk(call.path["id"], call.path["chunk_id"])
        return Answer(chunk_detail(chunk, self._queries.attempts(chunk)))

    def logs(self, call: Call[None, NoQuery]) -> Answer:
        chunk = self._queries.chunk(call.path["id"], call.path["chunk_id"])
        return Answer(chunk_logs(chunk, self._queries.logs(chunk)))

    def stuck(self, call: Call[None, StuckQuery]) -> Answer:
        seconds = optional_seconds(call.query.older_than, name="older_than")
        found = stuck(
            self._queries,
            call.path["id"],
            workers=self._workers.live(),
            older_than_seconds=seconds,
            limit=call.query.limit,
        )
        return Answer(StuckList([stuck_view(one) for one in found]))

    def failures(self, call: Call[None, FailureQuery]) -> Answer:
        run_id, asked = call.path["id"], call.query
        fanout = self._queries.fanout(run_id)
        if asked.items and fanout.shards:
            stages = [("completed", self._with_failed_items(run_id)), ("DEFERRED", self._deferred_with_errors(run_id))]
        elif asked.items:
            stages = [(MAIN_LANE, self._lane(run_id, MAIN_LANE, _has_bad_items))]
        elif fanout.shards:
            stages = [(about.value, self._watched(run_id, about)) for about in _GIVEN_UP[1:]]
        else:
            # Written by another program: its rows are not in our indexes.
            stages = [(MAIN_LANE, self._lane(run_id, MAIN_LANE, lambda chunk: chunk.status is ChunkStatus.FAILED))]
        found, cursor = chained_page(stages, asked.limit, asked.cursor)
        total = None
        if not asked.items:
            total = chunk_total(self._queries.counts(fanout), _GIVEN_UP[1:], lanes=(MAIN_LANE, SLOW_LANE))
        return Answer(ChunkPage([chunk_view(chunk) for chunk in found], cursor, total))

    def dead_letters(self, call: Call[None, PageQuery]) -> Answer:
        run_id = call.path["id"]
        self._queries.fanout(run_id)
        page = self._letters.letters(run_id, limit=call.query.limit, cursor=call.query.cursor)
        return Answer(LetterPage([_letter_view(chunk) for chunk in page.chunks], page.cursor))

    def _stages(
        self, fanout: Fanout, asked: ChunkQuery, wanted: Sequence[Disposition], counts: Counts
    ) -> list[Stage[Chunk]]:
        """Return the stages that list the chunks of a lane with a status."""
        run_id, lane, status = fanout.run_id, asked.lane, asked.status
        if status is None:
            return [(lane, self._lane(run_id, lane, lambda _: True))]
        if not fanout.shards:
            # Written by another program: its rows are not in our indexes, and it has no counters.
            return [(lane, self._lane(run_id, lane, lambda chunk: chunk.status is status))]
        if lane == SLOW_LANE and _is_searched_whole(counts, wanted, asked.cursor):
            return [(_SLOW_ROWS, self._searched(fanout, lane, wanted, counts))]
        names: Sequence[Disposition] = _SEARCHED if fanout.lists_cancelled else (*_SEARCHED, *_CANCELLED)
        searched = [each for each in wanted if each in names]
        stages: list[Stage[Chunk]] = [(lane, self._searched(fanout, lane, searched, counts))] if searched else []
        if fanout.lists_unsent and Disposition.WAITING in wanted:
            # Those of the slow lane are all listed.
            stages = [] if lane == SLOW_LANE else [(_UNSENT, self._unsent(fanout, counts))]
            names = [each for each in names if each is not Disposition.WAITING]
        # No page ends before a stage that is empty. The stage that a cursor names is always there.
        begun = "" if asked.cursor is None else asked.cursor.partition("|")[0]
        has_listed = counts.done_listed or begun in (Disposition.DONE, _FAILED_ITEMS)
        if _skips_listed(fanout, lane) and Disposition.DONE in wanted and has_listed:
            stages += [(Disposition.DONE.value, self._watched(run_id, Disposition.DONE))]
            stages += [(_FAILED_ITEMS, _of_lane(self._with_failed_items(run_id), lane))]
        for about in wanted:
            if about not in names and (begun == about or chunk_total(counts, [about], lanes=[lane])):
                stages.append((about.value, self._indexed(run_id, lane, about, counts)))
        return stages

    def _searched(self, fanout: Fanout, lane: str, wanted: Sequence[Disposition], counts: Counts) -> Fetch[Chunk]:
        """Return a search of a lane for chunks in some dispositions, without done ones that the index lists."""
        skips_listed = _skips_listed(fanout, lane)
        total = chunk_total(counts, wanted, lanes=[lane])
        if skips_listed and Disposition.DONE in wanted:
            total -= counts.done_listed

        def is_sought(chunk: Chunk) -> bool:
            return chunk.disposition in wanted and not (skips_listed and is_listed_completed(chunk))

        return counted(self._lane(fanout.run_id, lane, is_sought), total)

    def _unsent(self, fanout: Fanout, counts: Counts) -> Fetch[Chunk]:
        """Return the chunks of the main lane that wait for their first message."""

        def fetch(limit: int, cursor: str | None) -> tuple[list[Chunk], str | None]:
            # Messages are sent meanwhile: the next page begins with the same chunk, so that its cursor is valid.
            start, _, inner = (cursor or self._queries.unsent_from(fanout)).partition("/")
            page = self._queries.matching(
                fanout.run_id, is_unsent_since_split, after=start, limit=limit, cursor=inner or None
            )
            return page.chunks, None if page.cursor is None else f"{start}/{page.cursor}"

        return counted(fetch, counts.waiting)

    def _indexed(self, run_id: str, lane: str, about: Disposition, counts: Counts) -> Fetch[Chunk]:
        """Return the chunks of a lane in a disposition, from an index that may list others among them."""

        def fetch(limit: int, cursor: str | None) -> tuple[list[Chunk], str | None]:
            if about is Disposition.QUEUED:
                page = self._queries.in_queue(run_id, lane, limit=limit, cursor=cursor)
            else:
                page = self._queries.in_disposition(run_id, about, limit=limit, cursor=cursor)
            found = [chunk for chunk in page.chunks if chunk.disposition is about and chunk.lane == lane]
            return found, page.cursor

        return counted(fetch, chunk_total(counts, [about], lanes=[lane]))

    def _lane(self, run_id: str, lane: str, matches: Callable[[Chunk], bool]) -> Fetch[Chunk]:
        def fetch(limit: int, cursor: str | None) -> tuple[list[Chunk], str | None]:
            page = self._queries.matching(run_id, matches, slow=lane == SLOW_LANE, limit=limit, cursor=cursor)
            return page.chunks, page.cursor

        return fetch

    def _watched(self, run_id: str, about: Disposition) -> Fetch[Chunk]:
        def fetch(limit: int, cursor: str | None) -> tuple[list[Chunk], str | None]:
            page: ChunkRows = self._queries.in_disposition(run_id, about, limit=limit, cursor=cursor)
            return page.chunks, page.cursor

        return fetch

    def _with_failed_items(self, run_id: str) -> Fetch[Chunk]:
        def fetch(limit: int, cursor: str | None) -> tuple[list[Chunk], str | None]:
            page = self._queries.with_failed_items(run_id, limit=limit, cursor=cursor)
            return page.chunks, page.cursor

        return fetch

    def _deferred_with_errors(self, run_id: str) -> Fetch[Chunk]:
        def fetch(limit: int, cursor: str | None) -> tuple[list[Chunk], str | None]:
            page = self._queries.in_disposition(run_id, Disposition.DEFERRED, limit=limit, cursor=cursor)
            return [chunk for chunk in page.chunks if _has_bad_items(chunk)], page.cursor

        return fetch

    def start(self, call: Call[StartChunk, NoQuery]) -> Answer:
        body, run_id, chunk_id = call.body, call.path["id"], call.path["chunk_id"]
        started = self._tracker.start(
            run_id,
            chunk_id,
            worker=body.worker,
            receive_count=body.receive_count,
            message_id=body.message_id,
            lease_seconds=body.lease_seconds,
            token=body.token,
        )
        if started.claim is None:
            return Answer(StartedChunk(admission=started.admission, run_id=run_id, chunk_id=chunk_id))
        return Answer(_started(started.claim.fanout, started.claim.chunk))

    def beat(self, call: Call[BeatChunk, NoQuery]) -> Answer:
        body = call.body
        claim = self._tracker.heartbeat(
            self._claim(call, body.token), items_done=body.items_done, lease_seconds=body.lease_seconds
        )
        return Answer(BeatenChunk(is_cancelled(claim.fanout), claim.chunk.lease_expires_at or ""))

    def complete(self, call: Call[CompleteChunk, NoQuery]) -> Answer:
        body = call.body
        claim = self._claim(call, body.token, ended=_DONE)
        if claim.chunk.disposition in _DONE:
            return Answer(chunk_view(claim.chunk))
        result = AttemptResult(
            output_key=body.output_key,
            output=_output(body.output),
            item_errors=body.item_errors,
            deferred=body.deferred,
            memory_mb=body.memory_mb,
            duration_ms=body.duration_ms,
            printed=body.printed,
        )
        return Answer(chunk_view(self._tracker.complete(claim, result)))

    def fail(self, call: Call[FailChunk, NoQuery]) -> Answer:
        body = call.body
        claim = self._claim(call, body.token, ended=_GIVEN_UP)
        if claim.chunk.disposition in _GIVEN_UP:
            return Answer(chunk_view(claim.chunk))
        failure = AttemptFailure(
            body.error_class,
            body.message,
            body.is_final,
            body.item_errors,
            traceback=body.traceback,
            printed=body.printed,
            memory_mb=body.memory_mb,
            duration_ms=body.duration_ms,
        )
        return Answer(chunk_view(self._tracker.fail(claim, failure)))

    def release(self, call: Call[ReleaseChunk, NoQuery]) -> Answer:
        claim = self._claim(call, call.body.token, ended=(Disposition.QUEUED,))
        if claim.chunk.disposition is Disposition.QUEUED:
            return Answer(chunk_view(claim.chunk))
        return Answer(chunk_view(self._tracker.release(claim)))

    def _claim(self, call: Call[Any, Any], token: str, *, ended: tuple[Disposition, ...] = ()) -> Claim:
        """Return the claim of a token; `ended` is the result of an identical earlier request.

        Raises `StaleClaimError` if the claim is no longer valid.
        """
        run_id, chunk_id = call.path["id"], call.path["chunk_id"]
        fanout = self._queries.fanout(run_id, consistent=True)
        chunk = self._queries.chunk(run_id, chunk_id)
        if chunk.token != token or chunk.disposition not in (Disposition.RUNNING, *ended):
            raise StaleClaimError(
                f"chunk {chunk_id} of {run_id}: the claim is no longer valid, the chunk is {chunk.disposition}; "
                "drop the result; the current holder does the work"
            )
        return Claim(fanout, chunk)


def _is_searched_whole(counts: Counts, wanted: Sequence[Disposition], cursor: str | None) -> bool:
    """Whether the rows of the slow lane are searched: the indexes list it together with the main lane.

    The fewer rows are read. The next page goes on as the first one began.
    """
    if cursor is not None:
        return cursor.startswith(f"{_SLOW_ROWS}|")
    return counts.slow_total <= chunk_total(counts, wanted, lanes=[MAIN_LANE, SLOW_LANE])


def _skips_listed(fanout: Fanout, lane: str) -> bool:
    """Whether the attention index lists the completed chunks of a lane that a search would find late."""
    return lane == MAIN_LANE and fanout.lists_completed


def _of_lane(fetch: Fetch[Chunk], lane: str) -> Fetch[Chunk]:
    def fetched(limit: int, cursor: str | None) -> tuple[list[Chunk], str | None]:
        found, following = fetch(limit, cursor)
        return [chunk for chunk in found if chunk.lane == lane], following

    return fetched


def _has_bad_items(chunk: Chunk) -> bool:
    return chunk.item_errors is not None and chunk.status is ChunkStatus.COMPLETED


def _letter_view(chunk: Chunk) -> LetterView:
    return shown(LetterView, chunk, message=chunk.message or "", dead_at=chunk.completed_at)


def _started(fanout: Fanout, chunk: Chunk) -> StartedChunk:
    policy = fanout.rules()
    source = msgspec.json.decode(fanout.source) if fanout.source else {}
    is_in_file = chunk.input is not None and not chunk.input.startswith("[")
    is_known = not is_in_file and (chunk.input is not None or source.get("kind") == "range")
    # A byte range has one position per byte: positions are reported only where they carry information.
    is_part = chunk.lane == SLOW_LANE or chunk.rerun_items is not None
    places = list(item_indexes(chunk)) if is_known or is_part else []
    piece = Piece(chunk.start, chunk.items, chunk.input_key, chunk.input)
    return StartedChunk(
        admission=Admission.RUN,
        run_id=chunk.run_id,
        chunk_id=chunk.chunk_id,
        token=chunk.token,
        attempt=chunk.attempt,
        lease_expires_at=chunk.lease_expires_at,
        group=fanout.group,
        handler=fanout.handler,
        params=msgspec.json.decode(fanout.params) if fanout.params else {},
        timeout_seconds=policy.timeout_seconds,
        heartbeat_seconds=policy.heartbeat_seconds,
        queue_url=fanout.queue_url,
        lane=chunk.lane,
        start=chunk.start,
        item_count=chunk.items,
        input_key=chunk.input_key,
        input=Raw((chunk.input or "").encode()) if is_in_file else None,
        places=places,
        is_rerun=chunk.rerun_items is not None,
        items=read_items(source, piece, places) if is_known else None,
    )


def _output(given: Raw) -> str | None:
    if len(given) > OUTPUT_BYTES_MAX:
        raise PayloadTooLargeError(
            f"output: {len(given):,} bytes; the limit is {OUTPUT_BYTES_MAX:,}; "
            "write it to a file or bucket, and give output_key"
        )
    text = bytes(checked(given, "output")).decode()
    return None if text == "null" else text
