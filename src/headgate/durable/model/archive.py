"""Archive: moves the history of closed executions from rows into one blob each, and deletes it after a time.

A blob that no row points to has a marker row: written before the blob, deleted by the commit that points a row to the
blob, and written again by the commit that removes the pointer. So a crash leaves a marker and never a row that points
to a missing blob, and unused blobs are found without a listing of all blobs.
"""

from __future__ import annotations

import gzip
import secrets
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.durable.model.history import Turn
from headgate.durable.model.history_reader import read_turns
from headgate.durable.model.records import ARCHIVE, Execution, execution_of
from headgate.errors import ConflictError, CorruptionError, HeadgateError, NotFoundError, OutcomeUnknownError
from headgate.store.blobs.folder import Blobs
from headgate.store.catalogue.tables import CONTROL, EXECUTIONS, INBOXES, TURNS
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.model.values import Item
from headgate.store.port import Store

# How long an archived execution is stored.
KEPT_SECONDS: Final = 365 * 86_400
# A blob outlives its row by this time, for readers that have read the row, and for backups that copy blobs after rows.
# A blob whose marker is older than this and that no row points to was left by a process that died.
GRACE_SECONDS: Final = 86_400
PREFIX: Final = "history/"
# Index partition of archived executions, by the time of archiving.
ARCHIVED: Final = "ARCHIVED"
# Index partition of the markers of blobs that no row points to.
MARKERS: Final = "ARCHIVES"
# Versions of a marker: a row may still point to the blob later, or none ever will.
_PENDING: Final = 1
_CONDEMNED: Final = 2
_PAGE: Final = 100
_log = structlog.get_logger(__name__)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Turn)


class Archive:
    """Histories as blobs, one turn per line. `kept_seconds` is how long they are stored; None is forever."""

    def __init__(self, blobs: Blobs, *, kept_seconds: float | None = KEPT_SECONDS) -> None:
        self.kept_seconds = kept_seconds
        self._blobs = blobs

    def new_name(self) -> str:
        """Return a name that no other blob has or will have."""
        return f"{PREFIX}{secrets.token_hex(16)}"

    def write(self, name: str, turns: Iterable[Turn]) -> None:
        """Store a history under a new name."""
        self._blobs.put(name, gzip.compress(b"\n".join(_encoder.encode(turn) for turn in turns)))

    def delete(self, name: str) -> None:
        """Delete a history, if it exists."""
        self._blobs.delete(name)

    def read(self, name: str) -> list[Turn]:
        """Return a history. Raises `CorruptionError` if it is gone or damaged."""
        try:
            lines = gzip.decompress(self._blobs.get(name))
            return [_decoder.decode(line) for line in lines.split(b"\n") if line]
        except (NotFoundError, OSError, EOFError, zlib.error, msgspec.DecodeError) as exc:
            raise CorruptionError(f"archive {name}: it is gone or damaged ({exc}); restore it from a backup") from exc


class Archiver:
    """Archives executions after their retention, and deletes archives after their time."""

    def __init__(self, store: Store, clock: Clock, archive: Archive) -> None:
        self.archive = archive
        self._store = store
        self._clock = clock

    def archive_due(self, limit: int = _PAGE) -> int:
        """Archive up to `limit` executions whose retention has passed, and return how many.

        Up to `limit` expired archives, and up to `limit` unused blobs, are deleted too.
        """
        done = 0
        for item in self._due(ARCHIVE, self._now_ms(), limit):
            try:
                done += self._archive_one(item["execution_id"])
            except CorruptionError as exc:
                # It stays due and is tried again; other histories need not wait for it.
                _log.critical("history cannot be archived", execution_id=item["execution_id"], error=str(exc))
        if self.archive.kept_seconds is not None:
            self._delete_kept(self._now_ms() - round(1000 * self.archive.kept_seconds), limit)
        self._sweep(limit)
        return done

    def _due(self, partition: str, until_ms: int, limit: int) -> list[Item]:
        sort = Sort(Range.AT_MOST, until_ms)
        query = Query(table=EXECUTIONS, index="ready-index", partition=partition, sort=sort, limit=limit)
        return self._store.query(query).items

    def _archive_one(self, execution_id: str) -> int:
        item = self._store.get(EXECUTIONS, Key(execution_id), consistent=True)
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
        after = replace(row, version=row.version + 1, ready_pk=ARCHIVED, ready_at_ms=self._now_ms())
        try:
            self._store.transact([after.replacing(row.version)])
        except ConflictError:
            return 0
        return 1

    def _archived(self, row: Execution) -> Execution | None:
        # A reused id has the history of its earlier runs in an archive already.
        earlier = [] if row.archive is None else self.archive.read(row.archive)
        recent = read_turns(self._store, row.execution_id, row.archived_through + 1, row.turn)
        name = self.archive.new_name()
        self._store.put(CONTROL, self._marker(name, _PENDING), condition=absent())
        self.archive.write(name, chain(earlier, recent))
        after = replace(row, version=row.version + 1, archive=name, archived_through=row.turn)
        # A process that considers this one dead has condemned the blob; then no row may point to it.
        writes: list[Write] = [after.replacing(row.version), Delete(CONTROL, _marker_key(name), version_is(_PENDING))]
        if row.archive is not None:
            writes.append(Put(CONTROL, self._marker(row.archive, _CONDEMNED)))
        try:
            self._store.transact(writes)
        except OutcomeUnknownError:
            return None
        except ConflictError as exc:
            if 1 in exc.failures:
                # It may have been written after another process had deleted it.
                self._store.put(CONTROL, self._marker(name, _CONDEMNED))
            return None  # Or the id was reused meanwhile.
        return after

    def _delete_kept(self, until_ms: int, limit: int) -> None:
        """Delete executions that were archived up to this time, and condemn their blobs."""
        for item in self._due(ARCHIVED, until_ms, limit):
            current = self._store.get(EXECUTIONS, Key(item["execution_id"]), consistent=True)
            if current is None or current.get("ready_pk") != ARCHIVED:
                continue  # The index lags: it is deleted, or its id was reused.
            row = execution_of(current)
            writes: list[Write] = [Delete(EXECUTIONS, Key(row.execution_id), version_is(row.version))]
            if row.archive is not None:
                writes.append(Put(CONTROL, self._marker(row.archive, _CONDEMNED)))
            try:
                self._store.transact(writes)
            except ConflictError:
                continue  # Its id has just been reused, or another process has deleted it.

    def _sweep(self, limit: int) -> None:
        """Delete blobs that no row points to or will point to."""
        due = Sort(Range.AT_MOST, self._now_ms())
        query = Query(table=CONTROL, index="due-index", partition=MARKERS, sort=due, limit=limit)
        for item in self._store.query(query).items:
            name: str = item["blob"]
            if item["version"] == _PENDING and not self._condemn(name):
                continue
            try:
                self.archive.delete(name)
            except HeadgateError as exc:
                # Go on: an unused blob does no harm, and its deletion is retried.
                _log.error("archive cannot be deleted", archive=name, error=str(exc))
                self._store.put(CONTROL, self._marker(name, _CONDEMNED))
            else:
                self._store.delete(CONTROL, _marker_key(name))

    def _condemn(self, name: str) -> bool:
        """Forbid every later pointer to a blob. False if a row points to it already."""
        try:
            self._store.put(CONTROL, self._marker(name, _CONDEMNED), condition=version_is(_PENDING))
        except ConflictError:
            return False
        return True

    def _marker(self, name: str, version: int) -> Item:
        """Return the marker of a blob that no row points to; it is due when the blob may be deleted."""
        due_at_ms = self._now_ms() + 1000 * GRACE_SECONDS
        due = {"due_pk": MARKERS, "due_at_ms": due_at_ms}
        return {**CONTROL.key_attributes(_marker_key(name)), "blob": name, "version": version, **due}

    def _delete_rows(self, row: Execution) -> None:
        for first in range(1, row.turn + 1, _PAGE):
            last = min(row.turn, first + _PAGE - 1)
            self._store.batch_write([Delete(TURNS, Key(row.execution_id, turn)) for turn in range(first, last + 1)])
        stale = list(self._inbox(row.execution_id))
        item = self._store.get(EXECUTIONS, Key(row.execution_id), consistent=True)
        if item is None or item["version"] != row.version:
            return  # The id was reused, and these messages may be for its new run.
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

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _marker_key(name: str) -> Key:
    return Key(f"{MARKERS}#{name}", "BLOB")
