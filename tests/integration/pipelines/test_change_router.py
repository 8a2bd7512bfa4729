"""What each change of the table means: what it begins, what it asks for again, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.pipelines.definition.model import (
    Budgets,
    Exclusions,
    Inclusions,
    Period,
    PostRun,
    Readiness,
    Rule,
    Schedule,
    SensorTrigger,
    Trait,
    Upstream,
)
from headgate.pipelines.enums import Cause, RerunReason, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rerun_rows import RerunStatus, request_key
from headgate.pipelines.runs.rows import Slot
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Change, ChangeKind
from tests.pipeline_rig import DATE, LANDED, Rig, pipeline, slot_of, waiting_pipeline

SLOT = slot_of()
COUNTED = PostRun(rules=(Rule(key="orders"),), drift_field="count")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        yield opened


def raw(rig: Rig, sort: str, **fields: Any) -> None:
    """Write a row as others do who know nothing of our library."""
    rig.store.put(PIPELINES, {"PK": "PIPELINE#silver", "SK": sort, **fields})
    rig.pump()


def done(rig: Rig, **fields: Any) -> None:
    rig.define(pipeline(**fields))
    rig.jobs.succeed()
    rig.push("silver", "orders", date=DATE, count=10)
    rig.push("silver", "landed", date=DATE)
    rig.advance("1m")
    assert rig.status(SLOT) is RunStatus.COMPLETED


def begun(rig: Rig) -> list[str]:
    return sorted(log.date for log in rig.stores.runs.logs("silver").logs if log.attempts)


# Baselines.


def test_baseline__something_it_is_taken_from_makes_no_sense__the_run_is_done_and_that_is_reported(rig: Rig) -> None:
    after_bronze = Rule(upstream=Upstream(pipeline="bronze", schedule="stream"))
    rig.define(pipeline("bronze"), pipeline(post_run=PostRun(rules=(*COUNTED.rules, after_bronze))))
    rig.store.put(PIPELINES, {"PK": "PIPELINE#bronze", "SK": f"RUNLOG#{DATE}#stream", "status": 7})
    rig.jobs.succeed()
    rig.push("silver", "landed", date=DATE)
    rig.advance("1m")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    events = rig.events("silver", EventName.BASELINE_CAPTURE_FAILED, EventName.POST_RUN_BASELINE_CAPTURED)
    assert [each.name for each in events] == ["BASELINE_CAPTURE_FAILED"]
    assert "RUNLOG#" in events[0].detail["error"]


# Quarantine.


def test_quarantine__records_are_put_aside_by_others_and_taken_back__both_are_reported_once(rig: Rig) -> None:
    rig.define(pipeline())
    raw(rig, f"QUARANTINE#{DATE}#07", count=3, quarantinePath="s3://aside/", reasons=["no id"])
    raw(rig, f"QUARANTINE#{DATE}#07", count=0)
    rig.receive_again(rig.all_changes())

    events = rig.events("silver", EventName.DATA_QUARANTINED, EventName.QUARANTINE_CLEARED)
    assert [(each.name, each.date) for each in events] == [("DATA_QUARANTINED", DATE), ("QUARANTINE_CLEARED", DATE)]
    assert (events[0].detail["count"], events[0].detail["reasons"]) == (3, ["no id"])


# Sensors.


@pytest.mark.parametrize(
    ("trigger", "data", "begins"),
    [
        (SensorTrigger(key="landed"), {}, True),
        (SensorTrigger(key="landed", check="equals", field="state", value="done"), {"state": "done"}, True),
        (SensorTrigger(key="landed", check="equals", field="state", value="done"), {"state": "half"}, False),
        (SensorTrigger(key="landed", check="equals", field="state", value="done"), {}, False),
        (SensorTrigger(key="landed", check="gte", field="n", value=5), {"n": "5"}, True),
        (SensorTrigger(key="other"), {}, False),
        # D16: the name is a name, not a beginning.
        (SensorTrigger(key="land"), {}, False),
    ],
)
def test_sensor__with_a_condition__begins_a_run_if_it_is_met(
    rig: Rig, trigger: SensorTrigger, data: dict[str, Any], begins: bool
) -> None:
    rig.define(pipeline(schedules=(Schedule(sensor=trigger),)))

    rig.push("silver", "landed", date=DATE, **data)

    assert begun(rig) == ([DATE] if begins else [])


@pytest.mark.parametrize(
    ("period", "start", "key_period", "data", "date"),
    [
        (Period.DAILY, "2026-03-03T08:00:00+00:00", None, {"date": "2026-03-01"}, "2026-03-01"),
        (Period.DAILY, "2026-03-03T08:00:00+00:00", None, {"date": "20260301"}, "2026-03-01"),
        (Period.DAILY, "2026-03-03T08:00:00+00:00", "2026-02-28", {}, "2026-02-28"),
        (Period.DAILY, "2026-03-03T08:00:00+00:00", None, {}, "2026-03-03"),
        (Period.DAILY, "2026-03-03T08:00:00+00:00", None, {"date": "2026-03-02", "hour": "23"}, "2026-03-02"),
        (Period.HOURLY, "2026-03-03T08:00:00+00:00", None, {"date": "2026-03-03", "hour": "07"}, "2026-03-03T07"),
        # bug 16: the last hour of a day, reported after midnight, is of the day before.
        (Period.HOURLY, "2026-03-04T00:01:00+00:00", None, {"date": "2026-03-03", "hour": "23"}, "2026-03-03T23"),
        (Period.HOURLY, "2027-01-01T00:01:00+00:00", "2026-12-31T23", {}, "2026-12-31T23"),
        (Period.WEEKLY, "2026-03-03T08:00:00+00:00", None, {"date": "2026-03-01"}, "2026-W09"),
        (Period.MONTHLY, "2026-03-03T08:00:00+00:00", None, {"date": "2026-02-28"}, "2026-02"),
    ],
)
def test_sensor__that_speaks_of_a_period__begins_that_one(
    period: Period, start: str, key_period: str | None, data: dict[str, Any], date: str
) -> None:
    with Rig(start) as rig:
        rig.define(pipeline(period=period))

        rig.push("silver", "landed", key_period, **data)

        assert begun(rig) == [date]


def test_sensor__of_no_period__present_one_is_by_the_wall_of_the_pipeline() -> None:
    with Rig("2026-03-03T01:00:00+00:00") as rig:
        rig.define(pipeline(timezone="America/New_York"))
        rig.push("silver", "landed", x=1)
        assert begun(rig) == ["2026-03-02"]


@pytest.mark.parametrize("form", ["flat", "wrapped"])
def test_sensor__written_by_others_in_either_form__begins_and_is_evaluated(rig: Rig, form: str) -> None:
    rig.define(waiting_pipeline())
    fields: dict[str, Any] = {"date": DATE, "count": 12}

    raw(rig, "SENSOR#orders", **(fields if form == "flat" else {"data": fields}))
    raw(rig, "SENSOR#landed", **(fields if form == "flat" else {"data": fields}))

    assert rig.status(SLOT) is RunStatus.RUNNING


def test_sensor__written_by_others_after_the_run__is_late_data(rig: Rig) -> None:
    done(rig)

    raw(rig, "SENSOR#landed", data={"date": DATE, "count": 13})
    rig.advance("1m")

    assert rig.event_names("silver", EventName.LATE_DATA_ARRIVAL) == ["LATE_DATA_ARRIVAL"]
    assert rig.log(SLOT).attempts == 2


def test_sensor__written_again_by_others_after_a_pause__begins(rig: Rig) -> None:
    rig.define(pipeline())
    rig.stores.controls.pause("silver", by="ana", reason="migration")
    raw(rig, "SENSOR#landed", data={"date": DATE, "n": 1})
    rig.stores.controls.resume("silver", by="ana", reason="done")

    raw(rig, "SENSOR#landed", data={"date": DATE, "n": 2})

    assert rig.status(SLOT) is RunStatus.RUNNING


def test_sensor__said_again_after_a_pause__begins(rig: Rig) -> None:
    # bug 23: a pursuit that came to nothing does not block the next.
    rig.define(pipeline())
    rig.stores.controls.pause("silver", by="ana", reason="migration")
    rig.push("silver", "landed", date=DATE)
    refused = rig.event_names("silver", EventName.PIPELINE_EXCLUDED)
    rig.stores.controls.resume("silver", by="ana", reason="done")

    rig.push("silver", "landed", date=DATE)

    assert refused == ["PIPELINE_EXCLUDED"]
    assert rig.status(SLOT) is RunStatus.RUNNING


def test_sensor__deleted_and_said_again_after_a_pause__begins(rig: Rig) -> None:
    # Its versions begin anew, and are yet other wishes.
    rig.define(pipeline())
    rig.stores.controls.pause("silver", by="ana", reason="migration")
    rig.push("silver", "landed", DATE)
    rig.pipelines.sensors.delete("silver", "landed", period=DATE)
    rig.stores.controls.resume("silver", by="ana", reason="done")
    rig.advance("1m")

    rig.push("silver", "landed", DATE)

    assert rig.status(SLOT) is RunStatus.RUNNING


def test_sensor__of_an_excluded_date__begins_nothing_and_says_so(rig: Rig) -> None:
    rig.define(pipeline(schedules=(Schedule(sensor=SensorTrigger(key="landed"), exclude=Exclusions(dates=(DATE,))),)))

    rig.push("silver", "landed", date=DATE)

    assert begun(rig) == []
    (events,) = rig.events("silver", EventName.PIPELINE_EXCLUDED)
    assert events.date == DATE
    assert rig.lock(SLOT) is None


def test_sensor__today_is_excluded_and_its_date_is_not__begins(rig: Rig) -> None:
    # bug 64, D24: the date of the period counts, not that of the clock.
    excludes = Schedule(sensor=SensorTrigger(key="landed"), exclude=Exclusions(dates=(DATE,)))
    rig.define(pipeline(schedules=(excludes,)))

    rig.push("silver", "landed", date="2026-03-02")

    assert begun(rig) == ["2026-03-02"]


@pytest.mark.parametrize(("date", "begins"), [("2026-03-02", True), ("2026-03-03", False)])
def test_sensor__schedule_with_inclusions__they_are_a_gate(rig: Rig, date: str, begins: bool) -> None:
    # D24
    schedule = Schedule(sensor=SensorTrigger(key="landed"), include=Inclusions(dates=("2026-03-02",)))
    rig.define(pipeline(schedules=(schedule,)))

    rig.push("silver", "landed", date=date)

    assert begun(rig) == ([date] if begins else [])


def test_sensor__after_the_trigger_deadline__begins_nothing(rig: Rig) -> None:
    rig.define(pipeline(schedules=(Schedule(sensor=SensorTrigger(key="landed", deadline="07:00")),)))

    # The data of a day is there on the day after: until seven for the 3rd, no longer for the 2nd.
    for date in ("2026-03-02", "2026-03-03"):
        rig.push("silver", "landed", date=date)

    assert begun(rig) == ["2026-03-03"]


def test_sensor__of_an_unknown_pipeline__is_nobodys(rig: Rig) -> None:
    rig.push("nobody", "landed", date=DATE)
    assert rig.executions() == []


def test_sensor__that_is_deleted__begins_nothing(rig: Rig) -> None:
    rig.define(pipeline())
    rig.pipelines.sensors.push("silver", "landed", {"date": DATE})
    rig.pipelines.sensors.delete("silver", "landed")
    changes = [change for change in rig.read_stream() if change.kind is ChangeKind.REMOVE]

    rig.receive_again(changes)

    assert changes
    assert rig.executions() == []


def test_sensor__with_fields_that_make_no_sense__does_not_stop_the_stream(rig: Rig) -> None:
    # bug 67
    rig.define(pipeline())
    nonsense: list[dict[str, Any]] = [
        {"data": {"date": "yesterday"}},
        {"data": {"date": 7, "hour": "99"}},
        {"data": "no map"},
        {"data": {"date": ["2026-03-03"]}},
        {"version": "x"},
        {"changed_at_ms": "never"},
    ]
    for fields in nonsense:
        raw(rig, "SENSOR#landed", **fields)

    rig.push("silver", "landed", date="2026-02-02")

    assert "2026-02-02" in begun(rig)


NONSENSE: list[tuple[str, str, dict[str, Any]]] = [
    ("MARKER#silver", "", {}),
    ("MARKER#silver", "not-a-date#stream", {}),
    ("MARKER#silver", "2026-03-03#no-such-schedule", {}),
    ("MARKER#silver", "2026-03-03#stream", {"version": "x"}),
    ("PIPELINE#silver", "RERUN_REQUEST#stream", {"reason": "manual"}),
    ("PIPELINE#silver", "RERUN_REQUEST#stream#not-a-date", {"reason": "manual"}),
    ("PIPELINE#silver", "RERUN_REQUEST#stream#2026-03-03", {"reason": 7, "rerun_id": 7}),
    ("PIPELINE#silver", "RUNLOG#2026-03-03#stream", {"status": "NONSENSE"}),
    ("PIPELINE#silver", "SENSOR#", {}),
    ("PIPELINE#silver", "TRAIT#", {}),
]


def test_rows__that_make_no_sense__do_not_stop_the_stream(rig: Rig) -> None:
    # bug 67: one record that cannot be understood holds up no other.
    rig.define(pipeline())
    for partition, sort, fields in NONSENSE:
        item = {"PK": partition, "SK": sort, **fields}
        key = PIPELINES.key_of(item)
        change = Change(id="1", table=PIPELINES, kind=ChangeKind.INSERT, key=key, old=None, new=item, at_seconds=0.0)
        rig.receive_again([change])
    rig.advance("1m")

    rig.push("silver", "landed", date="2026-02-02")

    assert "2026-02-02" in begun(rig)


# Told twice.


def test_stream__reported_again_from_the_beginning__changes_nothing(rig: Rig) -> None:
    # D11
    done(rig, post_run=COUNTED)
    rig.push("silver", "orders", date=DATE, count=20)
    rig.advance("2m")
    before = (rig.executions(), rig.jobs.begun, rig.log(SLOT), len(rig.stores.reruns.ls("silver").reruns))

    rig.receive_again(rig.all_changes())
    rig.advance("2m")

    after = (rig.executions(), rig.jobs.begun, rig.log(SLOT), len(rig.stores.reruns.ls("silver").reruns))
    assert after == before


def test_stream__reported_again_after_the_definition_has_changed__changes_nothing(rig: Rig) -> None:
    done(rig)
    rig.define(waiting_pipeline())

    rig.receive_again(rig.all_changes())
    rig.advance("2m")

    assert len(rig.executions()) == 1
    assert rig.log(SLOT).attempts == 1


def test_stream__reported_again__reports_nothing_twice(rig: Rig) -> None:
    # D11, bug 69
    done(rig, post_run=COUNTED)
    rig.push("silver", "orders", date=DATE, count=20)
    rig.push("silver", "landed", date=DATE, again=1)
    rig.advance("2m")
    before = rig.event_names("silver")

    rig.receive_again(rig.all_changes())
    rig.advance("2m")

    assert rig.event_names("silver") == before


# Markers.


def test_marker__begins_its_own_date_whatever_day_it_is(rig: Rig) -> None:
    # bugs 16 and 73: of the last hour of a day after midnight, and of a day long past.
    rig.define(pipeline())
    rig.mark(slot_of(date="2025-12-31"))
    assert begun(rig) == ["2025-12-31"]


def test_marker__written_by_others_with_nothing_but_its_keys__begins(rig: Rig) -> None:
    rig.define(pipeline())
    rig.store.put(PIPELINES, {"PK": "MARKER#silver", "SK": f"{DATE}#stream"})
    rig.pump()

    assert rig.status(SLOT) is RunStatus.RUNNING
    assert rig.run(SLOT).cause is Cause.MARKER


@pytest.mark.parametrize(
    ("sort", "fields", "schedule", "date"),
    [
        # The marker of the last hour of a day is written after midnight.
        ("2026-03-04#h23", {"date": "2026-03-03"}, "h23", "2026-03-03"),
        ("2026-03-04#h23", {"date": 20260303}, "h23", "2026-03-03"),
        ("2026-03-04#stream", {"date": "2026-03-03", "scheduleID": "h23"}, "h23", "2026-03-03"),
        ("whatever#h23", {"date": "2026-03-03"}, "h23", "2026-03-03"),
        ("2026-03-04#h23", {"date": "2026-03-03T23"}, "h23", "2026-03-03"),
        # Without any date it is the day on which it is written.
        ("whatever#h23", {}, "h23", DATE),
    ],
)
def test_marker__with_a_date_of_its_own__begins_that_period(
    rig: Rig, sort: str, fields: dict[str, Any], schedule: str, date: str
) -> None:
    rig.define(pipeline(schedules=(Schedule(name="stream"), Schedule(name="h23"))))
    rig.store.put(PIPELINES, {"PK": "MARKER#silver", "SK": sort, **fields})
    rig.pump()

    assert [(log.schedule_id, log.date) for log in rig.stores.runs.logs("silver").logs] == [(schedule, date)]


@pytest.mark.parametrize(
    ("period", "date", "reason"),
    [(Period.DAILY, "tomorrow", "does not name a period"), (Period.HOURLY, "2026-03-03", "name one of its periods")],
)
def test_marker__whose_date_is_no_period_of_the_pipeline__is_refused_and_reported_once(
    rig: Rig, period: Period, date: str, reason: str
) -> None:
    rig.define(pipeline(period=period))
    rig.store.put(PIPELINES, {"PK": "MARKER#silver", "SK": "2026-03-03#stream", "date": date})
    rig.pump()
    rig.receive_again(rig.all_changes())

    assert rig.stores.runs.logs("silver").logs == []
    (refused,) = rig.events("silver", EventName.MARKER_REFUSED)
    assert refused.detail["marker"] == "2026-03-03#stream"
    assert reason in refused.detail["reason"]


def test_marker__put_again_after_a_failure__begins_another_attempt(rig: Rig) -> None:
    # bug 23
    rig.define(pipeline(retry=pipeline().retry))
    rig.jobs.fail()
    rig.mark(SLOT)
    rig.advance("30s")
    rig.stores.controls.pause("silver", by="ana", reason="stop")
    rig.advance("10m")
    rig.stores.controls.resume("silver", by="ana", reason="go")
    attempts = rig.log(SLOT).attempts
    rig.jobs.succeed()

    rig.mark(SLOT)
    rig.advance("1m")

    assert rig.log(SLOT).attempts == attempts + 1
    assert rig.status(SLOT) is RunStatus.COMPLETED


def test_marker__of_a_done_period__begins_nothing(rig: Rig) -> None:
    done(rig)
    rig.mark(SLOT)
    rig.advance("2m")
    assert rig.log(SLOT).attempts == 1
    assert rig.lock(SLOT) is None


def test_marker__that_expires__asks_for_nothing(rig: Rig) -> None:
    rig.define(pipeline())
    rig.jobs.is_sync = True
    rig.mark(SLOT)
    count = len(rig.executions())

    rig.advance("31d")
    rig.store.sweep()
    rig.pump()

    assert len(rig.executions()) == count


# Late data.


def test_late_data__after_a_success__noted_once_and_done_again(rig: Rig) -> None:
    done(rig)

    rig.push("silver", "landed", date=DATE, n=2)
    rig.advance("1m")

    assert rig.event_names("silver", EventName.LATE_DATA_ARRIVAL) == ["LATE_DATA_ARRIVAL"]
    assert [run.cause for run in rig.runs(SLOT)] == [Cause.SENSOR, Cause.RERUN]


def test_late_data__same_data_said_again__is_not_late(rig: Rig) -> None:
    done(rig)
    rig.push("silver", "landed", date=DATE)
    rig.advance("1m")
    assert rig.event_names("silver", EventName.LATE_DATA_ARRIVAL) == []


def test_late_data__while_the_job_runs__is_not_late(rig: Rig) -> None:
    rig.define(pipeline())
    rig.push("silver", "landed", date=DATE)
    rig.advance("10s")
    rig.push("silver", "landed", date=DATE, n=2)
    rig.jobs.succeed()
    rig.advance("5m")

    assert rig.event_names("silver", EventName.LATE_DATA_ARRIVAL) == []
    assert rig.log(SLOT).attempts == 1


def test_late_data__second_time__budget_is_spent_and_that_is_reported(rig: Rig) -> None:
    done(rig, budgets=Budgets(drift=1))
    for number in (2, 3):
        rig.advance("1m")
        rig.push("silver", "landed", date=DATE, n=number)
        rig.advance("2m")

    assert rig.log(SLOT).attempts == 2
    assert rig.event_names("silver", EventName.RERUN_REJECTED) == ["RERUN_REJECTED"]


# What the post-run rules look at.


def test_drift__after_a_success__the_period_is_done_again(rig: Rig) -> None:
    done(rig, post_run=COUNTED)

    rig.push("silver", "orders", date=DATE, count=25)
    rig.advance("1m")

    (events,) = rig.events("silver", EventName.POST_RUN_DRIFT)
    assert (events.detail["previous"], events.detail["current"], events.detail["delta"]) == (10, 25, 15)
    assert [run.cause for run in rig.runs(SLOT)] == [Cause.SENSOR, Cause.RERUN]


def test_drift__to_nothing__is_drift(rig: Rig) -> None:
    # bug 48
    done(rig, post_run=COUNTED)
    rig.push("silver", "orders", date=DATE, count=0)
    rig.advance("1m")
    assert rig.log(SLOT).attempts == 2


def test_drift__within_the_threshold__is_none(rig: Rig) -> None:
    done(rig, post_run=PostRun(rules=(Rule(key="orders"),), drift_field="count", drift_threshold=5))
    rig.push("silver", "orders", date=DATE, count=15)
    rig.advance("1m")
    assert rig.log(SLOT).attempts == 1


def test_drift__no_baseline_yet__is_none(rig: Rig) -> None:
    # bug 60
    rig.define(pipeline(post_run=COUNTED))
    rig.push("silver", "orders", date=DATE, count=10)
    rig.push("silver", "landed", date=DATE)
    rig.push("silver", "orders", date=DATE, count=99)
    rig.jobs.succeed()
    rig.advance("1m")

    assert rig.event_names("silver", EventName.POST_RUN_DRIFT, EventName.POST_RUN_DRIFT_INFLIGHT) == []
    assert rig.log(SLOT).attempts == 1


def test_drift__sensor_first_seen_after_the_run__is_none(rig: Rig) -> None:
    # bug 60
    rig.define(pipeline(post_run=COUNTED))
    rig.jobs.succeed()
    rig.push("silver", "landed", date=DATE)
    rig.advance("1m")

    rig.push("silver", "orders", date=DATE, count=99)
    rig.advance("1m")

    assert rig.log(SLOT).attempts == 1


def test_drift__of_two_sensors_at_once__one_rerun(rig: Rig) -> None:
    # bug 61
    rules = (Rule(key="orders"), Rule(key="items"))
    rig.define(pipeline(post_run=PostRun(rules=rules, drift_field="count"), budgets=Budgets(drift=5)))
    rig.jobs.succeed()
    for key in ("orders", "items"):
        rig.push("silver", key, date=DATE, count=10)
    rig.push("silver", "landed", date=DATE)
    rig.advance("1m")

    for key in ("orders", "items"):
        rig.pipelines.sensors.push("silver", key, {"date": DATE, "count": 20})
    rig.advance("3m")

    assert len(rig.event_names("silver", EventName.POST_RUN_DRIFT)) == 2
    assert len(rig.stores.reruns.ls("silver").reruns) == 1
    assert rig.log(SLOT).attempts == 2


def test_drift__of_the_sensor_that_begins_runs__is_seen_too(rig: Rig) -> None:
    # D18
    rules = PostRun(rules=(Rule(key="landed"),), drift_field="count")
    rig.define(pipeline(post_run=rules))
    rig.jobs.succeed()
    rig.push("silver", "landed", date=DATE, count=10)
    rig.advance("1m")

    rig.push("silver", "landed", date=DATE, count=20)
    rig.advance("2m")

    assert rig.event_names("silver", EventName.POST_RUN_DRIFT) == ["POST_RUN_DRIFT"]
    assert rig.event_names("silver", EventName.LATE_DATA_ARRIVAL) == ["LATE_DATA_ARRIVAL"]
    # Both ask for the same, and get one rerun.
    assert rig.log(SLOT).attempts == 2
    assert len(rig.stores.reruns.ls("silver").reruns) == 1


def test_drift__while_a_rerun_is_under_way__is_reported_and_begins_nothing(rig: Rig) -> None:
    done(rig, post_run=COUNTED)
    rig.jobs.keep_running()
    rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.pump()

    rig.push("silver", "orders", date=DATE, count=20)

    assert rig.event_names("silver", EventName.POST_RUN_DRIFT_INFLIGHT) == ["POST_RUN_DRIFT_INFLIGHT"]
    assert rig.event_names("silver", EventName.POST_RUN_DRIFT) == []


def test_drift__after_a_rerun_that_failed__is_not_reported_as_under_way(rig: Rig) -> None:
    done(rig, post_run=COUNTED, retry=pipeline().retry)
    rig.jobs.fail()
    rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.advance("30m")
    failed = rig.status(SLOT)

    rig.push("silver", "orders", date=DATE, count=20)

    assert failed is RunStatus.FAILED
    assert rig.event_names("silver", EventName.POST_RUN_DRIFT_INFLIGHT) == []


def test_drift__read_as_it_was_just_written__not_missed(rig: Rig) -> None:
    # D25: the run is done and the sensor comes in the same moment.
    done(rig, post_run=COUNTED)
    rig.pipelines.sensors.push("silver", "orders", {"date": DATE, "count": 20})

    rig.pump()

    assert rig.event_names("silver", EventName.POST_RUN_DRIFT) == ["POST_RUN_DRIFT"]


# Requests for reruns.


def test_rerun_request__deleted__is_no_request(rig: Rig) -> None:
    # D12
    done(rig)
    rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.advance("2m")
    attempts = rig.log(SLOT).attempts

    rig.store.delete(PIPELINES, request_key(SLOT))
    rig.advance("2m")

    assert rig.log(SLOT).attempts == attempts == 2


@pytest.mark.parametrize(("reason", "budget"), [("late-data", "drift"), ("because I say so", "manual")])
def test_rerun_request__written_by_others__is_judged_by_its_budget(rig: Rig, reason: str, budget: str) -> None:
    done(rig)
    raw(rig, f"RERUN_REQUEST#stream#{DATE}", reason=reason, requestedAt="2026-03-03T08:05:00Z")
    rig.advance("2m")

    (rerun,) = rig.stores.reruns.ls("silver").reruns
    assert rerun.status is RerunStatus.COMPLETED
    assert rig.log(SLOT).reruns == {budget: 1}


def test_rerun_request__reported_twice__is_one(rig: Rig) -> None:
    # D11, D25
    done(rig, budgets=Budgets(manual=5))
    raw(rig, f"RERUN_REQUEST#stream#{DATE}", reason="fix", requestedAt="1")
    changes = [change for change in rig.all_changes() if str(change.key.sort).startswith("RERUN_REQUEST#")]

    rig.receive_again([*changes, *changes])
    rig.advance("5m")

    assert rig.log(SLOT).attempts == 2
    assert len(rig.stores.reruns.ls("silver").reruns) == 1


def test_rerun_request__on_an_excluded_date__is_rejected_and_leaves_the_period_as_it_is(rig: Rig) -> None:
    # bug 26
    excludes = Schedule(sensor=SensorTrigger(key="landed"), exclude=Exclusions(dates=(DATE,)))
    done(rig)
    rig.define(pipeline(schedules=(excludes,)))

    rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.advance("2m")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.log(SLOT).attempts == 1
    assert rig.event_names("silver", EventName.RERUN_REJECTED, EventName.PIPELINE_EXCLUDED)
    (rerun,) = rig.stores.reruns.ls("silver").reruns
    assert rerun.status is RerunStatus.REJECTED
    assert rig.lock(SLOT) is None


def test_rerun_request__of_a_period_that_never_ran__begins_it(rig: Rig) -> None:
    rig.define(pipeline())
    rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    rig.pump()
    assert rig.status(SLOT) is RunStatus.RUNNING


# Other rows.


def test_other_rows__of_the_table__begin_nothing(rig: Rig) -> None:
    rig.define(pipeline())
    for sort in ("CONFIG", "EVENT#1#e", "RUN#run_1", "RERUN#1", "LOCKED#x", "EVAL#x", "WAIT#a#b#c"):
        change = Change(
            id="1",
            table=PIPELINES,
            kind=ChangeKind.INSERT,
            key=PIPELINES.key_of({"PK": "PIPELINE#silver", "SK": sort}),
            old=None,
            new={"PK": "PIPELINE#silver", "SK": sort},
            at_seconds=0.0,
        )
        rig.pipelines.router.on_change(change)
        rig.pipelines.router.on_change(replace(change, kind=ChangeKind.REMOVE, new=None))
    rig.pump()

    assert rig.executions() == []


def test_trait__that_is_pushed__wakes_who_waits(rig: Rig) -> None:
    rig.define(pipeline(schedules=(LANDED,), readiness=Readiness(traits={"fresh": Trait(evaluator="push")})))
    rig.push_trait("silver", "fresh", "FAIL")
    rig.push("silver", "landed", date=DATE)
    waiting = rig.status(SLOT)

    rig.push_trait("silver", "fresh", "PASS")

    assert waiting is RunStatus.PENDING
    assert rig.status(Slot("silver", "stream", DATE)) is RunStatus.RUNNING
