"""Who is asked for when a run is done: the schedule that depends on it, for its own period, when all is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import (
    Cascade,
    Period,
    Pipeline,
    Readiness,
    Rule,
    Schedule,
    SensorTrigger,
    Upstream,
)
from headgate.pipelines.enums import Cause, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rows import Slot
from tests.pipeline_rig import DATE, LANDED, Rig, pipeline, slot_of

GOLD = Slot("gold", "stream", DATE)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.jobs.succeed()
        yield opened


def after(*upstreams: Upstream, **fields: Any) -> Pipeline:
    """Return a pipeline that begins when others are done."""
    return pipeline("gold", **{"schedules": (Schedule(upstream=upstreams),), **fields})


def do(rig: Rig, pipeline_id: str, date: str = DATE, key: str = "landed") -> None:
    rig.push(pipeline_id, key, date)
    rig.advance("31s")


def taken_for_done(rig: Rig, date: str) -> None:
    rig.stores.directives.mark_success(Slot("hourly", "stream", date), by="ana", reason="done elsewhere")


def begun(rig: Rig, pipeline_id: str = "gold") -> list[tuple[str, str]]:
    logs = rig.stores.runs.logs(pipeline_id, limit=500).logs
    return sorted((log.schedule_id, log.date) for log in logs if log.attempts)


def test_cascade__upstream_done__downstream_begins_for_the_same_date(rig: Rig) -> None:
    rig.define(pipeline("silver"), after(Upstream(pipeline="silver")))

    do(rig, "silver")

    assert begun(rig) == [("stream", DATE)]
    assert rig.run(GOLD).cause is Cause.UPSTREAM
    assert rig.event_names("silver", EventName.CASCADE_SENT) == ["CASCADE_SENT"]


def test_cascade__upstream_failed__downstream_does_not_begin(rig: Rig) -> None:
    rig.define(pipeline("silver"), after(Upstream(pipeline="silver")))
    rig.jobs.fail()
    do(rig, "silver")
    rig.advance("1h")
    assert begun(rig) == []


def test_cascade__downstream_with_several_schedules__only_the_one_that_depends(rig: Rig) -> None:
    # bug 74
    schedules = (
        Schedule(name="early", upstream=(Upstream(pipeline="silver", schedule="stream"),)),
        Schedule(name="late", upstream=(Upstream(pipeline="silver", schedule="evening"),)),
        Schedule(name="own", sensor=SensorTrigger(key="go")),
    )
    upstream = pipeline("silver", schedules=(LANDED, Schedule(name="evening", sensor=SensorTrigger(key="evening"))))
    rig.define(upstream, pipeline("gold", schedules=schedules))

    do(rig, "silver")
    first = begun(rig)
    do(rig, "silver", key="evening")

    assert first == [("early", DATE)]
    assert begun(rig) == [("early", DATE), ("late", DATE)]


def test_cascade__two_upstreams__begins_with_the_second(rig: Rig) -> None:
    rig.define(pipeline("silver"), pipeline("bronze"), after(Upstream(pipeline="silver"), Upstream(pipeline="bronze")))

    do(rig, "silver")
    first = begun(rig)
    do(rig, "bronze")

    assert first == []
    assert begun(rig) == [("stream", DATE)]


def test_cascade__all_hours_of_a_day__begins_with_the_last_of_them(rig: Rig) -> None:
    # Whichever is the last: they do not come in order.
    rig.define(pipeline("hourly", period=Period.HOURLY), after(Upstream(pipeline="hourly", periods="all")))
    hours = [f"{DATE}T{hour:02}" for hour in range(24)]
    for date in hours[2:]:
        taken_for_done(rig, date)
    do(rig, "hourly", hours[1])
    before = begun(rig)

    do(rig, "hourly", hours[0])

    assert before == []
    assert begun(rig) == [("stream", DATE)]


@pytest.mark.parametrize(("date", "count"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_cascade__all_hours_of_a_day_on_which_the_clocks_change__as_many_as_there_are(date: str, count: int) -> None:
    with Rig(f"{date}T12:00:00+00:00") as rig:
        rig.jobs.succeed()
        upstream = pipeline("hourly", period=Period.HOURLY, timezone="Europe/Berlin")
        rig.define(upstream, after(Upstream(pipeline="hourly", periods="all"), timezone="Europe/Berlin"))
        gold = rig.pipelines.known.newest("gold")[0]
        periods = rig.pipelines.downstream._periods
        hours = periods.of_upstream(gold, Upstream(pipeline="hourly", periods="all"), date)
        for hour in hours[:-2]:
            taken_for_done(rig, hour)
        do(rig, "hourly", hours[-2])
        before = begun(rig)
        do(rig, "hourly", hours[-1])

        assert len(hours) == count
        assert before == []
        assert begun(rig) == [("stream", date)]


def test_cascade__some_may_be_missing__begins_with_as_many_as_it_needs(rig: Rig) -> None:
    some = Upstream(pipeline="hourly", periods="all", missing_max=22)
    rig.define(pipeline("hourly", period=Period.HOURLY), after(some))

    do(rig, "hourly", f"{DATE}T05")
    first = begun(rig)
    do(rig, "hourly", f"{DATE}T06")

    assert first == []
    assert begun(rig) == [("stream", DATE)]


def test_cascade__of_the_period_before__begins_the_one_after(rig: Rig) -> None:
    rig.define(pipeline("silver"), after(Upstream(pipeline="silver", periods="previous")))
    do(rig, "silver", "2026-02-28")
    assert begun(rig) == [("stream", "2026-03-01")]


@pytest.mark.parametrize(
    ("period", "date", "days"),
    [
        (Period.WEEKLY, "2026-W01", ["2025-12-29", "2026-01-04"]),
        (Period.MONTHLY, "2026-02", ["2026-02-01", "2026-02-28"]),
    ],
)
def test_cascade__from_days_to_something_longer__begins_the_one_they_lie_in(
    rig: Rig, period: Period, date: str, days: list[str]
) -> None:
    nearly_all = Upstream(pipeline="silver", periods="all", missing_max=27)
    rig.define(pipeline("silver"), after(nearly_all, period=period))
    do(rig, "silver", days[0])
    do(rig, "silver", days[1])
    assert begun(rig) == [("stream", date)]


def test_cascade__switched_off__begins_nothing(rig: Rig) -> None:
    rig.define(pipeline("silver", cascade=Cascade(enabled=False)), after(Upstream(pipeline="silver")))
    do(rig, "silver")
    assert begun(rig) == []


def test_cascade__upstream_done_again__downstream_is_done_once(rig: Rig) -> None:
    # What is done is not done again by itself, but waiting pipelines are evaluated once more.
    rig.define(pipeline("silver"), after(Upstream(pipeline="silver")))
    do(rig, "silver")
    rig.advance("1m")
    rig.stores.reruns.request(slot_of(), RerunReason.MANUAL, by="ana")
    rig.advance("2m")

    assert len(rig.runs(slot_of())) == 2
    assert rig.log(GOLD).attempts == 1


def test_cascade__downstream_that_failed_before__begins_again(rig: Rig) -> None:
    rig.define(pipeline("silver"), after(Upstream(pipeline="silver")))
    rig.jobs.is_sync = True
    do(rig, "silver")
    rig.advance("2m")
    assert rig.status(GOLD) is RunStatus.COMPLETED


def test_rule__on_an_upstream__waits_for_it_and_is_woken(rig: Rig) -> None:
    waits = pipeline("gold", readiness=Readiness(rules=(Rule(upstream=Upstream(pipeline="silver")),)))
    rig.define(pipeline("silver"), waits)
    do(rig, "gold")
    waiting = rig.status(GOLD)
    at_ms = rig.now_ms

    do(rig, "silver")
    rig.advance("1m")

    assert waiting is RunStatus.PENDING
    triggered_at_ms = rig.run(GOLD).triggered_at_ms
    assert triggered_at_ms is not None
    # With the end of the run upstream, not with the next look five minutes later.
    assert triggered_at_ms - at_ms <= 31_000


def test_cascade__downstream_deleted_since__is_nobodys(rig: Rig) -> None:
    rig.define(pipeline("silver"), after(Upstream(pipeline="silver")))
    rig.forget("gold")

    do(rig, "silver")

    assert rig.status(slot_of()) is RunStatus.COMPLETED
    assert begun(rig) == []


def test_cascade__that_fails__does_not_fail_the_run(rig: Rig) -> None:
    rig.define(pipeline("silver"), after(Upstream(pipeline="silver")))
    stand_in = rig.env.stand_in(rig.app.activities["headgate.pipelines.orchestrator"])
    real = rig.pipelines.orchestrator

    def broken(event: dict[str, Any]) -> Any:
        if event.get("action") == "notifyDownstream":
            raise RuntimeError("no answer")
        return real(event)

    stand_in.calls_with(broken)
    do(rig, "silver")
    rig.advance("3h")

    assert rig.status(slot_of()) is RunStatus.COMPLETED
    assert rig.event_names("silver", EventName.CASCADE_FAILED) == ["CASCADE_FAILED"]
    assert rig.lock(slot_of()) is None


def test_cascade__a_period_is_marked_as_done__downstream_begins_once(rig: Rig) -> None:
    rig.define(pipeline("silver"), after(Upstream(pipeline="silver")))

    rig.stores.directives.mark_success(Slot("silver", "stream", DATE), by="ana", reason="done elsewhere")
    rig.advance("1m")
    rig.receive_again(rig.all_changes())

    assert begun(rig) == [("stream", DATE)]
    assert rig.run(GOLD).cause is Cause.UPSTREAM
    assert rig.log(GOLD).attempts == 1


def test_cascade__with_a_delay_between__those_that_follow_begin_one_after_the_other(rig: Rig) -> None:
    followers = [
        pipeline(each, schedules=(Schedule(upstream=(Upstream(pipeline="silver"),)),)) for each in ("gold", "lead")
    ]
    rig.define(pipeline("silver", cascade=Cascade(delay_between=Seconds(300))), *followers)
    do(rig, "silver")
    first = [each for each in ("gold", "lead") if begun(rig, each)]
    rig.advance("4m")
    between = [each for each in ("gold", "lead") if begun(rig, each)]
    rig.advance("2m")

    assert (first, between) == (["gold"], ["gold"])
    assert begun(rig, "lead") == [("stream", DATE)]
