from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import (
    Exclusions,
    Inclusions,
    Period,
    Pipeline,
    PostRun,
    Rule,
    Schedule,
    SensorTrigger,
    Sla,
)
from headgate.pipelines.enums import Cause, ExpectationKind, ExpectationVerdict, RunStatus
from headgate.pipelines.runs.rows import Attempt, Directive, Order, RunLog
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.sla import completion_moments
from headgate.pipelines.schedule.timetables import Timetable, timetables
from headgate.pipelines.watchdog.expectations import (
    Anchors,
    DueExpectations,
    Expectation,
    ExpectationFacts,
    Pause,
    due_expectations,
    facts_of,
    is_warning_due,
    judge,
    next_at,
)

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
CRON = Schedule(cron="0 6 * * *")
SENSOR = Schedule(sensor=SensorTrigger(key="s"))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def table(pipeline: Pipeline, calendars: Calendars | None = None) -> Timetable:
    return timetables(pipeline, calendars or {})[0]


def daily(schedule: Schedule | None = CRON, sla: Sla | None = None, *, is_dry: bool = False) -> Timetable:
    schedules = () if schedule is None else (schedule,)
    return table(Pipeline(id="p", schedules=schedules, sla=sla, dry_run=is_dry))


def hourly(schedule: Schedule, sla: Sla | None = None) -> Timetable:
    return table(Pipeline(id="p", period=Period.HOURLY, schedules=(schedule,), sla=sla))


def ask(
    timetable: Timetable,
    after: str,
    now: str,
    created_at: datetime = LONG_AGO,
    anchors: dict[str, Anchors] | None = None,
) -> DueExpectations:
    return due_expectations(timetable, created_at=created_at, judged_through=at(after), now=at(now), anchors=anchors)


def summaries(found: tuple[Expectation, ...]) -> list[tuple[str, str, str]]:
    return [(each.kind.value, each.date, f"{each.due_at:%dT%H:%M}") for each in found]


# What is expected.


@pytest.mark.parametrize(
    ("timetable", "after", "now", "expected"),
    [
        # A schedule is missed a while after its slot, or by its deadline.
        (daily(), "2026-03-03T06:00:00Z", "2026-03-03T06:04:59Z", []),
        (daily(), "2026-03-03T06:00:00Z", "2026-03-03T06:05:00Z", [("schedule", "2026-03-03", "03T06:05")]),
        (
            daily(Schedule(cron="0 6 * * *", deadline="07:00")),
            "2026-03-03T06:00:00Z",
            "2026-03-04T06:30:00Z",
            [("schedule", "2026-03-03", "03T07:00")],
        ),
        # D17: each hour by itself; one that ran does not hide the others.
        (
            hourly(Schedule(cron="5 * * * *")),
            "2026-03-03T07:30:00Z",
            "2026-03-03T09:10:00Z",
            [("schedule", "2026-03-03T07", "03T08:10"), ("schedule", "2026-03-03T08", "03T09:10")],
        ),
        # Irregular dates, however long ago they were.
        (
            daily(Schedule(after="07:00", include=Inclusions(dates=("2026-03-31", "2026-06-30")))),
            "2026-03-01T00:00:00Z",
            "2026-12-31T00:00:00Z",
            [("irregular-date", "2026-03-31", "31T07:05"), ("irregular-date", "2026-06-30", "30T07:05")],
        ),
        # bug 7: data that never came, and so no run either, still breaches.
        (
            daily(SENSOR, Sla(deadline="08:00", evaluation_deadline="06:00")),
            "2026-03-03T12:00:00Z",
            "2026-03-04T12:00:00Z",
            [("evaluation-sla", "2026-03-03", "04T06:00"), ("completion-sla", "2026-03-03", "04T08:00")],
        ),
        # bug 3: nothing between midnight and the deadline of the day before it is due.
        (daily(SENSOR, Sla(deadline="08:00")), "2026-03-03T08:00:00Z", "2026-03-04T07:59:59Z", []),
        (
            daily(Schedule(sensor=SensorTrigger(key="s", deadline="05:00"))),
            "2026-03-03T12:00:00Z",
            "2026-03-04T12:00:00Z",
            [("trigger-deadline", "2026-03-03", "04T05:00")],
        ),
        # D10: hourly ones are checked as well.
        (
            hourly(SENSOR, Sla(deadline=":30")),
            "2026-12-31T23:45:00Z",
            "2027-01-01T01:45:00Z",
            [("completion-sla", "2026-12-31T23", "01T00:30"), ("completion-sla", "2027-01-01T00", "01T01:30")],
        ),
        # However many days later.
        (
            daily(CRON, Sla(deadline="05:00", day_offset=10)),
            "2026-03-03T04:59:59Z",
            "2026-03-03T05:00:00Z",
            [("completion-sla", "2026-02-21", "03T05:00")],
        ),
        # Nothing is scheduled: nothing but the SLA can be missed.
        (
            daily(None, Sla(deadline="08:00")),
            "2026-03-03T00:00:00Z",
            "2026-03-03T23:00:00Z",
            [("completion-sla", "2026-03-03", "03T08:00")],
        ),
        (daily(None), "2026-03-01T00:00:00Z", "2026-03-10T00:00:00Z", []),
        # A deadline before its own period is judged when there is a period, and is missed.
        (
            hourly(SENSOR, Sla(deadline="00:30", day_offset=0)),
            "2026-03-03T05:30:00Z",
            "2026-03-03T06:30:00Z",
            [("completion-sla", "2026-03-03T05", "03T00:30")],
        ),
    ],
)
def test_asked__each_kind__is_there_once_its_time_has_come(
    timetable: Timetable, after: str, now: str, expected: list[tuple[str, str, str]]
) -> None:
    assert summaries(ask(timetable, after, now).due) == expected


# D10: relative SLAs and post-run sensors hang on what happened, on any date and at any hour.
def test_asked__what_hangs_on_an_arrival_or_a_success__comes_after_it() -> None:
    pipeline = Pipeline(
        id="p", schedules=(SENSOR,), sla=Sla(max_duration=Seconds(7_200)), post_run=PostRun(rules=(Rule(key="check"),))
    )
    anchors = Anchors(at("2026-03-04T01:00:00Z"), at("2026-03-04T02:30:00Z"))

    found = ask(table(pipeline), "2026-03-04T00:00:00Z", "2026-03-04T12:00:00Z", anchors={"2026-03-03": anchors})

    assert summaries(found.due) == [
        ("relative-sla", "2026-03-03", "04T03:00"),
        ("post-run-sensor", "2026-03-03", "04T04:30"),
    ]
    assert found.due[0].warning_at == at("2026-03-04T02:30:00Z")
    later = ask(table(pipeline), "2026-03-04T12:00:00Z", "2026-03-05T12:00:00Z", anchors={"2026-03-03": anchors})
    assert later.due == ()


# bug 62: a fresh definition does not flood the past.
@pytest.mark.parametrize(
    ("timetable", "first"),
    [
        (daily(CRON, Sla(deadline="23:00")), ["schedule", "completion-sla"]),
        (daily(SENSOR, Sla(deadline="23:00")), ["completion-sla"]),
    ],
)
def test_asked__a_definition_that_is_new__owes_nothing_for_what_came_before(
    timetable: Timetable, first: list[str]
) -> None:
    created_at = at("2026-03-03T12:00:00Z")

    found = ask(timetable, "1970-01-01T00:00:00Z", "2026-03-03T23:30:00Z", created_at)
    assert {(each.kind.value, each.is_on_request) for each in found.due} <= {("completion-sla", True)}
    assert found.judged_through == at("2026-03-03T23:30:00Z")

    found = ask(timetable, "2026-03-03T23:30:00Z", "2026-03-04T23:30:00Z", created_at)
    assert [each.kind.value for each in found.due] == first
    assert {each.ready_at >= created_at for each in found.due} == {True}


# bug 64 and D24: the period's own day counts; what is excluded is waived, what is not included is not expected.
def test_asked__excluded_and_not_included_days__are_waived_or_not_there() -> None:
    sla = Sla(deadline="08:00")
    excluding = daily(Schedule(sensor=SensorTrigger(key="s"), exclude=Exclusions(dates=("2026-03-03",))), sla)
    including = daily(Schedule(sensor=SensorTrigger(key="s"), include=Inclusions(dates=("2026-03-03",))), sla)

    waived = ask(excluding, "2026-03-04T00:00:00Z", "2026-03-05T12:00:00Z").due
    only = ask(including, "2026-03-04T00:00:00Z", "2026-03-05T12:00:00Z").due

    assert [(each.date, each.waiver) for each in waived] == [
        ("2026-03-03", "2026-03-03: the date is excluded"),
        ("2026-03-04", ""),
    ]
    assert [each.date for each in only] == ["2026-03-03"]
    verdict = judge(waived[0], ExpectationFacts(), at("2026-03-05T12:00:00Z"))
    assert (verdict.verdict, verdict.reason) == (ExpectationVerdict.WAIVED, "2026-03-03: the date is excluded")


# bug 70: no alerts of a dry run.
def test_asked__a_dry_pipeline__is_waived_whatever_happens_and_never_warned_of() -> None:
    found = ask(
        daily(CRON, Sla(deadline="08:00", at_risk=Seconds(600)), is_dry=True),
        "2026-03-03T06:30:00Z",
        "2026-03-03T09:00:00Z",
    )
    warned = ask(
        daily(CRON, Sla(deadline="08:00", at_risk=Seconds(600)), is_dry=True),
        "2026-03-03T06:30:00Z",
        "2026-03-03T07:55:00Z",
    )

    assert [
        judge(each, ExpectationFacts(succeeded_at=None), at("2026-03-03T09:00:00Z")).verdict for each in found.due
    ] == [ExpectationVerdict.WAIVED]
    assert warned.warnings == ()


# bug 4: a warning that comes too late is not given.
@pytest.mark.parametrize(
    ("now", "warnings", "due"),
    [("07:29", 0, 0), ("07:30", 1, 0), ("07:59", 1, 0), ("08:00", 0, 1), ("12:00", 0, 1)],
)
def test_asked__warnings__are_of_what_is_still_to_come(now: str, warnings: int, due: int) -> None:
    timetable = daily(CRON, Sla(deadline="08:00", expected_duration=Seconds(1_800)))

    found = ask(timetable, "2026-03-03T07:00:00Z", f"2026-03-03T{now}:00Z")

    assert (len(found.warnings), len(found.due)) == (warnings, due)


def test_asked__a_cursor_ahead_of_the_clock__stays_and_finds_nothing() -> None:
    found = ask(daily(), "2026-03-05T00:00:00Z", "2026-03-03T12:00:00Z")

    assert found == DueExpectations((), (), at("2026-03-05T00:00:00Z"))


# After any downtime every slot up to now gets its verdict.
def test_asked__after_a_year_of_silence__goes_on_in_pieces_until_now() -> None:
    timetable = hourly(Schedule(cron="5 * * * *"), Sla(deadline=":30"))
    cursor, now = at("2026-01-01T00:00:00Z"), at("2027-01-01T00:00:00Z")
    found: list[Expectation] = []
    pieces = 0
    while cursor < now:
        piece = due_expectations(timetable, created_at=LONG_AGO, judged_through=cursor, now=now)
        assert piece.judged_through > cursor
        found += piece.due
        cursor = piece.judged_through
        pieces += 1

    assert len(found) == 2 * 365 * 24
    assert len({(each.kind, each.date) for each in found}) == len(found)
    assert pieces > 1


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"]
SCHEDULES = [
    CRON,
    SENSOR,
    Schedule(cron="30 2 * * *", deadline="04:00"),
    Schedule(cron="5 * * * *"),
    Schedule(name="window", after="20:00", deadline="02:00"),
    Schedule(sensor=SensorTrigger(key="s", deadline="09:00"), exclude=Exclusions(weekends=True)),
    Schedule(sensor=SensorTrigger(key="s", deadline=":40")),
    Schedule(cron="0 6 * * *", include=Inclusions(business_days=(1, -1))),
    Schedule(include=Inclusions(dates=("2026-03-29", "2026-10-25", "2026-12-31", "2028-02-29"))),
]
SLAS = [
    None,
    Sla(deadline="08:00", evaluation_deadline="07:00", at_risk=Seconds(1_200)),
    Sla(deadline=":30", expected_duration=Seconds(600)),
    Sla(deadline="02:30", timezone="Asia/Tokyo", expected_duration=Seconds(7_200)),
    Sla(deadline="01:00", day_offset=2),
    Sla(deadline="4h", at_risk=Seconds(600)),
]
DAYS = ["2026-03-27", "2026-10-23", "2026-10-31", "2026-12-29", "2028-02-27", "2026-04-03", "2026-09-04"]


@given(
    st.sampled_from(SCHEDULES),
    st.sampled_from([Period.DAILY, Period.HOURLY, Period.WEEKLY]),
    st.sampled_from(ZONES),
    st.sampled_from(SLAS),
    st.sampled_from(DAYS),
    st.lists(st.integers(0, 5 * 86_400), max_size=8),
    st.integers(0, 5 * 86_400),
)
@settings(max_examples=50, deadline=None)
def test_asked__however_often_and_late__gives_every_expectation_exactly_once(
    schedule: Schedule,
    period: Period,
    zone: str,
    sla: Sla | None,
    day: str,
    asks: list[int],
    created: int,
) -> None:
    timetable = table(Pipeline(id="p", period=period, timezone=zone, schedules=(schedule,), sla=sla))
    start = at(f"{day}T00:00:00Z")
    created_at = start + timedelta(seconds=created)
    end = start + timedelta(days=9)

    found: list[Expectation] = []
    cursor = start
    for now in [*(start + timedelta(seconds=each) for each in sorted(asks)), end]:
        piece = due_expectations(timetable, created_at=created_at, judged_through=cursor, now=now)
        found += piece.due
        cursor = piece.judged_through

    whole = due_expectations(timetable, created_at=created_at, judged_through=start, now=end)
    assert found == list(whole.due)
    assert len({(each.kind, each.date) for each in found}) == len(found)
    owed = {each.date for each in timetable.ready(created_at - timedelta(microseconds=1), end)}
    assert {each.date for each in found if not each.is_on_request} <= owed
    assert {each.date for each in found if each.is_on_request}.isdisjoint(owed)
    # What who cancels a timer computes for this date is what is judged.
    for each in found:
        if each.kind is ExpectationKind.COMPLETION_SLA:
            moments = completion_moments(timetable, each.date)
            assert moments is not None
            assert (each.due_at, each.warning_at) == (moments.breach_at, moments.warning_at)
    completions = {each.date for each in found if each.kind is ExpectationKind.COMPLETION_SLA}
    if sla is not None:
        old = {each.date for each in timetable.ready(created_at - timedelta(microseconds=1), end - timedelta(days=5))}
        assert old <= completions


@given(
    st.sampled_from(SCHEDULES),
    st.sampled_from(ZONES),
    st.sampled_from(SLAS),
    st.sampled_from(DAYS),
    st.integers(0, 86_400),
)
@settings(max_examples=60, deadline=None)
def test_next_at__looked_at_only_then__misses_nothing(
    schedule: Schedule, zone: str, sla: Sla | None, day: str, seconds: int
) -> None:
    timetable = table(Pipeline(id="p", timezone=zone, schedules=(schedule,), sla=sla))
    cursor = at(f"{day}T00:00:00Z") + timedelta(seconds=seconds)
    start, end = cursor, cursor + timedelta(days=6)
    due: list[Expectation] = []
    warnings: list[Expectation] = []
    while (upcoming := next_at(timetable, created_at=LONG_AGO, after=cursor)) <= end:
        assert upcoming > cursor
        piece = due_expectations(timetable, created_at=LONG_AGO, judged_through=cursor, now=upcoming)
        assert piece.due or piece.warnings or sla is not None
        due += piece.due
        warnings += piece.warnings
        cursor = upcoming

    assert due == list(due_expectations(timetable, created_at=LONG_AGO, judged_through=start, now=end).due)
    # A check in time misses no warning.
    warnable = [each for each in due if each.warning_at is not None and each.warning_at > start and not each.waiver]
    assert all(each in warnings for each in warnable if each.warning_at != each.due_at)


# How it came out.

DUE = at("2026-03-03T08:00:00Z")


def expectation(kind: ExpectationKind = ExpectationKind.COMPLETION_SLA) -> Expectation:
    return Expectation(
        kind=kind,
        schedule_id="cron",
        date="2026-03-03",
        due_at=DUE,
        warning_at=DUE - timedelta(minutes=30),
        ready_at=DUE - timedelta(hours=2),
    )


def minutes(number: int | None) -> datetime | None:
    return None if number is None else DUE + timedelta(minutes=number)


@pytest.mark.parametrize(
    ("facts", "now", "verdict", "margin_minutes", "warned"),
    [
        (ExpectationFacts(succeeded_at=minutes(-60)), 0, ExpectationVerdict.MET, 60, False),
        (ExpectationFacts(succeeded_at=minutes(-10)), 600, ExpectationVerdict.MET, 10, True),
        # bug 8: it never ran.
        (ExpectationFacts(), 0, ExpectationVerdict.MISSED, None, True),
        (ExpectationFacts(), -1, ExpectationVerdict.OPEN, None, True),
        # D6: a failure before the deadline is never met; a retry may still be in time.
        (ExpectationFacts(begun_at=minutes(-60), status=RunStatus.FAILED), -20, ExpectationVerdict.OPEN, None, True),
        (ExpectationFacts(begun_at=minutes(-60), status=RunStatus.FAILED), 0, ExpectationVerdict.MISSED, None, True),
        (ExpectationFacts(begun_at=minutes(-60), status=RunStatus.CANCELLED), 5, ExpectationVerdict.MISSED, None, True),
        # bug 6: a run that goes on is not done.
        (ExpectationFacts(begun_at=minutes(-60), status=RunStatus.RUNNING), 0, ExpectationVerdict.MISSED, None, True),
        # D7: done late.
        (ExpectationFacts(succeeded_at=minutes(30)), 600, ExpectationVerdict.MISSED, -30, True),
        # Skipped in time, or too late.
        (ExpectationFacts(waived_at=minutes(-1), waived_by="skip"), -1, ExpectationVerdict.OPEN, None, True),
        (ExpectationFacts(waived_at=minutes(-1), waived_by="skip"), 0, ExpectationVerdict.WAIVED, None, False),
        (ExpectationFacts(waived_at=minutes(0), waived_by="skip"), 5, ExpectationVerdict.MISSED, None, True),
        (ExpectationFacts(dry_run_at=minutes(-60)), 0, ExpectationVerdict.WAIVED, None, False),
        # Paused at its time, before it, or after it.
        (ExpectationFacts(pauses=(Pause(DUE - timedelta(hours=1)),)), 600, ExpectationVerdict.WAIVED, None, False),
        (ExpectationFacts(pauses=(Pause(LONG_AGO, DUE),)), 0, ExpectationVerdict.MISSED, None, True),
        (ExpectationFacts(pauses=(Pause(DUE + timedelta(seconds=1)),)), 600, ExpectationVerdict.MISSED, None, True),
        # In a pause, and done all the same.
        (ExpectationFacts(succeeded_at=minutes(-60), pauses=(Pause(LONG_AGO),)), 0, ExpectationVerdict.MET, 60, False),
    ],
)
def test_judge__what_had_happened_by_its_time__is_what_counts(
    facts: ExpectationFacts, now: int, verdict: ExpectationVerdict, margin_minutes: float | None, warned: bool
) -> None:
    found = judge(expectation(), facts, DUE + timedelta(minutes=now))

    margin_seconds = None if margin_minutes is None else margin_minutes * 60
    assert (found.verdict, found.margin_seconds, found.warned) == (verdict, margin_seconds, warned)
    assert bool(found.reason) == (verdict in (ExpectationVerdict.MISSED, ExpectationVerdict.WAIVED))


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        (ExpectationKind.SCHEDULE, ExpectationFacts(begun_at=minutes(-5))),
        (ExpectationKind.IRREGULAR_DATE, ExpectationFacts(begun_at=minutes(-5))),
        (ExpectationKind.TRIGGER_DEADLINE, ExpectationFacts(begun_at=minutes(-5))),
        (ExpectationKind.EVALUATION_SLA, ExpectationFacts(ready_at=minutes(-5))),
        (ExpectationKind.COMPLETION_SLA, ExpectationFacts(succeeded_at=minutes(-5))),
        (ExpectationKind.RELATIVE_SLA, ExpectationFacts(succeeded_at=minutes(-5))),
        (ExpectationKind.POST_RUN_SENSOR, ExpectationFacts(post_run_sensor_at=minutes(-5))),
    ],
)
def test_judge__each_kind__looks_at_its_own_fact(kind: ExpectationKind, facts: ExpectationFacts) -> None:
    assert judge(expectation(kind), facts, DUE).verdict is ExpectationVerdict.MET
    assert judge(expectation(kind), ExpectationFacts(), DUE).verdict is ExpectationVerdict.MISSED


@given(
    st.sampled_from(list(ExpectationKind)),
    st.lists(st.none() | st.integers(-90, 90), min_size=6, max_size=6),
    st.none() | st.tuples(st.integers(-90, 90), st.none() | st.integers(0, 60)),
    st.lists(st.integers(-100, 100), min_size=1, max_size=8),
)
@settings(max_examples=300, deadline=None)
def test_judge__asked_as_things_happen__says_one_thing_and_keeps_to_it(
    kind: ExpectationKind, happened: list[int | None], pause: tuple[int, int | None] | None, asks: list[int]
) -> None:
    def known(now: int) -> ExpectationFacts:
        begun, ready, succeeded, sensor, waived, dry = (
            minutes(each) if each is not None and each <= now else None for each in happened
        )
        pauses: tuple[Pause, ...] = ()
        if pause is not None and pause[0] <= now:
            until = None if pause[1] is None or pause[0] + pause[1] > now else pause[0] + pause[1]
            pauses = (Pause(DUE + timedelta(minutes=pause[0]), minutes(until)),)
        return ExpectationFacts(
            begun_at=begun,
            ready_at=ready,
            succeeded_at=succeeded,
            post_run_sensor_at=sensor,
            waived_at=waived,
            dry_run_at=dry,
            waived_by="skip",
            pauses=pauses,
        )

    said = [
        (found.verdict, found.warned)
        for now in [*sorted(asks), 1_000]
        if (found := judge(expectation(kind), known(now), DUE + timedelta(minutes=now))).verdict
        is not ExpectationVerdict.OPEN
    ]

    assert len(set(said)) == 1


# bugs 4 and 5: no warning for what is done, waived, paused or over.
@pytest.mark.parametrize(
    ("facts", "now", "is_due"),
    [
        (ExpectationFacts(), -31, False),
        (ExpectationFacts(), -30, True),
        (ExpectationFacts(), 0, False),
        (ExpectationFacts(succeeded_at=minutes(-40)), -30, False),
        (ExpectationFacts(status=RunStatus.FAILED), -30, True),
        (ExpectationFacts(waived_at=minutes(-40)), -30, False),
        (ExpectationFacts(dry_run_at=minutes(-40)), -30, False),
        (ExpectationFacts(pauses=(Pause(LONG_AGO),)), -30, False),
    ],
)
def test_is_warning_due__what_is_done_waived_or_over__is_not_warned_of(
    facts: ExpectationFacts, now: int, is_due: bool
) -> None:
    assert is_warning_due(expectation(), facts, DUE + timedelta(minutes=now)) == is_due
    assert not is_warning_due(replace(expectation(), waiver="excluded"), facts, DUE + timedelta(minutes=now))


# Facts from the log of a period.


def ms(number: int) -> int:
    return int((DUE + timedelta(minutes=number)).timestamp() * 1000)


def attempt(number: int, status: RunStatus, begun: int, ended: int | None) -> Attempt:
    return Attempt(
        number=number,
        run_id=f"run_{number}",
        status=status,
        cause=Cause.CRON,
        begun_at_ms=ms(begun),
        ended_at_ms=None if ended is None else ms(ended),
    )


def log(status: RunStatus, *history: Attempt, order: Directive | None = None, marked: int | None = None) -> RunLog:
    done = [each for each in history if each.status.is_done]
    succeeded_at_ms = done[-1].ended_at_ms if done else None if marked is None else ms(marked)
    return RunLog(
        pipeline_id="p",
        schedule_id="cron",
        date="2026-03-03",
        status=status,
        version=1,
        created_at_ms=ms(-100),
        updated_at_ms=ms(0),
        history=history,
        succeeded_at_ms=succeeded_at_ms,
        succeeded_run_id=done[-1].run_id if done else "",
        order=order,
    )


def test_facts_of__a_rerun_that_was_done_late__does_not_make_the_first_success_late() -> None:
    history = (attempt(1, RunStatus.COMPLETED, -60, -40), attempt(2, RunStatus.COMPLETED, 60, 90))

    facts = facts_of(log(RunStatus.COMPLETED, *history))

    assert (facts.begun_at, facts.succeeded_at, facts.ready_at) == (minutes(-60), minutes(-40), minutes(-40))
    assert judge(expectation(), facts, DUE + timedelta(hours=9)).verdict is ExpectationVerdict.MET


def test_facts_of__a_failure_and_then_a_rerun_under_way__is_begun_and_not_done() -> None:
    history = (attempt(1, RunStatus.FAILED, -60, -40), attempt(2, RunStatus.RUNNING, -30, None))

    facts = facts_of(log(RunStatus.RUNNING, *history), evaluated_at=minutes(-70))

    assert (facts.begun_at, facts.succeeded_at) == (minutes(-70), None)


@pytest.mark.parametrize("order", [Order.SKIP, Order.MARK_SUCCESS])
def test_facts_of__a_period_that_someone_settled__is_waived_and_never_met(order: Order) -> None:
    directive = Directive(order, "ann", "holiday of the source", ms(-20))
    status = RunStatus.CANCELLED if order is Order.SKIP else RunStatus.COMPLETED
    facts = facts_of(log(status, order=directive, marked=None if order is Order.SKIP else -20))

    found = judge(expectation(), facts, DUE)

    assert found.verdict is ExpectationVerdict.WAIVED
    assert found.reason == f"{order} by ann: holiday of the source"
    # And if it is begun after all, which takes the order away.
    again = log(RunStatus.FAILED, attempt(1, RunStatus.FAILED, 60, 70), marked=-20)
    assert judge(expectation(), facts_of(again), DUE + timedelta(hours=2)).verdict is ExpectationVerdict.WAIVED


def test_facts_of__no_log__is_what_is_known_from_elsewhere() -> None:
    facts = facts_of(None, evaluated_at=minutes(-5), ready_at=minutes(-4), dry_run_at=minutes(-3))

    assert facts == ExpectationFacts(begun_at=minutes(-5), ready_at=minutes(-4), dry_run_at=minutes(-3))


def test_judge__missed__says_what_was_expected_and_what_is() -> None:
    failed = replace(log(RunStatus.FAILED, attempt(1, RunStatus.FAILED, -60, -40)), reason="exit status 1")

    assert judge(expectation(), facts_of(failed), DUE).reason == (
        "expected by 2026-03-03T08:00:00Z, and it was FAILED: exit status 1"
    )
    assert judge(expectation(), ExpectationFacts(), DUE).reason == (
        "expected by 2026-03-03T08:00:00Z, and nothing was started"
    )
    assert judge(expectation(), ExpectationFacts(succeeded_at=minutes(30)), DUE + timedelta(hours=1)).reason == (
        "expected by 2026-03-03T08:00:00Z, happened at 2026-03-03T08:30:00Z"
    )
