"""What is begun by the clock: each period once, also those that passed while no process looked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.errors import HeadgateError, OutcomeUnknownError, StoreBusyError
from headgate.pipelines.definition.model import Exclusions, Inclusions, Period, Pipeline, Schedule
from headgate.pipelines.enums import CatchUp, Cause, RunStatus
from headgate.pipelines.lifecycle.scheduler import CronScheduler, ScheduledPipeline
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.schedule.timetables import timetables
from tests.health_faults import Failing
from tests.pipeline_rig import Rig, pipeline


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.jobs.is_sync = True
        yield opened


def by_clock(cron: str = "0 9 * * *", pipeline_id: str = "silver", **fields: Any) -> Pipeline:
    schedule = {
        name: fields.pop(name) for name in ("catch_up", "exclude", "include", "after", "timezone") if name in fields
    }
    return pipeline(pipeline_id, **{"schedules": (Schedule(cron=cron, **schedule),), **fields})


def begun(rig: Rig, pipeline_id: str = "silver") -> list[str]:
    return sorted(log.date for log in rig.stores.runs.logs(pipeline_id, limit=500).logs if log.attempts)


def restarted(rig: Rig, *pipelines: Pipeline, since: Any = None) -> CronScheduler:
    """Return the clockwork of a process that has just begun, and knows the definitions as they were put."""
    clockwork = CronScheduler(rig.store, rig.clock, rig.pipelines.starter)
    known = [rig.pipelines.definitions.get(each.id) for each in pipelines]
    clockwork.load(
        [ScheduledPipeline(each.pipeline, each.version, since) for each in known], lambda found: timetables(found, {})
    )
    return clockwork


def test_tick__schedule_that_is_due__begins_its_period(rig: Rig) -> None:
    rig.define(by_clock())

    rig.advance("59m59s")
    before = begun(rig)
    rig.advance("1s")

    assert before == []
    assert begun(rig) == ["2026-03-03"]
    assert rig.run(Slot("silver", "cron", "2026-03-03")).cause is Cause.CRON


def test_tick__days_of_a_month_end__each_once(rig: Rig) -> None:
    rig.define(by_clock())
    rig.advance("5d")
    assert begun(rig) == [f"2026-03-0{day}" for day in range(3, 8)]
    assert len(rig.executions()) == 5


@pytest.mark.parametrize(
    ("start", "timezone", "until", "count"),
    [
        # Across the end of a year, of a February, and the nights on which the clocks change.
        ("2026-12-31T22:30:00+00:00", "UTC", "2027-01-01T02:30:00+00:00", 4),
        ("2028-02-28T22:30:00+00:00", "UTC", "2028-02-29T02:30:00+00:00", 4),
        ("2026-03-28T22:30:00+00:00", "Europe/Berlin", "2026-03-29T03:30:00+00:00", 5),
        ("2026-10-24T22:30:00+00:00", "Europe/Berlin", "2026-10-25T03:30:00+00:00", 5),
    ],
)
def test_tick__hourly_across_edges_of_the_calendar__every_hour_once(
    start: str, timezone: str, until: str, count: int
) -> None:
    with Rig(start) as rig:
        rig.jobs.is_sync = True
        rig.define(by_clock("5 * * * *", period=Period.HOURLY, timezone=timezone))
        rig.advance_to(until)
        assert len(begun(rig)) == len(rig.executions()) == count


def test_tick__wall_clock_set_back_and_forth__nothing_twice(rig: Rig) -> None:
    rig.define(by_clock("*/30 * * * *", period=Period.HOURLY))
    rig.advance("3h")
    before = begun(rig)

    for seconds in (-7_200.0, 7_200.0, -3_600.0, 3_600.0):
        rig.env.clock.step(seconds)
        rig.pipelines.cron_scheduler.tick()
        rig.pump()

    assert begun(rig) == before
    assert len(rig.executions()) == len(before)


@pytest.mark.parametrize(
    ("policy", "dates"),
    [
        (CatchUp.ALL, ["2026-03-03", "2026-03-04", "2026-03-05", "2026-03-06"]),
        (CatchUp.LATEST, ["2026-03-03", "2026-03-06"]),
        (CatchUp.NONE, ["2026-03-03"]),
    ],
)
def test_tick__no_one_looked_for_days__begins_what_the_policy_says(rig: Rig, policy: CatchUp, dates: list[str]) -> None:
    definition = by_clock(catch_up=policy)
    rig.define(definition)
    since = rig.now
    rig.advance("2h")

    rig.env.clock.advance(3 * 86_400.0)
    restarted(rig, definition, since=since).tick()
    rig.pump()

    assert begun(rig) == dates


def test_tick__another_process_looks_too__nothing_twice(rig: Rig) -> None:
    definition = by_clock()
    rig.define(definition)
    others = [restarted(rig, definition, since=rig.now) for _ in range(3)]

    for _ in range(3):
        rig.env.clock.advance(86_400.0)
        for clockwork in (rig.pipelines.cron_scheduler, *others):
            clockwork.tick()
        rig.pump()

    assert len(rig.executions()) == len(begun(rig)) == 3


def test_tick__new_pipeline__owes_nothing_of_the_time_before(rig: Rig) -> None:
    # bug 62
    rig.define(by_clock("0 * * * *", period=Period.HOURLY, catch_up=CatchUp.ALL))
    rig.pipelines.cron_scheduler.tick()
    assert begun(rig) == []


def test_tick__excluded_and_not_included_days__begin_nothing(rig: Rig) -> None:
    rig.define(
        by_clock(exclude=Exclusions(dates=("2026-03-04",))),
        by_clock(pipeline_id="some", include=Inclusions(dates=("2026-03-05",))),
    )
    rig.advance("3d")
    assert begun(rig) == ["2026-03-03", "2026-03-05"]
    assert begun(rig, "some") == ["2026-03-05"]


def test_tick__paused_pipeline__passes_over_and_says_so(rig: Rig) -> None:
    rig.define(by_clock())
    rig.stores.controls.pause("silver", by="ana", reason="migration")
    rig.advance("1d")
    rig.stores.controls.resume("silver", by="ana", reason="done")
    rig.advance("1d")
    assert begun(rig) == ["2026-03-04"]
    assert rig.event_names("silver").count("PIPELINE_EXCLUDED") == 1


@pytest.mark.parametrize(
    ("method", "error"),
    [
        ("get", StoreBusyError("busy")),
        ("put", StoreBusyError("busy")),
        ("put", OutcomeUnknownError("the answer was lost")),
    ],
    ids=["read", "written", "lost"],
)
def test_tick__store_that_fails_once__begins_all_the_same(rig: Rig, method: str, error: HeadgateError) -> None:
    definition = by_clock()
    rig.define(definition, by_clock(pipeline_id="other"))
    faulty: Any = Failing(rig.store, method, error, is_done=isinstance(error, OutcomeUnknownError))
    clockwork = CronScheduler(faulty, rig.clock, rig.pipelines.starter)
    known = [rig.pipelines.definitions.get(name) for name in ("silver", "other")]
    clockwork.load(
        [ScheduledPipeline(each.pipeline, each.version, rig.now) for each in known], lambda each: timetables(each, {})
    )

    for _ in range(7):
        rig.env.clock.advance(600.0)
        try:
            clockwork.tick()
        except HeadgateError as exc:
            pytest.fail(f"a tick that fails takes the others with it: {exc}")
        rig.pump()

    assert begun(rig) == begun(rig, "other") == ["2026-03-03"]
    assert len(rig.executions()) == 2


def test_tick__pipeline_deleted_a_moment_ago__others_are_begun(rig: Rig) -> None:
    rig.define(by_clock(pipeline_id="a"), by_clock(pipeline_id="b"))
    rig.pipelines.definitions.delete("a", "ana")

    rig.env.clock.advance(3_600.0)
    rig.pipelines.cron_scheduler.tick()
    rig.pump()

    assert begun(rig, "a") == []
    assert begun(rig, "b") == ["2026-03-03"]


def test_know__definition_that_has_no_timetable__stops_no_other(rig: Rig) -> None:
    # D29
    bad = pipeline("bad", schedules=(Schedule(cron="99 99 * * *"),))
    rig.define(bad, by_clock())
    rig.env.clock.advance(3_600.0)
    rig.pipelines.cron_scheduler.tick()
    rig.pump()
    assert begun(rig) == ["2026-03-03"]


def test_know__definition_that_changes_often__looks_no_more_often_for_it(rig: Rig) -> None:
    for minute in range(30):
        rig.define(by_clock(f"{minute} 9 * * *"))
    rig.pipelines.cron_scheduler.tick()

    rig.advance("2h")

    assert begun(rig) == ["2026-03-03"]
    # As many looks are planned as there are schedules.
    assert len(rig.pipelines.cron_scheduler._heap) == 1


def test_know__schedule_that_is_gone__is_due_no_more(rig: Rig) -> None:
    rig.define(by_clock())
    rig.define(pipeline())
    rig.advance("2d")
    assert begun(rig) == []


def test_seconds_left__until_the_next_slot(rig: Rig) -> None:
    rig.define(by_clock("30 8 * * *"))
    rig.pipelines.cron_scheduler.tick()
    assert rig.pipelines.cron_scheduler.seconds_left() == 1_800.0


def test_tick__many_pipelines_and_nothing_due__reads_nothing(rig: Rig) -> None:
    rig.define(*(by_clock(pipeline_id=f"p{number}") for number in range(50)))
    rig.pipelines.cron_scheduler.tick()
    store = rig.store
    calls: list[str] = []
    original = store.get

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append("get")
        return original(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "get", counted)
        rig.env.clock.advance(1_000.0)
        rig.pipelines.cron_scheduler.tick()

    assert calls == []


def test_clockwork__window_schedule_without_cron__begins_each_day_from_its_hour_on(rig: Rig) -> None:
    rig.define(pipeline(schedules=(Schedule(name="night", after="09:30"),)))
    rig.advance("89m")
    before = begun(rig)
    rig.advance("1m")
    assert before == []
    assert rig.status(Slot("silver", "night", "2026-03-03")) is RunStatus.COMPLETED
