from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.durable.model.duration import Seconds
from headgate.errors import InvalidScheduleError, UserError
from headgate.pipelines.definition.model import Period, Pipeline, Schedule
from headgate.pipelines.schedule.periods import PeriodKey, Periods, parse, periods_inside, periods_of

# Berlin: 2026-03-29 at 01:00Z from 02:00 to 03:00, 2026-10-25 at 01:00Z from 03:00 to 02:00.
# Lord Howe moves by half an hour: 2026-10-03 at 15:30Z from 02:00 to 02:30, 2026-04-04 at 15:00Z from 02:00 to 01:30.
# Havana sets its clock back from 01:00 to 00:00, Santiago forward from 00:00 to 01:00; St John's did both at 00:01.
# Apia left out all of 2011-12-30.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Havana",
    "America/Santiago",
    "America/St_Johns",
    "Asia/Kolkata",
    "Pacific/Apia",
    "Africa/Casablanca",
]
KINDS = [
    (Period.HOURLY, None),
    (Period.DAILY, None),
    (Period.WEEKLY, None),
    (Period.MONTHLY, None),
    (Period.CUSTOM, 900),
    (Period.CUSTOM, 1_200),
    (Period.CUSTOM, 21_600),
    (Period.CUSTOM, 25_200),
    (Period.CUSTOM, 172_800),
    (Period.CUSTOM, 45),
]
CHANGES = [
    "2026-03-29T01:00:00Z",
    "2026-10-25T01:00:00Z",
    "2026-03-08T07:00:00Z",
    "2026-11-01T06:00:00Z",
    "2026-10-03T15:30:00Z",
    "2026-04-04T15:00:00Z",
    "2026-11-01T05:00:00Z",
    "2026-09-06T04:00:00Z",
    "2006-10-29T02:31:00Z",
    "2011-12-30T10:00:00Z",
    "2024-02-29T00:00:00Z",
    "2026-12-31T23:30:00Z",
]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def moments() -> st.SearchStrategy[datetime]:
    anywhere = st.integers(31_536_000, 4_102_444_800).map(lambda s: datetime.fromtimestamp(s, UTC))
    near = st.builds(
        lambda change, off: at(change) + timedelta(seconds=off), st.sampled_from(CHANGES), st.integers(-90_000, 90_000)
    )
    return anywhere | near


def kinds() -> st.SearchStrategy[Periods]:
    return st.builds(lambda kind, zone: Periods(kind[0], zone, kind[1]), st.sampled_from(KINDS), st.sampled_from(ZONES))


@pytest.mark.parametrize(
    ("text", "period", "stored"),
    [
        ("2026-03-03", Period.DAILY, "2026-03-03"),
        ("20260303", Period.DAILY, "2026-03-03"),
        ("2026-03-03T07", Period.HOURLY, "2026-03-03T07"),
        ("20260303T07", Period.HOURLY, "2026-03-03T07"),
        ("2026-10-25T02+0100", Period.HOURLY, "2026-10-25T02+0100"),
        ("2026-11-01T01-0500", Period.HOURLY, "2026-11-01T01-0500"),
        ("2026-W10", Period.WEEKLY, "2026-W10"),
        ("2026-W53", Period.WEEKLY, "2026-W53"),
        ("2026-03", Period.MONTHLY, "2026-03"),
        ("2026-03-03T07:15", Period.CUSTOM, "2026-03-03T07:15"),
        ("2026-03-03T07:15:30", Period.CUSTOM, "2026-03-03T07:15:30"),
        ("2028-02-29", Period.DAILY, "2028-02-29"),
    ],
)
def test_parse__each_form__is_the_period_it_names(text: str, period: Period, stored: str) -> None:
    key = parse(text)

    assert (key.period, str(key)) == (period, stored)


@pytest.mark.parametrize(
    "text",
    ["", "today", "2026-02-29", "2026-13", "2026-W54", "2026-03-03T24", "2026-3-3", "1969-12-31", "2026-03-03 07"],
)
def test_parse__what_is_no_period__is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(UserError, match=r'"2026-03-03T07" \(hourly\)'):
        parse(text)


@given(kinds(), moments())
@settings(max_examples=400, deadline=None)
@example(Periods(Period.HOURLY, "Europe/Berlin"), at("2026-10-25T01:30:00Z"))
@example(Periods(Period.HOURLY, "Europe/Berlin"), at("2026-03-29T01:00:00Z"))
@example(Periods(Period.CUSTOM, "Australia/Lord_Howe", 1_200), at("2026-04-04T15:05:00Z"))
@example(Periods(Period.CUSTOM, "Australia/Lord_Howe", 1_200), at("2026-10-03T15:35:00Z"))
@example(Periods(Period.DAILY, "America/St_Johns"), at("2006-10-29T02:45:00Z"))
@example(Periods(Period.DAILY, "America/Havana"), at("2026-11-01T05:30:00Z"))
@example(Periods(Period.DAILY, "Pacific/Apia"), at("2011-12-30T09:59:59Z"))
def test_periods__any_moment_in_any_zone__lies_in_exactly_one_and_they_leave_no_gap(
    periods: Periods, moment: datetime
) -> None:
    here = periods.at(moment)
    span = periods.span(here)

    assert span.start <= moment < span.end
    assert periods.at(span.start) == here
    assert periods.at(span.end - timedelta(microseconds=1)) == here
    assert periods.start(periods.next(here)) == span.end
    assert periods.end(periods.previous(here)) == span.start
    assert periods.previous(periods.next(here)) == here
    assert periods.check(here) == here
    assert str(parse(here)) == here
    assert periods.exists(here)


@given(st.sampled_from(ZONES), moments())
@settings(max_examples=100, deadline=None)
def test_hours__through_clock_changes__are_texts_in_the_order_of_time(zone: str, moment: datetime) -> None:
    periods = Periods(Period.HOURLY, zone)
    found = list(islice(periods.between(moment, moment + timedelta(days=3)), 60))

    assert found == sorted(found)
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("UTC", "2026-03-29", 24),
        ("Europe/Berlin", "2026-03-28", 24),
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("America/Santiago", "2026-09-06", 23),
        ("America/Havana", "2026-11-01", 25),
        # By half an hour: an hour is shorter or longer, and there are as many as ever.
        ("Australia/Lord_Howe", "2026-10-04", 24),
        ("Australia/Lord_Howe", "2026-04-05", 24),
        ("Pacific/Apia", "2011-12-29", 24),
    ],
)
def test_periods_inside__a_day_with_a_clock_change__has_the_hours_it_has(zone: str, day: str, hours: int) -> None:
    outer, inner = Periods(Period.DAILY, zone), Periods(Period.HOURLY, zone)

    found = periods_inside(outer, day, inner)

    assert len(found) == hours
    assert inner.start(found[0]) == outer.start(day)
    assert inner.end(found[-1]) == outer.end(day)
    assert all(inner.end(one) == inner.start(two) for one, two in pairwise(found))


def test_periods_inside__the_hour_that_comes_twice__has_both_with_the_second_by_its_offset() -> None:
    berlin = periods_inside(
        Periods(Period.DAILY, "Europe/Berlin"), "2026-10-25", Periods(Period.HOURLY, "Europe/Berlin")
    )

    assert berlin[1:5] == ["2026-10-25T01", "2026-10-25T02", "2026-10-25T02+0100", "2026-10-25T03"]
    hours = Periods(Period.HOURLY, "America/New_York")
    assert hours.at(at("2026-11-01T05:59:59Z")) == "2026-11-01T01"
    assert hours.at(at("2026-11-01T06:00:00Z")) == "2026-11-01T01-0500"
    assert hours.start("2026-11-01T01-0500") == at("2026-11-01T06:00:00Z")


def test_at__hour_that_comes_twice_on_the_wall_of_its_own_zone__is_distinguished() -> None:
    # Equal, as Python compares moments of one zone.
    first, second = (datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=fold) for fold in (0, 1))
    hours = Periods(Period.HOURLY, "Europe/Berlin")

    assert [hours.at(first), hours.at(second)] == ["2026-10-25T02", "2026-10-25T02+0100"]


@pytest.mark.parametrize(
    ("outer", "date", "inner", "count"),
    [
        (Period.MONTHLY, "2028-02", Period.DAILY, 29),
        (Period.MONTHLY, "2026-02", Period.DAILY, 28),
        (Period.WEEKLY, "2026-W53", Period.DAILY, 7),
        (Period.MONTHLY, "2026-03", Period.WEEKLY, 5),
        (Period.DAILY, "2026-03-03", Period.MONTHLY, 1),
    ],
)
def test_periods_inside__other_granularities__are_those_that_begin_in_it_or_the_one_around_it(
    outer: Period, date: str, inner: Period, count: int
) -> None:
    assert len(periods_inside(Periods(outer), date, Periods(inner))) == count


def test_span__an_hour_that_the_clock_leaves_out__is_empty_and_no_one_s_neighbour() -> None:
    hours = Periods(Period.HOURLY, "Europe/Berlin")

    assert not hours.exists("2026-03-29T02")
    assert hours.span("2026-03-29T02") == (at("2026-03-29T01:00:00Z"), at("2026-03-29T01:00:00Z"))
    assert hours.next("2026-03-29T01") == "2026-03-29T03"
    assert hours.previous("2026-03-29T03") == "2026-03-29T01"
    assert not Periods(Period.DAILY, "Pacific/Apia").exists("2011-12-30")
    assert Periods(Period.DAILY, "Pacific/Apia").next("2011-12-29") == "2011-12-31"


@pytest.mark.parametrize(
    ("periods", "date", "following"),
    [
        (Periods(Period.HOURLY), "2026-12-31T23", "2027-01-01T00"),
        (Periods(Period.DAILY), "2028-02-28", "2028-02-29"),
        (Periods(Period.DAILY), "2026-02-28", "2026-03-01"),
        (Periods(Period.WEEKLY), "2026-W53", "2027-W01"),
        (Periods(Period.MONTHLY), "2026-12", "2027-01"),
        (Periods(Period.CUSTOM, "UTC", 900), "2026-12-31T23:45", "2027-01-01T00:00"),
        (Periods(Period.CUSTOM, "Asia/Kolkata", 21_600), "2026-12-31T18:00", "2027-01-01T00:00"),
    ],
)
def test_next__over_the_end_of_day_month_and_year__is_the_period_after(
    periods: Periods, date: str, following: str
) -> None:
    assert periods.next(date) == following
    assert periods.previous(following) == date


# bug 16: the marker of the last hour of a day, written at 00:01, belongs to the day before.
def test_previous__just_after_midnight__is_the_last_hour_of_the_day_before() -> None:
    hours = Periods(Period.HOURLY, "Europe/Berlin")

    assert hours.previous(hours.at(at("2026-03-03T23:01:00Z"))) == "2026-03-03T23"
    assert hours.span("2026-03-03T23") == (at("2026-03-03T22:00:00Z"), at("2026-03-03T23:00:00Z"))


@pytest.mark.parametrize(
    ("periods", "date", "says"),
    [
        (Periods(Period.DAILY), "2026-03-03T07", 'named like "2026-03-03"'),
        (Periods(Period.CUSTOM, "UTC", 900), "2026-03-03T07:10", "begins at 2026-03-03T07:00:00"),
        (Periods(Period.HOURLY, "Europe/Berlin"), "2026-10-25T03+0100", "comes only once"),
        (Periods(Period.HOURLY, "Europe/Berlin"), "2026-10-25T02+0300", "comes only once"),
        (Periods(Period.CUSTOM), "2026-03-03T07:00", "needs a length"),
    ],
)
def test_span__a_date_of_another_kind__is_refused_with_the_reason(periods: Periods, date: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        periods.span(date)


def test_periods__a_zone_that_is_none__is_refused_and_not_taken_for_utc() -> None:
    for zone in ("Europe/Atlantis", "Europe", "localtime", "../etc/passwd"):
        with pytest.raises(InvalidScheduleError, match="not a time zone"):
            Periods(Period.DAILY, zone).at(at("2026-03-03T00:00:00Z"))


def test_periods_of__a_schedule_with_a_zone__goes_by_it_and_otherwise_by_the_pipeline() -> None:
    pipeline = Pipeline(id="p", period=Period.CUSTOM, every=Seconds(900), timezone="Europe/Berlin")

    assert periods_of(pipeline) == Periods(Period.CUSTOM, "Europe/Berlin", 900)
    assert periods_of(pipeline, Schedule(timezone="Asia/Tokyo")).zone == "Asia/Tokyo"
    assert periods_of(pipeline, Schedule()).zone == "Europe/Berlin"


def test_days__of_short_and_long_periods__are_the_day_it_begins_on_or_all() -> None:
    assert Periods(Period.HOURLY).days("2026-03-03T23") == [date(2026, 3, 3)]
    assert Periods(Period.WEEKLY).days("2026-W01") == [date(2025, 12, 29) + timedelta(days=n) for n in range(7)]
    assert len(Periods(Period.MONTHLY).days("2028-02")) == 29


def test_at__local_dates__are_those_on_the_wall_of_the_zone() -> None:
    for zone in ("Pacific/Kiritimati", "Pacific/Pago_Pago"):
        wall = at("2026-03-03T12:00:00Z").astimezone(ZoneInfo(zone))
        assert Periods(Period.DAILY, zone).at(wall) == f"{wall:%Y-%m-%d}"


def test_period_key__with_seconds_in_its_offset__keeps_them() -> None:
    key = PeriodKey(Period.HOURLY, at("1971-05-01T03:00:00"), -timedelta(minutes=44, seconds=30))

    assert str(key) == "1971-05-01T03-004430"
    assert parse(str(key)) == key
