"""Two fan-outs side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.clock import VirtualClock
from headgate.errors import NotFoundError
from headgate.fanout.insight.comparison import Comparison, Difference, Side, compared, side
from headgate.fanout.insight.error_groups import ErrorGroup, ErrorGroups
from headgate.fanout.insight.eta import spread_of
from headgate.fanout.model.counts import Counts
from headgate.fanout.model.rows import Policy, timestamp
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite
from tests.unit.fanout.made_rows import RUN, T0, Stage, made_fanout


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(T0 / 1000)


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=clock, synchronous=Synchronous.NORMAL)
    yield opened
    opened.close()


def _errors(**counts: int) -> ErrorGroups:
    at = timestamp(T0)
    groups = [ErrorGroup(name, "ValueError", f"about {name}", count, at, at, []) for name, count in counts.items()]
    return ErrorGroups(groups, sum(counts.values()), 0)


def _figure(found: Comparison, name: str) -> Difference:
    return next(one for one in found.figures if one.name == name)


def test_compared__twice_as_fast__says_by_how_much() -> None:
    slow = Side(made_fanout(), Counts(items_ok=100, busy_ms=8000), spread_of([100, 200, 300]), _errors())
    fast = Side(made_fanout(run_id="b"), Counts(items_ok=100, busy_ms=4000), spread_of([50, 100, 150]), _errors())

    found = compared(slow, fast)

    assert _figure(found, "duration_p50_ms") == Difference("duration_p50_ms", 200, 100, 0.5)
    assert _figure(found, "busy_ms_per_item") == Difference("busy_ms_per_item", 80, 40, 0.5)
    assert (found.before, found.after) == (RUN, "b")


def test_compared__errors_that_came_and_went__are_ordered_by_how_much_they_shift() -> None:
    before = Side(made_fanout(), Counts(), None, _errors(gone=9, same=4, less=5))
    after = Side(made_fanout(), Counts(), None, _errors(same=4, new=2, less=1))

    shifts = compared(before, after).errors

    assert [(shift.fingerprint, shift.before, shift.after) for shift in shifts] == [
        ("gone", 9, 0),
        ("less", 5, 1),
        ("new", 0, 2),
        ("same", 4, 4),
    ]


def test_compared__asked_for_differently__names_what_was() -> None:
    before = Side(made_fanout(params='{"beta":3.5}'), Counts(), None, _errors())
    changed = made_fanout(params='{"beta":4}', policy=Policy(max_attempts=5))

    assert compared(before, Side(changed, Counts(), None, _errors())).asked_differently == ["params", "policy"]
    assert compared(before, before).asked_differently == []


def test_compared__nothing_to_divide_by__has_no_ratio() -> None:
    before = Side(made_fanout(), Counts(), None, _errors())
    after = Side(made_fanout(), Counts(dead=3), spread_of([5]), _errors())

    found = compared(before, after)

    assert _figure(found, "chunks_failed") == Difference("chunks_failed", 0, 3, None)
    assert _figure(found, "duration_p95_ms") == Difference("duration_p95_ms", None, 5, None)
    assert _figure(found, "seconds").before is None


def test_compared__both_have_ended__compares_how_long_they_took() -> None:
    sides = [
        Side(made_fanout(finished_at=timestamp(T0 + 1000 * seconds)), Counts(items_ok=100), None, _errors())
        for seconds in (10, 20)
    ]

    found = compared(*sides)

    assert _figure(found, "seconds") == Difference("seconds", 10, 20, 2)
    assert _figure(found, "items_per_second") == Difference("items_per_second", 10, 5, 0.5)


def test_side__a_fan_out_in_a_store__has_its_durations_and_errors(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=4, policy=Policy(max_attempts=1))
    stage.complete(0, seconds=2)
    stage.complete(1, seconds=4)
    stage.fail(2, "boom 7")

    found = side(store, stage.queries, RUN)

    assert found.durations is not None
    assert (found.durations.p50_ms, found.durations.count) == (3000, 2)
    assert (found.counts.completed, found.counts.failed) == (2, 1)
    assert [group.message for group in found.errors.groups] == ["boom 7"]


def test_side__no_such_fan_out__is_said(store: SqliteStore, clock: VirtualClock) -> None:
    stage = Stage(store, clock, chunks=1)

    with pytest.raises(NotFoundError):
        side(store, stage.queries, "other")
