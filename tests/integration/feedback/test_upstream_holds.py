"""Upstream holds: a run that an unhealthy dataset upstream holds goes on as soon as that dataset recovers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.health.gate.decisions import GateQuestion
from headgate.health.model.datasets import DatasetGate, DatasetSpec, OnUpstream
from headgate.health.model.enums import Severity, SignalState
from headgate.health.model.incidents import Changes, IncidentReport
from headgate.health.model.signals import ANY_VERSION, SignalUpdate, SignalValue
from headgate.health.model.timestamps import instant
from headgate.pipelines.enums import RunStatus
from headgate.pipelines.events.names import EventName as E
from tests.integration.feedback.feedback_rig import ORDERS, LoopRig, reader, writer
from tests.pipeline_rig import DATE, slot_of

RAW, STAGED = "urn:dp:shop:raw:v1", "urn:dp:shop:staged:v1"
SILVER = slot_of("silver")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LoopRig]:
    """Give a server on which raw feeds staged and staged feeds orders, which silver reads."""
    with LoopRig(tmp_path) as opened:
        for urn in (RAW, STAGED):
            opened.health.registry.create(urn, DatasetSpec(), actor="ana")
        for each in (
            writer("stage", STAGED, reads=(RAW,)),
            writer("bronze", ORDERS, reads=(STAGED,)),
            reader("silver", ORDERS),
        ):
            opened.pipelines.definitions.put(each, "text", "ana", also=opened.pipelines.definition_events)
        opened.pump()
        opened.advance("1m")
        opened.jobs.succeed()
        yield opened


def hold(rig: LoopRig, gate: DatasetGate) -> None:
    rig.health.registry.create(ORDERS, DatasetSpec(gate=gate), actor="ana")
    report(rig, SignalState.OK, ORDERS)


def report(rig: LoopRig, state: SignalState, urn: str = RAW) -> None:
    now_ms = int(1000 * rig.env.clock.seconds())
    value = SignalValue(
        state=state,
        score=1.0 if state is SignalState.OK else 0.1,
        window_start=instant(now_ms - 60_000),
        window_end=instant(now_ms),
        failure_signature=None if state is SignalState.OK else "ROWS_MISSING:raw",
    )
    update = SignalUpdate(dataset_urn=urn, signal_type="DATA_QUALITY", value=value, expected_version=ANY_VERSION)
    assert rig.health.signals.update(update).is_success
    # The bus delivers what was committed; no interval of a pipeline passes.
    rig.advance("1s")


def land(rig: LoopRig) -> None:
    rig.push("silver", "landed", date=DATE)


@pytest.mark.parametrize("urn", [STAGED, RAW])
def test_upstream__recovers__the_held_run_goes_on_at_once(rig: LoopRig, urn: str) -> None:
    hold(rig, DatasetGate(upstream=OnUpstream.HOLD))
    report(rig, SignalState.CRITICAL, urn)
    land(rig)
    assert rig.status(SILVER) is RunStatus.PENDING
    held = rig.health.gatekeeper.check([ORDERS], GateQuestion(principal="ana"))
    assert [each.upstream_urn for each in held.reasons] == [urn]

    report(rig, SignalState.OK, urn)

    assert rig.event_names("silver", E.DATASET_HOLD, E.DATASET_RELEASED) == ["DATASET_HOLD", "DATASET_RELEASED"]
    assert rig.status(SILVER) is not RunStatus.PENDING


def test_upstream__only_warns_now__the_held_run_goes_on_at_once(rig: LoopRig) -> None:
    hold(rig, DatasetGate(upstream=OnUpstream.HOLD))
    report(rig, SignalState.CRITICAL)
    land(rig)

    report(rig, SignalState.WARNING)

    assert rig.status(SILVER) is not RunStatus.PENDING


def test_upstream__incident_is_resolved__the_held_run_goes_on_at_once(rig: LoopRig) -> None:
    hold(rig, DatasetGate(upstream=OnUpstream.HOLD))
    found = IncidentReport(
        dataset_urn=RAW, signal_types=(), severity=Severity.SEV_1, title="raw is empty", state=SignalState.CRITICAL
    )
    incident_id = rig.health.incidents.open(found, actor="ana").incident.incident_id
    rig.health.incidents.change(incident_id, Changes(severity="SEV_1"), actor="ana")
    rig.advance("2s")
    land(rig)
    assert rig.status(SILVER) is RunStatus.PENDING

    rig.health.incidents.change(incident_id, Changes(status="RESOLVED"), actor="ana")
    rig.advance("1s")

    assert rig.status(SILVER) is not RunStatus.PENDING


def test_upstream__too_far_to_hold__nothing_is_woken(rig: LoopRig) -> None:
    hold(rig, DatasetGate(upstream=OnUpstream.HOLD, upstream_hops=1))
    report(rig, SignalState.CRITICAL, STAGED)
    land(rig)
    report(rig, SignalState.CRITICAL, RAW)

    assert rig.health.held_datasets.by(RAW) == []
    assert rig.health.held_datasets.by(STAGED) == [ORDERS]
    report(rig, SignalState.OK, RAW)

    assert rig.status(SILVER) is RunStatus.PENDING
