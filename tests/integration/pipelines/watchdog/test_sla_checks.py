"""Deadlines that the lifecycle checks by itself, and deadlines of runs that an operator starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.durable.model.duration import Seconds
from headgate.pipelines.definition.model import Pipeline, Readiness, Rule, Sla
from headgate.pipelines.enums import Cause, ExpectationKind, ExpectationVerdict, RunStatus
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rows import Slot
from tests.integration.pipelines.watchdog_rig import SLOT, WatchRig, gold

BY_TEN = Sla(deadline="10:00")
DATA = Readiness(rules=(Rule(key="orders"),), window=Seconds(12 * 3600), interval=Seconds(300))


@pytest.fixture
def rig() -> Iterator[WatchRig]:
    """A server from eight in the morning on. Its watchdog never looks unless it is asked to."""
    with WatchRig() as opened:
        yield opened


def test_check_completion__job_ends_after_its_deadline_without_a_watchdog__breach_is_published_once(
    rig: WatchRig,
) -> None:
    rig.define(gold(sla=BY_TEN))
    rig.advance_to("2026-03-03T10:30:00+00:00")
    assert rig.count(EventName.SLA_BREACH) == 0
    rig.jobs.succeed()
    rig.advance("5m")

    names = [event.name for event in rig.events("gold", EventName.SLA_BREACH, EventName.PIPELINE_COMPLETED)]
    assert names == ["SLA_BREACH", "PIPELINE_COMPLETED"]
    verdict = rig.verdicts.find(SLOT, ExpectationKind.COMPLETION_SLA)
    assert verdict is not None
    assert verdict.verdict is ExpectationVerdict.MISSED
    assert verdict.margin_seconds is not None
    assert -2_100 < verdict.margin_seconds <= -1_800
    rig.tick()
    assert rig.count(EventName.SLA_BREACH) == 1


def test_check_completion__job_ends_in_time__publishes_no_breach(rig: WatchRig) -> None:
    rig.define(gold(sla=BY_TEN))
    rig.jobs.succeed()
    rig.advance_to("2026-03-03T10:30:00+00:00")

    assert (rig.count(EventName.SLA_BREACH), rig.count(EventName.SLA_MET)) == (0, 1)


def test_check_evaluation__not_ready_by_its_deadline_without_a_watchdog__breach_is_published_once(
    rig: WatchRig,
) -> None:
    rig.define(gold(sla=Sla(evaluation_deadline="09:30"), readiness=DATA))
    rig.advance_to("2026-03-03T09:20:00+00:00")
    assert rig.count(EventName.EVALUATION_SLA_BREACH) == 0
    rig.advance_to("2026-03-03T12:00:00+00:00")
    rig.push("gold", "orders")

    assert rig.status(SLOT) is RunStatus.RUNNING
    assert rig.count(EventName.EVALUATION_SLA_BREACH) == 1


# Runs that an operator starts.


def manual(rig: WatchRig, pipeline: Pipeline, date: str) -> Slot:
    """Define a pipeline at half past nine, after its slot at nine, and start a period by hand."""
    rig.advance_to("2026-03-03T09:30:00+00:00")
    rig.define(pipeline)
    rig.tick()
    slot = Slot("gold", "morning", date)
    rig.pipelines.starter.start_run(slot, Cause.MANUAL, token="by-hand", by="ana")
    rig.pump()
    assert rig.status(slot) is RunStatus.PENDING
    return slot


def test_tick__manual_run_of_a_slot_from_before_the_definition__owes_its_deadline(rig: WatchRig) -> None:
    slot = manual(rig, gold(sla=Sla(deadline="10:00", at_risk=Seconds(900)), readiness=DATA), SLOT.date)
    rig.watch(until="2026-03-03T11:00:00+00:00")

    assert rig.verdict(slot, ExpectationKind.COMPLETION_SLA) == "MISSED"
    assert (rig.count(EventName.SLA_WARNING), rig.count(EventName.SLA_BREACH)) == (1, 1)
    # The slot itself was not expected.
    assert rig.verdict(slot, ExpectationKind.SCHEDULE) == "none"


def test_tick__manual_run_in_time_of_a_slot_from_before_the_definition__meets_its_deadline(rig: WatchRig) -> None:
    slot = manual(rig, gold(sla=BY_TEN, readiness=DATA), SLOT.date)
    rig.jobs.succeed()
    rig.push("gold", "orders", slot.date)
    rig.watch(until="2026-03-03T11:00:00+00:00")

    assert rig.verdict(slot, ExpectationKind.COMPLETION_SLA) == "MET"


def test_tick__manual_run_of_a_day_long_past__owes_nothing(rig: WatchRig) -> None:
    slot = manual(rig, gold(sla=BY_TEN, readiness=DATA), "2026-02-01")
    rig.watch(until="2026-03-03T11:00:00+00:00")

    assert rig.verdict(slot, ExpectationKind.COMPLETION_SLA) == "none"
    assert rig.count(EventName.SLA_BREACH) == 0


def test_tick__slot_from_before_the_definition_that_is_never_run__owes_nothing(rig: WatchRig) -> None:
    rig.advance_to("2026-03-03T09:30:00+00:00")
    rig.define(gold(sla=BY_TEN, readiness=DATA))
    rig.watch(until="2026-03-03T11:00:00+00:00")

    assert rig.verdict(SLOT, ExpectationKind.COMPLETION_SLA) == "none"
