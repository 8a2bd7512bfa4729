"""Looks of the orchestrator: the same answer as the action, and none where something would have to be written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.errors import NotFoundError
from headgate.pipelines.enums import RerunReason
from headgate.pipelines.events.names import EventName
from tests.pipeline_rig import DATE, Rig, named, slot_of, waiting_pipeline

SLOT = slot_of()
ACTIONS = (
    "checkExclusion",
    "checkRunLog",
    "checkReadiness",
    "checkEvaluationSLA",
    "checkValidationTimeout",
    "checkCompletionSLA",
)


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as made:
        made.define(waiting_pipeline())
        made.push("silver", "landed", date=DATE)
        yield made


def event(rig: Rig, action: str, **more: Any) -> dict[str, Any]:
    return {**named(SLOT), "action": action, "runId": rig.run(SLOT).run_id, **more}


@pytest.mark.parametrize("action", ACTIONS)
def test_look__action_that_only_looks__answers_as_the_action_and_writes_nothing(rig: Rig, action: str) -> None:
    generation = rig.store.generation()
    looked = rig.pipelines.orchestrator.peek(event(rig, action))
    assert rig.store.generation() == generation
    assert looked == rig.pipelines.orchestrator(event(rig, action))


def test_look__action_that_does_something__is_none(rig: Rig) -> None:
    for action in ("acquireLock", "releaseLock", "logResult", "checkDrift", "checkMonitoringExpired", ""):
        assert rig.pipelines.orchestrator.peek(event(rig, action)) is None


def test_look_at_exclusion__pipeline_that_is_paused__is_left_to_the_caller_that_reports_it(rig: Rig) -> None:
    rig.stores.controls.pause("silver", by="ana", reason="repairs")
    assert rig.pipelines.orchestrator.peek(event(rig, "checkExclusion")) is None
    assert rig.event_names("silver", EventName.PIPELINE_EXCLUDED) == []
    rig.forget("silver")
    with pytest.raises(NotFoundError):
        rig.pipelines.orchestrator.peek(event(rig, "checkExclusion"))


def test_look_at_run_log__rerun_that_is_to_be_judged__is_left_to_the_action(rig: Rig) -> None:
    rerun = rig.stores.reruns.request(SLOT, RerunReason.MANUAL, by="ana")
    asked = event(rig, "checkRunLog", cause="rerun", rerunId=rerun.rerun_id)
    assert rig.pipelines.orchestrator.peek(asked) is None
