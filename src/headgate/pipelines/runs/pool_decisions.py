"""Pool decisions: who holds the slots of a pool, and which waiting run gets the next one. Pure functions.

Slots are granted in the order in which runs were created. A run that needs more slots than are free stops the queue
behind it, so that small runs cannot overtake it forever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.runs.rows import Run, Slot

# A lease is renewed while its run is active. After it has expired, the run is read before the slot is given away.
LEASE_MS: Final = 900_000
# A granted slot that the run does not claim in this time is given to the next run.
OFFER_MS: Final = 600_000
# The prefix of the pool behind a pipeline's own `concurrency`. A name of a declared pool cannot contain a slash.
OWN_POOL: Final = "pipeline/"


class Lease(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Slots of a pool that a run holds. Until the run claims them, they are an offer."""

    run_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    slots: int = 1
    # When the run entered the queue, and when it got the slots.
    queued_at_ms: int
    granted_at_ms: int
    expires_at_ms: int
    is_claimed: bool = False

    @property
    def slot(self) -> Slot:
        """The period of the run."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class Pool(Struct, frozen=True, kw_only=True):
    """The leases of a pool. Version 0: it has never been used."""

    name: str
    version: int = 0
    leases: tuple[Lease, ...] = ()

    @property
    def used(self) -> int:
        """The slots that are held or offered."""
        return sum(lease.slots for lease in self.leases)

    def lease_of(self, run_id: str) -> Lease | None:
        """Return the lease of a run, or None."""
        return next((lease for lease in self.leases if lease.run_id == run_id), None)


class Ticket(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in the queue of a pool."""

    pool: str
    run_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    # Orders the queue.
    run_created_at_ms: int
    queued_at_ms: int
    slots: int = 1

    @property
    def slot(self) -> Slot:
        """The period of the run."""
        return Slot(self.pipeline_id, self.schedule_id, self.date)


class PoolNeed(Struct, frozen=True):
    """Slots that a run needs. `size` is None for a pool that is not declared."""

    pool: str
    size: int | None
    slots: int


class Grants(Struct, frozen=True):
    """A pool after slots were granted, and the tickets that are no longer in the queue."""

    pool: Pool
    taken: tuple[Ticket, ...]


def pool_needs(pipeline: Pipeline, sizes: Mapping[str, int]) -> tuple[PoolNeed, ...]:
    """Return the slots that a run of a pipeline needs, in the order in which they are acquired.

    The order is the same for all pipelines, so that two runs cannot wait for each other.
    """
    needs: list[PoolNeed] = []
    if pipeline.concurrency:
        needs.append(PoolNeed(OWN_POOL + pipeline.id, pipeline.concurrency, 1))
    if pipeline.pool:
        size = sizes.get(pipeline.pool)
        # A pool that was made smaller than a run's need must not block for ever: the run then takes all of it.
        needs.append(PoolNeed(pipeline.pool, size, pipeline.slots if size is None else min(pipeline.slots, size)))
    return tuple(needs)


def ticket_of(run: Run, need: PoolNeed, now_ms: int) -> Ticket:
    """Return the ticket with which a run enters the queue of a pool."""
    return Ticket(
        **run.slot._asdict(),
        pool=need.pool,
        run_id=run.run_id,
        run_created_at_ms=run.created_at_ms,
        queued_at_ms=now_ms,
        slots=need.slots,
    )


def grant(pool: Pool, size: int, queue: Sequence[Ticket], now_ms: int) -> Grants:
    """Give free slots to the first tickets of a queue, as offers."""
    leases = list(pool.leases)
    holders = {lease.run_id for lease in leases}
    free = size - pool.used
    taken: list[Ticket] = []
    for ticket in queue:
        if ticket.run_id in holders:
            # Left over by a run that entered the queue again while it was served.
            taken.append(ticket)
            continue
        slots = min(ticket.slots, size)
        if slots > free:
            break
        free -= slots
        taken.append(ticket)
        holders.add(ticket.run_id)
        leases.append(
            Lease(
                **ticket.slot._asdict(),
                run_id=ticket.run_id,
                slots=slots,
                queued_at_ms=ticket.queued_at_ms,
                granted_at_ms=now_ms,
                expires_at_ms=now_ms + OFFER_MS,
            )
        )
    return Grants(replace(pool, leases=tuple(leases)), tuple(taken))


def claim(pool: Pool, run_id: str, now_ms: int) -> Pool:
    """Turn the offer to a run into its lease."""
    return replace(
        pool,
        leases=tuple(
            replace(lease, is_claimed=True, granted_at_ms=now_ms, expires_at_ms=now_ms + LEASE_MS)
            if lease.run_id == run_id and not lease.is_claimed
            else lease
            for lease in pool.leases
        ),
    )


def without(pool: Pool, run_id: str) -> Pool:
    """Return a pool without the lease of a run."""
    return replace(pool, leases=tuple(lease for lease in pool.leases if lease.run_id != run_id))


def swept(pool: Pool, active_run_ids: frozenset[str], now_ms: int) -> Pool:
    """Drop the leases of ended runs and the offers that were not claimed in time, and renew the others.

    A lease is renewed when less than half of its time is left, so that a sweep does not write each time.
    """
    kept: list[Lease] = []
    for lease in pool.leases:
        if lease.run_id not in active_run_ids or (not lease.is_claimed and lease.expires_at_ms <= now_ms):
            continue
        is_old = lease.is_claimed and lease.expires_at_ms - now_ms < LEASE_MS // 2
        kept.append(replace(lease, expires_at_ms=now_ms + LEASE_MS) if is_old else lease)
    return replace(pool, leases=tuple(kept))


def offers(before: Pool | None, after: Pool) -> tuple[Lease, ...]:
    """Return the offers that a change of a pool made."""
    known = frozenset() if before is None else {lease.run_id for lease in before.leases}
    return tuple(lease for lease in after.leases if not lease.is_claimed and lease.run_id not in known)
