"""Campaigns: named sets of fan-outs, listed and summed up.

Each member has a row in the partition of its campaign, written in the transaction that creates the fan-out. Listing a
campaign therefore reads its members only and needs no index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headgate.errors import NotFoundError
from headgate.fanout.core.costs import NO_PRICES, Cost, Prices, fanout_cost
from headgate.fanout.core.queries import PAGE, FanoutRows
from headgate.fanout.model.counts import Counts, counts_dict, counts_of
from headgate.fanout.model.rows import Fanout, fanout_of, run_key, timestamp_ms
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
    """Summary of one fan-out of a campaign."""

    run_id: str
    group: str
    status: FanoutStatus
    is_finished: bool
    total: int
    completed: int
    failed: int
    open: int
    items_total: int
    # None without a price.
    cost: float | None


class Rollup(Struct, frozen=True):
    """Totals of a campaign. `members` lists failed and unfinished fan-outs first.

    `eta_seconds` extrapolates the rate of ended chunks since the first member started; None until enough have ended,
    while a member is split or paused, and while only slow lanes are open. Costs cover the members that have a price.
    """

    campaign: str
    status: FanoutStatus
    members: list[Member]
    by_status: dict[str, int]
    counts: Counts
    share: float
    cost: float | None
    projected_cost: float | None
    currency: str | None
    created_at: str | None
    finished_at: str | None
    eta_seconds: float | None


def member_put(fanout: Fanout) -> Put | None:
    """Return the write that adds a new fan-out to its campaign, or None without a campaign."""
    key = member_key(fanout)
    return None if key is None else Put(FANOUT, {**FANOUT.key_attributes(key), "run_id": fanout.run_id})


def member_delete(fanout: Fanout) -> Delete | None:
    """Return the write that removes a fan-out from its campaign, or None without a campaign."""
    key = member_key(fanout)
    return None if key is None else Delete(FANOUT, key)


def member_key(fanout: Fanout) -> Key | None:
    """Return the key of a fan-out's membership row, or None without a campaign."""
    if fanout.campaign is None:
        return None
    return Key(f"{PARTITION}{fanout.campaign}", f"MEMBER#{fanout.created_at}#{fanout.run_id}")


def members(store: Store, campaign: str, *, limit: int = PAGE, cursor: str | None = None) -> FanoutRows:
    """Return the fan-outs of a campaign, newest first, without deleted ones.

    Raises `NotFoundError` if the campaign never had a fan-out.
    """
    page = store.query(
        Query(table=FANOUT, partition=f"{PARTITION}{campaign}", limit=limit, cursor=cursor, descending=True)
    )
    if not page.items and cursor is None:
        raise NotFoundError(
            f"campaign {campaign}: no fan-out belongs to it; a campaign is named when a fan-out is created"
        )
    keys = [run_key(item["run_id"]) for item in page.items]
    found = store.get_many(FANOUT, keys)
    return FanoutRows([fanout_of(item) for item in found if item is not None], page.cursor)


def counts_of_row(fanout: Fanout) -> Counts:
    """Return the counts on a fan-out's own row: exact after its end, up to a second old before."""
    if fanout.counts:
        return counts_of([fanout.counts])
    return Counts(
        total=fanout.chunks_total,
        queued=max(0, fanout.chunks_total - fanout.chunks_completed - fanout.chunks_failed),
        done=fanout.chunks_completed,
        dead=fanout.chunks_failed,
        items_total=fanout.items_total,
    )


def roll_up(
    campaign: str, found: Sequence[tuple[Fanout, Counts]], now_ms: int, *, prices: Prices = NO_PRICES
) -> Rollup:
    """Return the totals of a campaign over its fan-outs and their counts."""
    fanouts = [fanout for fanout, _ in found]
    counts = counts_of([counts_dict(one) for _, one in found])
    costs = [fanout_cost(fanout, one, prices) for fanout, one in found]
    known = [cost for cost in costs if cost is not None]
    by_status = {status.value: 0 for status in FanoutStatus}
    for fanout in fanouts:
        by_status[fanout.status.value] += 1
    is_finished = all(fanout.is_finished for fanout in fanouts)
    projections = [cost.projected for cost in known]
    return Rollup(
        campaign=campaign,
        status=_status(fanouts),
        members=sorted((_member(*one, cost) for one, cost in zip(found, costs, strict=True)), key=_severity),
        by_status=by_status,
        counts=counts,
        share=counts.ended_share if counts.total else float(is_finished),
        cost=sum(cost.so_far for cost in known) if known else None,
        projected_cost=_sum(projections),
        currency=known[0].currency if known else None,
        created_at=min((fanout.created_at for fanout in fanouts), default=None),
        finished_at=max((fanout.finished_at or "" for fanout in fanouts), default=None) if is_finished else None,
        eta_seconds=_eta_seconds(fanouts, counts, now_ms),
    )


def _sum(amounts: Sequence[float | None]) -> float | None:
    """Return the sum, or None if one is unknown or there are none."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known and len(known) == len(amounts) else None


def _status(fanouts: Sequence[Fanout]) -> FanoutStatus:
    if not all(fanout.is_finished for fanout in fanouts):
        return FanoutStatus.RUNNING
    kinds = {fanout.status for fanout in fanouts}
    if not kinds:
        return FanoutStatus.SUCCEEDED
    return kinds.pop() if len(kinds) == 1 else FanoutStatus.PARTIAL


def _eta_seconds(fanouts: Sequence[Fanout], counts: Counts, now_ms: int) -> float | None:
    if counts.open == 0 or counts.slow_open:
        return 0.0 if all(fanout.is_finished for fanout in fanouts) else None
    if any(fanout.status is FanoutStatus.SPLITTING or _is_paused(fanout) for fanout in fanouts):
        return None
    began = min((timestamp_ms(fanout.started_at) for fanout in fanouts if fanout.started_at), default=now_ms)
    ended = counts.completed + counts.failed
    if ended < ENDED_MIN or began >= now_ms:
        return None
    return counts.open * (now_ms - began) / 1000 / ended


def _is_paused(fanout: Fanout) -> bool:
    return fanout.paused_at is not None and not fanout.is_finished


def _member(fanout: Fanout, counts: Counts, cost: Cost | None) -> Member:
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
        cost=None if cost is None else cost.so_far,
    )


def _severity(member: Member) -> tuple[bool, int, int, str]:
    """Return the sort key that lists failed and unfinished members first."""
    return member.failed == 0, _WORST_FIRST.index(member.status), -member.failed, member.run_id
