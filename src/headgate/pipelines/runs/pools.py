"""Pools: named concurrency limits across pipelines, as rows.

One row holds the leases of a pool, and every change of it is a compare-and-swap, so that its size is never exceeded.
Each waiting run is a row of its own, in the order of the queue. A run that cannot start enters the queue first and
reads the pool afterwards; a slot is freed first and the queue is read afterwards: a free slot and a waiting run never
miss each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from headgate.clock import Clock, epoch_ms
from headgate.errors import ConflictError
from headgate.pipelines.row_codec import row, struct_of
from headgate.pipelines.runs import pool_decisions
from headgate.pipelines.runs.pool_decisions import Lease, Pool, PoolNeed, Ticket, ticket_of
from headgate.pipelines.runs.rows import Run, run_key, run_of
from headgate.store.catalogue.tables import PIPELINES, POOL, POOL_TICKET
from headgate.store.model.conditions import absent, version_is
from headgate.store.model.requests import Delete, Put, Query, Range, Sort, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

# How many waiting runs one grant considers. A transaction has at most 100 writes.
_QUEUE_BATCH: Final = 50
_RACES_MAX: Final = 50
_TICKETS: Final = "TICKET#"
# A run that waits longer enters the queue again, at the same place.
_TICKET_SECONDS: Final = 30 * 86_400
# The row of a pool that is no longer used.
_IDLE_SECONDS: Final = 30 * 86_400


class PoolWait(Struct, frozen=True):
    """Why a run waits: the pool as it was read, and the run's place in the queue, counted from 1."""

    need: PoolNeed
    pool: Pool
    place: int
    queued_at_ms: int


class Pools:
    """Stores leases and queues of pools. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def get(self, name: str) -> Pool:
        """Return the leases of a pool; an unused one has none."""
        item = self._store.get(PIPELINES, POOL.key(pool=name), consistent=True)
        return Pool(name=name) if item is None else pool_of(item)

    def queue(self, name: str, *, limit: int = _QUEUE_BATCH) -> list[Ticket]:
        """Return the first runs in the queue of a pool."""
        query = Query(
            table=PIPELINES,
            partition=POOL.key(pool=name).partition,
            sort=Sort(Range.BEGINS_WITH, _TICKETS),
            limit=limit,
            consistent=True,
        )
        return [struct_of(item, Ticket) for item in self._store.query(query).items]

    def acquire(self, run: Run, need: PoolNeed) -> PoolWait | None:
        """Take slots for a run, or enter the queue and return why it waits. Repeating it is harmless."""
        now_ms = epoch_ms(self._clock)
        pool = self.get(need.pool)
        lease = pool.lease_of(run.run_id)
        if lease is None:
            lease = self._take_free(run, need, pool)
        if lease is None:
            self._enter(run, need, now_ms)
            if need.size is not None:
                self.serve(need.pool, need.size)
            pool = self.get(need.pool)
            lease = pool.lease_of(run.run_id)
        if lease is None:
            return self.wait_of(run, need, pool)
        if not lease.is_claimed:
            claimed = self._change(need.pool, lambda found: pool_decisions.claim(found, run.run_id, now_ms))
            if claimed.lease_of(run.run_id) is None:
                # The offer expired and was withdrawn in between: the next evaluation enters the queue again.
                return self.wait_of(run, need, claimed)
        return None

    def leave(self, run: Run, pool: str) -> bool:
        """Give up the slots and the place of a run. True: slots became free; call `serve`."""
        key = _ticket_key(pool, run.created_at_ms, run.run_id)
        if self._store.get(PIPELINES, key, consistent=True) is not None:
            self._store.delete(PIPELINES, key)
        return self.free(pool, run.run_id) is not None

    def free(self, pool: str, run_id: str) -> Lease | None:
        """End the lease of a run and return it. None: the run has none. Call `serve` afterwards."""
        freed = self.get(pool).lease_of(run_id)
        if freed is not None:
            self._change(pool, lambda found: pool_decisions.without(found, run_id))
        return freed

    def serve(self, name: str, size: int) -> int:
        """Offer free slots to the first runs in the queue, and return how many runs got some."""
        for _ in range(_RACES_MAX):
            pool = self._verified(self.get(name))
            tickets = self.queue(name)
            grants = pool_decisions.grant(pool, size, tickets, epoch_ms(self._clock))
            if not grants.taken:
                return 0
            removed: list[Write] = [
                Delete(PIPELINES, _ticket_key(name, each.run_created_at_ms, each.run_id)) for each in grants.taken
            ]
            try:
                self._store.transact([_put(grants.pool, self._clock), *removed])
            except ConflictError:
                continue
            if len(tickets) < _QUEUE_BATCH or len(grants.taken) < len(tickets):
                return len(grants.pool.leases) - len(pool.leases)
        raise ConflictError(f"pool {name}: concurrent changes keep winning; try again")

    def sweep(self, name: str, size: int) -> int:
        """Renew the leases of active runs, drop the others, and serve the queue. Returns the number of dropped ones."""
        pool = self.get(name)
        if not pool.leases and not self.queue(name, limit=1):
            return 0
        after = self._swept(pool)
        self.serve(name, size)
        return len(pool.leases) - len(after.leases)

    def wait_of(self, run: Run, need: PoolNeed, pool: Pool | None = None) -> PoolWait | None:
        """Return why a run waits for a pool. None: it does not wait."""
        tickets = self.queue(need.pool, limit=1_000)
        place = next((index for index, each in enumerate(tickets, 1) if each.run_id == run.run_id), 0)
        pool = self.get(need.pool) if pool is None else pool
        if place:
            return PoolWait(need, pool, place, tickets[place - 1].queued_at_ms)
        ticket = self._store.get(PIPELINES, _ticket_key(need.pool, run.created_at_ms, run.run_id), consistent=True)
        if ticket is not None:
            return PoolWait(need, pool, len(tickets) + 1, struct_of(ticket, Ticket).queued_at_ms)
        lease = pool.lease_of(run.run_id)
        if lease is None or lease.is_claimed:
            return None
        return PoolWait(need, pool, 0, lease.queued_at_ms)

    def is_offered(self, run_id: str, pool: str) -> bool:
        """Whether a run has an offer that it has not claimed."""
        lease = self.get(pool).lease_of(run_id)
        return lease is not None and not lease.is_claimed

    def _take_free(self, run: Run, need: PoolNeed, pool: Pool) -> Lease | None:
        """Take free slots of a pool without a queue, in one write."""
        now_ms = epoch_ms(self._clock)
        if need.size is None or pool.used + need.slots > need.size or self.queue(need.pool, limit=1):
            return None
        granted = pool_decisions.grant(pool, need.size, [ticket_of(run, need, now_ms)], now_ms).pool
        claimed = pool_decisions.claim(granted, run.run_id, now_ms)
        try:
            self._store.transact([_put(claimed, self._clock)])
        except ConflictError:
            return None
        return claimed.lease_of(run.run_id)

    def _enter(self, run: Run, need: PoolNeed, now_ms: int) -> None:
        ticket = ticket_of(run, need, now_ms)
        key = _ticket_key(need.pool, run.created_at_ms, run.run_id)
        try:
            self._store.put(PIPELINES, row(key, ticket, ttl=now_ms // 1000 + _TICKET_SECONDS), condition=absent())
        except ConflictError:
            # It is in the queue already, and keeps the time at which it entered.
            return

    def _verified(self, pool: Pool) -> Pool:
        """Return a pool without the expired leases of runs that have ended."""
        now_ms = epoch_ms(self._clock)
        return self._swept(pool) if any(each.expires_at_ms <= now_ms for each in pool.leases) else pool

    def _swept(self, pool: Pool) -> Pool:
        active = frozenset(each.run_id for each in pool.leases if self._is_active(each.run_id))
        after = pool_decisions.swept(pool, active, epoch_ms(self._clock))
        if after == pool:
            return pool
        try:
            self._store.transact([_put(after, self._clock)])
        except ConflictError:
            # The pool changed while its runs were read. The next sweep finds the rest.
            return self.get(pool.name)
        return Pool(name=pool.name, version=pool.version + 1, leases=after.leases)

    def _is_active(self, run_id: str) -> bool:
        item = self._store.get(PIPELINES, run_key(run_id), consistent=True)
        status = None if item is None else run_of(item).status
        return status is not None and not status.is_terminal and not status.is_done

    def _change(self, name: str, change: Callable[[Pool], Pool]) -> Pool:
        for _ in range(_RACES_MAX):
            pool = self.get(name)
            after = change(pool)
            if after == pool:
                return pool
            try:
                self._store.transact([_put(after, self._clock)])
            except ConflictError:
                continue
            return after
        raise ConflictError(f"pool {name}: concurrent changes keep winning; try again")


def pool_of(item: Mapping[str, Any]) -> Pool:
    """Decode a pool from its row. Raises `CorruptionError` for another row."""
    return struct_of(item, Pool)


def is_pool_row(key: Key) -> bool:
    """Whether a key is of the row with the leases of a pool."""
    return str(key.partition).startswith("POOL#") and str(key.sort) == "STATE"


def waiting_text(wait: PoolWait) -> str:
    """Return the sentence that says which pool a run waits for, and which runs hold it."""
    need = wait.need
    if need.size is None:
        return f"pool {need.pool} is not declared; add it to pipelines.pools in the settings"
    name = _shown_name(need.pool)
    place = f"place {wait.place} in its queue" if wait.place else "a slot is offered to it"
    return f"{name} has {wait.pool.used} of {need.size} slots in use by {_holders(wait.pool.leases)}; {place}"


def _shown_name(pool: str) -> str:
    if pool.startswith(pool_decisions.OWN_POOL):
        return f"the concurrency limit of {pool.removeprefix(pool_decisions.OWN_POOL)}"
    return f"pool {pool}"


_HOLDERS_NAMED: Final = 3


def _holders(leases: Sequence[Lease]) -> str:
    named = [f"{each.pipeline_id} of {each.date} ({each.run_id})" for each in leases[:_HOLDERS_NAMED]]
    more = [f"{len(leases) - _HOLDERS_NAMED} more"] if len(leases) > _HOLDERS_NAMED else []
    return ", ".join([*named, *more]) or "no run"


def _put(pool: Pool, clock: Clock) -> Put:
    """Return the write of a changed pool that replaces the version it was read at."""
    item = row(POOL.key(pool=pool.name), pool, ttl=int(clock.seconds()) + _IDLE_SECONDS)
    item["version"] = pool.version + 1
    return Put(PIPELINES, item, version_is(pool.version) if pool.version else absent())


def _ticket_key(pool: str, run_created_at_ms: int, run_id: str) -> Key:
    return POOL_TICKET.key(pool=pool, run_created_at_ms=run_created_at_ms, run_id=run_id)
