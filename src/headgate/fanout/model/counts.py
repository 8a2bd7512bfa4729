"""Counters: the number of chunks in each disposition, and the fan-out status that follows from them.

Each chunk is in one bucket. A chunk's change and its counter update are one transaction, so the buckets always add up
to the total. A fan-out may have several counter rows, so that workers do not contend for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from headgate.fanout.model.rows import SLOW_LANE, Chunk, Fanout, Policy, counter_key, is_listed_completed
from headgate.fanout.model.states import ChunkStatus, Disposition, FanoutStatus
from headgate.fanout.model.tolerance import FAIL, Failures, exceeded_reason, is_limited
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.conditions import Condition, all_of, any_of, equals, exists, lacks
from headgate.store.model.requests import Check, Put, Update


class Counts(Struct, frozen=True, omit_defaults=True):
    """The sums over all counter rows of a fan-out."""

    total: int = 0
    waiting: int = 0
    queued: int = 0
    retrying: int = 0
    running: int = 0
    done: int = 0
    deferred: int = 0
    dead: int = 0
    quarantined: int = 0
    cancelled: int = 0
    skipped: int = 0
    # Of the done ones, those that the attention index lists.
    done_listed: int = 0
    items_total: int = 0
    items_ok: int = 0
    items_failed: int = 0
    items_deferred: int = 0
    # Of the failed items, those of failed chunks.
    items_dead: int = 0
    attempts: int = 0
    retries: int = 0
    lost: int = 0
    duplicates: int = 0
    redriven: int = 0
    # Time spent by workers, and the part spent on attempts that failed.
    busy_ms: int = 0
    wasted_ms: int = 0
    slow_total: int = 0
    slow_waiting: int = 0
    slow_queued: int = 0
    slow_retrying: int = 0
    slow_running: int = 0
    slow_done: int = 0
    slow_deferred: int = 0
    slow_dead: int = 0
    slow_quarantined: int = 0
    slow_cancelled: int = 0
    slow_skipped: int = 0

    @property
    def pending(self) -> int:
        """Chunks that are queued or waiting to be sent."""
        return self.waiting + self.queued + self.retrying

    @property
    def completed(self) -> int:
        """Chunks that are done, including those with deferred items."""
        return self.done + self.deferred

    @property
    def failed(self) -> int:
        """Chunks that are dead or quarantined."""
        return self.dead + self.quarantined

    @property
    def open(self) -> int:
        """Chunks that have not ended."""
        return self.pending + self.running

    @property
    def slow_open(self) -> int:
        """Slow-lane chunks that have not ended."""
        return self.slow_waiting + self.slow_queued + self.slow_retrying + self.slow_running

    @property
    def ended_share(self) -> float:
        """The share of ended chunks of both lanes, from 0 to 1; 1 only if all have ended."""
        every = self.total + self.slow_total
        return 1.0 - (self.open + self.slow_open) / every if every else 1.0

    def failures(self, policy: Policy) -> Failures:
        """Return the failures that count against the tolerated ones: chunks of both lanes or, with `each`, items."""
        chunks = self.failed + self.slow_dead + self.slow_quarantined
        if policy.each:
            return Failures(max(self.items_failed, chunks), self.items_total, "item")
        return Failures(chunks, self.total, "chunk")

    @property
    def items_open(self) -> int:
        """Items that are neither ok nor failed nor deferred: they wait, run, or were cancelled or skipped."""
        return self.items_total - self.items_ok - self.items_failed - self.items_deferred

    def by_status(self) -> dict[str, int]:
        """Return the number of chunks in each status."""
        sums = dict.fromkeys((status.value for status in ChunkStatus), 0)
        for disposition in Disposition:
            sums[disposition.status.value] += getattr(self, disposition.bucket)
        return sums

    def drift(self) -> int:
        """Return the difference between the buckets and the total: 0 unless a row was tampered with."""
        return sum(self.by_status().values()) - self.total


_NO_ITEMS: Final = (0, 0, 0, 0)
_ITEMS: Final = ("items_ok", "items_failed", "items_deferred", "items_dead")
NAMES: Final = frozenset(Counts.__struct_fields__)
_OPEN: Final = (Disposition.WAITING, Disposition.QUEUED, Disposition.RETRYING, Disposition.RUNNING)
_FAILED: Final = (Disposition.DEAD, Disposition.QUARANTINED)
_OPEN_BUCKETS: Final = tuple(prefix + disposition.bucket for prefix in ("", "slow_") for disposition in _OPEN)


def counts_of(items: Iterable[Mapping[str, Any] | None]) -> Counts:
    """Return the sum of counter rows."""
    sums: dict[str, int] = {}
    for item in items:
        for name, value in (item or {}).items():
            if name in NAMES:
                sums[name] = sums.get(name, 0) + int(value)
    return Counts(**sums)


def counts_dict(counts: Counts) -> dict[str, int]:
    """Return the counts in the form stored on a fan-out's row."""
    fields: dict[str, int] = msgspec.to_builtins(counts)
    return fields


def counter_delta(before: Chunk | None, after: Chunk) -> dict[str, int]:
    """Return what a change of a chunk adds to its counter."""
    prefix = "slow_" if after.lane == SLOW_LANE else ""
    delta: dict[str, int] = {}
    if before is None:
        delta[f"{prefix}total"] = 1
        if not prefix:
            delta["items_total"] = after.items
    elif before.disposition is not after.disposition:
        delta[prefix + before.disposition.bucket] = -1
    if before is None or before.disposition is not after.disposition:
        delta[prefix + after.disposition.bucket] = 1
    was, now = _NO_ITEMS if before is None else item_amounts(before), item_amounts(after)
    if now != was:
        delta |= {name: new - old for name, old, new in zip(_ITEMS, was, now, strict=True) if new != old}
    listed = is_listed_completed(after) - (before is not None and is_listed_completed(before))
    if listed:
        delta["done_listed"] = listed
    return delta


def item_amounts(chunk: Chunk) -> tuple[int, int, int, int]:
    """Return how many items a chunk's row counts as ok, failed and deferred, and as those of failed chunks.

    All others are open.

    Items of the slow lane are counted on the row of the chunk that deferred them. Those of a slow-lane chunk that
    failed are the exception: that row counts them as deferred, and they have failed.
    """
    dead = chunk.items_failed if chunk.disposition in _FAILED else 0
    if chunk.lane != SLOW_LANE:
        return chunk.items_ok, chunk.items_failed, chunk.items_deferred, dead
    return 0, dead, -dead, dead


def counter_add(run_id: str, shard: int, delta: Mapping[str, int], condition: Condition | None = None) -> Update:
    """Return the write that adds to a counter."""
    amounts = {name: amount for name, amount in delta.items() if amount}
    return Update(FANOUT, counter_key(run_id, shard), add=amounts, condition=condition)


def no_open_chunks_check(run_id: str, shard: int) -> Check:
    """Return the check that no chunk of a counter is open, in either lane."""
    zero = [any_of(lacks(name), equals(name, 0)) for name in _OPEN_BUCKETS]
    return Check(FANOUT, counter_key(run_id, shard), all_of(exists(), *zero))


def counter_puts(run_id: str, shards: int) -> list[Put]:
    """Return the writes that create the counters of a new fan-out."""
    keys = (counter_key(run_id, shard) for shard in range(shards))
    return [Put(FANOUT, FANOUT.key_attributes(key)) for key in keys]


def final_status(fanout: Fanout, counts: Counts) -> FanoutStatus | None:
    """Return the status of a fan-out with these counts, or None while chunks of the main lane are open.

    It is PARTIAL while only the slow lane is running, and stays PARTIAL if chunks or items failed. If the policy says
    how many failures are tolerated, it is SUCCEEDED with so many and FAILED with more.
    """
    # A cancelled fan-out is not split any further.
    is_split = fanout.status is not FanoutStatus.SPLITTING or fanout.cancelled_at is not None
    if not is_split or counts.open:
        return None
    policy = fanout.rules()
    is_stopped = fanout.exceeded_at is not None and policy.failures_action == FAIL
    if is_stopped or exceeded_reason(policy, counts.failures(policy), is_split=True) is not None:
        return FanoutStatus.FAILED
    is_cut_short = fanout.is_cut_short or fanout.status is FanoutStatus.SPLITTING
    if fanout.cancelled_at is not None and (counts.cancelled or counts.slow_cancelled or is_cut_short):
        return FanoutStatus.CANCELLED
    if is_limited(policy):
        # The chunk of a failed slow-lane chunk stays deferred.
        deferred = counts.deferred - counts.slow_dead - counts.slow_quarantined
        has_failed_items = counts.items_failed > counts.items_dead and not policy.each
        whole = not (deferred > 0 or counts.cancelled or has_failed_items)
        return FanoutStatus.SUCCEEDED if whole else FanoutStatus.PARTIAL
    if counts.total and not counts.completed and counts.failed:
        return FanoutStatus.FAILED
    whole = not (counts.failed or counts.items_failed or counts.deferred or counts.cancelled)
    return FanoutStatus.SUCCEEDED if whole else FanoutStatus.PARTIAL


def all_ended(counts: Counts) -> bool:
    """Whether all chunks of both lanes have ended."""
    return not counts.open and not counts.slow_open
