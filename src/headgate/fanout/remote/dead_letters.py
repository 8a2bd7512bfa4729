"""Dead letters: messages of chunks that a queue has given up, and what they make of their chunks."""

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
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Update
from headgate.store.model.values import is_text
from headgate.store.port import Store

_GIVEN_UP: Final = (Disposition.DEAD, Disposition.QUARANTINED)


class Ruling(enum.StrEnum):
    """What a dead letter comes to, and what to do with the message."""

    DEAD = "DEAD"  # Its chunk is given up, and the message kept with it: delete it.
    DUPLICATE = "DUPLICATE"  # Its chunk has ended or is in another life, and nothing was changed: delete it.
    BUSY = "BUSY"  # A worker has the chunk and is alive, or the fan-out is paused: leave it, and look again.
    UNKNOWN = "UNKNOWN"  # There is no such chunk, or it cannot be told which: show it to someone.


class Address(Struct, frozen=True):
    """Which chunk a message is about."""

    run_id: str
    chunk_id: str


class Recorded(Struct, frozen=True):
    """What became of a dead letter, with the reason in a sentence."""

    ruling: Ruling
    said: str
    address: Address | None = None


class DeadLetters:
    """Takes note of the messages of a dead-letter queue. Recording one twice changes nothing."""

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
        """Give up the chunk that a message is about, and keep the message with it.

        The chunk is the one that is named, or that the message names. Never raises because of what a message says.
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
            ruling, said = self._ruled(fanout, chunk, first_received_at)
            if ruling is not Ruling.DEAD or self._give_up(fanout, chunk, body, receive_count):
                return Recorded(ruling, said, address)

    def letters(self, run_id: str, *, limit: int = PAGE, cursor: str | None = None) -> ChunkRows:
        """Return dead chunks with the message that was found, those dead the longest first.

        A page may have fewer than `limit`, for chunks that died without a message are left out of it.
        """
        page = self.queries.in_disposition(run_id, Disposition.DEAD, limit=limit, cursor=cursor)
        return ChunkRows([chunk for chunk in page.chunks if chunk.message is not None], page.cursor)

    def _ruled(self, fanout: Fanout, chunk: Chunk, first_received_at: str | None) -> tuple[Ruling, str]:
        if not fanout.shards:
            return Ruling.UNKNOWN, f"fan-out {fanout.run_id} was made by another program, and has no counters"
        if chunk.disposition in _GIVEN_UP:
            return Ruling.DEAD, f"{chunk.chunk_id} was {chunk.disposition} already; the message is kept with it"
        if chunk.status.is_terminal:
            return Ruling.DUPLICATE, f"{chunk.chunk_id} has ended meanwhile: it is {chunk.disposition}"
        if self._is_of_earlier_life(chunk, first_received_at):
            return Ruling.DUPLICATE, f"{chunk.chunk_id} was put back to work since this message was first received"
        if fanout.paused_at is not None:
            return Ruling.BUSY, f"fan-out {fanout.run_id} is paused, which uses up the receives of its messages"
        if chunk.disposition is Disposition.RUNNING and not has_expired(chunk, self.queries.now_ms()):
            return Ruling.BUSY, f"{chunk.chunk_id} is run by {chunk.worker} until {chunk.lease_expires_at}"
        if fanout.paused_at is not None:
            return Ruling.BUSY, f"{chunk.chunk_id} was not run because its fan-out is paused"
        return Ruling.DEAD, f"{chunk.chunk_id} was {chunk.disposition}, and is given up"

    def _is_of_earlier_life(self, chunk: Chunk, first_received_at: str | None) -> bool:
        """Whether a message is left over from before its chunk was put back to work, which sends another one."""
        if not (chunk.redrives or chunk.heals):
            return False
        if chunk.disposition is Disposition.WAITING:
            # The message of this life is still to be sent, or will be again.
            return True
        # No message of this life was received before the last attempt of the life before had ended.
        item = self._store.get(FANOUT, attempt_key(chunk.run_id, chunk.chunk_id, chunk.tried), consistent=True)
        if item is None or first_received_at is None:
            return False
        return timestamp_ms(first_received_at) <= timestamp_ms(attempt_of(item).ended_at)

    def _give_up(self, fanout: Fanout, chunk: Chunk, body: str, receive_count: int) -> bool:
        if chunk.disposition in _GIVEN_UP:
            return self._keep(chunk, body, receive_count)
        now_ms = self.queries.now_ms()
        if apply(self._store, [dead_letter_change(chunk, fanout, body, receive_count, now_ms=now_ms)]):
            return False
        if self._maintenance is not None:
            self._maintenance.chunk_ended(chunk.run_id)
        return True

    def _keep(self, chunk: Chunk, body: str, receive_count: int) -> bool:
        """Keep the message with a chunk that was given up before it came."""
        values = {"message": body, "receive_count": max(receive_count, chunk.receive_count)}
        try:
            self._store.transact([Update(FANOUT, chunk.key, values, condition=chunk.fence())])
        except OutcomeUnknownError:
            raise
        except ConflictError:
            return False
        return True


def dead_letter_change(chunk: Chunk, fanout: Fanout, body: str, receive_count: int, *, now_ms: int) -> ChunkChange:
    """Return the change of a chunk whose message the queue has given up: nobody will be handed it any more."""
    if chunk.disposition is Disposition.RUNNING:
        # Its worker is gone, which says more than that the message is dead.
        change = lease_expiry_change(chunk, replace(fanout.rules(), max_attempts=1), now_ms=now_ms, draw=0.0)
    else:
        change = move_change(chunk, Disposition.DEAD, now_ms=now_ms)
    after = change.after
    if after.error_class is None:
        said = f"its message was received {receive_count} times and never seen through"
        after = replace(
            after,
            error=said,
            error_class=ErrorClass.DEAD_LETTER.value,
            error_fingerprint=fingerprint(ErrorClass.DEAD_LETTER, said),
        )
    after = replace(after, message=body, receive_count=max(receive_count, chunk.receive_count))
    return replace(change, after=after)


def address_of(body: str, run_id: str | None, chunk_id: str | None) -> Address | str:
    """Return which chunk a message is about, as its receiver knows or it says itself, or why that cannot be told."""
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
