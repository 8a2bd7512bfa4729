from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from headgate.durable.model.duration import Seconds
from headgate.errors import InvalidScheduleError
from headgate.pipelines.definition.model import Period, Pipeline, Schedule, SensorTrigger, Sla
from headgate.pipelines.enums import ExpectationVerdict
from headgate.pipelines.schedule.sla import (
    SlaMoments,
    check_sla,
    completion_moments,
    evaluation_moments,
    judge,
    reach,
    relative_moments,
    schedule_deadline,
    trigger_deadline,
)
from headgate.pipelines.schedule.timetables import Timetable

CRON = Schedule(cron="0 6 * * *")
SENSOR = Schedule(sensor=SensorTrigger(key="s"))
HOURLY = Schedule(cron="5 * * * *")
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo", "America/Santiago"]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def table(schedule: Schedule, sla: Sla | None = None, *, period: Period = Period.DAILY, zone: str = "UTC") -> Timetable:
    every = Seconds(900) if period is Period.CUSTOM else None
    pipeline = Pipeline(id="p", period=period, every=every, timezone=zone, schedules=(schedule,), sla=sla)
    return Timetable(pipeline, schedule, {})


def breach(timetable: Timetable, date: str) -> str:
    moments = completion_moments(timetable, date)
    assert moments is not None
    return f"{moments.breach_at:%Y-%m-%dT%H:%MZ}"


@pytest.mark.parametrize(
    ("schedule", "period", "date", "deadline", "offset", "expected"),
    [
        # By the clock: the same day.
        (CRON, Period.DAILY, "2026-03-03", "08:00", UNSET, "2026-03-03T08:00Z"),
        # bug 1: a deadline that lies before the slot is that of the next day.
        (CRON, Period.DAILY, "2026-03-03", "02:00", UNSET, "2026-03-04T02:00Z"),
        (Schedule(cron="0 22 * * *"), Period.DAILY, "2026-12-31", "02:00", UNSET, "2027-01-01T02:00Z"),
        (Schedule(after="20:00"), Period.DAILY, "2026-02-28", "02:00", UNSET, "2026-03-01T02:00Z"),
        # bug 3: data of a day is complete the day after; month, year and leap day.
        (SENSOR, Period.DAILY, "2026-03-03", "08:00", UNSET, "2026-03-04T08:00Z"),
        (SENSOR, Period.DAILY, "2026-03-03", "00:00", UNSET, "2026-03-04T00:00Z"),
        (SENSOR, Period.DAILY, "2026-03-31", "02:00", UNSET, "2026-04-01T02:00Z"),
        (SENSOR, Period.DAILY, "2026-12-31", "23:59", UNSET, "2027-01-01T23:59Z"),
        (SENSOR, Period.DAILY, "2028-02-28", "02:00", UNSET, "2028-02-29T02:00Z"),
        (SENSOR, Period.DAILY, "2026-02-28", "02:00", UNSET, "2026-03-01T02:00Z"),
        # Said, it is as said.
        (SENSOR, Period.DAILY, "2026-03-03", "23:00", 0, "2026-03-03T23:00Z"),
        (CRON, Period.DAILY, "2026-03-03", "02:00", 2, "2026-03-05T02:00Z"),
        # bug 2: the hour after, and the last of a day rolls over.
        (HOURLY, Period.HOURLY, "2026-03-03T07", ":30", UNSET, "2026-03-03T08:30Z"),
        (SENSOR, Period.HOURLY, "2026-03-03T07", ":30", UNSET, "2026-03-03T08:30Z"),
        (SENSOR, Period.HOURLY, "2026-03-03T23", ":30", UNSET, "2026-03-04T00:30Z"),
        (SENSOR, Period.HOURLY, "2026-12-31T23", ":00", UNSET, "2027-01-01T00:00Z"),
        # No hour can be done before its slot.
        (Schedule(cron="40 * * * *"), Period.HOURLY, "2026-03-03T07", ":30", UNSET, "2026-03-03T09:30Z"),
        # A time of the day for an hour: that day, or the next if it is over.
        (SENSOR, Period.HOURLY, "2026-03-03T07", "12:00", UNSET, "2026-03-03T12:00Z"),
        (SENSOR, Period.HOURLY, "2026-03-03T20", "12:00", UNSET, "2026-03-04T12:00Z"),
        (SENSOR, Period.CUSTOM, "2026-03-03T07:45", ":20", UNSET, "2026-03-03T08:20Z"),
        (SENSOR, Period.CUSTOM, "2026-03-03T07:15", ":20", UNSET, "2026-03-03T08:20Z"),
        # Of a day that the clock makes due: the first such minute.
        (CRON, Period.DAILY, "2026-03-03", ":20", UNSET, "2026-03-03T06:20Z"),
        (Schedule(cron="30 6 * * *"), Period.DAILY, "2026-03-03", ":20", UNSET, "2026-03-03T07:20Z"),
        # Weeks and months: the day after the last, or the day they are due on.
        (SENSOR, Period.WEEKLY, "2026-W53", "08:00", UNSET, "2027-01-04T08:00Z"),
        (SENSOR, Period.MONTHLY, "2028-02", "08:00", UNSET, "2028-03-01T08:00Z"),
        (Schedule(cron="0 6 3 * *"), Period.MONTHLY, "2026-03", "08:00", UNSET, "2026-03-03T08:00Z"),
        (Schedule(cron="0 6 3 * *"), Period.MONTHLY, "2026-03", "08:00", 1, "2026-03-04T08:00Z"),
        # A duration counts from when it is due.
        (CRON, Period.DAILY, "2026-03-03", "2h30m", UNSET, "2026-03-03T08:30Z"),
        (SENSOR, Period.DAILY, "2026-03-03", "90m", UNSET, "2026-03-04T01:30Z"),
    ],
)
def test_completion_moments__each_form_of_deadline__is_the_moment_it_means(
    schedule: Schedule, period: Period, date: str, deadline: str, offset: int | UnsetType, expected: str
) -> None:
    assert breach(table(schedule, Sla(deadline=deadline, day_offset=offset), period=period), date) == expected


@pytest.mark.parametrize(
    ("zone", "sla_zone", "schedule", "date", "deadline", "expected"),
    [
        ("Europe/Berlin", None, CRON, "2026-03-28", "08:00", "2026-03-28T07:00Z"),
        ("Europe/Berlin", None, CRON, "2026-03-29", "08:00", "2026-03-29T06:00Z"),
        # D7: the zone of the SLA counts, for all who ask.
        ("Europe/Berlin", "America/New_York", CRON, "2026-03-03", "08:00", "2026-03-03T13:00Z"),
        ("UTC", "America/New_York", SENSOR, "2026-03-03", "22:00", "2026-03-05T03:00Z"),
        # What is 02:00 of the next day in Tokyo is still this day in UTC, when its data cannot be complete.
        ("UTC", "Asia/Tokyo", SENSOR, "2026-03-03", "02:00", "2026-03-04T17:00Z"),
        # Left out by the clock, and twice on the wall.
        ("Europe/Berlin", None, SENSOR, "2026-03-28", "02:30", "2026-03-29T01:00Z"),
        ("Europe/Berlin", None, SENSOR, "2026-10-24", "02:30", "2026-10-25T00:30Z"),
    ],
)
def test_completion_moments__zones_and_clock_changes__are_those_of_the_sla_or_else_the_pipeline(
    zone: str, sla_zone: str | None, schedule: Schedule, date: str, deadline: str, expected: str
) -> None:
    assert breach(table(schedule, Sla(deadline=deadline, timezone=sla_zone), zone=zone), date) == expected


def test_completion_moments__the_hour_that_comes_twice__has_a_deadline_each() -> None:
    hours = table(HOURLY, Sla(deadline=":30"), period=Period.HOURLY, zone="Europe/Berlin")

    assert breach(hours, "2026-10-25T02") == "2026-10-25T01:30Z"
    assert breach(hours, "2026-10-25T02+0100") == "2026-10-25T02:30Z"
    assert breach(hours, "2026-03-29T01") == "2026-03-29T01:30Z"


@pytest.mark.parametrize(
    ("sla", "expected"),
    [
        (Sla(deadline="08:00", expected_duration=Seconds(1_800)), "07:30"),
        (Sla(deadline="08:00", expected_duration=Seconds(1_800), at_risk=Seconds(600)), "07:30"),
        (Sla(deadline="08:00", at_risk=Seconds(600)), "07:50"),
        # Not before it can even be begun.
        (Sla(deadline="08:00", expected_duration=Seconds(36_000)), "06:00"),
        # Nothing says how long it takes: no warning, and no error either.
        (Sla(deadline="08:00"), None),
    ],
)
def test_completion_moments__the_warning__comes_as_long_before_as_the_job_takes(sla: Sla, expected: str | None) -> None:
    moments = completion_moments(table(CRON, sla), "2026-03-03")

    assert moments is not None
    assert (f"{moments.warning_at:%H:%M}" if moments.warning_at is not None else None) == expected


def test_evaluation_moments__a_deadline_for_the_evaluation__warns_by_the_time_at_risk_alone() -> None:
    sla = Sla(evaluation_deadline="07:00", expected_duration=Seconds(1_800), at_risk=Seconds(600))

    assert evaluation_moments(table(CRON, sla), "2026-03-03") == SlaMoments(
        at("2026-03-03T07:00:00Z"), at("2026-03-03T06:50:00Z")
    )
    assert completion_moments(table(CRON, sla), "2026-03-03") is None
    assert evaluation_moments(table(CRON), "2026-03-03") is None


# D10: with a maximum alone there is a warning too.
@pytest.mark.parametrize(
    ("sla", "warning"),
    [
        (Sla(max_duration=Seconds(7_200)), "08:30"),
        (Sla(max_duration=Seconds(7_200), expected_duration=Seconds(3_600)), "08:00"),
        (Sla(max_duration=Seconds(7_200), at_risk=Seconds(600)), "08:50"),
        (Sla(max_duration=Seconds(7_200), expected_duration=Seconds(9_000)), "07:00"),
        # D7: a deadline beside it changes nothing.
        (Sla(max_duration=Seconds(7_200), deadline="06:00"), "08:30"),
    ],
)
def test_relative_moments__from_the_first_arrival__are_the_maximum_and_what_the_job_takes(
    sla: Sla, warning: str
) -> None:
    arrived_at = at("2026-03-03T07:00:00Z")

    moments = relative_moments(sla, arrived_at)

    assert moments is not None
    assert moments.breach_at == at("2026-03-03T09:00:00Z")
    assert f"{moments.warning_at:%H:%M}" == warning
    assert relative_moments(Sla(deadline="06:00"), arrived_at) is None


# bug 9: the deadline of a trigger is in the zone of its schedule, not of the SLA.
def test_trigger_deadline__zones_differ__is_that_of_the_schedule() -> None:
    schedule = Schedule(sensor=SensorTrigger(key="s", deadline="08:00"), timezone="Asia/Tokyo", deadline="09:00")
    tokyo = table(schedule, Sla(deadline="08:00", timezone="America/New_York"), zone="Europe/Berlin")

    assert trigger_deadline(tokyo, "2026-03-03") == at("2026-03-04T08:00:00+09:00")
    assert schedule_deadline(tokyo, "2026-03-03") == at("2026-03-04T09:00:00+09:00")
    assert trigger_deadline(table(SENSOR), "2026-03-03") is None
    assert schedule_deadline(table(SENSOR), "2026-03-03") is None


# D7, bug 14: nothing of this depends on when one asks, so that who cancels has what who scheduled had.
@given(
    st.sampled_from([CRON, SENSOR, Schedule(cron="0 22 * * *"), Schedule(after="20:00"), Schedule(name="w")]),
    st.sampled_from([Period.DAILY, Period.HOURLY, Period.WEEKLY, Period.MONTHLY, Period.CUSTOM]),
    st.sampled_from(ZONES),
    st.sampled_from([None, *ZONES]),
    st.sampled_from(["00:00", "02:30", "08:00", "23:59", ":00", ":45", "3h"]),
    st.integers(0, 40_000_000),
)
@settings(max_examples=250, deadline=None)
def test_completion_moments__any_period_in_any_zone__can_be_met_and_lies_within_reach(
    schedule: Schedule, period: Period, zone: str, sla_zone: str | None, deadline: str, seconds: int
) -> None:
    sla = Sla(deadline=deadline, timezone=sla_zone, expected_duration=Seconds(1_800))
    timetable = table(schedule, sla, period=period, zone=zone)
    date = timetable.periods.at(at("2026-01-01T00:00:00Z") + timedelta(seconds=seconds))

    moments = completion_moments(timetable, date)

    assert moments is not None
    ready_at = timetable.ready_at(date)
    assert ready_at <= moments.breach_at <= ready_at + reach(deadline)
    if moments.breach_at > ready_at:
        assert moments.warning_at is not None
        assert ready_at <= moments.warning_at < moments.breach_at
    following = completion_moments(timetable, timetable.periods.next(date))
    assert following is not None
    assert following.breach_at >= moments.breach_at


MOMENTS = SlaMoments(at("2026-03-03T08:00:00Z"), at("2026-03-03T07:30:00Z"))


@pytest.mark.parametrize(
    ("done", "now", "verdict", "margin", "warned"),
    [
        ("07:00", "07:00", ExpectationVerdict.MET, 3_600, False),
        ("07:45", "12:00", ExpectationVerdict.MET, 900, True),
        ("07:30", "07:30", ExpectationVerdict.MET, 1_800, True),
        # At the breach is too late.
        ("08:00", "08:00", ExpectationVerdict.MISSED, 0, True),
        # D7: one that is done late has not met it.
        ("09:00", "23:00", ExpectationVerdict.MISSED, -3_600, True),
        # bug 8, D6: never done, or failed, is never met; and before the deadline there is still time.
        (None, "07:00", ExpectationVerdict.OPEN, None, False),
        (None, "07:59", ExpectationVerdict.OPEN, None, True),
        (None, "08:00", ExpectationVerdict.MISSED, None, True),
        # What has not happened yet does not count.
        ("07:00", "06:00", ExpectationVerdict.OPEN, None, False),
    ],
)
def test_judge__done_or_not_by_now__is_met_only_before_the_breach(
    done: str | None, now: str, verdict: ExpectationVerdict, margin: float | None, warned: bool
) -> None:
    done_at = None if done is None else at(f"2026-03-03T{done}:00Z")

    found = judge(MOMENTS, done_at, at(f"2026-03-03T{now}:00Z"))

    assert (found.verdict, found.margin_seconds, found.warned) == (verdict, margin, warned)


@given(st.none() | st.integers(-100, 100), st.lists(st.integers(-100, 100), min_size=2))
def test_judge__asked_again_and_again__never_changes_what_it_said(done: int | None, asks: list[int]) -> None:
    moments = SlaMoments(MOMENTS.breach_at, MOMENTS.breach_at - timedelta(seconds=30))
    done_at = None if done is None else moments.breach_at + timedelta(seconds=done)
    found = [judge(moments, done_at, moments.breach_at + timedelta(seconds=ask)) for ask in sorted(asks)]
    said = [(each.verdict, each.warned) for each in found if each.verdict is not ExpectationVerdict.OPEN]

    assert len(set(said)) <= 1
    assert (sorted(asks)[-1] < min(0, done if done is not None else 0)) == (not said)


# bug 4
@pytest.mark.parametrize(
    ("done", "now", "is_due"),
    [(None, "07:29", False), (None, "07:30", True), (None, "08:00", False), ("07:10", "07:30", False)],
)
def test_is_warning_due__between_warning_and_breach__only_if_it_is_not_done(
    done: str | None, now: str, is_due: bool
) -> None:
    done_at = None if done is None else at(f"2026-03-03T{done}:00Z")

    assert MOMENTS.is_warning_due(done_at, at(f"2026-03-03T{now}:00Z")) == is_due
    assert not SlaMoments(MOMENTS.breach_at).is_warning_due(None, at("2026-03-03T07:59:00Z"))


@pytest.mark.parametrize(
    "sla",
    [
        Sla(deadline="24:00"),
        Sla(deadline="8:00"),
        Sla(deadline=":60"),
        Sla(evaluation_deadline="soon"),
        Sla(deadline="08:00", timezone="Europe/Atlantis"),
    ],
)
def test_check_sla__what_is_not_understood__is_refused(sla: Sla) -> None:
    with pytest.raises(InvalidScheduleError):
        check_sla(sla)
    check_sla(Sla(deadline=":30", evaluation_deadline="08:00", timezone="Europe/Berlin"))


# bug 12: moments are whole, with an offset; bug 13: a zone that is left out is no error.
def test_completion_moments__without_a_zone__are_moments_in_utc() -> None:
    moments = completion_moments(table(CRON, Sla(deadline="08:00")), "2026-03-03")

    assert moments is not None
    assert moments.breach_at.isoformat() == "2026-03-03T08:00:00+00:00"
