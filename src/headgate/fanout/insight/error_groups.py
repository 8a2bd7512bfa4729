"""Error groups: the errors of chunks and items of a fan-out grouped by fingerprint, most frequent first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.fanout.core.attempts import items_to_run
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.fingerprints import fingerprint
from headgate.fanout.model.item_errors import UNNAMED, item_errors
from headgate.fanout.model.rows import Chunk, Fanout
from headgate.fanout.model.states import ChunkStatus, Disposition

GROUPS_MAX: Final = 20
CHUNK_IDS_MAX: Final = 5
ROWS_MAX: Final = 10_000
# Upper bound of distinct fingerprints; further ones are counted together.
DISTINCT_MAX: Final = 1000
_WITH_ERRORS: Final = (Disposition.DEAD, Disposition.QUARANTINED, Disposition.RETRYING)


class Occurrence(Struct, frozen=True):
    """The error of a chunk or an item, with its chunk and time, and how many items failed with it."""

    fingerprint: str
    error_class: str
    message: str
    chunk_id: str
    at: str
    items: int = 0


class ErrorGroup(Struct, frozen=True):
    """Errors of one fingerprint, with the latest message.

    `count` is the number of errors: of failed or retrying chunks, and of failed items of completed chunks. `items` is
    the number of items that failed with them.
    """

    fingerprint: str
    error_class: str
    message: str
    count: int
    first_seen: str
    last_seen: str
    chunk_ids: list[str]
    items: int = 0


class ErrorGroups(Struct, frozen=True):
    """The largest groups, the total number of errors, and the number outside the listed groups.

    `is_complete` is false if there were more errors than were read.
    """

    groups: list[ErrorGroup]
    errors: int
    others: int
    is_complete: bool = True


class _Tally:
    """Accumulates one group."""

    def __init__(self, first: Occurrence) -> None:
        self.latest = first
        self.first_seen = first.at
        self.count = 0
        self.items = 0
        self.chunk_ids: dict[str, None] = {}

    def add(self, one: Occurrence) -> None:
        self.count += 1
        self.items += one.items
        self.first_seen = min(self.first_seen, one.at)
        if one.at >= self.latest.at:
            self.latest = one
        if len(self.chunk_ids) < CHUNK_IDS_MAX:
            self.chunk_ids[one.chunk_id] = None

    def rank(self) -> tuple[int, str, str]:
        """Return the sort key: most failed items or errors first."""
        return -max(self.count, self.items), self.first_seen, self.latest.fingerprint

    def group(self) -> ErrorGroup:
        return ErrorGroup(
            fingerprint=self.latest.fingerprint,
            error_class=self.latest.error_class,
            message=self.latest.message,
            count=self.count,
            first_seen=self.first_seen,
            last_seen=self.latest.at,
            chunk_ids=list(self.chunk_ids),
            items=self.items,
        )


def error_groups(
    queries: FanoutQueries, run_id: str, *, groups_max: int = GROUPS_MAX, rows_max: int = ROWS_MAX
) -> ErrorGroups:
    """Return the errors of failed and retrying chunks, and of failed items, by fingerprint.

    Reads at most `rows_max` chunks from an eventually consistent index. Raises `NotFoundError`.
    """
    chunks = _with_errors(queries, queries.fanout(run_id))
    found = grouped((one for chunk in islice(chunks, rows_max) for one in of_chunk(chunk)), groups_max=groups_max)
    return replace(found, is_complete=next(chunks, None) is None)


def grouped(occurrences: Iterable[Occurrence], *, groups_max: int = GROUPS_MAX) -> ErrorGroups:
    """Group occurrences by fingerprint, in bounded memory."""
    tallies: dict[str, _Tally] = {}
    errors = 0
    for one in occurrences:
        errors += 1
        tally = tallies.get(one.fingerprint)
        if tally is None and len(tallies) < DISTINCT_MAX:
            tally = tallies[one.fingerprint] = _Tally(one)
        if tally is not None:
            tally.add(one)
    ordered = sorted(tallies.values(), key=_Tally.rank)
    groups = [tally.group() for tally in ordered[:groups_max]]
    return ErrorGroups(groups, errors, errors - sum(group.count for group in groups))


def of_chunk(chunk: Chunk) -> Iterator[Occurrence]:
    """Yield the error of a chunk's latest attempt if it failed, and those of the failed items of a completed chunk."""
    at = chunk.completed_at or chunk.created_at
    if chunk.status is ChunkStatus.COMPLETED:
        for one in item_errors(chunk):
            yield Occurrence(one.fingerprint, one.error_class, one.message, chunk.chunk_id, at, 1)
    elif chunk.error is not None:
        named = chunk.error_class or UNNAMED
        known = chunk.error_fingerprint or fingerprint(named, chunk.error)
        failed = items_to_run(chunk) if chunk.status is ChunkStatus.FAILED else 0
        yield Occurrence(known, named, chunk.error, chunk.chunk_id, at, failed)


def _with_errors(queries: FanoutQueries, fanout: Fanout) -> Iterator[Chunk]:
    if not fanout.shards:
        # Written by another program, without our index attributes.
        every = queries.every_chunk(fanout.run_id)
        yield from (chunk for chunk in every if chunk.status is ChunkStatus.FAILED or chunk.item_errors is not None)
        return
    for about in _WITH_ERRORS:
        yield from queries.every_in_disposition(fanout.run_id, about)
    yield from queries.every_with_failed_items(fanout.run_id)
    deferred = queries.every_in_disposition(fanout.run_id, Disposition.DEFERRED)
    yield from (chunk for chunk in deferred if chunk.item_errors is not None)
