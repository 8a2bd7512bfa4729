"""Backfill requests: turns a range of dates into the periods to run, and finds those that are done."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from headgate.errors import InvalidPayloadError, UserError
from headgate.pipelines.operations.backfill_plans import DATES_MAX, BackfillSpec, DateOrder
from headgate.pipelines.runs.rows import Slot, run_log_key, run_log_of
from headgate.pipelines.schedule.timetables import Timetable
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.port import Store

_PAGE: Final = 100


class BackfillRequest(Struct, frozen=True, kw_only=True):
    """A range of periods, both ends included, and how to run them."""

    first: str
    last: str
    concurrency: int = 1
    order: DateOrder = DateOrder.OLDEST_FIRST
    redo: bool = False
    while_paused: bool = False
    stop_on_failure: bool = False


class Range(Struct, frozen=True):
    """The periods of a range: those to run, and those that the calendar excludes, with the reason."""

    dates: tuple[str, ...]
    excluded: dict[str, str]


def range_of(timetable: Timetable, first: str, last: str) -> Range:
    """Return the periods from `first` to `last`. Raises `InvalidPayloadError`, naming the field."""
    periods = timetable.periods
    begin, end = _checked(timetable, "from", first), _checked(timetable, "to", last)
    if periods.start(end) < periods.start(begin):
        raise InvalidPayloadError(f"to {last!r} is before from {first!r}; give the earlier one first")
    dates: list[str] = []
    excluded: dict[str, str] = {}
    for count, date in enumerate(periods.between(periods.start(begin), periods.end(end))):
        if count >= DATES_MAX:
            raise InvalidPayloadError(
                f"from {first!r} to {last!r} are more than {DATES_MAX} periods; ask for them in several"
            )
        reason = timetable.exclusion_reason(date)
        if reason is None:
            dates.append(date)
        else:
            excluded[date] = reason
    return Range(tuple(dates), excluded)


def spec_of(timetable: Timetable, request: BackfillRequest, dates: tuple[str, ...]) -> BackfillSpec:
    """Return the specification of a requested backfill."""
    return BackfillSpec(
        pipeline_id=timetable.pipeline.id,
        schedule_id=timetable.schedule_id,
        dates=dates,
        order=request.order,
        concurrency=request.concurrency,
        redo=request.redo,
        while_paused=request.while_paused,
        stop_on_failure=request.stop_on_failure,
    )


def done_dates(store: Store, spec: BackfillSpec) -> frozenset[str]:
    """Return the periods of a backfill that are done."""
    done: set[str] = set()
    for begin in range(0, len(spec.dates), _PAGE):
        dates = spec.dates[begin : begin + _PAGE]
        keys = [run_log_key(Slot(spec.pipeline_id, spec.schedule_id, date)) for date in dates]
        items = store.get_many(PIPELINES, keys)
        done |= {
            date
            for date, item in zip(dates, items, strict=True)
            if item is not None and run_log_of(item).status.is_done
        }
    return frozenset(done)


def _checked(timetable: Timetable, field: str, date: str) -> str:
    try:
        return timetable.periods.check(date)
    except UserError as exc:
        raise InvalidPayloadError(f"{field}: {exc}") from exc
