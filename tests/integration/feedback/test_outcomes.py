"""Feedback loop: health holds a run, a run changes health, and recovery releases held runs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headgate.durable.bus.event_log import first_id
from headgate.durable.bus.events import Event
from headgate.errors import StoreBusyError
from headgate.feedback.dataset_gate import DatasetGate
from headgate.feedback.outcome_signals import DATA, RUN
from headgate.health.model.enums import IncidentStatus, Severity, SignalState
from headgate.health.model.incidents import IncidentReport
from headgate.pipelines.definition.model import Period, PostRun, Quarantine, Rule
from headgate.pipelines.enums import RerunReason, RunStatus, Verdict
from headgate.pipelines.events.names import EventName as E
from headgate.pipelines.readiness.quarantine import QuarantineRecords
from tests.integration.feedback.feedback_rig import ORDERS, LoopRig, reader, writer
from tests.pipeline_rig import DATE, slot_of
from tests.simulation.durable_processes import Crash, Fault, ProcessStore

BRONZE, SILVER = slot_of("bronze"), slot_of("silver")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LoopRig]:
    with LoopRig(tmp_path) as opened:
        yield opened


def land(rig: LoopRig, *pipelines: str) -> None:
    for each in pipelines:
        rig.push(each, "landed", date=DATE)


def run_again(rig: LoopRig, pipeline_id: str = "bronze", date: str = DATE) -> None:
    rig.stores.reruns.request(slot_of(pipeline_id, date), RerunReason.MANUAL, by="ana", note="mended", is_forced=True)
    rig.advance("1m")


def outcome_event(rig: LoopRig, name: E, pipeline_id: str = "bronze") -> Event:
    """Return an event of a pipeline as it is on the bus."""
    [event] = rig.events(pipeline_id, name)
    found = rig.env.service.bus.tail(first_id(event.at_ms - 1), limit=1_000)
    return next(each.event for each in found if each.event.id == event.event_id)


def test_gate__an_incident_only_warns__the_rule_passes_and_says_that_it_is_a_warning(rig: LoopRig) -> None:
    rig.define(writer())
    land(rig, "bronze")
    rig.jobs.succeed()
    rig.advance("1m")
    report = IncidentReport(
        dataset_urn=ORDERS, signal_types=("FRESHNESS",), severity=Severity.SEV_3, title="orders are stale"
    )
    incident = rig.health.incidents.open(report, actor="ann").incident

    fact = DatasetGate(rig.health.gatekeeper)([ORDERS])[ORDERS]

    assert fact.verdict is Verdict.PASS
    assert fact.reason.startswith("may be read, with a warning: ")
    assert f"{incident.incident_id} is OPEN" in fact.reason


def test_circle__a_run_fails_and_is_repaired__downstream_is_held_and_goes_on(rig: LoopRig) -> None:
    rig.define(writer(), reader())
    rig.jobs.fail(reason="disk full")
    land(rig, "bronze")
    rig.advance("1m")

    # The run is the proof of why the dataset is unwell.
    bad = rig.signal(RUN)
    assert (bad.state, bad.value.failure_signature) == (SignalState.CRITICAL, "RUN_FAILED:bronze")
    [incident] = rig.incidents()
    proof = rig.health.evidence.get_many(bad.value.evidence_sample).evidence[bad.value.evidence_sample[0]]
    assert proof.correlation is not None
    assert proof.correlation.run_id == rig.run(BRONZE).run_id
    assert incident.evidence_sample == bad.value.evidence_sample

    rig.jobs.succeed()
    land(rig, "silver")
    assert rig.status(SILVER) is RunStatus.PENDING
    assert len(rig.jobs.begun) == 1, "silver has not begun"
    assert [each.detail["dataset"] for each in rig.events("silver", E.DATASET_HOLD)] == [ORDERS]

    run_again(rig)

    # Long before it would have looked by itself.
    assert rig.signal(RUN).state is SignalState.OK
    assert rig.event_names("silver", E.DATASET_HOLD, E.DATASET_RELEASED) == ["DATASET_HOLD", "DATASET_RELEASED"]
    assert rig.status(SILVER) is RunStatus.COMPLETED
    rig.advance("10m")
    rig.health.sweep()
    assert [each.status for each in rig.incidents()] == [IncidentStatus.RESOLVED]


def test_circle__health_is_away_while_a_run_ends__the_run_is_done_and_health_learns_of_it(rig: LoopRig) -> None:
    rig.define(writer())
    away = ProcessStore(rig.store)  # type: ignore[arg-type]
    away.fault = Fault(1, crash=False)
    handler = rig.app.handlers["headgate.loop.outcomes"]
    whole, handler.function = handler.function, rig.outcomes(rig.open_health(away)).handle
    rig.jobs.is_sync = True

    land(rig, "bronze")
    assert rig.status(BRONZE) is RunStatus.COMPLETED
    assert rig.health.signals.get(ORDERS, RUN, consistent=True) is None
    handler.function = whole
    rig.advance("1m")

    assert rig.signal(RUN).state is SignalState.OK


def test_outcomes__the_process_dies_at_any_call__one_signal_one_incident_one_proof(rig: LoopRig) -> None:
    calls = 24
    names = [f"bronze-{number}" for number in range(1, calls + 1)]
    rig.app.handlers["headgate.loop.outcomes"].function = str
    rig.define(*[writer(name, f"urn:dp:shop:{name}:v1") for name in names])
    rig.jobs.fail()
    land(rig, *names)
    rig.advance("1m")
    survived = 0

    for number, name in enumerate(names, 1):
        event = outcome_event(rig, E.PIPELINE_FAILED, name)
        dying = ProcessStore(rig.store)  # type: ignore[arg-type]
        dying.fault = Fault(number, is_done=number % 2 == 0)
        try:
            rig.outcomes(rig.open_health(dying)).handle(event)
            survived += 1
        except Crash:
            rig.outcomes(rig.health).handle(event)
        urn = f"urn:dp:shop:{name}:v1"
        assert rig.signal(RUN, urn).version == 1
        assert len(rig.incidents(urn)) == 1
        assert len(rig.health.evidence.of_dataset(urn).evidence) == 1

    assert 0 < survived < calls, "it died at each of its calls, and there was one at which it did not"


def test_outcomes__events_come_again_and_in_another_order__the_last_word_stands(rig: LoopRig) -> None:
    rig.define(writer())
    rig.jobs.fail()
    land(rig, "bronze")
    rig.advance("1m")
    failed = outcome_event(rig, E.PIPELINE_FAILED)
    rig.jobs.succeed()
    run_again(rig)
    before = rig.signal(RUN)

    rig.outcomes(rig.health).handle(failed)

    assert before.state is SignalState.OK
    assert rig.signal(RUN) == before


def test_outcomes__an_old_period_fails__says_nothing_of_today(rig: LoopRig) -> None:
    rig.define(writer())
    rig.jobs.succeed()
    land(rig, "bronze")
    rig.advance("1m")
    rig.jobs.fail()
    rig.push("bronze", "landed", date="2026-02-27")
    rig.advance("1m")

    assert rig.status(slot_of("bronze", "2026-02-27")) is RunStatus.FAILED
    assert rig.signal(RUN).state is SignalState.OK


def test_outcomes__late_and_then_done__the_breach_is_over_and_stays_so(rig: LoopRig) -> None:
    rig.define(writer())
    rig.event_writer.publish(E.SLA_BREACH, BRONZE, deadline="08:00", status="not started")
    rig.pump()
    assert rig.signal(RUN).value.failure_signature == "LATE:bronze"
    rig.advance("1m")
    rig.jobs.succeed()
    land(rig, "bronze")
    rig.advance("1m")
    # Judged only now, as by a watchdog that was away.
    rig.event_writer.publish(E.SLA_BREACH, BRONZE, deadline="08:00", status="done late")
    rig.pump()

    assert rig.signal(RUN).state is SignalState.OK


def test_outcomes__one_of_two_writers_is_well__does_not_repair_what_the_other_left(rig: LoopRig) -> None:
    rig.define(writer("bronze"), writer("copper"))
    rig.jobs.fail()
    land(rig, "bronze")
    rig.advance("1m")
    rig.jobs.succeed()
    land(rig, "copper")
    rig.advance("1m")
    others = rig.signal(RUN).state
    rig.forget("bronze")
    run_again(rig, "copper")

    assert (others, rig.signal(RUN).state) == (SignalState.CRITICAL, SignalState.OK)


def test_outcomes__one_writer_fails_while_another_is_well__neither_word_is_lost(rig: LoopRig) -> None:
    urns = {number: f"urn:dp:shop:orders-{number}:v1" for number in range(1, 13)}
    rig.app.handlers["headgate.loop.outcomes"].function = str
    for number, urn in urns.items():
        rig.define(writer(f"bronze-{number}", urn), writer(f"copper-{number}", urn))
        land(rig, f"bronze-{number}", f"copper-{number}")
    rig.jobs.succeed(*[run for run in rig.jobs.begun if rig.stores.runs.get(run).pipeline_id.startswith("bronze")])
    rig.jobs.fail()
    rig.advance("1m")

    for number, urn in urns.items():
        well = outcome_event(rig, E.PIPELINE_COMPLETED, f"bronze-{number}")
        unwell = outcome_event(rig, E.PIPELINE_FAILED, f"copper-{number}")
        racing = ProcessStore(rig.store)  # type: ignore[arg-type]
        # Each is now before the other, and now after it.
        first, second = (well, unwell) if number % 2 else (unwell, well)
        racing.meanwhile = (number // 2 + 1, partial(rig.outcomes(rig.health).handle, second))
        try:
            rig.outcomes(rig.open_health(racing)).handle(first)
        except StoreBusyError:
            # As the bus does.
            rig.outcomes(rig.health).handle(first)
        assert racing.meanwhile is None
        assert rig.signal(RUN, urn).value.failure_signature == f"RUN_FAILED:copper-{number}", f"at call {number}"


@pytest.mark.parametrize("first", ["bronze", "copper"], ids=["who failed first", "who failed last"])
def test_outcomes__both_writers_fail__the_dataset_is_unhealthy_until_each_has_recovered(
    rig: LoopRig, first: str
) -> None:
    rig.define(writer("bronze"), writer("copper"), reader())
    rig.jobs.fail()
    land(rig, "bronze", "copper")
    rig.advance("1m")
    second = "copper" if first == "bronze" else "bronze"
    rig.jobs.succeed()
    land(rig, "silver")

    run_again(rig, first)
    half = rig.signal(RUN)
    held = rig.status(SILVER)
    # Well once more, which is no news of the other.
    run_again(rig, first)
    still = rig.signal(RUN)
    run_again(rig, second)

    assert (half.state, half.value.failure_signature) == (SignalState.CRITICAL, f"RUN_FAILED:{second}")
    assert still.state is SignalState.CRITICAL
    assert rig.signal(RUN).state is SignalState.OK
    assert (held, rig.status(SILVER)) == (RunStatus.PENDING, RunStatus.COMPLETED)
    proof = rig.health.evidence.get_many(half.value.evidence_sample).evidence[half.value.evidence_sample[0]]
    assert proof.producer is not None
    assert proof.producer.producer_id == second


def test_outcomes__an_hourly_writer_is_well__does_not_hide_that_the_daily_one_fails(rig: LoopRig) -> None:
    rig.define(writer("bronze", period=Period.HOURLY), writer("copper"))
    rig.jobs.succeed()
    rig.push("bronze", "landed", date=f"{DATE}T07")
    rig.advance("1m")
    rig.jobs.fail()
    # Of a day that was over long before that hour was.
    rig.push("copper", "landed", date="2026-03-02")
    rig.advance("1m")
    bad = rig.signal(RUN)
    rig.jobs.succeed()
    run_again(rig, "copper", "2026-03-02")

    assert (bad.state, bad.value.failure_signature) == (SignalState.CRITICAL, "RUN_FAILED:copper")
    assert rig.signal(RUN).state is SignalState.OK


def test_outcomes__drift__is_a_warning_until_the_period_was_done_again(rig: LoopRig) -> None:
    rig.define(writer(post_run=PostRun(rules=(Rule(key="orders"),), drift_field="count")))
    rig.jobs.succeed()
    rig.push("bronze", "orders", date=DATE, count=10)
    land(rig, "bronze")
    rig.advance("1m")
    rig.jobs.keep_running()
    rig.push("bronze", "orders", date=DATE, count=12)
    drifted = rig.signal(DATA)
    rig.jobs.succeed()
    rig.advance("5m")

    assert (drifted.state, drifted.value.failure_signature) == (SignalState.WARNING, "DRIFT:bronze")
    assert rig.signal(DATA).state is SignalState.OK


def test_outcomes__records_are_put_aside__are_not_forgotten_when_the_run_is_done(rig: LoopRig) -> None:
    rig.define(writer(quarantine=Quarantine(blocking=True)))
    quarantine = QuarantineRecords(rig.store, rig.env.clock)
    quarantine.put("bronze", DATE, 3)
    rig.pump()
    rig.jobs.succeed()
    rig.stores.directives.force(BRONZE, by="ana", reason="it must be")
    land(rig, "bronze")
    rig.advance("1m")
    aside = rig.signal(DATA)
    rig.advance("1m")
    quarantine.put("bronze", DATE, 0)
    rig.pump()

    assert rig.status(BRONZE) is RunStatus.COMPLETED
    assert (aside.state, aside.value.failure_signature) == (SignalState.CRITICAL, "QUARANTINED:bronze")
    assert rig.signal(DATA).state is SignalState.OK


def test_gate__a_run_of_last_week_was_well__is_still_its_word(rig: LoopRig) -> None:
    rig.define(writer(), reader())
    rig.jobs.succeed()
    land(rig, "bronze")
    rig.advance("1m")
    rig.env.clock.advance(7 * 86_400)
    land(rig, "silver")
    rig.advance("1m")

    assert rig.status(SILVER) is RunStatus.COMPLETED


def test_gate__a_name_that_no_dataset_can_have__is_unknown_and_says_why(rig: LoopRig) -> None:
    rig.define(reader(urn="orders"))
    land(rig, "silver")

    stored = rig.evaluations.latest(SILVER)
    assert stored is not None
    assert "Invalid dataset URN" in stored.verdict.reason
    assert rig.status(SILVER) is RunStatus.PENDING
