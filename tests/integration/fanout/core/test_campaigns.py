"""Campaigns: how fan-outs are added up, and how the members are found."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import to_builtins

from headgate.clock import VirtualClock
from headgate.errors import NotFoundError
from headgate.fanout.core.campaigns import counts_of_row, member_delete, member_put, members, roll_up
from headgate.fanout.core.costs import Prices
from headgate.fanout.model.counts import Counts, counts_dict
from headgate.fanout.model.rows import Fanout, timestamp
from headgate.fanout.model.states import FanoutStatus
from headgate.store.catalogue.tables import FANOUT
from headgate.store.sqlite.store import SqliteStore, Synchronous
from tests.stores import open_sqlite
from tests.unit.fanout.made_rows import T0, made_fanout

NOW = T0 + 100_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = open_sqlite(tmp_path, clock=VirtualClock(T0 / 1000), synchronous=Synchronous.NORMAL)
    yield opened
    opened.close()


def _ended(run_id: str, status: FanoutStatus, *, at_ms: int = NOW) -> Fanout:
    return made_fanout(run_id=run_id, status=status, started_at=timestamp(T0), finished_at=timestamp(at_ms))


def _running(run_id: str) -> Fanout:
    return made_fanout(run_id=run_id, started_at=timestamp(T0))


def _join(store: SqliteStore, fanout: Fanout) -> None:
    put = member_put(fanout)
    assert put is not None
    store.transact([put])


def test_rolled_up__several_members__adds_up_their_counts_and_costs() -> None:
    found = [
        (_ended("a", FanoutStatus.SUCCEEDED), Counts(total=10, done=10, attempts=10, busy_ms=1000, items_total=100)),
        (_running("b"), Counts(total=30, done=5, dead=1, queued=24, attempts=8, busy_ms=500, items_total=300)),
    ]

    rollup = roll_up("survey", found, NOW, prices=Prices(0.5, 0.1, "EUR"))

    assert (rollup.counts.total, rollup.counts.completed, rollup.counts.failed) == (40, 15, 1)
    assert rollup.counts.items_total == 400
    assert rollup.share == pytest.approx(16 / 40)
    assert rollup.by_status["SUCCEEDED"] == rollup.by_status["RUNNING"] == 1
    assert rollup.cost == pytest.approx(sum(member.cost or 0 for member in rollup.members))
    assert rollup.cost == pytest.approx(0.5 * 1.5 + 0.1 * 18)
    assert rollup.currency == "EUR"
    assert roll_up("survey", found, NOW).cost is None
    # 16 ended in 100 seconds, and 24 are left.
    assert rollup.eta_seconds == pytest.approx(150)
    assert (rollup.status, rollup.finished_at) == (FanoutStatus.RUNNING, None)


def test_rolled_up__members_of_all_kinds__those_with_failures_come_first() -> None:
    found = [
        (_ended("ok", FanoutStatus.SUCCEEDED), Counts(total=1, done=1)),
        (_running("busy"), Counts(total=2, queued=2)),
        (_ended("halted", FanoutStatus.CANCELLED), Counts(total=2, cancelled=2)),
        (_ended("bad", FanoutStatus.PARTIAL), Counts(total=9, done=5, dead=4)),
        (_running("ill"), Counts(total=9, queued=8, dead=1)),
        (_ended("worst", FanoutStatus.FAILED), Counts(total=2, dead=2)),
    ]

    in_order = [member.run_id for member in roll_up("c", found, NOW).members]
    assert in_order == ["worst", "bad", "ill", "halted", "busy", "ok"]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([], FanoutStatus.SUCCEEDED),
        ([FanoutStatus.SUCCEEDED, FanoutStatus.SUCCEEDED], FanoutStatus.SUCCEEDED),
        ([FanoutStatus.FAILED, FanoutStatus.FAILED], FanoutStatus.FAILED),
        ([FanoutStatus.CANCELLED], FanoutStatus.CANCELLED),
        ([FanoutStatus.SUCCEEDED, FanoutStatus.FAILED], FanoutStatus.PARTIAL),
    ],
)
def test_rolled_up__all_have_ended__says_what_it_came_to(statuses: list[FanoutStatus], expected: FanoutStatus) -> None:
    found = [(_ended(f"{place}", status), Counts()) for place, status in enumerate(statuses)]

    assert roll_up("c", found, NOW).status is expected


def test_rolled_up__all_have_ended__ends_with_the_last() -> None:
    found = [(_ended(f"{at}", FanoutStatus.SUCCEEDED, at_ms=T0 + at), Counts(total=1, done=1)) for at in (9, 30, 20)]

    rollup = roll_up("c", found, NOW)

    assert (rollup.finished_at, rollup.eta_seconds, rollup.share) == (timestamp(T0 + 30), 0, 1)


def test_rolled_up__a_member_is_paused_or_being_split__has_no_end_in_sight() -> None:
    counts = Counts(total=20, done=10, queued=10)
    for held in (
        made_fanout(started_at=timestamp(T0), paused_at=timestamp(T0)),
        made_fanout(started_at=timestamp(T0), status=FanoutStatus.SPLITTING),
    ):
        assert roll_up("c", [(_running("a"), counts), (held, counts)], NOW).eta_seconds is None


def test_rolled_up__too_little_has_ended__projects_nothing() -> None:
    rollup = roll_up("c", [(_running("a"), Counts(total=20, done=4, queued=16))], NOW)

    assert (rollup.eta_seconds, rollup.projected_cost) == (None, None)


def test_counts_on__folded_counts__are_what_the_row_says() -> None:
    counts = Counts(total=9, done=4, queued=5, busy_ms=77)

    assert counts_of_row(made_fanout(counts=counts_dict(counts))) == counts


def test_counts_on__row_of_another_program__leaves_the_rest_open() -> None:
    fanout = made_fanout(chunks_total=9, chunks_completed=4, chunks_failed=1, items_total=90)

    counts = counts_of_row(fanout)

    assert (counts.total, counts.completed, counts.failed, counts.open, counts.drift()) == (9, 4, 1, 4, 0)


def test_members__several_of_a_campaign__are_found_newest_first(store: SqliteStore) -> None:
    for number in range(5):
        fanout = made_fanout(run_id=f"fan-{number}", campaign="survey", created_at=timestamp(T0 + number))
        _join(store, fanout)
        store.put(FANOUT, to_builtins(fanout))

    first = members(store, "survey", limit=3)
    second = members(store, "survey", limit=3, cursor=first.cursor)

    assert [one.run_id for one in first.fanouts] == ["fan-4", "fan-3", "fan-2"]
    assert [one.run_id for one in second.fanouts] == ["fan-1", "fan-0"]
    assert second.cursor is None


def test_members__one_was_deleted__is_left_out(store: SqliteStore) -> None:
    for run_id in ("gone", "there"):
        _join(store, made_fanout(run_id=run_id, campaign="survey"))
    store.put(FANOUT, to_builtins(made_fanout(run_id="there", campaign="survey")))

    assert [one.run_id for one in members(store, "survey").fanouts] == ["there"]


def test_members__no_such_campaign__is_said(store: SqliteStore) -> None:
    with pytest.raises(NotFoundError, match="campaign none"):
        members(store, "none")


def test_members__one_is_taken_out__is_no_longer_found(store: SqliteStore) -> None:
    for run_id in ("gone", "there"):
        fanout = made_fanout(run_id=run_id, campaign="survey")
        _join(store, fanout)
        store.put(FANOUT, to_builtins(fanout))

    delete = member_delete(made_fanout(run_id="gone", campaign="survey"))
    assert delete is not None
    store.transact([delete])

    assert [one.run_id for one in members(store, "survey").fanouts] == ["there"]


def test_member__no_campaign__is_none() -> None:
    assert member_put(made_fanout()) is None
    assert member_delete(made_fanout()) is None
