"""Evidence archive: all stored evidence in blobs, found by id alone.

Spool. Every transaction that stores evidence also writes one compressed row with the same content to a spool, whose
rows do not expire. So all stored evidence is archived, however late the archiver runs. `Archiver.archive` moves spooled
rows into blobs in large groups. A blob for each batch would cost a hundred syncs or S3 requests a second, and a further
index or stream one more write for each row; the spool costs a fraction of one.

Layout. The hour in the id's ULID names the folder: `evidence/2026/01/15/09/`. That hour need not be the time of the
evidence; it only has to be stable. A blob holds JSON lines ordered by id, and its name has the first and the last id,
so that a reader lists one folder and opens one or two blobs. There is no pointer for each id. The name also has the day
of writing, from which retention computes the age.

A blob is written before its rows leave the spool. A crash in between, or two archivers, leave evidence in two blobs
with the same content.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

import msgspec
import structlog
from msgspec import Struct

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import CorruptionError, HeadgateError
from headgate.health.evidence.limits import Stats
from headgate.health.evidence.rows import PREFIX
from headgate.health.model.urns import is_evidence_id
from headgate.ids import made_at_ms
from headgate.store.blobs.folder import Blobs
from headgate.store.catalogue.tables import CONTROL
from headgate.store.model.requests import Delete, Poll, Put, Query
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

SHELVES: Final = "evidence/"
SPOOL: Final = "EVIDENCE-SPOOL"
DAMAGED: Final = f"{SPOOL}#damaged"
# Shards of the spool, so that no DynamoDB partition takes all writes. Lowering it strands spooled rows.
SPOOL_SHARDS: Final = 32
# The size limit of a blob. Reading one item means reading its blob.
BLOB_LINES_MAX: Final = 5_000
# The memory limits of the archiver, in lines and in compressed bytes.
ROUND_LINES_MAX: Final = 20_000
ROUND_BYTES_MAX: Final = 16 * 1024 * 1024
# The spool is archived once its oldest row is this old: then blobs are few, and the spool is still small.
WAIT_SECONDS: Final = 600.0
_PAGE: Final = 100
_NAME: Final = re.compile(r"evidence/(.{13})/([0-9A-Z]{26})-([0-9A-Z]{26})-([0-9]{8})-([0-9a-f]{16})")
# The last hour of the year 9999: a ULID may encode later times, which a calendar cannot.
_LAST_SHELF_MS: Final = 253_402_300_799_000
_log = structlog.get_logger(__name__)


class Line(NamedTuple):
    """One item of evidence as JSON."""

    evidence_id: str
    body: bytes


class Found(Struct, frozen=True):
    """The archived evidence of some ids, and why others could not be read."""

    lines: dict[str, bytes]
    unreadable: dict[str, str]


class Archive:
    """Evidence in blobs, by id."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def write(self, lines: Iterable[Line], now_ms: int) -> int:
        """Store lines, and return the number of blobs. The same lines on the same day give the same blobs."""
        shelves: dict[str, dict[str, bytes]] = defaultdict(dict)
        for line in lines:
            shelves[_shelf(line.evidence_id)][line.evidence_id] = line.body
        written = 0
        for shelf, members in shelves.items():
            ids = sorted(members)
            for start in range(0, len(ids), BLOB_LINES_MAX):
                portion = ids[start : start + BLOB_LINES_MAX]
                content = gzip.compress(b"\n".join(members[each] for each in portion), compresslevel=6, mtime=0)
                first, last = portion[0].removeprefix(PREFIX), portion[-1].removeprefix(PREFIX)
                self._blobs.put(f"{shelf}{first}-{last}-{_day(now_ms)}-{_digest(content)}", content)
                written += 1
        return written

    def read(self, ids: Sequence[str]) -> Found:
        """Return the evidence of `ids`, and the ids that may be in an unreadable blob, with the reason."""
        shelves: dict[str, set[str]] = defaultdict(set)
        for each in ids:
            if is_evidence_id(each):
                shelves[_shelf(each)].add(each)
        lines: dict[str, bytes] = {}
        unreadable: dict[str, str] = {}
        for shelf, wanted in shelves.items():
            self._read_shelf(shelf, wanted, lines, unreadable)
        return Found(lines, {each: why for each, why in unreadable.items() if each not in lines})

    def purge(self, before_ms: int, *, limit: int = 1_000) -> int:
        """Delete up to `limit` blobs that were written before a day, and return their count.

        Folders after that day are not listed: their blobs are newer, or have ids with a time in the future, which stay.
        """
        last_shelf, before, deleted = _shelf_at(before_ms), _day(before_ms), 0
        for name in self._blobs.list(SHELVES):
            if deleted == limit or name > f"{last_shelf}~":
                break
            parts = _NAME.fullmatch(name)
            if parts is not None and parts.group(4) < before:
                self._blobs.delete(name)
                deleted += 1
        return deleted

    def _read_shelf(self, shelf: str, wanted: set[str], lines: dict[str, bytes], unreadable: dict[str, str]) -> None:
        try:
            names = list(self._blobs.list(shelf))
        except HeadgateError as exc:
            unreadable.update(dict.fromkeys(wanted, str(exc)))
            return
        for name in names:
            parts = _NAME.fullmatch(name)
            if parts is None:
                continue  # Not a blob of the archive.
            first, last = parts.group(2, 3)
            here = {each for each in wanted if each not in lines and first <= each.removeprefix(PREFIX) <= last}
            if not here:
                continue
            try:
                lines.update(_picked(self._content(name), here))
            except HeadgateError as exc:
                unreadable.update(dict.fromkeys(here, str(exc)))

    def _content(self, name: str) -> bytes:
        content = self._blobs.get(name)
        try:
            if _digest(content) != name.rpartition("-")[2]:
                raise CorruptionError(
                    f"archive {name}: the content does not match its digest; restore it from a backup"
                )
            return gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as exc:
            raise CorruptionError(f"archive {name}: corrupt ({exc}); restore it from a backup") from exc


class Archiver:
    """Moves evidence from the spool into the archive."""

    def __init__(self, store: Store, clock: Clock, archive: Archive, stats: Stats) -> None:
        self._store = store
        self._clock = clock
        self._archive = archive
        self._stats = stats

    def archive(self, *, wait_seconds: float = WAIT_SECONDS, stop: Callable[[], bool] = lambda: False) -> int:
        """Archive the spool if it is due, and return how many items were archived.

        Call it about every minute, preferably in one process of a fleet. `stop` is checked between rounds.
        """
        done = 0
        if self.oldest_waits_seconds() < wait_seconds:
            return done
        while rows := self._round():
            lines = [line for row in rows for line in self._lines(row)]
            self._archive.write(lines, int(self._clock.seconds() * 1000))
            for start in range(0, len(rows), _PAGE):
                self._store.batch_write([Delete(CONTROL, _key(row)) for row in rows[start : start + _PAGE]])
            done += len(lines)
            self._stats.archived += len(lines)
            if stop():
                break
        return done

    def oldest_waits_seconds(self) -> float:
        """Return the age of the oldest spooled row in seconds (high: the archiver does not run), or -1 if none is."""
        oldest = [row["at_ms"] for page in self._pages(1) for row in page]
        return max(0.0, self._clock.seconds() - min(oldest) / 1000) if oldest else -1.0

    def _lines(self, row: Item) -> list[Line]:
        try:
            return list(spooled_lines(row))
        except CorruptionError as exc:
            # Moved aside for inspection, so that the other rows are not blocked.
            _log.critical("corrupt spooled evidence skipped", spool=_key(row), error=str(exc))
            aside = CONTROL.key_attributes(Key(DAMAGED, str(_key(row).sort)))
            self._store.put(CONTROL, {**row, **aside})
            return []

    def _round(self) -> list[Item]:
        rows: list[Item] = []
        lines = size = 0
        for page in self._pages(_PAGE):
            for row in page:
                lines += row["count"]
                size += len(row["body"])
                if rows and (lines > ROUND_LINES_MAX or size > ROUND_BYTES_MAX):
                    return rows
                rows.append(row)
        return rows

    def _pages(self, limit: int) -> Iterator[list[Item]]:
        """Yield the first rows of each shard."""
        for shard in range(SPOOL_SHARDS):
            query = Query(table=CONTROL, partition=f"{SPOOL}#{shard}", limit=limit, consistent=True, poll=Poll.RELAXED)
            yield self._store.query(query).items


def spool_put(shard: int, unique: str, lines: Sequence[Line], now_ms: int) -> Put:
    """Return the write of a spool row in one of the `SPOOL_SHARDS`. `unique` is its own ULID."""
    # Level 1: rows of a few kilobytes gain little from more, and every stored batch pays for it.
    body = zlib.compress(b"\n".join(line.body for line in lines), 1)
    attributes = CONTROL.key_attributes(Key(f"{SPOOL}#{shard}", unique))
    return Put(CONTROL, {**attributes, "at_ms": now_ms, "count": len(lines), "body": body}, quiet=True)


def spooled_lines(row: Item) -> Iterator[Line]:
    """Yield the evidence of a spool row. Raises `CorruptionError` if the row is corrupt."""
    try:
        for body in zlib.decompress(row["body"]).split(b"\n"):
            yield Line(typed_decode.from_json(body, _Identified).evidence_id, body)
    except (zlib.error, msgspec.DecodeError) as exc:
        raise CorruptionError(f"spooled evidence {_key(row)}: corrupt ({exc}); restore a backup") from exc


class _Identified(Struct):
    evidence_id: str


def _key(row: Item) -> Key:
    return CONTROL.key_of(row)


def _shelf(evidence_id: str) -> str:
    return _shelf_at(made_at_ms(evidence_id))


def _shelf_at(at_ms: int) -> str:
    return f"{SHELVES}{datetime.fromtimestamp(min(at_ms, _LAST_SHELF_MS) / 1000, UTC):%Y/%m/%d/%H}/"


def _day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y%m%d}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _picked(content: bytes, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of the wanted ids. Only lines that contain one of them are decoded."""
    needles = [each.encode() for each in wanted]
    for body in content.split(b"\n"):
        if any(needle in body for needle in needles):
            found = typed_decode.from_json(body, _Identified).evidence_id
            if found in wanted:
                yield found, body
