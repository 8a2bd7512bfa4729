"""Recounts: what the rows of a fan-out add up to and what is wrong with them, in bounded memory.

A count goes through rows that others move meanwhile. So each number comes with a mark. If that is the same in two
counts, one after the other, no row was moved in or out of the number in between, nor in and out again: the number is
what it was at the moment when the one count had ended and the other had not begun. For this a mark is made of
everything by which such a move would show in a row afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.fanout.core.attempts import placed
from headgate.fanout.model.rows import MAIN_LANE, SLOW_LANE, Chunk, Fanout, attention, queue, start_of
from headgate.fanout.model.states import Disposition

_BUCKETS: Final = tuple(disposition.bucket for disposition in Disposition)
# What is counted and can be told from the rows.
NAMES: Final = (
    "total",
    *_BUCKETS,
    "items_total",
    "items_ok",
    "items_failed",
    "items_deferred",
    "slow_total",
    *(f"slow_{bucket}" for bucket in _BUCKETS),
)
# Changed by a split or a cut alone, however chunks move.
STRUCTURE: Final = ("total", "items_total", "slow_total")
# From these a chunk goes nowhere by itself, and by a redrive only to where it began. What else it can be, it stays.
_OPEN: Final = (Disposition.WAITING, Disposition.QUEUED, Disposition.RETRYING, Disposition.RUNNING)
_GIVEN_UP: Final = (Disposition.DEAD, Disposition.QUARANTINED, Disposition.CANCELLED)
_WATCHED: Final = (
    Disposition.RUNNING,
    Disposition.RETRYING,
    Disposition.DEFERRED,
    Disposition.DEAD,
    Disposition.QUARANTINED,
)
_QUEUED: Final = (Disposition.QUEUED, Disposition.RETRYING)
_QUEUE_PLACE: Final = re.compile(r"\d{13}#\d+")
_MARK_BITS: Final = (1 << 64) - 1


class Fault(Struct, frozen=True):
    """A row that is wrong by itself. `can_mend` says whether it is known how it should be."""

    chunk: Chunk
    said: str
    can_mend: bool = True


class Recount:
    """One count of the rows of a fan-out: those of the main lane in their order, then those of the slow lane."""

    def __init__(self, fanout: Fanout, *, named_max: int) -> None:
        self.chunks = 0
        self.pieces = 0
        self.faults: list[Fault] = []
        self.faults_count = 0
        # Where the items of one chunk do not follow those of the one before.
        self.breaks: list[str] = []
        self.breaks_count = 0
        self._fanout = fanout
        self._named_max = named_max
        self._sums: dict[tuple[int, str], int] = {}
        self._marks: dict[tuple[int, str], int] = {}
        self._last: Chunk | None = None
        self._end = 0

    def add(self, chunk: Chunk) -> None:
        """Count a row in."""
        if chunk.lane == SLOW_LANE:
            self.pieces += 1
        else:
            self.chunks += 1
            self._follow(chunk)
        for name, amount in amounts(chunk).items():
            place = (chunk.shard, name)
            self._sums[place] = self._sums.get(place, 0) + amount
            self._mark(place, hash((chunk.sk, name, amount)))
        for way, trace in traces(chunk).items():
            self._mark((chunk.shard, way), hash((chunk.sk, trace)))
        for fault in faults(chunk, self._fanout):
            self.faults_count += 1
            if len(self.faults) < self._named_max:
                self.faults.append(fault)

    def end(self, items_total: int) -> None:
        """Note that there are no more rows, and how many items they should have had."""
        if self._end < items_total:
            self._break(f"items {self._end} to {items_total - 1} are in no chunk, after {self._last_name()}")
        elif self._end > items_total:
            self._break(f"{self._last_name()} has items up to {self._end - 1}, and the fan-out has only {items_total}")

    def sum(self, shard: int, name: str) -> int:
        """Return what the rows that are counted in a shard add up to."""
        return self._sums.get((shard, name), 0)

    def total(self, name: str) -> int:
        """Return what all rows add up to."""
        return sum(amount for (_, of), amount in self._sums.items() if of == name)

    def mark(self, shard: int, name: str) -> tuple[int, ...]:
        """Return the mark of a number."""
        rows = "slow_total" if name.startswith("slow_") else "total"
        return tuple(self._marks.get((shard, part), 0) for part in (name, rows, *_WAYS.get(name, ())))

    def _mark(self, place: tuple[int, str], mark: int) -> None:
        self._marks[place] = (self._marks.get(place, 0) + mark) & _MARK_BITS

    def _follow(self, chunk: Chunk) -> None:
        """See that a chunk begins where the last one has ended."""
        end = chunk.start + chunk.items
        if chunk.start > self._end:
            said = f"items {self._end} to {chunk.start - 1} are in no chunk"
            self._break(f"{said}, between {self._last_name()} and {chunk.chunk_id}")
        elif chunk.start < self._end:
            said = f"items {chunk.start} to {min(self._end, end) - 1} are in two chunks"
            self._break(f"{said}, {self._last_name()} and {chunk.chunk_id}")
        if end >= self._end:
            self._last, self._end = chunk, end

    def _last_name(self) -> str:
        return self._last.chunk_id if self._last is not None else "the beginning"

    def _break(self, said: str) -> None:
        self.breaks_count += 1
        if len(self.breaks) < self._named_max:
            self.breaks.append(said)


def amounts(chunk: Chunk) -> dict[str, int]:
    """Return what a chunk adds to each number, where that is not 0."""
    if chunk.lane == SLOW_LANE:
        return {"slow_total": 1, f"slow_{chunk.disposition.bucket}": 1}
    found = {
        "total": 1,
        chunk.disposition.bucket: 1,
        "items_total": chunk.items,
        "items_ok": chunk.items_ok,
        "items_failed": chunk.items_failed,
        "items_deferred": chunk.items_deferred,
    }
    return {name: amount for name, amount in found.items() if amount}


def traces(chunk: Chunk) -> dict[str, tuple[object, ...]]:
    """Return by what it would show in a row if it was moved in and out of a number, for each way in which that goes.

    Waiting and running chunks come and go, but each time with another token, attempt or end. Given up, a chunk goes
    on only by being redriven, which is counted, or skipped, which is final. Deferred, it keeps which items were.
    """
    prefix = "slow_" if chunk.lane == SLOW_LANE else ""
    what, lives = chunk.disposition, (chunk.redrives, chunk.heals)
    life = (what, chunk.token, chunk.attempt, chunk.completed_at, *lives)
    found: dict[str, tuple[object, ...]] = {}
    if what in _OPEN or what in _GIVEN_UP:
        found[f"{prefix}open"] = life
    found[f"{prefix}given up"] = life if what in _GIVEN_UP else (what is Disposition.SKIPPED, *lives)
    if chunk.deferred is not None and not prefix:
        found["deferral"] = (what,)
    return found


def _ways() -> dict[str, tuple[str, ...]]:
    ways: dict[str, tuple[str, ...]] = {
        "deferred": ("deferral",),
        "items_deferred": ("deferral",),
        "items_ok": ("given up",),
        "items_failed": ("given up",),
    }
    for prefix in ("", "slow_"):
        ways |= {f"{prefix}{disposition.bucket}": (f"{prefix}open",) for disposition in _OPEN}
        ways |= {f"{prefix}{disposition.bucket}": (f"{prefix}given up",) for disposition in _GIVEN_UP}
    return ways


# By which ways a chunk can have been moved in and out of which number.
_WAYS: Final = _ways()


def faults(chunk: Chunk, fanout: Fanout) -> Iterator[Fault]:
    """Give what is wrong with a row by itself."""
    name, what = chunk.chunk_id, chunk.disposition
    if chunk.status is not what.status:
        yield Fault(chunk, f"{name} is {what}, and its status says {chunk.status} instead of {what.status}")
    if chunk.start != start_of(chunk.sk):
        yield Fault(chunk, f"{name} says that its first item is {chunk.start}", can_mend=False)
    if not fanout.shards:
        # Made by another program, which knows neither counters nor indexes of ours.
        return
    if not 0 <= chunk.shard < fanout.shards:
        yield Fault(
            chunk,
            f"{name} says that it is counted in shard {chunk.shard}, and there are {fanout.shards}",
            can_mend=False,
        )
    if what is Disposition.WAITING and fanout.queue_url is None:
        yield Fault(chunk, f"{name} waits for its message to be sent, and the fan-out has no queue", can_mend=False)
    if not _is_watched_rightly(chunk):
        found = (
            "whoever looks for such chunks does not find it" if what in _WATCHED else "it is listed as something else"
        )
        yield Fault(chunk, f"{name} is {what}, and {found}")
    if not _is_queued_rightly(chunk):
        found = "no worker finds it" if what in _QUEUED else "it is in the queue"
        yield Fault(chunk, f"{name} is {what}, and {found}")


def mended(chunk: Chunk, now_ms: int) -> Chunk:
    """Return the chunk with the status that it should have and in the indexes where it belongs."""
    since = chunk.completed_at or chunk.started_at or chunk.created_at
    home = placed(chunk, chunk.disposition, since, now_ms)
    if _is_queued_rightly(chunk):
        home = replace(home, queue_pk=chunk.queue_pk, queue_sk=chunk.queue_sk)
    if _is_watched_rightly(chunk):
        home = replace(home, attention_pk=chunk.attention_pk, attention_sk=chunk.attention_sk)
    return home


def _is_watched_rightly(chunk: Chunk) -> bool:
    if chunk.disposition not in _WATCHED:
        return chunk.attention_pk is None
    if chunk.attention_pk != attention(chunk.run_id, chunk.disposition) or chunk.attention_sk is None:
        return False
    is_running = chunk.disposition is Disposition.RUNNING
    return not is_running or chunk.attention_sk.startswith(f"{chunk.lease_expires_at}#")


def _is_queued_rightly(chunk: Chunk) -> bool:
    if chunk.disposition not in _QUEUED:
        return chunk.queue_pk is None
    # A chunk of the main lane may stand in the queue of the slow lane (see `healing`).
    lanes = (SLOW_LANE,) if chunk.lane == SLOW_LANE else (MAIN_LANE, SLOW_LANE)
    is_listed = chunk.queue_pk in [queue(chunk.run_id, lane) for lane in lanes]
    return is_listed and _QUEUE_PLACE.fullmatch(chunk.queue_sk or "") is not None
