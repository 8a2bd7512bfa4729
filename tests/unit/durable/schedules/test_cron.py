from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.durable.schedules.cron import Recurrence, check, jitter_ms, next_times, slot_text, times_between
from headgate.errors import InvalidScheduleError

# Berlin: 2026-03-29 at 01:00Z from 02:00 to 03:00, 2026-10-25 at 01:00Z from 03:00 to 02:00.
# New York: 2026-03-08 at 07:00Z from 02:00 to 03:00, 2026-11-01 at 06:00Z from 02:00 to 01:00.
# Lord Howe moves by half an hour: 2026-10-03 at 15:30Z from 02:00 to 02:30, 2026-04-04 at 15:00Z from 02:00 to 01:30.
CHANGES = {
    "Europe/Berlin": ["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"],
    "America/New_York": ["2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"],
    "Australia/Lord_Howe": ["2026-10-03T15:30:00Z", "2026-04-04T15:00:00Z"],
}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def texts(expression: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    return slots_of(Recurrence(expression, zone), after, count)


def slots_of(recurrence: Recurrence, after: str, count: int) -> list[str]:
    return [slot_text(slot) for slot in next_times(recurrence, at(after), count)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("30 6 * * *", ["2026-11-16T06:30:00Z", "2026-11-17T06:30:00Z"]),
        ("*/20 */12 * * *", ["2026-11-16T00:20:00Z", "2026-11-16T00:40:00Z"]),
        ("0 9 * * MON-FRI", ["2026-11-16T09:00:00Z", "2026-11-17T09:00:00Z"]),
        ("0 0 L * *", ["2026-11-30T00:00:00Z", "2026-12-31T00:00:00Z"]),
        ("0 0 * * 5#2", ["2026-12-11T00:00:00Z", "2027-01-08T00:00:00Z"]),
        ("0 0 29 2 *", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
        ("15,45 30 1 * * *", ["2026-11-16T01:30:15Z", "2026-11-16T01:30:45Z"]),
        ("@hourly", ["2026-11-16T01:00:00Z", "2026-11-16T02:00:00Z"]),
        ("@daily", ["2026-11-17T00:00:00Z", "2026-11-18T00:00:00Z"]),
        ("@Midnight", ["2026-11-17T00:00:00Z", "2026-11-18T00:00:00Z"]),
        ("@weekly", ["2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"]),
        ("@monthly", ["2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"]),
        ("@yearly", ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
        ("@annually", ["2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"]),
        ("every 15m", ["2026-11-16T00:15:00Z", "2026-11-16T00:30:00Z"]),
        ("every 1h30m", ["2026-11-16T01:30:00Z", "2026-11-16T03:00:00Z"]),
        ("every 10s", ["2026-11-16T00:00:10Z", "2026-11-16T00:00:20Z"]),
    ],
)
def test_next_times__each_form_of_expression__are_the_moments_later_than_the_given_one(
    expression: str, expected: list[str]
) -> None:
    assert texts(expression, "2026-11-16T00:00:00Z", 2) == expected


def test_next_times__a_fraction_of_a_second_before_a_slot__has_that_slot() -> None:
    assert texts("@hourly", "2026-11-15T23:59:59.999999Z", 1) == ["2026-11-16T00:00:00Z"]
    assert texts("every 1h", "2026-11-15T23:59:59.999999Z", 1) == ["2026-11-16T00:00:00Z"]
    assert texts("@hourly", "2026-11-16T00:00:00.000001Z", 1) == ["2026-11-16T01:00:00Z"]


def test_next_times__start_and_end__have_the_start_and_not_the_end() -> None:
    start, end = at("2026-11-16T02:00:00+01:00"), at("2026-11-16T04:00:00Z")
    recurrence = Recurrence("@hourly", start=start, end=end)

    assert slots_of(recurrence, "2026-01-01T00:00:00Z", 9) == [
        "2026-11-16T01:00:00Z",
        "2026-11-16T02:00:00Z",
        "2026-11-16T03:00:00Z",
    ]
    assert slots_of(recurrence, "2026-11-16T03:00:00Z", 9) == []


def test_next_times__interval_with_a_start__counts_from_the_start() -> None:
    recurrence = Recurrence("every 1h", start=at("2026-11-16T00:07:00Z"))

    assert slots_of(recurrence, "2026-11-16T00:00:00Z", 2) == ["2026-11-16T00:07:00Z", "2026-11-16T01:07:00Z"]
    assert slots_of(recurrence, "2026-11-17T00:06:59Z", 1) == ["2026-11-17T00:07:00Z"]


def test_times_between__a_range__has_its_end_not_its_beginning_and_no_more_than_the_limit() -> None:
    recurrence = Recurrence("@hourly")
    after, until = at("2026-11-16T00:00:00Z"), at("2026-11-16T03:00:00Z")

    assert [slot.hour for slot in times_between(recurrence, after, until, 10)] == [1, 2, 3]
    assert [slot.hour for slot in times_between(recurrence, after, until, 2)] == [1, 2]
    assert times_between(recurrence, until, after, 10) == []


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"]),
        ("*/10 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"]),
        ("15 30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:15Z"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", ["2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"]),
    ],
)
def test_next_times__in_the_hour_that_is_left_out__happens_once_when_the_clock_moves_on(
    expression: str, zone: str, after: str, expected: list[str]
) -> None:
    assert texts(expression, after, 2, zone) == expected


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", ["2026-10-26T01:30:00Z", "2026-10-27T01:30:00Z"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", ["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", ["2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"]),
    ],
)
def test_next_times__in_the_hour_that_comes_twice__happens_the_first_time_only(
    expression: str, zone: str, after: str, expected: list[str]
) -> None:
    assert texts(expression, after, 2, zone) == expected


@pytest.mark.parametrize("zone", CHANGES)
def test_next_times__every_quarter_of_every_hour__keeps_its_rhythm_through_clock_changes(zone: str) -> None:
    for change in CHANGES[zone]:
        slots = next_times(Recurrence("*/15 * * * *", zone), at(change) - timedelta(hours=5), 40)

        assert {later - earlier for earlier, later in pairwise(slots)} == {timedelta(minutes=15)}


def test_next_times__interval__does_not_see_clock_changes() -> None:
    slots = next_times(Recurrence("every 1d", "Europe/Berlin"), at("2026-03-27T12:00:00Z"), 5)

    assert {slot.hour for slot in slots} == {0}


def expected_slots(minutes: set[int], hours: set[int], zone: str, since: datetime, until: datetime) -> list[datetime]:
    """Look at the clock on the wall minute after minute, as someone would who sits in front of it."""
    found: dict[datetime, None] = {}
    seen: set[datetime] = set()
    moment, wall_before = since, None
    while moment <= until:
        wall = moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        left_out: list[datetime] = []
        while wall_before is not None and wall_before + timedelta(minutes=1) < wall:
            wall_before += timedelta(minutes=1)
            left_out.append(wall_before)
        is_every_hour = len(hours) == 24
        due = [wall] if is_every_hour else [each for each in (*left_out, wall) if each not in seen]
        if any(each.minute in minutes and each.hour in hours for each in due):
            found[moment] = None
        seen.update(due)
        moment, wall_before = moment + timedelta(minutes=1), wall
    return list(found)


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize(("minutes", "hours"), [({0}, set(range(24))), ({10, 45}, set(range(24))), ({0, 40}, {1, 2})])
def test_times_between__begun_at_any_minute_around_a_clock_change__are_the_same_slots(
    zone: str, minutes: set[int], hours: set[int]
) -> None:
    expression = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"
    for change in CHANGES[zone]:
        since, until = at(change) - timedelta(hours=4), at(change) + timedelta(hours=4)
        expected = expected_slots(minutes, hours, zone, since, until)
        for after_minutes in range(-100, 100, 5):
            after = at(change) + timedelta(minutes=after_minutes)

            found = times_between(Recurrence(expression, zone), after, until, 1000)

            assert found == [slot for slot in expected if slot > after], after


@settings(max_examples=60, deadline=None)
@given(
    change=st.sampled_from([(zone, change) for zone in CHANGES for change in CHANGES[zone]]),
    minutes=st.sets(st.sampled_from([0, 10, 15, 30, 45, 59]), min_size=1),
    hours=st.one_of(st.just(set(range(24))), st.sets(st.integers(0, 5), min_size=1)),
    after_minutes=st.integers(-120, 120),
)
def test_times_between__around_clock_changes__are_what_the_wall_says_from_wherever_one_begins(
    change: tuple[str, str], minutes: set[int], hours: set[int], after_minutes: int
) -> None:
    zone, moment = change
    expression = f"{','.join(map(str, minutes))} {','.join(map(str, hours))} * * *"
    # The oracle begins well before, so that it has seen the first pass of an hour that comes twice.
    since, until = at(moment) - timedelta(hours=8), at(moment) + timedelta(hours=8)
    after = at(moment) + timedelta(minutes=after_minutes)

    found = times_between(Recurrence(expression, zone), after, until, 10_000)

    assert found == [slot for slot in expected_slots(minutes, hours, zone, since, until) if slot > after]


@pytest.mark.parametrize(
    ("expression", "named"),
    [
        ("61 * * * *", "minute"),
        ("* 24 * * *", "hour"),
        ("* * 32 * *", "day-of-month"),
        ("* * * 13 *", "month"),
        ("* * * * 8", "day-of-week"),
        ("* * * * MONL", "day-of-week"),
        ("60 * * * * *", "second"),
        ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("* * * *", "4 fields"),
        ("", "0 fields"),
        ("@reboot", "@hourly"),
        ("every", '"every 15m"'),
        ("every fortnight", "is not a duration"),
        ("every 0s", "whole seconds, from 1"),
        ("every 500ms", "whole seconds, from 1"),
        ("every 1500ms", "whole seconds, from 1"),
        ("* " * 101, "at most 200"),
    ],
)
def test_check__an_expression_that_is_not_understood__is_refused_and_the_field_named(
    expression: str, named: str
) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        check(Recurrence(expression))

    assert "expression" in caught.value.message
    assert named in caught.value.message


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */31 * 1#5"])
def test_check__an_expression_that_never_happens__is_refused(expression: str) -> None:
    with pytest.raises(InvalidScheduleError):
        check(Recurrence(expression))


def test_check__an_end_before_the_first_slot__is_refused() -> None:
    with pytest.raises(InvalidScheduleError, match="no such moment exists between"):
        check(Recurrence("@daily", start=at("2026-11-16T01:00:00Z"), end=at("2026-11-16T02:00:00Z")))


@pytest.mark.parametrize("zone", ["", "Berlin", "Europe", "Europe/", "../UTC", "/etc/localtime", "localtime", "\u0000"])
def test_check__a_zone_that_is_not_of_the_database__is_refused(zone: str) -> None:
    with pytest.raises(InvalidScheduleError, match=r"^zone .*Europe/Berlin"):
        check(Recurrence("@daily", zone))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"start": datetime(2026, 1, 1)}, "start .*give it an offset"),  # noqa: DTZ001
        ({"end": datetime(2026, 1, 1)}, "end .*give it an offset"),  # noqa: DTZ001
        ({"end": datetime(9999, 1, 1, tzinfo=UTC)}, "end .*the year"),
        ({"start": datetime(1, 1, 1, tzinfo=UTC)}, "start .*the year"),
        ({"jitter_seconds": -1}, "jitter_seconds"),
        ({"jitter_seconds": 86_401}, "jitter_seconds"),
    ],
)
def test_check__bounds_that_cannot_be__are_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidScheduleError, match=named):
        check(msgspec.structs.replace(Recurrence("@daily"), **change))


@pytest.mark.parametrize("expression", ["0 0 29 2 *", "@yearly", "every 5000w"])
def test_next_times__more_than_the_calendar_has__end_with_it(expression: str) -> None:
    slots = next_times(Recurrence(expression, "America/New_York"), at("2026-01-01T00:00:00Z"), 10_000)

    assert 50 < len(slots) < 10_000
    assert slots == sorted(set(slots))


def test_jitter__each_slot__is_the_same_for_all_and_spread_over_the_time() -> None:
    recurrence = Recurrence("@hourly", jitter_seconds=600)
    slots = next_times(recurrence, at("2026-11-16T00:00:00Z"), 400)

    drawn = [jitter_ms(recurrence, "report", slot) for slot in slots]

    assert drawn == [jitter_ms(recurrence, "report", slot) for slot in slots]
    assert drawn != [jitter_ms(recurrence, "other", slot) for slot in slots]
    assert 0 <= min(drawn) < 30_000
    assert 570_000 < max(drawn) <= 600_000
    assert jitter_ms(Recurrence("@hourly"), "report", slots[0]) == 0


def test_recurrence__as_json_and_back__is_the_same() -> None:
    recurrence = Recurrence("@daily", "Europe/Berlin", at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z"), 30)

    assert msgspec.convert(msgspec.to_builtins(recurrence), Recurrence) == recurrence
