"""Item redrive: runs failed items of completed chunks again, and leaves the other items as they are.

An item that was deferred failed in the slow lane, in a chunk of its own. It runs again in the chunk that deferred it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headgate.fanout.core.attempts import item_redrive_change
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.item_errors import ItemError, error_texts, item_errors, stored_errors
from headgate.fanout.model.rows import SLOW_LANE, Chunk, queue_partition
from headgate.fanout.model.states import Disposition
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Update


class FailedItems(Struct, frozen=True):
    """Failed items of a chunk to run again, with its slow-lane chunk if it had deferred items."""

    chunk: Chunk
    piece: Chunk | None
    indexes: frozenset[int]


def failed_items(chunk: Chunk, piece: Chunk | None, admits: Callable[[ItemError], bool]) -> FailedItems:
    """Return the failed items of a chunk that match."""
    rows = [chunk] if piece is None or piece.disposition is not Disposition.DONE else [chunk, piece]
    return FailedItems(chunk, piece, frozenset(each.index for row in rows for each in item_errors(row) if admits(each)))


def refusal(chunk: Chunk) -> str | None:
    """Return why failed items of a completed chunk cannot run again now, or None."""
    if chunk.disposition is not Disposition.DEFERRED:
        return None
    slow = chunk.chunk_id.replace("chunk", "slow")
    return f"its deferred items have not ended; wait for {slow}, or redrive it if it has failed"


def change_of(found: FailedItems, *, token: str, at_ms: int, is_waiting: bool) -> ChunkChange:
    """Return the change that queues the failed items from `at_ms` on, in one transaction with the slow-lane chunk."""
    change = item_redrive_change(found.chunk, found.indexes, token=token, now_ms=at_ms, is_waiting=is_waiting)
    piece = found.piece
    if piece is None:
        return change
    taken = found.indexes & error_texts(piece).keys()
    if not taken:
        return change
    if change.after.queue_pk is not None:
        # They were too slow for the main lane.
        slow = replace(change.after, queue_pk=queue_partition(piece.run_id, SLOW_LANE))
        change = replace(change, after=slow)
    return replace(change, extra_writes=(*change.extra_writes, _without_errors(piece, taken)))


def _without_errors(piece: Chunk, taken: Collection[int]) -> Update:
    """Return the write by which the errors of items that run again leave their slow-lane chunk.

    Its counts stay: they are those of its own attempt.
    """
    left = {index: text for index, text in error_texts(piece).items() if index not in taken}
    values = stored_errors(left)
    if not left:
        values |= {"attention_pk": None, "attention_sk": None}
    kept = {name: value for name, value in values.items() if value is not None}
    gone = tuple(name for name, value in values.items() if value is None and name in msgspec.to_builtins(piece))
    return Update(FANOUT, piece.key, set=kept, remove=gone, condition=piece.fence())
