"""Archiving: the history of executions that ended long ago, moved from rows into one blob each, and in time deleted.

A blob that no row points to has a note: it is made before the blob is written, goes with the commit that points to
the blob, and comes back with the commit that points to it no longer. So rows go first and blobs follow, a crash leaves
a note and never a row that points to nothing, and nobody has to look through all blobs to find those left over.
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

# How long an execution can be looked up after its history went to the archive.
KEPT_SECONDS: Final = 365 * 86_400
# How long a blob outlives the row that pointed to it, for those who read the row before, or copy blobs after rows;
# and after how long a blob that no row points to yet was left by someone who died.
GRACE_SECONDS: Final = 86_400
PREFIX: Final = "history/"
# Partition of the executions that are in an archive, by when they came there.
ARCHIVED: Final = "ARCHIVED"
# Partition of the notes of blobs that no row points to.
NOTES: Final = "ARCHIVES"
# A note's version: a row may come to point to the blob, or none ever will.
_PENDING: Final = 1
_CONDEMNED: Final = 2
_PAGE: Final = 100
_log = structlog.get_logger(__name__)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Turn)


class Archive:
    """Histories as blobs, a turn a line. `kept_seconds` is how long they are kept; None: for ever."""

    def __init__(self, blobs: Blobs, *, kept_seconds: float | None = KEPT_SECONDS) -> None:
        self.kept_seconds = kept_seconds
        self._blobs = blobs

    def new_name(self) -> str:
        """Return a name that no other blob has or will have, whatever it holds."""
        return f"{PREFIX}{secrets.token_hex(16)}"

    def write(self, name: str, turns: Iterable[Turn]) -> None:
        """Store a history under a new name."""
        self._blobs.put(name, gzip.compress(b"\n".join(_encoder.encode(turn) for turn in turns)))

    def delete(self, name: str) -> None:
        """Remove a history, if it is there."""
        self._blobs.delete(name)

    def read(self, name: str) -> list[Turn]:
        """Return a history. Raises `CorruptionError` if it is gone or damaged."""
        try:
            lines = gzip.decompress(self._blobs.get(name))
            return [_decoder.decode(line) for line in lines.split(b"\n") if line]
        except (NotFoundError, OSError, EOFError, zlib.error, msgspec.DecodeError) as exc:
            raise CorruptionError(f"archive {name}: it is gone or damaged ({exc}); restore it from a backup") from exc


class Archiver:
    """Moves what is due, and deletes what was kept for long enough."""

    def __init__(self, store: Store, clock: Clock, archive: Archive) -> None:
        self._store = store
        self._clock = clock
        self._archive = archive

    def archive_due(self, limit: int = _PAGE) -> int:
        """Archive up to `limit` executions whose retention has passed, and return how many.

        As many whose archive was kept for long enough are deleted, and as many blobs that were left over.
        """
        done = 0
        for item in self._due(ARCHIVE, self._now_ms(), limit):
            try:
                done += self._archive_one(execution_of(item))
            except CorruptionError as exc:
                # It stays due and is told again; the histories of others need not wait for it.
                _log.critical("history cannot be archived", execution_id=item["execution_id"], error=str(exc))
        if self._archive.kept_seconds is not None:
            self._delete_kept(self._now_ms() - round(1000 * self._archive.kept_seconds), limit)
        self._sweep(limit)
        return done

    def _due(self, partition: str, until_ms: int, limit: int) -> list[Item]:
        sort = Sort(Range.AT_MOST, until_ms)
        query = Query(table=EXECUTIONS, index="ready-index", partition=partition, sort=sort, limit=limit)
        return self._store.query(query).items

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
        after = replace(row, version=row.version + 1, ready_pk=ARCHIVED, ready_at_ms=self._now_ms())
        try:
            self._store.transact([after.replacing(row.version)])
        except ConflictError:
            return 0
        return 1

    def _archived(self, row: Execution) -> Execution | None:
        # An id that was used again has the history of its earlier runs in an archive already.
        earlier = [] if row.archive is None else self._archive.read(row.archive)
        recent = read_turns(self._store, row.execution_id, row.archived_through + 1, row.turn)
        name = self._archive.new_name()
        self._store.put(CONTROL, self._note(name, _PENDING), condition=absent())
        self._archive.write(name, chain(earlier, recent))
        after = replace(row, version=row.version + 1, archive=name, archived_through=row.turn)
        # Whoever took this process for dead has condemned the blob, and then nothing may point to it.
        writes: list[Write] = [after.replacing(row.version), Delete(CONTROL, _note_key(name), version_is(_PENDING))]
        if row.archive is not None:
            writes.append(Put(CONTROL, self._note(row.archive, _CONDEMNED)))
        try:
            self._store.transact(writes)
        except OutcomeUnknownError:
            return None
        except ConflictError as exc:
            if 1 in exc.failures:
                # It may have been written after others had deleted it.
                self._store.put(CONTROL, self._note(name, _CONDEMNED))
            return None  # That, or the id was used again meanwhile.
        return after

    def _delete_kept(self, until_ms: int, limit: int) -> None:
        """Delete executions that came into the archive up to this moment, and condemn their blobs."""
        for item in self._due(ARCHIVED, until_ms, limit):
            found = self._store.get(EXECUTIONS, Key(item["execution_id"]), consistent=True)
            if found is None or found.get("ready_pk") != ARCHIVED:
                continue  # The index lags: it is gone, or its id was used again.
            row = execution_of(found)
            writes: list[Write] = [Delete(EXECUTIONS, Key(row.execution_id), version_is(row.version))]
            if row.archive is not None:
                writes.append(Put(CONTROL, self._note(row.archive, _CONDEMNED)))
            try:
                self._store.transact(writes)
            except ConflictError:
                continue  # Its id is just being used again, or another process was quicker.

    def _sweep(self, limit: int) -> None:
        """Delete blobs that no row points to, and that none will come to point to."""
        due = Sort(Range.AT_MOST, self._now_ms())
        query = Query(table=CONTROL, index="due-index", partition=NOTES, sort=due, limit=limit)
        for item in self._store.query(query).items:
            name: str = item["blob"]
            if item["version"] == _PENDING and not self._condemn(name):
                continue
            try:
                self._archive.delete(name)
            except HeadgateError as exc:
                # No reason to stop: it harms nobody, and is tried again when it is due again.
                _log.error("archive cannot be deleted", archive=name, error=str(exc))
                self._store.put(CONTROL, self._note(name, _CONDEMNED))
            else:
                self._store.delete(CONTROL, _note_key(name))

    def _condemn(self, name: str) -> bool:
        """Let no row come to point to a blob. False if one does already."""
        try:
            self._store.put(CONTROL, self._note(name, _CONDEMNED), condition=version_is(_PENDING))
        except ConflictError:
            return False
        return True

    def _note(self, name: str, version: int) -> Item:
        """Return the note of a blob that no row points to, which is due when it may be deleted."""
        due_at_ms = self._now_ms() + 1000 * GRACE_SECONDS
        due = {"due_pk": NOTES, "due_at_ms": due_at_ms}
        return {**CONTROL.key_attributes(_note_key(name)), "blob": name, "version": version, **due}

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

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _note_key(name: str) -> Key:
    return Key(f"{NOTES}#{name}", "BLOB")
