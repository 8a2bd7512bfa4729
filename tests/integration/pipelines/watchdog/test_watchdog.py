"""The watchdog: every check by itself, every expectation one verdict after any absence, and a cost by what is due."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from headgate.durable.model.duration import Seconds
from headgate.errors import TransientError
from headgate.notify.enums import INFRASTRUCTURE
from headgate.pipelines.catalog.rows import config_key
from headgate.pipelines.definition.model import Exclusions, Inclusions, Period, Schedule, Sla
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.watchdog.cursors import Cursors, ScheduleQueue, ScheduleRef
from headgate.pipelines.watchdog.heartbeats import Heartbeats
from headgate.pipelines.watchdog.liveness_check import Lifecycle
from headgate.pipelines.watchdog.roster import CheckBudget, CheckTally
from headgate.pipelines.watchdog.watchdog import Check, Watchdog
from headgate.store.catalogue.tables import PIPELINES
from headgate.store.model.requests import Update
from tests.integration.pipelines.watchdog_rig import CRON, SLOT, WatchRig, dates, failing, gold
from tests.pipeline_rig import pipeline

HOURLY = Schedule(name="hourly", cron="5 * * * *")
COMPLETION = ExpectationKind.COMPLETION_SLA


@pytest.fixture
def rig() -> Iterator[WatchRig]:
    with WatchRig() as opened:
        yield opened


def day(number: int, schedule_id: str = "morning") -> Slot:
    return Slot("gold", schedule_id, f"2026-03-{number:02d}")


# Verdicts after any absence.


def test_tick__server_away_for_three_days__each_missed_day_is_reported_once(rig: WatchRig) -> None:
    # D17: every five minutes anew, and lost if the watchdog came up after the time.
    rig.define(gold())
    rig.jobs.is_sync = True
    rig.watch(until="2026-03-03T10:00:00+00:00")
    rig.set_clock("2026-03-06T08:00:00+00:00")

    rig.restart()
    for _ in range(3):
        rig.watchdog.tick()
    rig.restart()
    rig.watchdog.tick()

    assert dates(rig.missed()) == ["2026-03-04", "2026-03-05"]
    assert rig.count(EventName.SCHEDULE_MISSED) == 2
    assert rig.verdict() == "MET"


def test_tick__begun_after_its_time_but_before_anyone_looked__is_missed_by_its_own_time(rig: WatchRig) -> None:
    rig.define(gold())
    rig.set_clock("2026-03-03T09:30:00+00:00")
    rig.begin_alone()

    rig.watchdog.tick()

    assert rig.verdict() == "MISSED"


def test_tick__before_the_grace_is_over__nothing_is_judged(rig: WatchRig) -> None:
    rig.define(gold())
    rig.set_clock("2026-03-03T09:04:59+00:00")
    rig.watchdog.tick()
    early = rig.verdict()
    rig.set_clock("2026-03-03T09:05:00+00:00")
    rig.watchdog.tick()

    assert (early, rig.verdict()) == ("none", "MISSED")


@pytest.mark.parametrize(
    ("cron", "zone", "through", "missed"),
    [
        # Only "M * * * *" and "M H * * *" were understood.
        ("*/30 9-10 * * MON-FRI", "UTC", "2026-03-10T08:00", ["03", "04", "05", "06", "09"]),
        ("0 9 1,15 * *", "UTC", "2026-03-20T08:00", ["15"]),
        ("0 9 * * 3#1", "UTC", "2026-03-20T08:00", ["04"]),
        # The day is that of the schedule, not of UTC.
        ("30 0 * * *", "Asia/Tokyo", "2026-03-05T00:00", ["04", "05"]),
        # An hour that the clock leaves out comes all the same.
        ("30 2 * * *", "Europe/Berlin", "2026-03-30T12:00", [f"{number:02d}" for number in range(4, 31)]),
    ],
)
def test_tick__full_cron_syntax__each_slot_that_was_missed(
    rig: WatchRig, cron: str, zone: str, through: str, missed: list[str]
) -> None:
    # D17.
    rig.define(gold(Schedule(name="morning", cron=cron, timezone=zone)))
    rig.watchdog.tick()
    rig.set_clock(f"{through}:00+00:00")

    rig.watchdog.tick()

    assert dates(rig.missed()) == [f"2026-03-{number}" for number in missed]


def test_tick__one_hour_of_a_day_was_done__the_other_hours_are_missed(rig: WatchRig) -> None:
    # bug 63, D17: one row of an hour hid the 23 others, or was not seen at all.
    rig.define(pipeline("gold", schedules=(HOURLY,), period=Period.HOURLY))
    rig.watchdog.tick()
    slot = Slot("gold", "hourly", "2026-03-03T09")
    rig.set_clock("2026-03-03T10:06:00+00:00")
    rig.begin_alone(slot)
    rig.set_clock("2026-03-03T13:20:00+00:00")

    rig.watchdog.tick()

    assert rig.verdict(slot) == "MET"
    assert dates(rig.missed()) == [f"2026-03-03T{hour}" for hour in ("07", "08", "10", "11", "12")]


def test_tick__excluded_day_looked_at_on_another_day__goes_by_the_date_of_the_period(rig: WatchRig) -> None:
    # bug 64: the calendar was asked for today, not for the day in question.
    rig.define(gold(Schedule(name="morning", cron="0 9 * * *", exclude=Exclusions(weekends=True))))
    rig.watchdog.tick()
    rig.set_clock("2026-03-09T08:00:00+00:00")

    rig.watchdog.tick()

    assert dates(rig.missed()) == ["2026-03-03", "2026-03-04", "2026-03-05", "2026-03-06"]
    assert [each.date for each in rig.all_verdicts(ExpectationVerdict.WAIVED)] == ["2026-03-07", "2026-03-08"]


def test_tick__dates_of_its_own__each_that_passed_is_reported_once(rig: WatchRig) -> None:
    irregular = Schedule(name="closing", after="09:00", include=Inclusions(dates=("2026-03-04", "2026-03-06")))
    rig.define(gold(irregular))
    rig.watchdog.tick()
    rig.set_clock("2026-03-08T12:00:00+00:00")

    for _ in range(2):
        rig.watchdog.tick()

    assert rig.missed() == [
        ("gold", "2026-03-04", "irregular-date"),
        ("gold", "2026-03-06", "irregular-date"),
    ]
    assert rig.count(EventName.IRREGULAR_SCHEDULE_MISSED) == 2


def test_tick__data_never_came__its_sla_is_warned_of_and_breached(rig: WatchRig) -> None:
    # bug 7: an SLA was watched only once a run had started.
    rig.define(pipeline("silver", sla=Sla(deadline="02:00", at_risk=Seconds(1_800))))
    rig.watch(until="2026-03-04T01:00:00+00:00")
    early = rig.event_names("silver")
    rig.watch(until="2026-03-04T02:10:00+00:00")

    assert early == []
    assert rig.event_names("silver") == [EventName.SLA_WARNING, EventName.EXPECTATION_JUDGED, EventName.SLA_BREACH]


def test_tick__both_moments_passed_while_away__only_the_breach_is_reported(rig: WatchRig) -> None:
    # bug 4.
    rig.define(gold(sla=Sla(deadline="10:00", at_risk=Seconds(1_800))))
    rig.watchdog.tick()
    rig.set_clock("2026-03-03T11:00:00+00:00")

    rig.watchdog.tick()

    assert rig.event_names("gold", EventName.SLA_WARNING, EventName.SLA_BREACH) == [EventName.SLA_BREACH]


def test_tick__done_and_its_lock_long_gone__no_alert(rig: WatchRig) -> None:
    # bug 5, bug 6: what a period came to is in its log, which never runs out.
    rig.define(gold(sla=Sla(deadline="23:00", at_risk=Seconds(3_600))))
    rig.jobs.is_sync = True
    rig.watch(until="2026-03-03T09:30:00+00:00")
    before = rig.event_names("gold")
    rig.set_clock("2026-03-04T08:59:00+00:00")
    rig.watchdog.tick()

    assert rig.lock(SLOT) is None
    assert rig.event_names("gold") == before
    assert rig.verdict(kind=COMPLETION) == "MET"


def test_tick__evaluation_deadline__is_met_by_a_job_that_started_in_time(rig: WatchRig) -> None:
    definition = gold(sla=Sla(evaluation_deadline="09:30"))
    rig.define(definition)
    rig.watch(until="2026-03-03T09:40:00+00:00")
    met = rig.verdict(kind=ExpectationKind.EVALUATION_SLA)
    rig.set_clock("2026-03-04T09:40:00+00:00")
    rig.watchdog.tick()

    assert (met, rig.verdict(day(4), ExpectationKind.EVALUATION_SLA)) == ("MET", "MISSED")
    assert rig.count(EventName.EVALUATION_SLA_BREACH) == 1


def test_tick__paused_over_the_slot__is_waived(rig: WatchRig) -> None:
    rig.define(gold())
    rig.stores.controls.pause("gold", by="ana", reason="maintenance")
    rig.watch(until="2026-03-03T09:10:00+00:00")

    assert rig.verdict() == "WAIVED"
    assert rig.count(EventName.SCHEDULE_MISSED) == 0


def test_tick__paused_over_the_slot_and_resumed_before_anyone_looked__is_waived(rig: WatchRig) -> None:
    rig.define(gold())
    rig.watchdog.tick()
    rig.stores.controls.pause("gold", by="ana", reason="maintenance")
    rig.set_clock("2026-03-03T11:00:00+00:00")
    rig.stores.controls.resume("gold", by="ana", reason="it is over")
    rig.watchdog.tick()

    assert rig.verdict() == "WAIVED"
    assert rig.count(EventName.SCHEDULE_MISSED) == 0


def test_tick__dry_run__nothing_is_missed_and_nothing_begun(rig: WatchRig) -> None:
    rig.define(gold(dry_run=True, sla=Sla(deadline="09:30")))
    rig.watchdog.tick()
    rig.set_clock("2026-03-04T12:00:00+00:00")
    rig.watchdog.tick()

    assert rig.missed() == []
    assert rig.executions() == []
    assert set(rig.event_names("gold")) == {EventName.EXPECTATION_JUDGED}


# Periods without a verdict.


def test_tick__first_deployment__nothing_from_before_is_reported(rig: WatchRig) -> None:
    # bug 62.
    rig.define(*(pipeline(f"p{number}", schedules=(CRON, HOURLY), sla=Sla(deadline="07:00")) for number in range(5)))

    rig.watchdog.tick()

    assert [rig.event_names(f"p{number}") for number in range(5)] == [[]] * 5


def test_tick__a_schedule_added_to_an_old_pipeline__owes_nothing_for_the_time_before(rig: WatchRig) -> None:
    # bug 62.
    rig.define(gold())
    rig.jobs.is_sync = True
    rig.watch(until="2026-03-03T09:10:00+00:00")
    rig.set_clock("2026-03-04T08:30:00+00:00")
    rig.define(gold(CRON, Schedule(name="evening", cron="0 20 * * *")))

    rig.watchdog.tick()

    assert rig.missed() == []


def test_tick__cron_changed_at_noon__slots_that_the_new_one_would_have_had_are_not_missed(rig: WatchRig) -> None:
    rig.define(gold(Schedule(name="morning", cron="0 9 * * SUN"), sla=Sla(deadline="23:00")))
    rig.watchdog.tick()
    rig.set_clock("2026-03-03T12:00:00+00:00")
    rig.define(gold(Schedule(name="morning", cron="0 11 * * *"), sla=Sla(deadline="23:00")))
    rig.set_clock("2026-03-04T08:00:00+00:00")
    rig.watchdog.tick()
    first = rig.missed()
    rig.set_clock("2026-03-04T12:00:00+00:00")
    rig.watchdog.tick()

    assert (first, dates(rig.missed())) == ([], ["2026-03-04"])


def test_tick__definition_touched_between_slot_and_deadline__the_deadline_still_counts(rig: WatchRig) -> None:
    rig.define(gold(sla=Sla(deadline="10:00")))
    rig.watch(until="2026-03-03T08:30:00+00:00")
    rig.set_clock("2026-03-03T09:30:00+00:00")
    rig.define(gold(sla=Sla(deadline="10:00"), description="what it is for"))
    rig.set_clock("2026-03-03T10:01:00+00:00")

    rig.watchdog.tick()

    assert rig.verdict(kind=COMPLETION) == "MISSED"


def test_tick__deleted_and_defined_again_while_the_watchdog_was_away__the_gap_is_not_missed(rig: WatchRig) -> None:
    rig.define(gold())
    rig.watchdog.tick()
    rig.forget("gold")
    rig.set_clock("2026-03-06T12:00:00+00:00")
    rig.define(gold())

    rig.restart()
    rig.watchdog.tick()

    assert rig.missed() == []


def test_tick__deleted__nothing_more_is_expected(rig: WatchRig) -> None:
    rig.define(gold())
    rig.watchdog.tick()
    rig.forget("gold")
    rig.set_clock("2026-03-05T12:00:00+00:00")

    report = rig.watchdog.tick()

    assert (report.failed, rig.missed()) == ({}, [])


def test_tick__clock_set_back_by_a_day__judges_nothing_twice_and_goes_on_after(rig: WatchRig) -> None:
    rig.define(gold())
    rig.watchdog.tick()
    rig.set_clock("2026-03-04T09:10:00+00:00")
    rig.watchdog.tick()
    rig.env.clock.step(-86_400)
    rig.watchdog.tick()
    rig.set_clock("2026-03-05T09:10:00+00:00")
    rig.watchdog.tick()

    assert dates(rig.missed()) == ["2026-03-03", "2026-03-04", "2026-03-05"]
    assert rig.count(EventName.SCHEDULE_MISSED) == 3


# Each check by itself.


def watchdog_of(rig: WatchRig, *checks: Check) -> Watchdog:
    beats = Heartbeats(rig.store, rig.env.service.clock, rig.event_writer)
    return Watchdog(rig.clock, checks, beats, ScheduleQueue(), rig.watches)


def test_tick__one_check_fails__the_others_are_made_and_it_is_named(rig: WatchRig) -> None:
    # bug 65: errors were swallowed.
    made: list[str] = []
    watchdog = watchdog_of(
        rig,
        Check("first", lambda *_: made.append("first")),
        failing("broken", TransientError("the store is away")),
        failing("mistaken", KeyError("x")),
        Check("last", lambda *_: made.append("last")),
    )

    reports = [watchdog.tick() for _ in range(3)]

    assert made == ["first", "last"] * 3
    assert [sorted(report.failed) for report in reports] == [["broken", "mistaken"]] * 3
    (event,) = rig.events(INFRASTRUCTURE)
    assert (event.name, event.detail["checks"]) == (EventName.WATCHDOG_DEGRADED, "broken, mistaken")
    assert "the store is away" in event.detail["errors"]["broken"]


def test_tick__a_check_hangs__it_is_left_behind_and_not_begun_twice(rig: WatchRig) -> None:
    release, entered = threading.Event(), []

    def hang(_now: datetime, _budget: CheckBudget, _tally: CheckTally) -> None:
        entered.append(1)
        release.wait(10)

    made: list[str] = []
    watchdog = watchdog_of(rig, Check("hangs", hang, 0.05), Check("next", lambda *_: made.append("next")))
    first, second = watchdog.tick(), watchdog.tick()
    release.set()

    assert (len(entered), made) == (1, ["next", "next"])
    assert "0.05 s" in first.failed["hangs"]
    assert "earlier tick" in second.failed["hangs"]


def test_tick__all_is_well_again__that_is_reported_once(rig: WatchRig) -> None:
    watchdog_of(rig, failing("broken", TransientError("away"))).tick()
    for _ in range(2):
        watchdog_of(rig).tick()

    assert rig.event_names(INFRASTRUCTURE) == [EventName.WATCHDOG_DEGRADED, EventName.WATCHDOG_RECOVERED]


def test_tick__one_bad_definition__the_others_are_judged_and_it_is_named(rig: WatchRig) -> None:
    rig.define(gold(), pipeline("other", schedules=(CRON,)))
    spoiled = Update(PIPELINES, config_key("other"), set={"config": "{not json"})
    rig.store.transact([spoiled])
    rig.restart()
    rig.watchdog.tick()
    rig.set_clock("2026-03-03T09:10:00+00:00")

    report = rig.watchdog.tick()

    assert dates(rig.missed()) == ["2026-03-03"]
    assert "other" in report.failed["definitions"]


def test_tick__judging_fails_for_a_while__the_cursor_waits_and_nothing_is_lost(
    rig: WatchRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # bug 65.
    rig.define(gold(), pipeline("other", schedules=(CRON,)))
    rig.watchdog.tick()
    rig.set_clock("2026-03-03T09:10:00+00:00")
    read = rig.stores.runs.log

    def unreachable(slot: Slot) -> object:
        if slot.pipeline_id == "gold":
            raise TransientError("the store is away")
        return read(slot)

    with monkeypatch.context() as patch:
        patch.setattr(rig.stores.runs, "log", unreachable)
        report = rig.watchdog.tick()
    degraded = rig.missed()
    rig.set_clock("2026-03-03T09:20:00+00:00")
    rig.watchdog.tick()

    assert set(report.failed) == {"missed-schedules"}
    assert degraded == [("other", "2026-03-03", "schedule")]
    assert {each[0] for each in rig.missed()} == {"gold", "other"}
    assert rig.event_names(INFRASTRUCTURE) == [EventName.WATCHDOG_DEGRADED, EventName.WATCHDOG_RECOVERED]


def test_tick__a_schedule_check_that_meets_a_mistake_of_ours__keeps_the_schedule_on_its_agenda(
    rig: WatchRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.define(gold())
    rig.watchdog.tick()
    rig.set_clock("2026-03-03T09:10:00+00:00")

    def mistaken(*_: object) -> object:
        raise KeyError("x")

    with monkeypatch.context() as patch:
        patch.setattr(rig.stores.controls, "get", mistaken)
        assert "schedules" in rig.watchdog.tick().failed
    rig.watchdog.tick()

    assert rig.verdict() == "MISSED"


def test_lifecycle__without_one_of_its_parts__cannot_be_made() -> None:
    # bug 66: a client that was never given made the first recovery fail.
    with pytest.raises(TypeError):
        Lifecycle(is_open=lambda _: True, orchestrate=lambda _: {})  # type: ignore[call-arg]


# Cost.


def reads_of_a_tick(count: int) -> int:
    with WatchRig() as rig:
        rig.define(*(pipeline(f"p{number}", schedules=(CRON, HOURLY)) for number in range(count)))
        rig.watchdog.tick()
        rig.watchdog.tick()
        before = rig.store.stats.reads  # type: ignore[attr-defined]
        rig.watchdog.tick()
        return int(rig.store.stats.reads - before)  # type: ignore[attr-defined]


def test_tick__nothing_is_due__costs_the_same_however_many_pipelines_there_are() -> None:
    # D19: the whole table was read, and every pipeline looked at in turn.
    assert reads_of_a_tick(2) == reads_of_a_tick(60)


def test_seconds_until_next__a_slot_is_near__is_when_it_can_be_judged(rig: WatchRig) -> None:
    rig.define(gold())
    rig.watchdog.tick()
    far = rig.watchdog.seconds_until_next()
    rig.set_clock("2026-03-03T09:04:15+00:00")

    assert (far, rig.watchdog.seconds_until_next()) == (60.0, 45.0)


def test_restart__cursors_say_when_to_look__nothing_is_worked_out_anew(rig: WatchRig) -> None:
    rig.define(gold())
    rig.watchdog.tick()
    (cursor,) = Cursors(rig.store).find_all([ScheduleRef("gold", "morning")])

    assert cursor is not None
    assert cursor.next_at == datetime(2026, 3, 3, 9, 5, tzinfo=UTC)
    assert cursor.judged_through == datetime(2026, 3, 3, 8, tzinfo=UTC)


def test_tick__two_watchdogs_at_once__every_verdict_once(rig: WatchRig) -> None:
    rig.define(gold())
    first = rig.watchdog
    first.tick()
    rig.restart()
    second = rig.watchdog
    second.tick()
    for number in (3, 4, 5):
        rig.set_clock(f"2026-03-{number:02d}T09:10:00+00:00")
        reports = [watchdog.tick() for watchdog in (first, second)]
        assert all(not report.failed for report in reports)

    assert rig.count(EventName.SCHEDULE_MISSED) == 3


# Changes that were lost.


def test_tick__away_for_longer_than_changes_are_kept__reads_the_table_instead(rig: WatchRig) -> None:
    rig.define(gold())
    rig.tick()
    rig.set_clock("2026-03-03T09:01:00+00:00")
    run = rig.begin_alone(execution="gone")
    rig.move(run, RunStatus.TRIGGERING)
    rig.set_clock("2026-03-06T09:01:00+00:00")
    rig.store.sweep()

    report = rig.watchdog.tick()
    again = rig.watchdog.tick()

    assert (report.failed, again.failed) == ({}, {})
    assert rig.count(EventName.SFN_TIMEOUT) == 1
    assert rig.status(SLOT) is RunStatus.FAILED


def test_tick__ten_days_away_with_hourly_periods__every_hour_has_one_verdict() -> None:
    with WatchRig() as rig:
        rig.define(pipeline("gold", schedules=(HOURLY,), period=Period.HOURLY))
        rig.watchdog.tick()
        rig.set_clock("2026-03-13T08:30:00+00:00")
        rig.watchdog.tick()

        missed = dates(rig.missed())
        begin = datetime(2026, 3, 3, 7, tzinfo=UTC)
        expected = [f"{begin + timedelta(hours=hour):%Y-%m-%dT%H}" for hour in range(10 * 24 + 1)]
        assert missed == expected[: len(missed)]
        assert len(missed) == 10 * 24 + 1
        assert rig.count(EventName.SCHEDULE_MISSED) == len(missed)
