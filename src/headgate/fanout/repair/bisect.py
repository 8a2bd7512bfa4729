"""Bisecting: a chunk that always fails is cut in two, again and again, until the item is found that is to blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import ConflictError, CorruptionError, NotFoundError, OutcomeUnknownError, UserError
from headgate.fanout.core.attempts import moved_to, placed
from headgate.fanout.core.observer import MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.counts import added
from headgate.fanout.model.rows import SLOW_LANE, Chunk, Fanout, chunk_id_at, moment, sort_key
from headgate.fanout.model.sources import Piece, check_input
from headgate.fanout.model.states import Disposition
from headgate.fanout.repair.reopen import Note, Reopener, again, check_reopenable, reopened
from headgate.ids import IdMaker
from headgate.store.model.conditions import absent
from headgate.store.port import Store

_CUTTABLE = (Disposition.DEAD, Disposition.QUARANTINED)


class Cut(Struct, frozen=True):
    """What became of a chunk: the half that its row has kept, and the other half, if there was more than one item."""

    chunk: Chunk
    other: Chunk | None
    said: str


class Bisector:
    """Cuts chunks in two."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, *, send: MessageSender | None = None) -> None:
        self.queries = FanoutQueries(store, clock)
        self._send = send
        self._store = store
        self._ids = ids
        self._reopener = Reopener(store, self.queries, ids)

    def isolate(self, run_id: str, chunk_id: str) -> Cut:
        """Cut a chunk that was given up in two, and queue both; put a single item aside, with its error.

        One transaction. Raises `NotFoundError` if there is no such chunk or its input is gone, `ConflictError` if it
        is not given up, and `UserError` if what it is about cannot be cut.
        """
        fanout = self.queries.fanout(run_id, consistent=True)
        return self.cut(fanout, self.queries.chunk(run_id, chunk_id))

    def cut(self, fanout: Fanout, chunk: Chunk, *, heals: int = 0) -> Cut:
        """Do what `isolate` does with a chunk as it was read; `heals` is 1 if nobody has asked for it."""
        check_reopenable(fanout)
        if chunk.disposition not in _CUTTABLE:
            raise ConflictError(
                f"chunk {chunk.chunk_id} of {chunk.run_id}: it is {chunk.disposition}; only one that failed can be cut"
            )
        if chunk.lane == SLOW_LANE:
            raise UserError(f"chunk {chunk.chunk_id} of {chunk.run_id}: a piece of the slow lane cannot be cut")
        if chunk.items > 1:
            return self._halve(fanout, chunk, heals)
        return self._condemn(fanout, chunk)

    def _halve(self, fanout: Fanout, chunk: Chunk, heals: int) -> Cut:
        source = msgspec.json.decode(fanout.source) if fanout.source else {}
        pieces = halves(chunk, source)
        is_waiting = fanout.queue_url is not None
        if is_waiting and self._send is None:
            raise UserError(f"fan-out {fanout.run_id}: it has a queue, and nothing here can send to {fanout.queue_url}")
        now_ms = self.queries.now_ms()
        retried = again(chunk, token=self._ids.ulid(), at_ms=now_ms, is_waiting=is_waiting, heals=heals)
        change, other = halved(retried, *pieces, now_ms=now_ms, token=self._ids.ulid())
        said = (
            f"the {chunk.items} items of {chunk.chunk_id} were cut, and {other.items} of them are in {other.chunk_id}"
        )
        refused = self._reopener.put_back(fanout, [change], Note("cut", reason=said), more_chunks=1)
        if refused:
            raise self._overtaken(chunk, other)
        if self._send is not None and is_waiting:
            self._send(fanout)
        return Cut(change.after, other, said)

    def _condemn(self, fanout: Fanout, chunk: Chunk) -> Cut:
        """Put the single item of a chunk aside as the one that is to blame."""
        if chunk.disposition is Disposition.QUARANTINED and chunk.items_failed:
            return Cut(chunk, None, f"item {chunk.start} is put aside already")
        said = f"item {chunk.start} is the one that fails: {chunk.error or chunk.error_class or 'nobody knows why'}"
        now_ms = self.queries.now_ms()
        after = condemned(chunk, token=self._ids.ulid(), now_ms=now_ms)
        counted = {"items_failed": after.items_failed}
        note = Note("set aside", reason=said)
        if chunk.disposition is Disposition.DEAD:
            if self._reopener.put_back(fanout, [ChunkChange(chunk, after, counted)], note):
                raise self._overtaken(chunk, None)
            return Cut(after, None, said)
        # It is put aside already and only lacks the count of its item: no move, so no change.
        counter = added(chunk.run_id, chunk.shard, counted)
        opening = reopened(fanout, moment(now_ms), is_rerun=False)
        try:
            noted = self._reopener.noted(chunk.run_id, note, 1)
            self._store.transact([after.put(chunk.fence()), counter, opening, noted])
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            raise self._overtaken(chunk, None) from exc
        return Cut(after, None, said)

    def _overtaken(self, chunk: Chunk, other: Chunk | None) -> ConflictError:
        current = self.queries.chunk(chunk.run_id, chunk.chunk_id)
        name = f"chunk {chunk.chunk_id} of {chunk.run_id}"
        if other is not None and (current.token, current.disposition) == (chunk.token, chunk.disposition):
            return ConflictError(
                f"{name}: {other.chunk_id} is there already, with items that should be this one's; "
                "'headgate fanout reconcile' says which rows overlap"
            )
        return ConflictError(f"{name}: someone has moved it meanwhile, it is {current.disposition}; look again")


def halved(retried: ChunkChange, first: Piece, second: Piece, *, now_ms: int, token: str) -> tuple[ChunkChange, Chunk]:
    """Return the change that leaves the first half in the row of a chunk, and the chunk that it makes of the second."""
    chunk = retried.after
    kept = replace(chunk, items=first.items, input_key=first.input_key, input=first.input)
    width = len(chunk.chunk_id.partition("-")[2])
    other = Chunk(
        run_id=chunk.run_id,
        sk=sort_key(chunk_id_at(second.start, width)),
        status=chunk.status,
        disposition=chunk.disposition,
        created_at=moment(now_ms),
        start=second.start,
        items=second.items,
        token=token,
        input_key=second.input_key,
        input=second.input,
        # Counted where the whole was, so that both stay in one transaction.
        shard=chunk.shard,
        redrives=chunk.redrives,
        heals=chunk.heals,
        error=chunk.error,
        error_class=chunk.error_class,
        error_fingerprint=chunk.error_fingerprint,
        ttl=chunk.ttl,
    )
    other = placed(other, other.disposition, moment(now_ms), now_ms)
    counted = {**retried.counted, "total": 1, other.disposition.bucket: 1}
    return ChunkChange(retried.before, kept, counted, (other.put(absent()),)), other


def condemned(chunk: Chunk, *, token: str, now_ms: int) -> Chunk:
    """Return the chunk of a single item that is put aside, its error being the item's."""
    after = moved_to(chunk, Disposition.QUARANTINED, now_ms=now_ms).after
    error = f"{chunk.error_class or 'error'}: {chunk.error or 'nobody knows why'}"
    errors = msgspec.json.encode({str(chunk.start): error}).decode()
    return replace(after, token=token, items_failed=1, item_errors=chunk.item_errors or errors)


def halves(chunk: Chunk, source: dict[str, Any]) -> tuple[Piece, Piece]:
    """Return the two halves of what a chunk is about, the first being the larger if they differ.

    Raises `NotFoundError` if its file is gone or has changed, and `UserError` if the row does not say what it is about.
    """
    middle = chunk.start + (chunk.items + 1) // 2
    if chunk.input is None:
        if source.get("kind") != "range":
            raise UserError(
                f"chunk {chunk.chunk_id} of {chunk.run_id}: only its worker knows the items of {chunk.input_key!r}, "
                "so that it cannot be cut here"
            )
        return _range_piece(source, chunk.start, middle), _range_piece(source, middle, chunk.start + chunk.items)
    if chunk.input.startswith("["):
        return _list_halves(chunk, middle)
    return _file_halves(chunk, middle)


def _range_piece(source: dict[str, Any], start: int, end: int) -> Piece:
    low = int(source["low"])
    return Piece(start, end - start, f"range:{low + start}-{low + end - 1}")


def _list_halves(chunk: Chunk, middle: int) -> tuple[Piece, Piece]:
    # Raw: each item stays as it was written, to the last digit.
    items = typed_decode.from_json(chunk.input or "[]", list[Raw])
    if len(items) != chunk.items:
        raise CorruptionError(
            f"chunk {chunk.chunk_id} of {chunk.run_id}: it has {chunk.items} items, and its input {len(items)}"
        )
    count = middle - chunk.start
    return _list_piece(items[:count], chunk.start), _list_piece(items[count:], middle)


def _list_piece(items: list[Raw], start: int) -> Piece:
    text = b"[" + b",".join(map(bytes, items)) + b"]"
    return Piece(start, len(items), f"items:{start}-{start + len(items) - 1}", text.decode())


def _file_halves(chunk: Chunk, middle: int) -> tuple[Piece, Piece]:
    check_input(chunk.input)
    stretch: dict[str, Any] = msgspec.json.decode(chunk.input or "")
    count = middle - chunk.start
    size = count if stretch["kind"] == "bytes" else _lines_bytes(stretch, count)
    first = {**stretch, "bytes": size}
    second = {**stretch, "offset": stretch["offset"] + size, "bytes": stretch["bytes"] - size}
    return _file_piece(first, chunk.start, count), _file_piece(second, middle, chunk.items - count)


def _file_piece(stretch: dict[str, Any], start: int, items: int) -> Piece:
    key = f"{stretch['path']}#{stretch['offset']}+{stretch['bytes']}"
    return Piece(start, items, key, msgspec.json.encode(stretch).decode())


def _lines_bytes(stretch: dict[str, Any], count: int) -> int:
    """Return how many bytes the first lines of a stretch have."""
    path = Path(stretch["path"])
    try:
        with path.open("rb") as file:
            file.seek(stretch["offset"])
            return sum(len(file.readline()) for _ in range(count))
    except OSError as exc:
        raise NotFoundError(f"input {path}: it cannot be read ({exc.strerror}); it must be where it was") from exc
