"""Recounts: sums over the rows of a fan-out, and faults of single rows, in bounded memory.

Rows change while they are counted. Each sum therefore has a mark: a hash over everything that a change into or out of
that sum leaves in a row. If two consecutive recounts have equal marks, no row entered or left the sum in between, and
the sum is exact for the time between the two.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.fanout.core.attempts import attention_of, has_listed_items, with_disposition
from headgate.fanout.model.counts import item_amounts
from headgate.fanout.model.rows import (
    MAIN_LANE,
    SLOW_LANE,
    Chunk,
    Fanout,
    is_listed_completed,
    queue_partition,
    start_of,
)
from headgate.fanout.model.states import Disposition

_BUCKETS: Final = tuple(disposition.bucket for disposition in Disposition)
# The counters that can be derived from rows.
NAMES: Final = (
    "total",
    *_BUCKETS,
    "done_listed",
    "items_total",
    "items_ok",
    "items_failed",
    "items_deferred",
    "items_dead",
    "slow_total",
    *(f"slow_{bucket}" for bucket in _BUCKETS),
)


def names_of(fanout: Fanout) -> tuple[str, ...]:
    """Return the counters of a fan-out that can be derived from its rows."""
    return NAMES if fanout.lists_completed else tuple(name for name in NAMES if name != "done_listed")


# Changed only by splits and bisections, not by transitions.
STRUCTURE: Final = ("total", "items_total", "slow_total")
# A chunk leaves the second group only by a redrive or a skip. Other dispositions are final.
_OPEN: Final = (Disposition.WAITING, Disposition.QUEUED, Disposition.RETRYING, Disposition.RUNNING)
_FAILED_OR_CANCELLED: Final = (Disposition.DEAD, Disposition.QUARANTINED, Disposition.CANCELLED)
_IN_ATTENTION_INDEX: Final = (
    Disposition.RUNNING,
    Disposition.RETRYING,
    Disposition.DEFERRED,
    Disposition.DEAD,
    Disposition.QUARANTINED,
    Disposition.CANCELLED,
    Disposition.SKIPPED,
)
_QUEUED: Final = (Disposition.QUEUED, Disposition.RETRYING)
_QUEUE_POSITION: Final = re.compile(r"\d{13}#\d+")


class RowFault(Struct, frozen=True):
    """A row that is inconsistent in itself. `can_repair` says whether the right values are known."""

    chunk: Chunk
    description: str
    can_repair: bool = True


class _Slot:
    """A sum and its mark. A class, because every row changes several."""

    __slots__ = ("mark", "sum")

    def __init__(self) -> None:
        self.sum = 0
        self.mark = 0


class Recount:
    """One pass over the rows of a fan-out: the main lane in item order, then the slow lane."""

    def __init__(self, fanout: Fanout, *, named_max: int) -> None:
        self.chunks = 0
        self.pieces = 0
        self.faults: list[RowFault] = []
        self.faults_count = 0
        # Gaps and overlaps between the items of neighbouring chunks.
        self.breaks: list[str] = []
        self.breaks_count = 0
        self._fanout = fanout
        self._named_max = named_max
        # By shard: the sum and the mark of each name.
        self._slots: dict[int, dict[str, _Slot]] = {}
        self._last: Chunk | None = None
        self._end = 0

    def add(self, chunk: Chunk) -> None:
        """Add a row."""
        is_slow = chunk.lane == SLOW_LANE
        if is_slow:
            self.pieces += 1
        else:
            self.chunks += 1
            self._follow(chunk)
        slots = self._slots.get(chunk.shard)
        if slots is None:
            slots = self._slots[chunk.shard] = defaultdict(_Slot)
        for name, amount in amounts(chunk, is_slow=is_slow):
            if amount:
                slot = slots[name]
                slot.sum += amount
                slot.mark += hash((chunk.sk, name, amount))
        for move, trace in move_traces(chunk, is_slow=is_slow):
            slots[move].mark += hash((chunk.sk, trace))
        for fault in faults(chunk, self._fanout):
            self.faults_count += 1
            if len(self.faults) < self._named_max:
                self.faults.append(fault)

    def end(self, items_total: int) -> None:
        """Finish the pass, and check the number of items."""
        if self._end < items_total:
            self._break(f"items {self._end} to {items_total - 1} are in no chunk, after {self._last_name()}")
        elif self._end > items_total:
            self._break(f"{self._last_name()} has items up to {self._end - 1}, and the fan-out has only {items_total}")

    def sum(self, shard: int, name: str) -> int:
        """Return the sum over the rows of a shard."""
        slot = self._slots.get(shard, {}).get(name)
        return slot.sum if slot is not None else 0

    def total(self, name: str) -> int:
        """Return the sum over all rows."""
        return sum(self.sum(shard, name) for shard in self._slots)

    def mark(self, shard: int, name: str) -> tuple[int, ...]:
        """Return the mark of a sum."""
        rows = "slow_total" if name.startswith("slow_") else "total"
        slots = self._slots.get(shard, {})
        found = [slots.get(part) for part in (name, rows, *_MOVES.get(name, ()))]
        return tuple(slot.mark if slot is not None else 0 for slot in found)

    def _follow(self, chunk: Chunk) -> None:
        """Check that a chunk starts where the previous one ended."""
        end = chunk.start + chunk.items
        if chunk.start > self._end:
            description = f"items {self._end} to {chunk.start - 1} are in no chunk"
            self._break(f"{description}, between {self._last_name()} and {chunk.chunk_id}")
        elif chunk.start < self._end:
            description = f"items {chunk.start} to {min(self._end, end) - 1} are in two chunks"
            self._break(f"{description}, {self._last_name()} and {chunk.chunk_id}")
        if end >= self._end:
            self._last, self._end = chunk, end

    def _last_name(self) -> str:
        return self._last.chunk_id if self._last is not None else "the beginning"

    def _break(self, description: str) -> None:
        self.breaks_count += 1
        if len(self.breaks) < self._named_max:
            self.breaks.append(description)


def amounts(chunk: Chunk, *, is_slow: bool) -> tuple[tuple[str, int], ...]:
    """Return the contributions of a chunk to each sum."""
    ok, failed, deferred, dead = item_amounts(chunk)
    bucket = chunk.disposition.bucket
    rows = (("slow_total", 1), (f"slow_{bucket}", 1)) if is_slow else (("total", 1), (bucket, 1))
    listed = ("done_listed", int(is_listed_completed(chunk)))
    items = () if is_slow else (listed, ("items_total", chunk.items), ("items_ok", ok))
    return (*rows, *items, ("items_failed", failed), ("items_deferred", deferred), ("items_dead", dead))


def move_traces(chunk: Chunk, *, is_slow: bool) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield what a transition into and out of a sum would leave in the row, for each kind of transition.

    Queued and running chunks come and go, but each time with another token, attempt or end. A failed, cancelled or
    completed chunk leaves only by a redrive, which is counted, or a skip, which is final. A deferred chunk keeps its
    deferred items.
    """
    prefix = "slow_" if is_slow else ""
    what, lives = chunk.disposition, (chunk.redrives, chunk.heals)
    life = (what, chunk.token, chunk.attempt, chunk.completed_at, *lives)
    is_given_up = what in _FAILED_OR_CANCELLED
    if is_given_up or what in _OPEN:
        yield f"{prefix}open", life
    yield f"{prefix}given up", life if is_given_up else (what is Disposition.SKIPPED, *lives)
    if chunk.deferred is not None and not prefix:
        yield "deferral", (what,)


def _moves() -> dict[str, tuple[str, ...]]:
    moves: dict[str, tuple[str, ...]] = {
        "done": ("given up", "deferral"),
        "done_listed": ("given up", "deferral"),
        "slow_done": ("slow_given up",),
        "deferred": ("given up", "deferral"),
        "items_deferred": ("given up", "deferral", "slow_given up"),
        "items_ok": ("given up",),
        "items_failed": ("given up", "slow_given up"),
        "items_dead": ("given up", "slow_given up"),
    }
    for prefix in ("", "slow_"):
        moves |= {f"{prefix}{disposition.bucket}": (f"{prefix}open",) for disposition in _OPEN}
        moves |= {f"{prefix}{disposition.bucket}": (f"{prefix}given up",) for disposition in _FAILED_OR_CANCELLED}
    return moves


# The transitions by which a chunk can enter and leave each sum.
_MOVES: Final = _moves()


def faults(chunk: Chunk, fanout: Fanout) -> Iterator[RowFault]:
    """Yield the faults of a single row."""
    name, what = chunk.chunk_id, chunk.disposition
    if chunk.status is not what.status:
        yield RowFault(chunk, f"{name} is {what}, and its status says {chunk.status} instead of {what.status}")
    if chunk.start != start_of(chunk.sk):
        yield RowFault(chunk, f"{name} has {chunk.start} as its first item", can_repair=False)
    if not fanout.shards:
        # Written by another program, without our counters and indexes.
        return
    if not 0 <= chunk.shard < fanout.shards:
        yield RowFault(
            chunk,
            f"{name} is counted in shard {chunk.shard}, of {fanout.shards}",
            can_repair=False,
        )
    if what is Disposition.WAITING and fanout.queue_url is None:
        yield RowFault(
            chunk, f"{name} waits for its message to be sent, and the fan-out has no queue", can_repair=False
        )
    if not _has_right_attention(chunk):
        is_missing = _belongs_in_attention(chunk)
        found = "the attention index does not list it" if is_missing else "the attention index lists it"
        yield RowFault(chunk, f"{name} is {what}, and {found}")
    if not _has_right_queue_position(chunk):
        found = "it is not in the queue" if what in _QUEUED else "it is in the queue"
        yield RowFault(chunk, f"{name} is {what}, and {found}")


def repaired(chunk: Chunk, now_ms: int) -> Chunk:
    """Return the chunk with the status and index attributes that match its disposition."""
    since = chunk.completed_at or chunk.started_at or chunk.created_at
    fixed = with_disposition(chunk, chunk.disposition, since, now_ms)
    if _has_right_queue_position(chunk):
        fixed = replace(fixed, queue_pk=chunk.queue_pk, queue_sk=chunk.queue_sk)
    if _has_right_attention(chunk):
        fixed = replace(fixed, attention_pk=chunk.attention_pk, attention_sk=chunk.attention_sk)
    return fixed


def _belongs_in_attention(chunk: Chunk) -> bool:
    return chunk.disposition in _IN_ATTENTION_INDEX or has_listed_items(chunk, chunk.disposition)


def _has_right_attention(chunk: Chunk) -> bool:
    if not _belongs_in_attention(chunk):
        return chunk.attention_pk is None or is_listed_completed(chunk) or _is_listed_unsent(chunk)
    if chunk.attention_pk != attention_of(chunk.run_id, chunk.disposition) or chunk.attention_sk is None:
        return False
    is_running = chunk.disposition is Disposition.RUNNING
    return not is_running or chunk.attention_sk.startswith(f"{chunk.lease_expires_at}#")


def _is_listed_unsent(chunk: Chunk) -> bool:
    is_unsent = chunk.disposition is Disposition.WAITING
    return is_unsent and chunk.attention_pk == attention_of(chunk.run_id, Disposition.WAITING)


def _has_right_queue_position(chunk: Chunk) -> bool:
    if chunk.queue_pk is None:
        return chunk.disposition not in _QUEUED
    if chunk.disposition not in _QUEUED:
        return False
    # A chunk of the main lane may be in the slow lane's queue, see `auto_heal`.
    lanes = (SLOW_LANE,) if chunk.lane == SLOW_LANE else (MAIN_LANE, SLOW_LANE)
    is_listed = chunk.queue_pk in [queue_partition(chunk.run_id, lane) for lane in lanes]
    return is_listed and _QUEUE_POSITION.fullmatch(chunk.queue_sk or "") is not None
