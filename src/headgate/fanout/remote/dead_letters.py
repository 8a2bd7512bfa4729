"""Dead letters: records the messages of a dead-letter queue on their chunks."""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, InvalidIdError, InvalidPayloadError, OutcomeUnknownError
from headgate.fanout.core.attempts import ErrorClass, has_expired, lease_expiry_change, move_change
from headgate.fanout.core.maintenance import FanoutMaintenance
from headgate.fanout.core.queries import PAGE, ChunkRows, FanoutQueries
from headgate.fanout.core.splitter import ID_CHARS_MAX, check_run_id
from headgate.fanout.core.transitions import ChunkChange, apply
from headgate.fanout.model.fingerprints import fingerprint
from headgate.fanout.model.messages import message_of
from headgate.fanout.model.rows import Chunk, Fanout, attempt_key, attempt_of, chunk_key, chunk_of, timestamp_ms
from headgate.fanout.model.states import Disposition
from headgate.fanout.model.worker_names import short_worker_name
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Update
from headgate.store.model.values import is_text
from headgate.store.port import Store

_FAILED: Final = (Disposition.DEAD, Disposition.QUARANTINED)


class Ruling(enum.StrEnum):
    """The decision on a dead letter, and what to do with its message."""

    DEAD = "DEAD"  # The chunk is dead and its row holds the message: delete the message.
    DUPLICATE = "DUPLICATE"  # The chunk has ended or was redriven since; nothing was changed: delete the message.
    BUSY = "BUSY"  # A worker holds the chunk, or the fan-out is paused: keep the message and retry later.
    UNKNOWN = "UNKNOWN"  # No such chunk, or an unreadable message: needs an operator.


class Address(Struct, frozen=True):
    """The chunk that a message names."""

    run_id: str
    chunk_id: str


class Recorded(Struct, frozen=True):
    """The decision on a dead letter, with its reason."""

    ruling: Ruling
    reason: str
    address: Address | None = None


class DeadLetters:
    """Records dead letters. Idempotent."""

    def __init__(self, store: Store, clock: Clock, *, maintenance: FanoutMaintenance | None = None) -> None:
        self.queries = FanoutQueries(store, clock)
        self._maintenance = maintenance
        self._store = store

    def record(
        self,
        body: str,
        *,
        receive_count: int = 0,
        first_received_at: str | None = None,
        run_id: str | None = None,
        chunk_id: str | None = None,
    ) -> Recorded:
        """Mark the chunk of a message as dead, and store the message on its row.

        `run_id` and `chunk_id` override those of the message. Never raises because of a message's content.
        """
        address = address_of(body, run_id, chunk_id)
        if isinstance(address, str):
            return Recorded(Ruling.UNKNOWN, address)
        fanout = self.queries.find(address.run_id)
        if fanout is None:
            return Recorded(Ruling.UNKNOWN, f"there is no fan-out {address.run_id}", address)
        while True:
            item = self._store.get(FANOUT, chunk_key(address.run_id, address.chunk_id), consistent=True)
            if item is None:
                return Recorded(Ruling.UNKNOWN, f"fan-out {address.run_id} has no {address.chunk_id}", address)
            chunk = chunk_of(item)
            ruling, reason = self._ruling(fanout, chunk, first_received_at)
            if ruling is not Ruling.DEAD or self._kill(fanout, chunk, body, receive_count):
                return Recorded(ruling, reason, address)

    def letters(self, run_id: str, *, limit: int = PAGE, cursor: str | None = None) -> ChunkRows:
        """Return dead chunks with their messages, longest dead first.

        A page may hold fewer than `limit`, since chunks that died without a message are left out.
        """
        page = self.queries.in_disposition(run_id, Disposition.DEAD, limit=limit, cursor=cursor)
        return ChunkRows([chunk for chunk in page.chunks if chunk.message is not None], page.cursor)

    def _ruling(self, fanout: Fanout, chunk: Chunk, first_received_at: str | None) -> tuple[Ruling, str]:
        if not fanout.shards:
            return Ruling.UNKNOWN, f"fan-out {fanout.run_id} was created by another program, and has no counters"
        if chunk.disposition in _FAILED:
            return Ruling.DEAD, f"{chunk.chunk_id} was {chunk.disposition} already; the message is stored with it"
        if chunk.status.is_terminal:
            return Ruling.DUPLICATE, f"{chunk.chunk_id} has ended meanwhile: it is {chunk.disposition}"
        if self._predates_redrive(chunk, first_received_at):
            return Ruling.DUPLICATE, f"{chunk.chunk_id} was redriven after this message was first received"
        if fanout.paused_at is not None:
            return Ruling.BUSY, f"fan-out {fanout.run_id} is paused, which uses up the receives of its messages"
        if chunk.disposition is Disposition.RUNNING and not has_expired(chunk, self.queries.now_ms()):
            worker = short_worker_name(chunk.worker)
            return Ruling.BUSY, f"{chunk.chunk_id} is run by {worker} until {chunk.lease_expires_at}"
        return Ruling.DEAD, f"{chunk.chunk_id} was {chunk.disposition}, and is dead now"

    def _predates_redrive(self, chunk: Chunk, first_received_at: str | None) -> bool:
        """Whether a message predates the chunk's last redrive, which sends a new one."""
        if not (chunk.redrives or chunk.heals):
            return False
        if chunk.disposition is Disposition.WAITING:
            # The message for the redrive is not sent yet, or will be sent again.
            return True
        # A message for the redrive cannot have been received before the last attempt had ended.
        item = self._store.get(FANOUT, attempt_key(chunk.run_id, chunk.chunk_id, chunk.tried), consistent=True)
        if item is None or first_received_at is None:
            return False
        return timestamp_ms(first_received_at) <= timestamp_ms(attempt_of(item).ended_at)

    def _kill(self, fanout: Fanout, chunk: Chunk, body: str, receive_count: int) -> bool:
        if chunk.disposition in _FAILED:
            return self._store_message(chunk, body, receive_count)
        now_ms = self.queries.now_ms()
        if apply(self._store, [dead_letter_change(chunk, fanout, body, receive_count, now_ms=now_ms)]):
            return False
        if self._maintenance is not None:
            self._maintenance.chunk_ended(chunk.run_id)
        return True

    def _store_message(self, chunk: Chunk, body: str, receive_count: int) -> bool:
        """Store the message on a chunk that was dead already."""
        values = {"message": body, "receive_count": max(receive_count, chunk.receive_count)}
        try:
            self._store.transact([Update(FANOUT, chunk.key, values, condition=chunk.fence())])
        except OutcomeUnknownError:
            raise
        except ConflictError:
            return False
        return True


def dead_letter_change(chunk: Chunk, fanout: Fanout, body: str, receive_count: int, *, now_ms: int) -> ChunkChange:
    """Return the change of a chunk whose message is dead, so that it will not be delivered again."""
    if chunk.disposition is Disposition.RUNNING:
        # An expired lease says more about the failure than a dead message.
        final = replace(fanout.rules(), lost_attempts_max=chunk.lost_attempts + 1)
        change = lease_expiry_change(chunk, final, now_ms=now_ms, draw=0.0)
    else:
        change = move_change(chunk, Disposition.DEAD, now_ms=now_ms)
    after = change.after
    if after.error_class is None:
        error = f"its message was received {receive_count} times and never completed"
        after = replace(
            after,
            error=error,
            error_class=ErrorClass.DEAD_LETTER.value,
            error_fingerprint=fingerprint(ErrorClass.DEAD_LETTER, error),
        )
    after = replace(after, message=body, receive_count=max(receive_count, chunk.receive_count))
    return replace(change, after=after)


def address_of(body: str, run_id: str | None, chunk_id: str | None) -> Address | str:
    """Return the chunk that a message or its receiver names, or the reason why it is unknown."""
    if not is_text(body):
        return "the message is not Unicode text"
    try:
        if run_id is None or chunk_id is None:
            found = message_of(body)
            run_id, chunk_id = run_id or found.run_id, chunk_id or found.chunk_id
        check_run_id(run_id)
        chunk_key(run_id, chunk_id)
    except (InvalidIdError, InvalidPayloadError) as exc:
        return str(exc)
    if len(chunk_id) > ID_CHARS_MAX:
        return f"chunk {chunk_id[:40]}…: no chunk has an id of {len(chunk_id)} characters"
    return Address(run_id, chunk_id)
