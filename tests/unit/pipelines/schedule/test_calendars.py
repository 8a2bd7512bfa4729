from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import DefinitionError
from headgate.pipelines.definition.model import Exclusions, Inclusions
from headgate.pipelines.schedule.calendars import (
    business_days,
    check_calendar,
    exclusion_reason,
    is_business_day,
    is_excluded,
    is_included,
    why_excluded,
)

ALL = Inclusions()
NONE = Exclusions()


@pytest.mark.parametrize(
    ("exclusions", "day", "reason"),
    [
        (Exclusions(weekends=True), date(2026, 3, 7), "weekend"),
        (Exclusions(weekends=True), date(2026, 3, 6), None),
        (Exclusions(days=("Monday", "fri")), date(2026, 3, 6), "every Friday"),
        (Exclusions(days=("MONDAY",)), date(2026, 3, 9), "every Monday"),
        (Exclusions(dates=("2026-12-24",)), date(2026, 12, 24), "the date is excluded"),
        (Exclusions(dates=("2026-12-24",)), date(2027, 12, 24), None),
        # D23: holidays were accepted and ignored.
        (Exclusions(holidays="DE"), date(2026, 10, 3), "DE"),
        (Exclusions(holidays="DE"), date(2026, 1, 6), None),
        (Exclusions(holidays="DE-BY"), date(2026, 1, 6), "DE-BY"),
        (Exclusions(holidays="US"), date(2026, 11, 26), "Thanksgiving"),
        # Observed in the year before the holiday itself.
        (Exclusions(holidays="US"), date(2021, 12, 31), "New Year"),
        (Exclusions(holidays="NYSE"), date(2026, 4, 3), "Good Friday"),
        (Exclusions(holidays="US"), date(2026, 4, 3), None),
        # The weekend is that of the country.
        (Exclusions(weekends=True, holidays="SA"), date(2026, 3, 6), "weekend"),
        (Exclusions(weekends=True, holidays="SA"), date(2026, 3, 8), None),
    ],
)
def test_why_excluded__each_kind_of_exclusion__names_the_reason(
    exclusions: Exclusions, day: date, reason: str | None
) -> None:
    found = why_excluded(exclusions, day, {})

    assert (found is None) == (reason is None)
    assert reason is None or reason in (found or "")
    assert is_excluded(exclusions, ALL, day, {}) == (reason is not None)


# D23: a calendar by name was accepted and ignored.
def test_why_excluded__calendars_by_name__add_up_with_what_is_said_inline() -> None:
    calendars = {
        "plant": Exclusions(dates=("2026-08-03",), calendar="company"),
        "company": Exclusions(days=("sunday",), calendar="plant"),
    }
    exclusions = Exclusions(calendar="plant", dates=("2026-08-05",))

    assert [d for d in range(1, 10) if why_excluded(exclusions, date(2026, 8, d), calendars)] == [2, 3, 5, 9]


def test_why_excluded__a_calendar_that_is_not_kept__is_an_error_with_those_that_are() -> None:
    with pytest.raises(DefinitionError, match=r"'gone'.*: kept"):
        why_excluded(Exclusions(calendar="gone"), date(2026, 3, 3), {"kept": NONE})


# D24: dates that are included were no gate.
def test_is_included__with_dates__lets_only_these_through() -> None:
    include = Inclusions(dates=("2026-03-31", "2026-06-30"))

    assert is_included(include, NONE, date(2026, 3, 31), {})
    assert not is_included(include, NONE, date(2026, 3, 30), {})
    assert is_excluded(NONE, include, date(2026, 3, 30), {})
    # An exclusion wins.
    assert is_excluded(Exclusions(dates=("2026-03-31",)), include, date(2026, 3, 31), {})


@pytest.mark.parametrize(
    ("numbers", "exclusions", "expected"),
    [
        ((1,), NONE, [1]),
        ((-1,), NONE, [29]),
        ((1, -1, 5), NONE, [1, 7, 29]),
        ((1,), Exclusions(dates=("2026-05-01",)), [4]),
        # Labour Day, and Whit Monday on the 25th.
        ((1, -4), Exclusions(holidays="DE"), [4, 26]),
        ((23,), NONE, []),
        ((21,), NONE, [29]),
    ],
)
def test_is_included__business_days__are_counted_from_either_end(
    numbers: tuple[int, ...], exclusions: Exclusions, expected: list[int]
) -> None:
    include = Inclusions(business_days=numbers)
    days = [day for day in range(1, 32) if is_included(include, exclusions, date(2026, 5, day), {})]

    assert days == expected


@given(st.dates(date(1990, 1, 1), date(2080, 12, 31)), st.sampled_from(["DE", "US", "NYSE", "DE-BY", "JP"]))
@settings(max_examples=150, deadline=None)
def test_business_days__any_month__are_the_open_weekdays_and_first_and_last_are_their_ends(
    day: date, holidays: str
) -> None:
    exclusions = Exclusions(holidays=holidays)
    found = business_days(exclusions, day.year, day.month, {})

    assert found == sorted(set(found))
    assert all(each.weekday() < 5 and why_excluded(exclusions, each, {}) is None for each in found)
    assert (day in found) == is_business_day(exclusions, day, {})
    ends = {found[0], found[-1]}
    assert is_included(Inclusions(business_days=(1, -1)), exclusions, day, {}) == (day in ends)


def test_exclusion_reason__a_period_of_several_days__only_if_all_are_excluded() -> None:
    week = [date(2026, 3, 2) + timedelta(days=number) for number in range(7)]

    assert exclusion_reason(Exclusions(weekends=True), week, {}) is None
    assert exclusion_reason(Exclusions(weekends=True), week[5:], {}) == "2026-03-07: weekend"


@pytest.mark.parametrize(
    ("exclusions", "inclusions", "says"),
    [
        (Exclusions(holidays="Atlantis"), ALL, "no such holidays"),
        (Exclusions(holidays="DE-ZZ"), ALL, "no such holidays"),
        (Exclusions(days=("someday",)), ALL, "not a weekday"),
        (Exclusions(dates=("2026-02-30",)), ALL, "2026-02-30"),
        (NONE, Inclusions(dates=("soon",)), "soon"),
        (NONE, Inclusions(business_days=(0,)), "from 1"),
        (NONE, Inclusions(business_days=(-24,)), "from 1"),
        (Exclusions(calendar="gone"), ALL, "no such calendar"),
    ],
)
def test_check_calendar__what_is_not_understood__is_refused(
    exclusions: Exclusions, inclusions: Inclusions, says: str
) -> None:
    with pytest.raises(DefinitionError, match=says):
        check_calendar(exclusions, inclusions, {})


def test_check_calendar__names_that_cannot_be_looked_up__are_left_alone() -> None:
    check_calendar(Exclusions(calendar="later", holidays="DE-BY"), Inclusions(business_days=(1, -1)))
