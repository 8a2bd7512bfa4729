"""Completed index: lists those completed chunks that a search in item order would find late.

An index entry for each completed chunk would cost every chunk a write. Chunks are claimed in item order, so that a
search in that order mostly finds completed ones at once. It would find those late that many chunks which are not
completed precede; only they are listed. No page of completed chunks then reads more than some thousand rows, whatever
the size of the fan-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.core.transitions import ChunkChange
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import MAIN_LANE, Fanout, attention_partition
from headgate.fanout.model.states import Disposition

# A chunk is listed if more chunks than this precede it that are not completed, or are listed themselves.
PRECEDING_MAX: Final = 1_000
# Fan-outs whose numbers are remembered.
_FANOUTS_MAX: Final = 100


class _Known(Struct, frozen=True):
    fanout: Fanout
    # Completed chunks that are not listed, when they were counted last. There are hardly ever fewer later.
    unlisted: int


class CompletedIndex:
    """Decides which completed chunks the attention index lists. Safe to use from many threads."""

    def __init__(self, queries: FanoutQueries) -> None:
        self._queries = queries
        self._known: dict[str, _Known] = {}

    def listed(self, changes: Sequence[ChunkChange]) -> list[ChunkChange]:
        """Return the changes, with those completed chunks listed that are to be. Raises store errors.

        The counters of a fan-out are read at most once, and only if a chunk is to be listed by those known so far.
        """
        counted: set[str] = set()
        return [_with_entry(change) if self._is_to_list(change, counted) else change for change in changes]

    def _is_to_list(self, change: ChunkChange, counted: set[str]) -> bool:
        chunk = change.after
        if chunk.disposition is not Disposition.DONE or chunk.lane != MAIN_LANE or chunk.attention_pk is not None:
            return False
        known = self._known.get(chunk.run_id)
        if known is None:
            fanout = self._queries.find(chunk.run_id)
            if fanout is None:
                return False
            known = self._remember(fanout, fanout.counts.get("done", 0) - fanout.counts.get("done_listed", 0))
        if not known.fanout.lists_completed or not _is_far(known, chunk.start):
            return False
        if chunk.run_id in counted:
            return True
        counted.add(chunk.run_id)
        return _is_far(self._remember(known.fanout, unlisted(self._queries.counts(known.fanout))), chunk.start)

    def _remember(self, fanout: Fanout, number: int) -> _Known:
        if len(self._known) >= _FANOUTS_MAX and fanout.run_id not in self._known:
            self._known.clear()
        known = self._known[fanout.run_id] = _Known(fanout, number)
        return known


def unlisted(counts: Counts) -> int:
    """Return the number of completed chunks of the main lane that the index does not list."""
    return counts.done - counts.done_listed


def _is_far(known: _Known, start: int) -> bool:
    return start // max(1, known.fanout.chunk_size) > known.unlisted + PRECEDING_MAX


def _with_entry(change: ChunkChange) -> ChunkChange:
    chunk = change.after
    place = f"{chunk.completed_at}#{chunk.sk.rpartition('-')[2]}"
    listed = replace(chunk, attention_pk=attention_partition(chunk.run_id, Disposition.DONE), attention_sk=place)
    return replace(change, after=listed)
