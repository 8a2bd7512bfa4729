"""SLA timers: moments that are the same for every reader, and a verdict that only a success can make good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from headgate.durable.model.duration import Seconds
from headgate.errors import InvalidPayloadError, TransientError
from headgate.pipelines.definition.model import Period, Pipeline, RetryPolicy, Schedule, SensorTrigger, Sla
from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict, FailureCategory, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rows import Slot
from tests.integration.pipelines.watchdog_rig import CRON, SLOT, WatchRig, gold
from tests.pipeline_rig import COMMAND, LANDED, named, pipeline, slot_of

COMPLETION = ExpectationKind.COMPLETION_SLA
RELATIVE = ExpectationKind.RELATIVE_SLA
BY_TEN = Sla(deadline="10:00", expected_duration=Seconds(1_800))
WITHIN_AN_HOUR = Sla(max_duration=Seconds(3_600))
ONE_TRY = RetryPolicy(attempts=1)


@pytest.fixture
def rig() -> Iterator[WatchRig]:
    with WatchRig() as opened:
        yield opened


def ask(rig: WatchRig, mode: str, slot: Slot = SLOT, **more: Any) -> dict[str, Any]:
    return rig.monitor({**named(slot), "mode": mode, **more})


def silver(sla: Sla, *, period: Period = Period.DAILY) -> Pipeline:
    return pipeline("silver", schedules=(LANDED,), sla=sla, period=period, retry=ONE_TRY)


# When.


@pytest.mark.parametrize(
    ("definition", "slot", "warning_at", "breach_at"),
    [
        (gold(sla=BY_TEN), SLOT, "2026-03-03T09:30:00.000Z", "2026-03-03T10:00:00.000Z"),
        # bug 12: whole timestamps, not "10:00"; bug 13: nothing is left out where there is nothing to say.
        (gold(sla=Sla(deadline="10:00")), SLOT, "", "2026-03-03T10:00:00.000Z"),
        (gold(), SLOT, "", ""),
        # bug 1: due at 22:00, done by 02:00 means the next day.
        (
            gold(Schedule(name="night", cron="0 22 * * *"), sla=Sla(deadline="02:00")),
            Slot("gold", "night", "2026-03-03"),
            "",
            "2026-03-04T02:00:00.000Z",
        ),
        # bug 2: ":30" of an hour is in the hour after, and of the last hour on the next day.
        (
            silver(Sla(deadline=":30"), period=Period.HOURLY),
            slot_of(date="2026-03-03T07"),
            "",
            "2026-03-03T08:30:00.000Z",
        ),
        (
            silver(Sla(deadline=":30"), period=Period.HOURLY),
            slot_of(date="2026-12-31T23"),
            "",
            "2027-01-01T00:30:00.000Z",
        ),
        # bug 3: a day that data makes due is complete the day after, over the leap day too.
        (silver(Sla(deadline="02:00")), slot_of(date="2028-02-28"), "", "2028-02-29T02:00:00.000Z"),
    ],
)
def test_schedule__kinds_of_deadlines__are_whole_moments(
    rig: WatchRig, definition: Pipeline, slot: Slot, warning_at: str, breach_at: str
) -> None:
    rig.define(definition)

    answers = [ask(rig, "schedule", slot) for _ in range(2)]

    assert answers == [{"warningAt": warning_at, "breachAt": breach_at}] * 2


def test_schedule__zone_of_the_sla__is_the_one_that_counts(rig: WatchRig) -> None:
    rig.define(gold(sla=Sla(deadline="12:00", timezone="Europe/Berlin")))

    assert ask(rig, "schedule")["breachAt"] == "2026-03-03T11:00:00.000Z"


def test_schedule__only_a_duration__counts_from_the_arrival(rig: WatchRig) -> None:
    # D10: with no expected duration there is a warning all the same, and no error.
    rig.define(silver(WITHIN_AN_HOUR))

    answer = ask(rig, "schedule", slot_of(), sensorArrivalAt="2026-03-03T08:00:00+00:00")
    again = ask(rig, "schedule", slot_of())

    assert answer == {"warningAt": "2026-03-03T08:45:00.000Z", "breachAt": "2026-03-03T09:00:00.000Z"}
    assert again == answer


def test_schedule__pipeline_or_schedule_that_is_gone__expects_nothing(rig: WatchRig) -> None:
    rig.define(gold(sla=BY_TEN))

    assert ask(rig, "schedule", Slot("gold", "none", "2026-03-03")) == {"warningAt": "", "breachAt": ""}
    assert ask(rig, "cancel", Slot("gone", "daily", "2026-03-03"))["verdict"] == "NONE"


# Judging at the end.


@pytest.mark.parametrize(
    ("minutes", "verdict", "margin", "warned", "expected_events"),
    [
        (10, "MET", 3_000.0, False, [EventName.SLA_MET]),
        (40, "MET", 1_200.0, True, [EventName.SLA_MET]),
        # Done at the very moment is too late.
        (60, "MISSED", 0.0, True, [EventName.SLA_BREACH]),
        (70, "MISSED", -600.0, True, [EventName.SLA_BREACH]),
    ],
)
def test_cancel__run_succeeded__is_judged_by_when(
    rig: WatchRig, minutes: int, verdict: str, margin: float, warned: bool, expected_events: list[str]
) -> None:
    rig.define(gold(sla=BY_TEN))
    rig.set_clock("2026-03-03T09:00:00+00:00")
    run = rig.begin_alone()
    rig.env.clock.advance(60 * minutes)
    rig.move(run, RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED)

    answers = [ask(rig, "cancel", runId=run.run_id) for _ in range(3)]

    assert [(each["verdict"], each["marginSeconds"], each["warned"]) for each in answers] == [
        (verdict, margin, warned)
    ] * 3
    assert rig.event_names("gold", EventName.SLA_MET, EventName.SLA_BREACH) == expected_events


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.CANCELLED])
def test_cancel__failed_before_the_deadline__is_open_and_never_met(rig: WatchRig, status: RunStatus) -> None:
    # bug 8, D6: a run that failed in time was reported as met and no longer watched.
    rig.define(gold(sla=BY_TEN, retry=ONE_TRY))
    rig.set_clock("2026-03-03T09:00:00+00:00")
    rig.move(rig.begin_alone(), status)

    answer = ask(rig, "cancel")
    rig.restart()
    rig.watch(until="2026-03-03T10:05:00+00:00")

    assert (answer["verdict"], answer["marginSeconds"]) == ("OPEN", None)
    assert rig.verdict(kind=COMPLETION) == "MISSED"
    assert rig.event_names("gold", EventName.SLA_MET, EventName.SLA_BREACH) == [EventName.SLA_BREACH]


def test_cancel__never_ran__is_not_met(rig: WatchRig) -> None:
    # bug 8.
    rig.define(gold(sla=BY_TEN))
    rig.set_clock("2026-03-03T09:30:00+00:00")
    early = ask(rig, "cancel")
    rig.set_clock("2026-03-03T10:00:00+00:00")

    assert (early["verdict"], ask(rig, "cancel")["verdict"]) == ("OPEN", "MISSED")
    assert rig.count(EventName.SLA_MET) == 0


def test_cancel__late_after_the_watchdog_reported_it__the_verdict_stays(rig: WatchRig) -> None:
    # A late completion was reported as met after it had been reported as breached, because the deadline was rolled on.
    rig.define(gold(sla=BY_TEN, trigger=replace(COMMAND, poll_window=Seconds(14_400))))
    rig.watch(until="2026-03-03T10:10:00+00:00")
    rig.jobs.succeed()
    rig.advance("5m")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.verdict(kind=COMPLETION) == "MISSED"
    assert [call["mode"] for call in rig.sla_calls] == ["schedule", "cancel"]
    assert rig.event_names("gold", EventName.SLA_WARNING, EventName.SLA_MET, EventName.SLA_BREACH) == [
        EventName.SLA_WARNING,
        EventName.SLA_BREACH,
    ]


def test_cancel__deadline_and_duration__each_has_a_verdict_of_its_own(rig: WatchRig) -> None:
    rig.define(gold(sla=Sla(deadline="10:00", max_duration=Seconds(600))))
    rig.set_clock("2026-03-03T09:00:00+00:00")
    run = rig.begin_alone()
    rig.env.clock.advance(1_200)
    rig.move(run, RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED)

    answer = ask(rig, "cancel", runId=run.run_id)

    assert answer["verdict"] == "MET"
    assert (rig.verdict(kind=COMPLETION), rig.verdict(kind=RELATIVE)) == ("MET", "MISSED")


def test_cancel__a_backfill_of_before_the_definition__nothing_is_owed(rig: WatchRig) -> None:
    # bug 62.
    rig.define(gold(sla=BY_TEN))
    rig.tick()
    old = Slot("gold", "morning", "2025-01-02")
    rig.move(rig.begin_alone(old), RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED)

    assert ask(rig, "cancel", old)["verdict"] == "NONE"
    assert rig.verdict(old, COMPLETION) == "none"


def test_cancel__a_date_that_no_schedule_names__nothing_is_owed(rig: WatchRig) -> None:
    rig.define(gold(Schedule(name="morning", cron="0 9 * * MON"), sla=BY_TEN))
    run = rig.begin_alone()
    rig.move(run, RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED)

    assert ask(rig, "cancel", runId=run.run_id)["verdict"] == "NONE"
    assert rig.all_verdicts(ExpectationVerdict.MET) == []


def test_cancel__dry_run__is_waived(rig: WatchRig) -> None:
    rig.define(gold(sla=BY_TEN, dry_run=True))
    rig.set_clock("2026-03-03T10:30:00+00:00")

    assert ask(rig, "cancel")["verdict"] == "WAIVED"
    assert rig.event_names("gold") == [EventName.EXPECTATION_JUDGED]


# Timers that fire.


def test_fire_alert__warning_after_the_breach__no_one_is_warned(rig: WatchRig) -> None:
    # bug 4: warning and breach both came when one was late.
    rig.define(gold(sla=BY_TEN))
    rig.set_clock("2026-03-03T10:01:00+00:00")

    assert ask(rig, "fire-alert", kind="warning") == {"alerted": False}
    assert ask(rig, "fire-alert", kind="breach") == {"alerted": True}
    assert rig.event_names("gold", EventName.SLA_WARNING, EventName.SLA_BREACH) == [EventName.SLA_BREACH]


def test_fire_alert__in_time_and_again__warns_once(rig: WatchRig) -> None:
    rig.define(gold(sla=BY_TEN))
    rig.set_clock("2026-03-03T09:40:00+00:00")

    answers = [ask(rig, "fire-alert", kind=kind)["alerted"] for kind in ("warning", "warning", "breach", "")]

    assert answers == [True, False, False, False]
    assert rig.event_names("gold") == [EventName.SLA_WARNING]


def test_fire_alert__the_period_is_done__reports_nothing(rig: WatchRig) -> None:
    # bug 5: stale or recreated timers reported finished periods. bug 6: by its log, not by its lock.
    rig.define(gold(sla=BY_TEN))
    rig.set_clock("2026-03-03T09:00:00+00:00")
    run = rig.move(rig.begin_alone(), RunStatus.TRIGGERING, RunStatus.RUNNING, RunStatus.COMPLETED)
    ask(rig, "cancel", runId=run.run_id)
    before = rig.event_names("gold")

    for clock, kind in (("09:45", "warning"), ("10:01", "breach"), ("10:02", "warning")):
        rig.set_clock(f"2026-03-03T{clock}:00+00:00")
        assert ask(rig, "fire-alert", kind=kind) == {"alerted": False}
    assert rig.event_names("gold") == before


def test_fire_alert__a_lookup_fails__nothing_is_reported_and_it_can_be_asked_again(
    rig: WatchRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # bug 15: an error was reported as a breach.
    rig.define(gold(sla=BY_TEN))
    rig.set_clock("2026-03-03T10:01:00+00:00")
    with monkeypatch.context() as patch:
        patch.setattr(rig.stores.runs, "log", _unreachable)
        with pytest.raises(TransientError):
            ask(rig, "fire-alert", kind="breach")
        assert rig.event_names("gold") == []

    assert ask(rig, "fire-alert", kind="breach") == {"alerted": True}


def _unreachable(_slot: Slot) -> None:
    raise TransientError("the store is away")


def test_reconcile__asked_by_one_who_lost_track__warns_and_judges_once(rig: WatchRig) -> None:
    rig.define(gold(sla=BY_TEN))
    rig.set_clock("2026-03-03T09:40:00+00:00")
    first = ask(rig, "reconcile")
    rig.set_clock("2026-03-03T10:40:00+00:00")
    second, third = ask(rig, "reconcile"), ask(rig, "reconcile")

    assert [each["verdict"] for each in (first, second, third)] == ["OPEN", "MISSED", "MISSED"]
    assert [each["alerted"] for each in (first, second, third)] == [True, True, False]


@pytest.mark.parametrize(
    "event",
    [
        {**named(SLOT), "mode": "calculate"},
        {**named(SLOT), "mode": "fire-alert", "kind": "both"},
        {"mode": "cancel", "pipelineId": "gold"},
    ],
)
def test_call__not_understood__is_refused(rig: WatchRig, event: dict[str, Any]) -> None:
    rig.define(gold(sla=BY_TEN))

    with pytest.raises(InvalidPayloadError):
        rig.monitor(event)


def test_lifecycle__retry_after_a_failure__is_met_by_the_attempt_that_succeeds(rig: WatchRig) -> None:
    rig.define(gold(CRON, sla=BY_TEN))
    rig.jobs.fail(category=FailureCategory.TRANSIENT)
    rig.advance_to("2026-03-03T09:00:40+00:00")
    rig.jobs.succeed()
    rig.advance_to("2026-03-03T09:10:00+00:00")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert len(rig.runs(SLOT)) == 2
    assert rig.verdict(kind=COMPLETION) == "MET"
    assert rig.count(EventName.SLA_MET) == 1


def test_lifecycle__sensor_trigger_without_an_arrival_row__ends_all_the_same(rig: WatchRig) -> None:
    # A duration alone, with no deadline and no arrival, ended the execution with an error that nothing could catch.
    rig.define(pipeline("gold", schedules=(CRON, Schedule(sensor=SensorTrigger(key="x"))), sla=WITHIN_AN_HOUR))
    rig.jobs.is_sync = True
    rig.advance_to("2026-03-03T09:01:00+00:00")

    assert rig.status(SLOT) is RunStatus.COMPLETED
    assert rig.verdict(kind=RELATIVE) == "MET"
