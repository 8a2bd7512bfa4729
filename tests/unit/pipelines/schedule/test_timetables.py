from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.durable.model.duration import Seconds
from headgate.errors import InvalidScheduleError
from headgate.pipelines.definition.model import (
    Exclusions,
    Inclusions,
    Period,
    Pipeline,
    Schedule,
    SensorTrigger,
    Upstream,
)
from headgate.pipelines.enums import CatchUp
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.timetables import (
    DueSlot,
    StartCondition,
    Timetable,
    catch_up,
    schedule_id_of,
    start_condition_of,
    timetables,
)

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana", "America/Santiago"]
SCHEDULES = [
    Schedule(cron="0 6 * * *"),
    Schedule(cron="30 2 * * *"),
    Schedule(cron="0 0 * * *"),
    Schedule(cron="*/20 * * * *"),
    Schedule(cron="5 * * * *"),
    Schedule(cron="0 6,18 * * MON-FRI"),
    Schedule(cron="0 5 * * *", after="06:30"),
    Schedule(name="window", after="02:30"),
    Schedule(name="always"),
    Schedule(cron="0 6 * * *", exclude=Exclusions(weekends=True)),
    Schedule(cron="0 6 * * *", include=Inclusions(business_days=(1, -1))),
]


def due_slots(pipeline: Pipeline, calendars: Calendars, after: datetime, until: datetime) -> list[DueSlot]:
    """Return the slots of all schedules in order of time, without excluded ones."""
    slots = [
        slot
        for schedule in pipeline.schedules
        for slot in Timetable(pipeline, schedule, calendars).slots(after, until)
        if slot.excluded is None
    ]
    return sorted(slots, key=lambda slot: (slot.at, slot.schedule_id))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def pipeline(*schedules: Schedule, period: Period = Period.DAILY, zone: str = "UTC") -> Pipeline:
    every = Seconds(900) if period is Period.CUSTOM else None
    return Pipeline(id="p", period=period, every=every, timezone=zone, schedules=schedules)


def found(definition: Pipeline, after: str, until: str) -> list[tuple[str, str]]:
    slots = due_slots(definition, {}, at(after), at(until))
    return [(slot.date, f"{slot.at:%dT%H:%M}") for slot in slots]


@pytest.mark.parametrize(
    ("schedule", "period", "zone", "after", "until", "expected"),
    [
        # A day stands for itself.
        (
            Schedule(cron="0 6 * * *"),
            Period.DAILY,
            "UTC",
            "2026-02-28T06:00:00Z",
            "2026-03-02T06:00:00Z",
            [("2026-03-01", "01T06:00"), ("2026-03-02", "02T06:00")],
        ),
        # The date is that of the zone.
        (
            Schedule(cron="30 0 * * *"),
            Period.DAILY,
            "Europe/Berlin",
            "2026-12-31T12:00:00Z",
            "2027-01-01T12:00:00Z",
            [("2027-01-01", "31T23:30")],
        ),
        # An hour is done when it is over, over midnight and the year too (bug 16).
        (
            Schedule(cron="5 * * * *"),
            Period.HOURLY,
            "UTC",
            "2026-12-31T23:30:00Z",
            "2027-01-01T01:30:00Z",
            [("2026-12-31T23", "01T00:05"), ("2027-01-01T00", "01T01:05")],
        ),
        (
            Schedule(cron="*/15 * * * *"),
            Period.CUSTOM,
            "UTC",
            "2026-03-03T07:00:00Z",
            "2026-03-03T07:30:00Z",
            [("2026-03-03T07:00", "03T07:15"), ("2026-03-03T07:15", "03T07:30")],
        ),
        (
            Schedule(cron="0 6 * * MON"),
            Period.WEEKLY,
            "UTC",
            "2026-12-27T00:00:00Z",
            "2027-01-05T00:00:00Z",
            [("2026-W53", "28T06:00"), ("2027-W01", "04T06:00")],
        ),
        (
            Schedule(cron="0 6 1 * *"),
            Period.MONTHLY,
            "UTC",
            "2026-02-01T06:00:00Z",
            "2026-03-05T00:00:00Z",
            [("2026-03", "01T06:00")],
        ),
        # Left out by the clock: when it moves on. Twice on the wall: once.
        (
            Schedule(cron="30 2 * * *"),
            Period.DAILY,
            "Europe/Berlin",
            "2026-03-28T12:00:00Z",
            "2026-03-30T12:00:00Z",
            [("2026-03-29", "29T01:00"), ("2026-03-30", "30T00:30")],
        ),
        (
            Schedule(cron="30 2 * * *"),
            Period.DAILY,
            "Europe/Berlin",
            "2026-10-24T12:00:00Z",
            "2026-10-25T12:00:00Z",
            [("2026-10-25", "25T00:30")],
        ),
        # Each of the hours that come twice has its slot.
        (
            Schedule(cron="5 * * * *"),
            Period.HOURLY,
            "Europe/Berlin",
            "2026-10-25T00:30:00Z",
            "2026-10-25T02:30:00Z",
            [("2026-10-25T02", "25T01:05"), ("2026-10-25T02+0100", "25T02:05")],
        ),
        # Many slots, one period: the first, also when one asks from between them.
        (
            Schedule(cron="0 6,18 * * *"),
            Period.DAILY,
            "UTC",
            "2026-03-03T12:00:00Z",
            "2026-03-04T23:00:00Z",
            [("2026-03-04", "04T06:00")],
        ),
        # Not before.
        (
            Schedule(cron="0 5 * * *", after="06:30"),
            Period.DAILY,
            "UTC",
            "2026-03-03T05:30:00Z",
            "2026-03-03T06:30:00Z",
            [("2026-03-03", "03T06:30")],
        ),
        (
            Schedule(cron="0 5 * * *", after="06:30"),
            Period.HOURLY,
            "UTC",
            "2026-03-03T06:10:00Z",
            "2026-03-03T06:30:00Z",
            [("2026-03-03T04", "03T06:30")],
        ),
        (
            Schedule(name="evening", after="20:00"),
            Period.DAILY,
            "Europe/Berlin",
            "2026-03-03T12:00:00Z",
            "2026-03-04T12:00:00Z",
            [("2026-03-03", "03T19:00")],
        ),
        # A month, on its first business day: Labour Day and a weekend come before.
        (
            Schedule(cron="0 6 * * *", exclude=Exclusions(holidays="DE"), include=Inclusions(business_days=(1,))),
            Period.MONTHLY,
            "UTC",
            "2026-04-15T00:00:00Z",
            "2026-06-15T00:00:00Z",
            [("2026-05", "04T06:00"), ("2026-06", "01T06:00")],
        ),
        (
            Schedule(name="window", exclude=Exclusions(weekends=True)),
            Period.MONTHLY,
            "UTC",
            "2026-07-15T00:00:00Z",
            "2026-09-15T00:00:00Z",
            [("2026-08", "03T00:00"), ("2026-09", "01T00:00")],
        ),
    ],
)
def test_due_slots__each_granularity__is_due_once_at_its_moment(
    schedule: Schedule, period: Period, zone: str, after: str, until: str, expected: list[tuple[str, str]]
) -> None:
    assert found(pipeline(schedule, period=period, zone=zone), after, until) == expected


@given(
    st.sampled_from(SCHEDULES),
    st.sampled_from(list(Period)),
    st.sampled_from(ZONES),
    st.sampled_from(["2026-03-28", "2026-10-24", "2026-11-01", "2026-12-31", "2028-02-28", "2026-04-04", "2026-09-05"]),
    st.lists(st.integers(0, 4 * 86_400), min_size=1, max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_slots__however_the_time_is_cut__are_the_same_each_once(
    schedule: Schedule, period: Period, zone: str, day: str, cuts: list[int]
) -> None:
    table = Timetable(pipeline(schedule, period=period, zone=zone), schedule, {})
    start = at(f"{day}T00:00:00Z")
    marks = [start, *(start + timedelta(seconds=cut) for cut in sorted(cuts)), start + timedelta(days=4)]

    whole = list(table.slots(marks[0], marks[-1]))
    pieces = [slot for one, two in pairwise(marks) for slot in table.slots(one, two)]

    assert pieces == whole
    assert len({slot.date for slot in whole}) == len(whole)
    for slot in whole:
        window = table.window(slot.date)
        assert slot.at >= window.start
        assert table.slot(slot.date) == slot.at
        assert Timetable(table.pipeline, schedule, {}).ready_at(slot.date) == slot.at
        # Only what is put off until `after` may leave its window.
        assert slot.at < window.end or schedule.after is not None


# Every day has its daily slot, whatever its clock does.
@given(st.sampled_from(ZONES), st.integers(0, 23), st.integers(0, 59), st.integers(0, 1_500))
@settings(max_examples=150, deadline=None)
def test_slots__daily_at_any_time_in_any_zone__is_one_a_day_for_that_day(
    zone: str, hour: int, minute: int, day: int
) -> None:
    schedule = Schedule(cron=f"{minute} {hour} * * *")
    table = Timetable(pipeline(schedule, zone=zone), schedule, {})
    start = table.periods.start(table.periods.at(at("2025-01-01T12:00:00Z") + timedelta(days=day)))
    end = table.periods.start(table.periods.at(start + timedelta(days=5, hours=6)))

    dates = [slot.date for slot in table.slots(start - timedelta(microseconds=1), end - timedelta(microseconds=1))]

    assert dates == list(table.periods.between(start, end))


# bug 64: the day that counts is the run's own.
def test_slots__an_hour_of_an_excluded_day_that_is_due_the_day_after__is_excluded() -> None:
    schedule = Schedule(cron="5 * * * *", exclude=Exclusions(dates=("2026-03-03",)))
    definition = pipeline(schedule, period=Period.HOURLY)

    assert found(definition, "2026-03-02T23:30:00Z", "2026-03-04T01:30:00Z") == [
        ("2026-03-02T23", "03T00:05"),
        ("2026-03-04T00", "04T01:05"),
    ]
    result = list(Timetable(definition, schedule, {}).slots(at("2026-03-04T00:00:00Z"), at("2026-03-04T00:30:00Z")))
    assert result == [DueSlot("cron", "2026-03-03T23", at("2026-03-04T00:05:00Z"), "2026-03-03: the date is excluded")]


# D24
def test_exclusion_reason__dates_that_are_not_included__are_a_gate_for_sensors_too() -> None:
    schedule = Schedule(sensor=SensorTrigger(key="s"), include=Inclusions(dates=("2026-03-31",)))
    table = Timetable(pipeline(schedule), schedule, {})

    assert table.exclusion_reason("2026-03-30") == "2026-03-30: not one of the days that are included"
    assert table.exclusion_reason("2026-03-31") is None


def test_due_slots__only_dates_that_are_included__are_due_on_those() -> None:
    schedule = Schedule(after="07:00", include=Inclusions(dates=("2026-03-31", "2026-06-30")))

    assert found(pipeline(schedule), "2026-03-01T00:00:00Z", "2026-12-31T00:00:00Z") == [
        ("2026-03-31", "31T07:00"),
        ("2026-06-30", "30T07:00"),
    ]


def test_due_slots__several_schedules__each_have_their_own_in_the_order_of_time() -> None:
    definition = pipeline(
        Schedule(name="b", cron="0 6 * * *"), Schedule(name="a", cron="0 6 * * *", timezone="Asia/Tokyo")
    )

    slots = due_slots(definition, {}, at("2026-03-02T20:00:00Z"), at("2026-03-03T07:00:00Z"))

    assert [(slot.schedule_id, slot.date) for slot in slots] == [("a", "2026-03-03"), ("b", "2026-03-03")]


def test_due_slots__data_or_no_schedule__is_never_due_by_the_clock() -> None:
    window = ("2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z")

    assert found(pipeline(), *window) == []
    assert found(pipeline(Schedule(sensor=SensorTrigger(key="s"))), *window) == []
    assert found(pipeline(Schedule(upstream=(Upstream(pipeline="up"),))), *window) == []
    assert found(pipeline(Schedule(event="e")), *window) == []


def test_due_slots__continued_from_the_last_one__are_the_same() -> None:
    definition = pipeline(Schedule(cron="5 * * * *"), period=Period.HOURLY)
    start, end = at("2026-03-01T00:00:00Z"), at("2026-03-03T00:00:00Z")

    first = due_slots(definition, {}, start, end)[:30]
    rest = due_slots(definition, {}, first[-1].at, end)

    assert len(first) == 30
    assert [*first, *rest] == due_slots(definition, {}, start, end)


# D17: every cron expression counts, not only two forms of it.
def test_due_slots__steps_ranges_and_weekdays__are_understood() -> None:
    definition = pipeline(Schedule(cron="*/30 8-9 * * MON-FRI"), period=Period.HOURLY)

    assert found(definition, "2026-03-06T00:00:00Z", "2026-03-09T12:00:00Z") == [
        ("2026-03-06T07", "06T08:00"),
        ("2026-03-06T08", "06T09:00"),
        ("2026-03-09T07", "09T08:00"),
        ("2026-03-09T08", "09T09:00"),
    ]


@pytest.mark.parametrize(
    ("schedule", "named", "beginning"),
    [
        (Schedule(name="n", cron="@daily"), "n", StartCondition.CRON),
        (Schedule(cron="@daily", sensor=SensorTrigger(key="s")), "cron", StartCondition.CRON),
        (Schedule(sensor=SensorTrigger(key="s")), "stream", StartCondition.DATA),
        (Schedule(after="06:00"), "daily", StartCondition.WINDOW),
    ],
)
def test_schedule_id_of__without_a_name__goes_by_what_begins_it(
    schedule: Schedule, named: str, beginning: StartCondition
) -> None:
    assert (schedule_id_of(schedule), start_condition_of(schedule)) == (named, beginning)


def test_timetables__no_schedule__is_one_called_daily() -> None:
    assert [table.schedule_id for table in timetables(pipeline(), {})] == ["daily"]


@pytest.mark.parametrize(
    "schedule", [Schedule(cron="61 * * * *"), Schedule(after="25:00"), Schedule(cron="@daily", timezone="Mars")]
)
def test_due_slots__what_is_not_understood__is_refused(schedule: Schedule) -> None:
    with pytest.raises(InvalidScheduleError):
        due_slots(pipeline(schedule), {}, at("2026-03-01T00:00:00Z"), at("2026-03-03T00:00:00Z"))


@pytest.mark.parametrize(
    ("policy", "now", "begin", "passed_over"),
    [
        (CatchUp.ALL, "2026-03-05T12:00:00Z", [3, 4, 5], []),
        (CatchUp.LATEST, "2026-03-05T12:00:00Z", [5], [3, 4]),
        (CatchUp.NONE, "2026-03-05T12:00:00Z", [], [3, 4, 5]),
        # What is on time is no matter of policy.
        (CatchUp.LATEST, "2026-03-05T06:00:10Z", [5], [3, 4]),
        (CatchUp.NONE, "2026-03-05T06:00:10Z", [5], [3, 4]),
    ],
)
def test_catch_up__after_two_days_of_silence__goes_by_the_policy(
    policy: CatchUp, now: str, begin: list[int], passed_over: list[int]
) -> None:
    definition = pipeline(Schedule(cron="0 6 * * *"))
    slots = due_slots(definition, {}, at("2026-03-02T12:00:00Z"), at(now))

    result = catch_up(slots, policy, at(now))

    assert [slot.at.day for slot in result.begin] == begin
    assert [slot.at.day for slot in result.passed_over] == passed_over


@given(st.lists(st.integers(0, 100_000), unique=True), st.sampled_from(list(CatchUp)), st.integers(0, 200_000))
@settings(max_examples=100, deadline=None)
def test_catch_up__any_slots__are_begun_or_passed_over_and_never_both(
    seconds: list[int], policy: CatchUp, now_seconds: int
) -> None:
    slots = [DueSlot("s", str(number), datetime.fromtimestamp(number, UTC)) for number in sorted(seconds)]

    result = catch_up(slots, policy, datetime.fromtimestamp(now_seconds, UTC))

    assert sorted([*result.begin, *result.passed_over], key=lambda slot: slot.at) == slots
    if slots and policy is not CatchUp.NONE:
        assert slots[-1] in result.begin
