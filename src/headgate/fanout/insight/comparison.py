"""Comparison: the differences between two fan-outs, typically of the same input before and after a change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from headgate.fanout.core.costs import NO_PRICES, Prices, fanout_cost
from headgate.fanout.core.queries import FanoutQueries
from headgate.fanout.insight.error_groups import DISTINCT_MAX, ErrorGroup, ErrorGroups, error_groups
from headgate.fanout.insight.eta import Spread, durations_of, spread_of
from headgate.fanout.insight.samples import sampled
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Fanout, timestamp_ms
from headgate.store.port import Store

# Request fields that may differ between the two.
_ASKED: Final = ("group", "handler", "params", "source", "chunk_size", "policy")


class Side(Struct, frozen=True):
    """The data of one of the two fan-outs."""

    fanout: Fanout
    counts: Counts
    durations: Spread | None
    errors: ErrorGroups
    # None without a price.
    cost: float | None = None


class Difference(Struct, frozen=True):
    """One figure of both; `ratio` is the second divided by the first."""

    name: str
    before: float | None
    after: float | None
    ratio: float | None


class ErrorShift(Struct, frozen=True):
    """The number of occurrences of an error in each of the two."""

    fingerprint: str
    error_class: str
    message: str
    before: int
    after: int


class Comparison(Struct, frozen=True):
    """Two fan-outs side by side.

    `asked_differently` lists request fields that differ. `errors` has the largest shifts first; `errors_are_complete`
    is false if one fan-out has more errors than were read.
    """

    before: str
    after: str
    asked_differently: list[str]
    figures: list[Difference]
    errors: list[ErrorShift]
    errors_are_complete: bool


def side(store: Store, queries: FanoutQueries, run_id: str, *, prices: Prices = NO_PRICES) -> Side:
    """Read a fan-out for a comparison, at a bounded cost. Raises `NotFoundError`."""
    fanout = queries.fanout(run_id)
    counts = queries.counts(fanout)
    durations = spread_of(durations_of(sampled(store, fanout, counts).chunks))
    errors = error_groups(queries, run_id, groups_max=DISTINCT_MAX)
    cost = fanout_cost(fanout, counts, prices)
    return Side(fanout, counts, durations, errors, None if cost is None else cost.so_far)


def compared(before: Side, after: Side) -> Comparison:
    """Return the differences between two fan-outs."""
    detail = [name for name in _ASKED if getattr(before.fanout, name) != getattr(after.fanout, name)]
    first, second = _figures(before), _figures(after)
    return Comparison(
        before=before.fanout.run_id,
        after=after.fanout.run_id,
        asked_differently=detail,
        figures=[_difference(name, first[name], second[name]) for name in first],
        errors=_shifts(before.errors.groups, after.errors.groups),
        errors_are_complete=before.errors.is_complete and after.errors.is_complete,
    )


def _figures(side: Side) -> dict[str, float | None]:
    counts, spread = side.counts, side.durations
    items = counts.items_ok + counts.items_failed
    seconds = _seconds(side.fanout)
    return {
        "chunks": counts.total,
        "chunks_completed": counts.completed,
        "chunks_failed": counts.failed,
        "chunks_open": counts.open,
        "items": counts.items_total,
        "items_ok": counts.items_ok,
        "items_failed": counts.items_failed,
        "items_deferred": counts.items_deferred,
        "attempts": counts.attempts,
        "retries": counts.retries,
        "lost": counts.lost,
        "seconds": seconds,
        "items_per_second": items / seconds if seconds else None,
        "busy_ms_per_item": counts.busy_ms / items if items else None,
        "duration_p50_ms": None if spread is None else spread.p50_ms,
        "duration_p95_ms": None if spread is None else spread.p95_ms,
        "duration_p99_ms": None if spread is None else spread.p99_ms,
        "duration_max_ms": None if spread is None else spread.max_ms,
        "cost": side.cost,
    }


def _seconds(fanout: Fanout) -> float | None:
    """Return the seconds from its creation to its end, or None if it has not ended."""
    if fanout.finished_at is None or not fanout.created_at:
        return None
    return (timestamp_ms(fanout.finished_at) - timestamp_ms(fanout.created_at)) / 1000


def _difference(name: str, before: float | None, after: float | None) -> Difference:
    ratio = after / before if before and after is not None else None
    return Difference(name, before, after, ratio)


def _shifts(before: Iterable[ErrorGroup], after: Iterable[ErrorGroup]) -> list[ErrorShift]:
    first = {group.fingerprint: group for group in before}
    second = {group.fingerprint: group for group in after}
    shifts = []
    for name, group in {**first, **second}.items():
        counts = [groups[name].count if name in groups else 0 for groups in (first, second)]
        shifts.append(ErrorShift(name, group.error_class, group.message, counts[0], counts[1]))
    return sorted(shifts, key=lambda shift: (-abs(shift.after - shift.before), shift.fingerprint))
