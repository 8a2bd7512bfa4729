"""Error groups: the errors of a fan-out by what they have in common, the most frequent first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.model.fingerprints import fingerprint
from headgate.fanout.model.rows import Attempt, Chunk, Fanout
from headgate.fanout.model.states import ChunkStatus, Disposition

GROUPS_MAX: Final = 20
CHUNK_IDS_MAX: Final = 5
ROWS_MAX: Final = 10_000
# How many fingerprints are told apart; when there are more, the new ones are counted together.
DISTINCT_MAX: Final = 1000
UNNAMED: Final = "Error"
_WITH_ERRORS: Final = (Disposition.DEAD, Disposition.QUARANTINED, Disposition.RETRYING)


class Occurrence(Struct, frozen=True):
    """One error, where it was seen and when."""

    fingerprint: str
    error_class: str
    message: str
    chunk_id: str
    at: str


class ErrorGroup(Struct, frozen=True):
    """Errors of one fingerprint; the message is that of the latest."""

    fingerprint: str
    error_class: str
    message: str
    count: int
    first_seen: str
    last_seen: str
    chunk_ids: list[str]


class ErrorGroups(Struct, frozen=True):
    """The largest groups, how many errors there were in all, and how many of them in no group that is listed.

    `is_complete` is false if there were more errors than were read.
    """

    groups: list[ErrorGroup]
    errors: int
    others: int
    is_complete: bool = True


class _Tally:
    """One group while it is counted."""

    def __init__(self, first: Occurrence) -> None:
        self.latest = first
        self.first_seen = first.at
        self.count = 0
        self.chunk_ids: dict[str, None] = {}

    def add(self, one: Occurrence) -> None:
        self.count += 1
        self.first_seen = min(self.first_seen, one.at)
        if one.at >= self.latest.at:
            self.latest = one
        if len(self.chunk_ids) < CHUNK_IDS_MAX:
            self.chunk_ids[one.chunk_id] = None

    def group(self) -> ErrorGroup:
        return ErrorGroup(
            fingerprint=self.latest.fingerprint,
            error_class=self.latest.error_class,
            message=self.latest.message,
            count=self.count,
            first_seen=self.first_seen,
            last_seen=self.latest.at,
            chunk_ids=list(self.chunk_ids),
        )


def error_groups(
    queries: FanoutQueries, run_id: str, *, groups_max: int = GROUPS_MAX, rows_max: int = ROWS_MAX
) -> ErrorGroups:
    """Return the errors of the chunks that were given up or wait for another try, by fingerprint.

    Reads at most `rows_max` chunks, from an index that may lag. Raises `NotFoundError`.
    """
    chunks = _with_errors(queries, queries.fanout(run_id))
    found = grouped((one for chunk in islice(chunks, rows_max) for one in of_chunk(chunk)), groups_max=groups_max)
    return replace(found, is_complete=next(chunks, None) is None)


def grouped(occurrences: Iterable[Occurrence], *, groups_max: int = GROUPS_MAX) -> ErrorGroups:
    """Return the occurrences in groups. Memory is bounded, however many there are."""
    tallies: dict[str, _Tally] = {}
    errors = 0
    for one in occurrences:
        errors += 1
        tally = tallies.get(one.fingerprint)
        if tally is None and len(tallies) < DISTINCT_MAX:
            tally = tallies[one.fingerprint] = _Tally(one)
        if tally is not None:
            tally.add(one)
    ordered = sorted(tallies.values(), key=lambda tally: (-tally.count, tally.first_seen, tally.latest.fingerprint))
    groups = [tally.group() for tally in ordered[:groups_max]]
    return ErrorGroups(groups, errors, errors - sum(group.count for group in groups))


def of_chunk(chunk: Chunk) -> Iterator[Occurrence]:
    """Give the error that a chunk's latest attempt ended with, if it did."""
    if chunk.error is not None:
        at = chunk.completed_at or chunk.created_at
        yield _occurrence(chunk.error_fingerprint, chunk.error_class, chunk.error, chunk.chunk_id, at)


def of_attempt(attempt: Attempt) -> Iterator[Occurrence]:
    """Give the error of an attempt, if it has one: so errors are found that a retry has made good."""
    if attempt.error is not None:
        chunk_id = attempt.sk.split("#")[1]
        yield _occurrence(attempt.error_fingerprint, attempt.error_class, attempt.error, chunk_id, attempt.ended_at)


def of_items(chunk: Chunk) -> Iterator[Occurrence]:
    """Give the errors of single items of a chunk, which may itself be done."""
    if chunk.item_errors is not None:
        at = chunk.completed_at or chunk.created_at
        for text in typed_decode.from_json(chunk.item_errors, dict[str, str]).values():
            name, colon, _ = text.partition(": ")
            named = name if colon and name.isidentifier() else UNNAMED
            yield Occurrence(fingerprint(named, text), named, text, chunk.chunk_id, at)


def _occurrence(known: str | None, error_class: str | None, message: str, chunk_id: str, at: str) -> Occurrence:
    named = error_class or UNNAMED
    return Occurrence(known or fingerprint(named, message), named, message, chunk_id, at)


def _with_errors(queries: FanoutQueries, fanout: Fanout) -> Iterator[Chunk]:
    if not fanout.shards:
        # Written by another program: none of its rows is in an index of ours.
        yield from (chunk for chunk in queries.every_chunk(fanout.run_id) if chunk.status is ChunkStatus.FAILED)
        return
    for about in _WITH_ERRORS:
        yield from queries.every_in_disposition(fanout.run_id, about)
