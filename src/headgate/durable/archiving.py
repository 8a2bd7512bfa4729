"""Archiving: the history of executions that ended long ago, moved from rows into one blob each."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.history import Turn
from headgate.durable.history_reader import read_turns
from headgate.durable.records import ARCHIVE, Execution, execution_of
from headgate.errors import ConflictError, CorruptionError, NotFoundError
from headgate.store.blobs import Blobs
from headgate.store.port import Store
from headgate.store.schema import Key
from headgate.store.tables import EXECUTIONS, INBOXES, TURNS
from headgate.store.writes import Delete, Query, Range, Sort

# How long an execution can be looked up after its history went to the archive.
KEPT_SECONDS: Final = 365 * 86_400
_PAGE: Final = 100
_log = structlog.get_logger(__name__)
PREFIX: Final = "history/"
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Turn)


class Archive:
    """Histories as blobs, a turn a line."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def write(self, turns: Iterable[Turn]) -> str:
        """Store a history and return what it is found by. The same history is stored once."""
        lines = b"\n".join(_encoder.encode(turn) for turn in turns)
        # Without a time stamp, so that the same turns are the same bytes.
        content = gzip.compress(lines, mtime=0)
        name = f"{PREFIX}{hashlib.sha256(content).hexdigest()}"
        self._blobs.put(name, content)
        return name

    def read(self, name: str) -> list[Turn]:
        """Return a history. Raises `CorruptionError` if it is gone or damaged."""
        try:
            lines = gzip.decompress(self._blobs.get(name))
            return [_decoder.decode(line) for line in lines.split(b"\n") if line]
        except (NotFoundError, OSError, EOFError, zlib.error, msgspec.DecodeError) as exc:
            raise CorruptionError(f"archive {name}: it is gone or damaged ({exc}); restore it from a backup") from exc


class Archiver:
    """Moves what is due. The blob is written before the row that names it, and rows go last."""

    def __init__(self, store: Store, clock: Clock, archive: Archive) -> None:
        self._store = store
        self._clock = clock
        self._archive = archive

    def archive_due(self, limit: int = _PAGE) -> int:
        """Archive executions whose retention has passed, and return how many."""
        now_ms = int(self._clock.seconds() * 1000)
        page = self._store.query(
            Query(
                table=EXECUTIONS,
                index="ready-index",
                partition=ARCHIVE,
                sort=Sort(Range.AT_MOST, now_ms),
                limit=limit,
            )
        )
        done = 0
        for item in page.items:
            try:
                done += self._archive_one(execution_of(item))
            except CorruptionError as exc:
                # It stays due and is told again; the histories of others need not wait for it.
                _log.critical("history cannot be archived", execution_id=item["execution_id"], error=str(exc))
        return done

    def _archive_one(self, hint: Execution) -> int:
        item = self._store.get(EXECUTIONS, Key(hint.execution_id), consistent=True)
        if item is None:
            return 0
        row = execution_of(item)
        if not row.status.is_closed or row.ready_pk != ARCHIVE:
            return 0
        if row.archived_through < row.turn:
            archived = self._archived(row)
            if archived is None:
                return 0
            row = archived
        self._delete_rows(row)
        expires = int(self._clock.seconds()) + KEPT_SECONDS
        after = replace(row, version=row.version + 1, ready_pk=None, ready_at_ms=None, ttl=expires)
        try:
            self._store.transact([after.replacing(row.version)])
        except ConflictError:
            return 0
        return 1

    def _archived(self, row: Execution) -> Execution | None:
        # An id that was used again has the history of its earlier runs in an archive already.
        earlier = [] if row.archive is None else self._archive.read(row.archive)
        recent = read_turns(self._store, row.execution_id, row.archived_through + 1, row.turn)
        name = self._archive.write(chain(earlier, recent))
        after = replace(row, version=row.version + 1, archive=name, archived_through=row.turn)
        try:
            self._store.transact([after.replacing(row.version)])
        except ConflictError:
            return None  # The id was used again meanwhile.
        return after

    def _delete_rows(self, row: Execution) -> None:
        for first in range(1, row.turn + 1, _PAGE):
            last = min(row.turn, first + _PAGE - 1)
            self._store.batch_write([Delete(TURNS, Key(row.execution_id, turn)) for turn in range(first, last + 1)])
        stale = list(self._inbox(row.execution_id))
        item = self._store.get(EXECUTIONS, Key(row.execution_id), consistent=True)
        if item is None or item["version"] != row.version:
            return  # The id was used again, and what was just seen may be for its new run.
        for start in range(0, len(stale), _PAGE):
            self._store.batch_write([Delete(INBOXES, key) for key in stale[start : start + _PAGE]])

    def _inbox(self, execution_id: str) -> Iterator[Key]:
        cursor = None
        while True:
            page = self._store.query(
                Query(table=INBOXES, partition=execution_id, limit=_PAGE, cursor=cursor, consistent=True)
            )
            for item in page.items:
                yield Key(execution_id, item["message_id"])
            cursor = page.cursor
            if cursor is None:
                return
