"""Bisection: splits a failing chunk in two, again and again, until the failing item is isolated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from headgate import typed_decode
from headgate.clock import Clock
from headgate.errors import ConflictError, CorruptionError, NotFoundError, OutcomeUnknownError, UserError
from headgate.fanout.core.attempts import move_change, with_disposition
from headgate.fanout.core.observer import MessageSender
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.counts import counter_add
from headgate.fanout.model.rows import SLOW_LANE, Chunk, Fanout, chunk_id_at, sort_key, timestamp
from headgate.fanout.model.sources import Piece, check_input
from headgate.fanout.model.states import Disposition
from headgate.fanout.repair.reopen import AuditNote, Reopener, check_reopenable, reopen_change, reopen_write
from headgate.ids import IdMaker
from headgate.store.model.conditions import absent
from headgate.store.model.requests import Write
from headgate.store.port import Store

_CUTTABLE = (Disposition.DEAD, Disposition.QUARANTINED)


class BisectResult(Struct, frozen=True):
    """The chunk with its remaining half, and the new chunk with the other half, if there was more than one item."""

    chunk: Chunk
    other: Chunk | None
    description: str


class Bisector:
    """Splits failed chunks in two."""

    def __init__(self, store: Store, clock: Clock, ids: IdMaker, *, send: MessageSender | None = None) -> None:
        self.queries = FanoutQueries(store, clock)
        self._send = send
        self._store = store
        self._ids = ids
        self._reopener = Reopener(store, self.queries, ids)

    def isolate(self, run_id: str, chunk_id: str, *, until_alone: bool = False) -> BisectResult:
        """Split a failed chunk in two and queue both halves, or quarantine a chunk of a single item.

        With `until_alone` maintenance does the same with each half that dies, until the failing item is alone. One
        transaction. Raises `NotFoundError` if the chunk or its input does not exist, `ConflictError` if it has not
        failed, and `UserError` if its input cannot be split.
        """
        fanout = self.queries.fanout(run_id, consistent=True)
        return self.cut(fanout, self.queries.chunk(run_id, chunk_id), until_alone=until_alone)

    def cut(self, fanout: Fanout, chunk: Chunk, *, heals: int = 0, until_alone: bool = False) -> BisectResult:
        """Isolate a chunk that was read already; `heals` is 1 if the heal policy does it."""
        check_reopenable(fanout)
        if chunk.disposition not in _CUTTABLE:
            raise ConflictError(
                f"chunk {chunk.chunk_id} of {chunk.run_id}: it is {chunk.disposition}; only a failed one can be split"
            )
        if chunk.lane == SLOW_LANE:
            raise UserError(f"chunk {chunk.chunk_id} of {chunk.run_id}: a slow-lane chunk cannot be split")
        if chunk.rerun_items is not None:
            raise UserError(
                f"chunk {chunk.chunk_id} of {chunk.run_id}: only some of its items run again; "
                "redrive them one by one with --item"
            )
        if chunk.items > 1:
            return self._halve(fanout, chunk, heals, until_alone=until_alone or chunk.is_isolating)
        return self._quarantine_item(fanout, chunk)

    def _halve(self, fanout: Fanout, chunk: Chunk, heals: int, *, until_alone: bool) -> BisectResult:
        source = msgspec.json.decode(fanout.source) if fanout.source else {}
        pieces = halves(chunk, source)
        is_waiting = fanout.queue_url is not None
        if is_waiting and self._send is None:
            raise UserError(f"fan-out {fanout.run_id}: it has a queue, and nothing here can send to {fanout.queue_url}")
        now_ms = self.queries.now_ms()
        retried = reopen_change(chunk, token=self._ids.ulid(), at_ms=now_ms, is_waiting=is_waiting, heals=heals)
        retried = replace(retried, after=replace(retried.after, is_isolating=until_alone))
        change, other = split_change(retried, *pieces, now_ms=now_ms, token=self._ids.ulid())
        description = (
            f"the {chunk.items} items of {chunk.chunk_id} were split; {other.items} of them are in {other.chunk_id}"
        )
        if until_alone:
            description += "; a half that fails is split again, until the failing item is alone"
        refused = self._reopener.put_back(fanout, [change], AuditNote("cut", reason=description), more_chunks=1)
        if refused:
            raise self._moved_error(chunk, other)
        if self._send is not None and is_waiting:
            self._send(fanout)
        return BisectResult(change.after, other, description)

    def _quarantine_item(self, fanout: Fanout, chunk: Chunk) -> BisectResult:
        """Quarantine a chunk of a single item, and record the item as failed."""
        if chunk.disposition is Disposition.QUARANTINED and chunk.item_errors is not None:
            return BisectResult(chunk, None, f"item {chunk.start} is put aside already")
        description = f"item {chunk.start} is the one that fails: {chunk.error or chunk.error_class or 'unknown error'}"
        now_ms = self.queries.now_ms()
        after = quarantined_item(chunk, token=self._ids.ulid(), now_ms=now_ms)
        note = AuditNote("set aside", reason=description)
        if chunk.disposition is Disposition.DEAD:
            if self._reopener.put_back(fanout, [ChunkChange(chunk, after)], note):
                raise self._moved_error(chunk, None)
            return BisectResult(after, None, description)
        # It is quarantined already and only the error of its item is not recorded yet: no transition.
        writes: list[Write] = [after.put(chunk.fence()), reopen_write(fanout, timestamp(now_ms), is_rerun=False)]
        uncounted = after.items_failed - chunk.items_failed
        if uncounted:
            writes.append(counter_add(chunk.run_id, chunk.shard, {"items_failed": uncounted}))
        try:
            self._store.transact([*writes, self._reopener.noted(chunk.run_id, note, 1)])
        except OutcomeUnknownError:
            raise
        except ConflictError as exc:
            raise self._moved_error(chunk, None) from exc
        return BisectResult(after, None, description)

    def _moved_error(self, chunk: Chunk, other: Chunk | None) -> ConflictError:
        current = self.queries.chunk(chunk.run_id, chunk.chunk_id)
        name = f"chunk {chunk.chunk_id} of {chunk.run_id}"
        if other is not None and (current.token, current.disposition) == (chunk.token, chunk.disposition):
            return ConflictError(
                f"{name}: {other.chunk_id} exists already, with items of this one; "
                "'headgate fanout reconcile' lists overlapping rows"
            )
        return ConflictError(f"{name}: it was changed meanwhile, it is {current.disposition}; read it again")


def split_change(
    retried: ChunkChange, first: Piece, second: Piece, *, now_ms: int, token: str
) -> tuple[ChunkChange, Chunk]:
    """Return the change that keeps the first half in the chunk's row, and the new chunk of the second half."""
    chunk = retried.after
    kept = replace(chunk, items=first.items, input_key=first.input_key, input=first.input)
    width = len(chunk.chunk_id.partition("-")[2])
    other = Chunk(
        run_id=chunk.run_id,
        sk=sort_key(chunk_id_at(second.start, width)),
        status=chunk.status,
        disposition=chunk.disposition,
        created_at=timestamp(now_ms),
        start=second.start,
        items=second.items,
        token=token,
        input_key=second.input_key,
        input=second.input,
        # In the same counter as the whole, so that one transaction covers both.
        shard=chunk.shard,
        redrives=chunk.redrives,
        heals=chunk.heals,
        error=chunk.error,
        error_class=chunk.error_class,
        error_fingerprint=chunk.error_fingerprint,
        ttl=chunk.ttl,
        is_isolating=chunk.is_isolating,
    )
    other = with_disposition(other, other.disposition, timestamp(now_ms), now_ms)
    counted = {**retried.counted, "total": 1, other.disposition.bucket: 1}
    return ChunkChange(retried.before, kept, counted, (other.put(absent()),)), other


def quarantined_item(chunk: Chunk, *, token: str, now_ms: int) -> Chunk:
    """Return the quarantined chunk of a single failed item."""
    after = move_change(chunk, Disposition.QUARANTINED, now_ms=now_ms).after
    error = f"{chunk.error_class or 'error'}: {chunk.error or 'unknown error'}"
    errors = msgspec.json.encode({str(chunk.start): error}).decode()
    return replace(after, token=token, items_failed=1, item_errors=chunk.item_errors or errors)


def halves(chunk: Chunk, source: dict[str, Any]) -> tuple[Piece, Piece]:
    """Return the two halves of a chunk's input; the first is the larger if they differ.

    Raises `NotFoundError` if its file is missing or has changed, and `UserError` if the row has no location.
    """
    middle = chunk.start + (chunk.items + 1) // 2
    if chunk.input is None:
        if source.get("kind") != "range":
            raise UserError(
                f"chunk {chunk.chunk_id} of {chunk.run_id}: only its worker knows the items of {chunk.input_key!r}, "
                "so that it cannot be split here"
            )
        return _range_piece(source, chunk.start, middle), _range_piece(source, middle, chunk.start + chunk.items)
    if chunk.input.startswith("["):
        return _list_halves(chunk, middle)
    return _file_halves(chunk, middle)


def _range_piece(source: dict[str, Any], start: int, end: int) -> Piece:
    low = int(source["low"])
    return Piece(start, end - start, f"range:{low + start}-{low + end - 1}")


def _list_halves(chunk: Chunk, middle: int) -> tuple[Piece, Piece]:
    # Raw: each item keeps its exact JSON text.
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
    file_range: dict[str, Any] = msgspec.json.decode(chunk.input or "")
    count = middle - chunk.start
    size = count if file_range["kind"] == "bytes" else _lines_bytes(file_range, count)
    first = {**file_range, "bytes": size}
    second = {**file_range, "offset": file_range["offset"] + size, "bytes": file_range["bytes"] - size}
    return _file_piece(first, chunk.start, count), _file_piece(second, middle, chunk.items - count)


def _file_piece(file_range: dict[str, Any], start: int, items: int) -> Piece:
    key = f"{file_range['path']}#{file_range['offset']}+{file_range['bytes']}"
    return Piece(start, items, key, msgspec.json.encode(file_range).decode())


def _lines_bytes(file_range: dict[str, Any], count: int) -> int:
    """Return the size in bytes of the first lines of a file range."""
    path = Path(file_range["path"])
    try:
        with path.open("rb") as file:
            file.seek(file_range["offset"])
            return sum(len(file.readline()) for _ in range(count))
    except OSError as exc:
        raise NotFoundError(
            f"input {path}: it cannot be read ({exc.strerror}); it must stay where it was split"
        ) from exc
