"""Campaigns: many fan-outs that belong together, found by the name of their campaign and added up.

Each member has a row in the partition of its campaign, which is written in the transaction that creates the fan-out:
so a campaign is listed at the cost of its members, without an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import NotFoundError
from headgate.fanout.core.costs import Cost, cost_of
from headgate.fanout.core.queries import PAGE, FanoutRows
from headgate.fanout.model.counts import Counts, counts_of, folded
from headgate.fanout.model.rows import Fanout, fanout_of, moment_ms, run_key
from headgate.fanout.model.states import FanoutStatus
from headgate.store.catalogue.tables import FANOUT
from headgate.store.model.requests import Delete, Put, Query
from headgate.store.model.schema import Key
from headgate.store.port import Store

PARTITION: Final = "CAMPAIGN#"
ENDED_MIN: Final = 5
_WORST_FIRST: Final = (
    FanoutStatus.FAILED,
    FanoutStatus.PARTIAL,
    FanoutStatus.CANCELLED,
    FanoutStatus.SPLITTING,
    FanoutStatus.RUNNING,
    FanoutStatus.SUCCEEDED,
)


class Member(Struct, frozen=True):
    """One fan-out of a campaign, in a line."""

    run_id: str
    group: str
    status: FanoutStatus
    is_finished: bool
    total: int
    completed: int
    failed: int
    open: int
    items_total: int
    cost: float


class Rollup(Struct, frozen=True):
    """A campaign added up; `members` has those first that someone may have to look at.

    `eta_seconds` goes by how fast chunks have ended since the first member began, and is None until that can be said.
    """

    campaign: str
    status: FanoutStatus
    members: list[Member]
    by_status: dict[str, int]
    counts: Counts
    share: float
    cost: float
    projected_cost: float | None
    created_at: str | None
    finished_at: str | None
    eta_seconds: float | None


def member_put(fanout: Fanout) -> Put | None:
    """Return the write that makes a new fan-out a member of its campaign, or None if it belongs to none."""
    key = member_key(fanout)
    return None if key is None else Put(FANOUT, {**FANOUT.key_attributes(key), "run_id": fanout.run_id})


def member_delete(fanout: Fanout) -> Delete | None:
    """Return the write that takes a fan-out out of its campaign, or None if it belongs to none."""
    key = member_key(fanout)
    return None if key is None else Delete(FANOUT, key)


def member_key(fanout: Fanout) -> Key | None:
    """Return the key of the row by which a fan-out belongs to its campaign, or None if it belongs to none."""
    if fanout.campaign is None:
        return None
    return Key(f"{PARTITION}{fanout.campaign}", f"MEMBER#{fanout.created_at}#{fanout.run_id}")


def members(store: Store, campaign: str, *, limit: int = PAGE, cursor: str | None = None) -> FanoutRows:
    """Return the fan-outs of a campaign, the newest first. Those that have been deleted since are left out.

    Raises `NotFoundError` if the campaign has never had any.
    """
    page = store.query(
        Query(table=FANOUT, partition=f"{PARTITION}{campaign}", limit=limit, cursor=cursor, descending=True)
    )
    if not page.items and cursor is None:
        raise NotFoundError(f"campaign {campaign}: no fan-out belongs to it; it is named when a fan-out is made")
    keys = [run_key(item["run_id"]) for item in page.items]
    found = store.get_many(FANOUT, keys)
    return FanoutRows([fanout_of(item) for item in found if item is not None], page.cursor)


def counts_on(fanout: Fanout) -> Counts:
    """Return the counts that a fan-out's own row has: exact when it has ended, about a second old before that."""
    if fanout.counts:
        return counts_of([fanout.counts])
    return Counts(
        total=fanout.chunks_total,
        queued=max(0, fanout.chunks_total - fanout.chunks_completed - fanout.chunks_failed),
        done=fanout.chunks_completed,
        dead=fanout.chunks_failed,
        items_total=fanout.items_total,
    )


def rolled_up(campaign: str, found: Sequence[tuple[Fanout, Counts]], now_ms: int) -> Rollup:
    """Return a campaign added up from its fan-outs and their counts."""
    fanouts = [fanout for fanout, _ in found]
    counts = counts_of([folded(one) for _, one in found])
    costs = [cost_of(fanout.rules(), one) for fanout, one in found]
    by_status = {status.value: 0 for status in FanoutStatus}
    for fanout in fanouts:
        by_status[fanout.status.value] += 1
    is_finished = all(fanout.is_finished for fanout in fanouts)
    projections = [cost.projected for cost in costs]
    return Rollup(
        campaign=campaign,
        status=_status(fanouts),
        members=sorted((_member(*one, cost) for one, cost in zip(found, costs, strict=True)), key=_concern),
        by_status=by_status,
        counts=counts,
        share=1.0 - counts.open / counts.total if counts.total else float(is_finished),
        cost=sum(cost.so_far for cost in costs),
        projected_cost=None if None in projections else sum(one for one in projections if one is not None),
        created_at=min((fanout.created_at for fanout in fanouts), default=None),
        finished_at=max((fanout.finished_at or "" for fanout in fanouts), default=None) if is_finished else None,
        eta_seconds=_eta_seconds(fanouts, counts, now_ms),
    )


def _status(fanouts: Sequence[Fanout]) -> FanoutStatus:
    if not all(fanout.is_finished for fanout in fanouts):
        return FanoutStatus.RUNNING
    kinds = {fanout.status for fanout in fanouts}
    if not kinds:
        return FanoutStatus.SUCCEEDED
    return kinds.pop() if len(kinds) == 1 else FanoutStatus.PARTIAL


def _eta_seconds(fanouts: Sequence[Fanout], counts: Counts, now_ms: int) -> float | None:
    if counts.open == 0:
        return 0.0 if all(fanout.is_finished for fanout in fanouts) else None
    if any(fanout.status is FanoutStatus.SPLITTING or _is_paused(fanout) for fanout in fanouts):
        return None
    began = min((moment_ms(fanout.started_at) for fanout in fanouts if fanout.started_at), default=now_ms)
    ended = counts.completed + counts.failed
    if ended < ENDED_MIN or began >= now_ms:
        return None
    return counts.open * (now_ms - began) / 1000 / ended


def _is_paused(fanout: Fanout) -> bool:
    return fanout.paused_at is not None and not fanout.is_finished


def _member(fanout: Fanout, counts: Counts, cost: Cost) -> Member:
    return Member(
        run_id=fanout.run_id,
        group=fanout.group,
        status=fanout.status,
        is_finished=fanout.is_finished,
        total=counts.total,
        completed=counts.completed,
        failed=counts.failed,
        open=counts.open,
        items_total=counts.items_total,
        cost=cost.so_far,
    )


def _concern(member: Member) -> tuple[bool, int, int, str]:
    """Return where a member is in the order of who needs to be looked at."""
    return member.failed == 0, _WORST_FIRST.index(member.status), -member.failed, member.run_id
