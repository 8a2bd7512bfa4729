"""Pool API: named concurrency limits across pipelines, their holders and their queues."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from headgate.durable.model.records import instant
from headgate.pipelines.lifecycle.pool_admission import PoolAdmission, PoolState
from headgate.pipelines.runs.pool_decisions import Lease
from headgate.serve.http.operations import Answer, Call, NoQuery, Operation
from headgate.serve.rest.pipelines.models import Reason
from headgate.serve.rest.pipelines.permissions import CONTROL, READ


class FreePool(Struct, forbid_unknown_fields=True, kw_only=True):
    """The run whose slots are freed, and the reason. Its job goes on if it is still running."""

    run_id: Annotated[str, Meta(min_length=1, max_length=200, examples=["run_01J00000000000000000000000"])]
    reason: Reason


class LeaseView(Struct, frozen=True, kw_only=True):
    """Slots that a run holds. Without `claimed` they are offered to a run that has not taken them yet."""

    run_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    slots: int
    claimed: bool
    queued_at: str
    granted_at: str
    expires_at: str


class TicketView(Struct, frozen=True, kw_only=True):
    """A run in the queue, with its place."""

    place: int
    run_id: str
    pipeline_id: str
    schedule_id: str
    date: str
    slots: int
    queued_at: str


class PoolView(Struct, frozen=True, kw_only=True):
    """A pool. `size` is null if it is no longer declared."""

    name: str
    size: int | None
    used: int
    waiting: int
    leases: list[LeaseView]
    queue: list[TicketView]


class PoolList(Struct, frozen=True):
    """The declared pools, by name."""

    pools: list[PoolView]


def pool_operations(pools: PoolAdmission) -> list[Operation]:
    """Return the operations on pools."""
    return _Pools(pools).operations()


class _Pools:
    def __init__(self, pools: PoolAdmission) -> None:
        self._pools = pools

    def operations(self) -> list[Operation]:
        one = "/pools/{name}"
        return [
            Operation("GET", "/pools", "List pools", self.ls, {200: PoolList}, rule=READ),
            Operation("GET", one, "Show a pool", self.show, {200: PoolView}, rule=READ),
            Operation(
                "POST", f"{one}/free", "Free the slots of a run", self.free, {200: LeaseView}, body=FreePool,
                rule=CONTROL,
            ),
        ]  # fmt: skip

    def ls(self, _call: Call[None, NoQuery]) -> Answer:
        return Answer(PoolList([_pool_view(each) for each in self._pools.ls()]))

    def show(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(_pool_view(self._pools.show(call.path["name"])))

    def free(self, call: Call[FreePool, NoQuery]) -> Answer:
        return Answer(_lease_view(self._pools.free(call.path["name"], call.body.run_id)))


def _pool_view(state: PoolState) -> PoolView:
    return PoolView(
        name=state.name,
        size=state.size,
        used=state.pool.used,
        waiting=len(state.queue),
        leases=[_lease_view(each) for each in state.pool.leases],
        queue=[
            TicketView(
                **each.slot._asdict(),
                place=place,
                run_id=each.run_id,
                slots=each.slots,
                queued_at=instant(each.queued_at_ms),
            )
            for place, each in enumerate(state.queue, 1)
        ],
    )


def _lease_view(lease: Lease) -> LeaseView:
    return LeaseView(
        **lease.slot._asdict(),
        run_id=lease.run_id,
        slots=lease.slots,
        claimed=lease.is_claimed,
        queued_at=instant(lease.queued_at_ms),
        granted_at=instant(lease.granted_at_ms),
        expires_at=instant(lease.expires_at_ms),
    )
