"""Failed items: every item of a fan-out that failed, with its chunk and error.

The items of a failed chunk have no errors of their own. They are one entry, so that a chunk of a million items is not a
million entries.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from headgate.fanout.core.attempts import item_indexes
from headgate.fanout.model.item_errors import UNNAMED, item_errors
from headgate.fanout.model.rows import Chunk
from headgate.fanout.model.states import ChunkStatus


class FailedItem(Struct, frozen=True):
    """A failed item by its index within the fan-out, or the `count` items of a failed chunk from `index` on."""

    index: int
    count: int
    chunk_id: str
    error_class: str
    message: str
    fingerprint: str


def failed_items_of(chunk: Chunk) -> Iterator[FailedItem]:
    """Yield the failed items of a chunk."""
    if chunk.status is ChunkStatus.COMPLETED:
        for one in item_errors(chunk):
            yield FailedItem(one.index, 1, chunk.chunk_id, one.error_class, one.message, one.fingerprint)
    elif chunk.status is ChunkStatus.FAILED:
        error = (chunk.chunk_id, chunk.error_class or UNNAMED, chunk.error or "", chunk.error_fingerprint or "")
        indexes = item_indexes(chunk)
        if isinstance(indexes, range):
            yield FailedItem(indexes.start, len(indexes), *error)
        else:
            yield from (FailedItem(index, 1, *error) for index in indexes)
