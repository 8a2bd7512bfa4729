"""Verdicts: one for each expectation, once, however often it is read, and reported with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from headgate.pipelines.enums import ExpectationKind, ExpectationVerdict
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.watchdog.expectations import Expectation, ExpectationJudgement
from headgate.pipelines.watchdog.followups import Followup, FollowupKind
from tests.integration.pipelines.watchdog_rig import SLOT, WatchRig, gold

MET = ExpectationVerdict.MET
MISSED = ExpectationVerdict.MISSED
WAIVED = ExpectationVerdict.WAIVED
DUE_AT = datetime(2026, 3, 3, 10, tzinfo=UTC)


@pytest.fixture
def rig() -> Iterator[WatchRig]:
    with WatchRig() as opened:
        opened.define(gold())
        yield opened


def expected(kind: ExpectationKind = ExpectationKind.COMPLETION_SLA, date: str = SLOT.date) -> Expectation:
    return Expectation(
        kind=kind, schedule_id=SLOT.schedule_id, date=date, due_at=DUE_AT, ready_at=DUE_AT.replace(hour=9)
    )


def judged(verdict: ExpectationVerdict = MISSED, reason: str = "too late") -> ExpectationJudgement:
    return ExpectationJudgement(verdict=verdict, margin_seconds=None, warned=True, reason=reason)


@pytest.mark.parametrize(
    ("kind", "verdict", "expected_events"),
    [
        (ExpectationKind.SCHEDULE, MISSED, EventName.SCHEDULE_MISSED),
        (ExpectationKind.IRREGULAR_DATE, MISSED, EventName.IRREGULAR_SCHEDULE_MISSED),
        (ExpectationKind.EVALUATION_SLA, MISSED, EventName.EVALUATION_SLA_BREACH),
        (ExpectationKind.COMPLETION_SLA, MISSED, EventName.SLA_BREACH),
        (ExpectationKind.COMPLETION_SLA, MET, EventName.SLA_MET),
        (ExpectationKind.RELATIVE_SLA, MISSED, EventName.RELATIVE_SLA_BREACH),
        (ExpectationKind.RELATIVE_SLA, MET, EventName.SLA_MET),
        (ExpectationKind.TRIGGER_DEADLINE, MISSED, EventName.SENSOR_DEADLINE_EXPIRED),
        (ExpectationKind.POST_RUN_SENSOR, MISSED, EventName.POST_RUN_SENSOR_MISSING),
        (ExpectationKind.SCHEDULE, MET, None),
        (ExpectationKind.COMPLETION_SLA, WAIVED, None),
    ],
)
def test_judge_once__each_kind_and_verdict__reports_what_the_catalogue_has_for_it(
    rig: WatchRig, kind: ExpectationKind, verdict: ExpectationVerdict, expected_events: EventName | None
) -> None:
    is_first = rig.verdicts.judge_once("gold", expected(kind), judged(verdict))

    names = [EventName.EXPECTATION_JUDGED, *([] if expected_events is None else [expected_events])]
    assert is_first
    assert rig.event_names("gold") == names
    assert {event.detail["verdict"] for event in rig.events("gold")} == {verdict.value}


def test_judge_once__asked_again_with_another_outcome__the_first_verdict_stays_and_is_reported_once(
    rig: WatchRig,
) -> None:
    outcomes = [rig.verdicts.judge_once("gold", expected(), judged(verdict)) for verdict in (MISSED, MET, MISSED)]

    stored = rig.verdicts.find(SLOT, ExpectationKind.COMPLETION_SLA)
    assert outcomes == [True, False, False]
    assert stored is not None
    assert (stored.verdict, stored.reason, stored.warned) == (MISSED, "too late", True)
    assert stored.due_at == "2026-03-03T10:00:00.000Z"
    assert rig.event_names("gold") == [EventName.EXPECTATION_JUDGED, EventName.SLA_BREACH]


def test_judge_once__eight_at_once__one_of_them_judges(rig: WatchRig) -> None:
    barrier = threading.Barrier(8)
    outcomes: list[bool] = []

    def judge(verdict: ExpectationVerdict) -> None:
        barrier.wait()
        outcomes.append(rig.verdicts.judge_once("gold", expected(), judged(verdict)))

    threads = [threading.Thread(target=judge, args=(verdict,)) for verdict in (MET, MISSED) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == [False] * 7 + [True]
    assert rig.count(EventName.EXPECTATION_JUDGED) == 1


def test_judge_once__other_kinds_and_periods__each_has_a_verdict_of_its_own(rig: WatchRig) -> None:
    wanted = [expected(), expected(ExpectationKind.SCHEDULE), expected(date="2026-03-04")]

    assert [rig.verdicts.judge_once("gold", each, judged()) for each in wanted] == [True, True, True]


def test_judge_once__still_open__is_a_mistake_of_the_caller(rig: WatchRig) -> None:
    with pytest.raises(AssertionError):
        rig.verdicts.judge_once("gold", expected(), judged(ExpectationVerdict.OPEN))

    assert rig.event_names("gold") == []


@pytest.mark.parametrize(
    ("kind", "expected_events"),
    [
        (ExpectationKind.COMPLETION_SLA, EventName.SLA_WARNING),
        (ExpectationKind.EVALUATION_SLA, EventName.EVALUATION_SLA_WARNING),
        # D10: this one was declared and never published.
        (ExpectationKind.RELATIVE_SLA, EventName.RELATIVE_SLA_WARNING),
    ],
)
def test_warn_once__asked_three_times__is_reported_once(
    rig: WatchRig, kind: ExpectationKind, expected_events: EventName
) -> None:
    outcomes = [rig.verdicts.warn_once("gold", expected(kind), status="RUNNING") for _ in range(3)]

    assert outcomes == [True, False, False]
    assert rig.event_names("gold") == [expected_events]
    assert rig.events("gold")[0].detail["deadline"] == "2026-03-03T10:00:00.000Z"


def test_warn_once__a_kind_that_no_one_is_warned_of__nothing_is_reported(rig: WatchRig) -> None:
    assert not rig.verdicts.warn_once("gold", expected(ExpectationKind.SCHEDULE))
    assert rig.event_names("gold") == []


def test_ls__verdicts_beside_warnings_and_watches__only_verdicts_are_listed(rig: WatchRig) -> None:
    rig.verdicts.warn_once("gold", expected())
    rig.watches.record_all([Followup(**SLOT._asdict(), kind=FollowupKind.LIVENESS, since_ms=1, due_at_ms=2)])
    for date in ("2026-03-03", "2026-03-04"):
        rig.verdicts.judge_once("gold", expected(date=date), judged(MISSED))
    rig.verdicts.judge_once("gold", expected(date="2026-03-05"), judged(MET))

    assert [each.date for each in rig.verdicts.ls("gold").verdicts] == ["2026-03-05", "2026-03-04", "2026-03-03"]
    assert [each.date for each in rig.verdicts.ls("gold", schedule_id="other").verdicts] == []
    assert {each.slot for each in rig.all_verdicts(MISSED)} == {SLOT, Slot("gold", "morning", "2026-03-04")}
    assert [each.date for each in rig.all_verdicts(MET)] == ["2026-03-05"]


def test_ls_by_verdict__since_a_moment__leaves_out_what_was_due_before(rig: WatchRig) -> None:
    rig.verdicts.judge_once("gold", expected(), judged(MISSED))

    assert rig.verdicts.ls_by_verdict(MISSED, since=DUE_AT).verdicts
    assert not rig.verdicts.ls_by_verdict(MISSED, since=DUE_AT.replace(hour=11)).verdicts
