"""Ranges of periods, done a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import ConflictError, IllegalTransitionError, InvalidPayloadError, NotFoundError
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.operations.backfill_plans import (
    DATES_MAX,
    Backfill,
    BackfillSpec,
    BackfillState,
    Batch,
    DateOrder,
    Plan,
    next_batch,
    plan,
    settled,
)
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.conditions import absent, exists
from headgate.store.model.requests import Check, Put, Write
from headgate.store.model.schema import Key
from tests.unit.pipelines.run_rig import EVENT, Rig, at_once, opened_rig

DAYS = tuple(f"2026-03-{day:02}" for day in range(1, 8))
NEVER = Check(PIPELINES, Key("PIPELINE#nobody", "CONFIG"), exists())


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with opened_rig(tmp_path) as rig:
        yield rig


def _spec(**more: Any) -> BackfillSpec:
    return BackfillSpec(**{"pipeline_id": "orders", "schedule_id": "daily", "dates": DAYS, "concurrency": 2, **more})


def _create(rig: Rig, **more: Any) -> Backfill:
    return rig.backfills.create(_spec(**more), by="ann", reason="new column")


def _finish(rig: Rig, backfill: Backfill, date: str, status: RunStatus = RunStatus.COMPLETED) -> Backfill:
    return rig.backfills.settle(backfill.backfill_id, date, status)


@pytest.mark.parametrize(
    ("more", "done", "expected"),
    [
        ({}, (), Plan(DAYS, ())),
        ({}, DAYS[:2], Plan(DAYS[2:], DAYS[:2])),
        ({"redo": True}, DAYS[:2], Plan(DAYS, ())),
        ({"order": DateOrder.NEWEST_FIRST}, (DAYS[-1],), Plan(DAYS[-2::-1], (DAYS[-1],))),
        ({}, DAYS, Plan((), DAYS)),
    ],
)
def test_plan__of_a_range__says_what_would_be_begun_and_writes_nothing(
    more: dict[str, Any], done: Sequence[str], expected: Plan
) -> None:
    assert plan(_spec(**more), done) == expected


@pytest.mark.parametrize(
    "more",
    [
        {"dates": ()},
        {"dates": tuple(map(str, range(DATES_MAX + 1)))},
        {"dates": (DAYS[0], DAYS[0])},
        {"concurrency": 0},
        {"concurrency": 1_001},
    ],
)
def test_plan__of_what_cannot_be_asked__says_why(rig: Rig, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayloadError, match="orders/daily"):
        plan(_spec(**more), ())
    with pytest.raises(InvalidPayloadError, match="orders/daily"):
        _create(rig, **more)
    assert rig.backfills.ls("orders").backfills == []


def test_create__a_range__is_kept_as_truth_and_as_a_copy_without_its_dates(rig: Rig) -> None:
    backfill = rig.backfills.create(_spec(), by="ann", reason="new column", also=[EVENT])

    assert rig.backfills.get(backfill.backfill_id) == backfill
    (copy,) = rig.backfills.ls("orders").backfills
    assert (copy.backfill_id, copy.dates, copy.dates_count) == (backfill.backfill_id, (), 7)
    assert rig.item(f"BACKFILL#{backfill.backfill_id}", "STATE") is not None
    assert rig.backfills.unfinished() == [backfill.backfill_id]
    assert rig.is_notified()


def test_advance__as_periods_end__never_has_more_under_way_than_it_may(rig: Rig) -> None:
    backfill = _create(rig)
    begun: list[str] = []
    while True:
        batch = rig.backfills.advance(backfill.backfill_id, ())
        begun += batch.begins
        running = rig.backfills.get(backfill.backfill_id).running
        assert len(running) <= 2
        if not running:
            break
        _finish(rig, backfill, running[-1])

    assert begun == list(DAYS)
    ended = rig.backfills.get(backfill.backfill_id)
    assert (ended.state, ended.succeeded, ended.ended_at_ms) == (BackfillState.COMPLETED, 7, rig.now_ms)
    assert rig.backfills.unfinished() == []


def test_advance__periods_that_are_done__are_passed_over(rig: Rig) -> None:
    backfill = _create(rig)

    batch = rig.backfills.advance(backfill.backfill_id, {DAYS[0], DAYS[2]})

    assert batch == Batch((DAYS[1], DAYS[3]), (DAYS[0], DAYS[2]))
    assert rig.backfills.get(backfill.backfill_id).skipped == 2


def test_advance__everything_is_done__is_over_at_once(rig: Rig) -> None:
    backfill = _create(rig)

    assert rig.backfills.advance(backfill.backfill_id, DAYS) == Batch((), DAYS)
    assert rig.backfills.get(backfill.backfill_id).state is BackfillState.COMPLETED


def test_advance__by_many_at_once__begins_each_period_once(rig: Rig) -> None:
    backfill = _create(rig, concurrency=7)

    def begins(_backfill: Backfill, batch: Batch) -> list[Write]:
        # What starts the execution of a period is refused where there is one.
        return [Put(PIPELINES, {"PK": "STARTED", "SK": date}, absent()) for date in batch.begins]

    outcomes = at_once(5, lambda _: rig.backfills.advance(backfill.backfill_id, (), limit=2, also=begins))

    assert [each for each in outcomes if not isinstance(each, Batch)] == []
    begun = [date for each in outcomes if isinstance(each, Batch) for date in each.begins]
    assert sorted(begun) == list(DAYS)
    assert [item["SK"] for item in rig.items("STARTED")] == list(DAYS)


def test_advance__another_advances_between_its_look_and_its_write__begins_only_what_is_left(rig: Rig) -> None:
    backfill = _create(rig, concurrency=3)
    others: list[Batch] = []

    def meddle(_backfill: Backfill, _batch: Batch) -> list[Write]:
        if not others:
            others.append(rig.backfills.advance(backfill.backfill_id, (), limit=2))
        return []

    batch = rig.backfills.advance(backfill.backfill_id, (), limit=2, also=meddle)

    assert (others, batch) == ([Batch(DAYS[:2])], Batch(DAYS[2:3]))
    assert rig.backfills.get(backfill.backfill_id).running == DAYS[:3]


def test_cancel__once_all_are_begun__stays_cancelled_when_they_end(rig: Rig) -> None:
    backfill = _create(rig, dates=DAYS[:1])
    rig.backfills.advance(backfill.backfill_id, ())
    cancelled = rig.backfills.cancel(backfill.backfill_id, by="bob", reason="wrong range")
    rig.clock.advance(60)

    after = _finish(rig, backfill, DAYS[0])

    assert (after.state, after.ended_at_ms) == (BackfillState.CANCELLED, cancelled.ended_at_ms)


def test_advance__what_begins_a_batch_is_refused__notes_nothing_as_begun(rig: Rig) -> None:
    backfill = _create(rig)

    with pytest.raises(ConflictError):
        rig.backfills.advance(backfill.backfill_id, (), also=lambda _backfill, _batch: [NEVER])

    assert rig.backfills.get(backfill.backfill_id) == backfill


def test_settle__the_same_end_reported_twice__is_noted_once(rig: Rig) -> None:
    backfill = _create(rig)
    rig.backfills.advance(backfill.backfill_id, ())
    once = _finish(rig, backfill, DAYS[0])

    again = rig.backfills.settle(backfill.backfill_id, DAYS[0], RunStatus.COMPLETED, also=[EVENT])

    assert again == once
    assert once.succeeded == 1
    assert not rig.is_notified()


@pytest.mark.parametrize("date", ["2026-03-07", "2027-01-01"])
def test_settle__a_period_that_was_not_begun__changes_nothing(rig: Rig, date: str) -> None:
    backfill = _create(rig)
    rig.backfills.advance(backfill.backfill_id, ())
    before = rig.backfills.get(backfill.backfill_id)

    assert _finish(rig, backfill, date) == before


def test_settled__a_run_that_goes_on__is_no_end(rig: Rig) -> None:
    backfill = _create(rig)
    rig.backfills.advance(backfill.backfill_id, ())
    before = rig.backfills.get(backfill.backfill_id)

    assert settled(before, DAYS[0], RunStatus.RUNNING, "", 1) is before


def test_settle__a_failure__is_kept_with_its_reason_and_the_rest_goes_on(rig: Rig) -> None:
    backfill = _create(rig)
    rig.backfills.advance(backfill.backfill_id, ())
    rig.backfills.settle(backfill.backfill_id, DAYS[0], RunStatus.FAILED, reason="bad rows")

    after = rig.backfills.get(backfill.backfill_id)
    assert (after.state, after.failed) == (BackfillState.RUNNING, {DAYS[0]: "bad rows"})
    assert rig.backfills.advance(backfill.backfill_id, ()).begins == (DAYS[2],)


def test_settle__a_failure_that_is_to_stop_it__pauses_it_until_someone_resumes(rig: Rig) -> None:
    backfill = _create(rig, stop_on_failure=True)
    rig.backfills.advance(backfill.backfill_id, ())

    paused = rig.backfills.settle(backfill.backfill_id, DAYS[0], RunStatus.FAILED, reason="bad rows")

    assert (paused.state, paused.reason) == (BackfillState.PAUSED, f"{DAYS[0]} failed: bad rows")
    assert rig.backfills.advance(backfill.backfill_id, ()) == Batch()
    rig.backfills.resume(backfill.backfill_id, by="ann", reason="mended")
    assert rig.backfills.advance(backfill.backfill_id, ()).begins == (DAYS[2],)


def test_settle__the_last_failure_of_one_that_stops__is_the_end(rig: Rig) -> None:
    backfill = _create(rig, dates=DAYS[:1], stop_on_failure=True)
    rig.backfills.advance(backfill.backfill_id, ())

    assert _finish(rig, backfill, DAYS[0], RunStatus.FAILED).state is BackfillState.COMPLETED


def test_pause__resume_and_cancel__say_who_and_why(rig: Rig) -> None:
    backfill = _create(rig)
    rig.backfills.advance(backfill.backfill_id, ())

    paused = rig.backfills.pause(backfill.backfill_id, by="bob", reason="too slow", also=[EVENT])
    assert (paused.state, paused.by, paused.reason) == (BackfillState.PAUSED, "bob", "too slow")
    assert rig.is_notified()
    assert next_batch(paused, ()) == Batch()
    assert rig.backfills.pause(backfill.backfill_id, by="ann", reason="also") == paused

    rig.backfills.resume(backfill.backfill_id, by="bob", reason="night")
    cancelled = rig.backfills.cancel(backfill.backfill_id, by="bob", reason="wrong range")
    assert (cancelled.state, cancelled.running) == (BackfillState.CANCELLED, DAYS[:2])
    assert rig.backfills.unfinished() == []

    # What was under way still ends, and changes nothing of that.
    after = _finish(rig, backfill, DAYS[0])
    assert (after.state, after.running) == (BackfillState.CANCELLED, DAYS[1:2])
    with pytest.raises(IllegalTransitionError, match="CANCELLED"):
        rig.backfills.resume(backfill.backfill_id, by="bob", reason="no")


def test_pause__while_the_last_periods_end__does_not_keep_it_from_ending(rig: Rig) -> None:
    backfill = _create(rig, dates=DAYS[:1])
    rig.backfills.advance(backfill.backfill_id, ())
    rig.backfills.pause(backfill.backfill_id, by="bob", reason="wait")

    assert _finish(rig, backfill, DAYS[0]).state is BackfillState.COMPLETED


@pytest.mark.parametrize(("by", "reason"), [("", "why"), ("ann", "")])
def test_orders__without_who_or_why__are_refused(rig: Rig, by: str, reason: str) -> None:
    backfill = _create(rig)
    for order in (rig.backfills.pause, rig.backfills.resume, rig.backfills.cancel):
        with pytest.raises(InvalidPayloadError):
            order(backfill.backfill_id, by=by, reason=reason)
    with pytest.raises(InvalidPayloadError):
        rig.backfills.create(_spec(), by=by, reason=reason)


def test_get__no_such_backfill__says_so(rig: Rig) -> None:
    with pytest.raises(NotFoundError, match="backfill_none"):
        rig.backfills.get("backfill_none")


def test_advance__a_year_of_hours__is_kept_and_goes_on(rig: Rig) -> None:
    hours = tuple(f"{month:02}-{day:02}T{hour:02}" for month in range(12) for day in range(30) for hour in range(24))
    backfill = _create(rig, dates=hours, concurrency=100)

    batch = rig.backfills.advance(backfill.backfill_id, set(hours[:8_000]), limit=50)

    assert (batch.begins, len(batch.skips)) == (hours[8_000:8_050], 8_000)
    assert rig.backfills.get(backfill.backfill_id).taken == 8_050
