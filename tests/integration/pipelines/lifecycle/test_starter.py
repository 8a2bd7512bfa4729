"""Names of executions, and what they are begun with."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from headgate.durable.model.duration import Seconds
from headgate.errors import NotFoundError
from headgate.pipelines.definition.model import Sla
from headgate.pipelines.enums import Cause
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.starter import execution_name, lifecycle_definition
from headgate.pipelines.runs.rows import Slot
from tests.pipeline_rig import Rig, pipeline, slot_of

SLOT = slot_of()
NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}")


@pytest.fixture
def rig() -> Iterator[Rig]:
    with Rig() as opened:
        opened.define(pipeline())
        yield opened


@pytest.mark.parametrize(
    ("slot", "cause", "token", "name"),
    [
        (SLOT, Cause.SENSOR, "", "silver-stream-2026-03-03-sensor"),
        (SLOT, Cause.MARKER, "3", "silver-stream-2026-03-03-marker-3"),
        (Slot("a.b_c", "h07", "2026-W10"), Cause.CRON, "", "a.b_c-h07-2026-W10-cron"),
    ],
)
def test_name__that_fits__can_be_read(slot: Slot, cause: Cause, token: str, name: str) -> None:
    made = execution_name(slot, cause, token)
    assert made.startswith(f"{name}-")
    assert made == execution_name(slot, cause, token)


def test_name__however_long_or_strange__is_a_name_of_step_functions_and_still_its_own() -> None:
    # bug 23: more than 80 characters, and characters that may not be in it.
    slots = [
        Slot("p" * 200, "stream", "2026-03-03"),
        Slot("p" * 200, "stream", "2026-03-04"),
        Slot("p" * 200 + "q", "stream", "2026-03-03"),
        Slot("p", "s" * 200, "2026-03-03T07:15"),
        Slot("p", "s", "2026-03-03T07:15"),
        Slot("p", "s", "2026-03-03T07_15"),
        Slot("p", "ü#/", "2026-03-03"),
        Slot("a-b", "c", "d"),
        Slot("a", "b-c", "d"),
    ]
    names = [execution_name(slot, cause, token) for slot in slots for cause in Cause for token in ("", "1", "x" * 100)]

    assert all(NAME.fullmatch(name) for name in names)
    assert len(set(names)) == len(names)


def test_pursue__same_request_again__is_one_execution(rig: Rig) -> None:
    starter = rig.pipelines.starter
    assert [starter.start_run(SLOT, Cause.MARKER, by=by) for by in ("ana", "ana", "bob")] == [True, False, False]
    rig.pump()
    assert len(rig.executions()) == 1
    assert rig.event_names("silver", EventName.EXECUTION_STARTED) == ["EXECUTION_STARTED"]


def test_pursue__other_token_or_cause__is_another_request(rig: Rig) -> None:
    starter = rig.pipelines.starter
    assert starter.start_run(SLOT, Cause.MARKER)
    assert starter.start_run(SLOT, Cause.MARKER, token="2")
    assert starter.start_run(SLOT, Cause.CRON)


def test_pursue__input__has_all_that_the_machine_reads(rig: Rig) -> None:
    rig.define(pipeline(sla=Sla(max_duration=Seconds(60))))
    rig.pipelines.starter.start_run(SLOT, Cause.SENSOR, arrived_at="2026-03-03T07:59:00+00:00")
    rig.pump()

    (execution_id,) = rig.executions()
    given = rig.env.service.asl.executions.describe(execution_id).input
    assert Slot(given["pipelineId"], given["scheduleId"], given["date"]) == SLOT
    assert given["sensorArrivalAt"] == "2026-03-03T07:59:00+00:00"
    assert given["config"]["sla"] == {"deadline": "", "expectedDuration": "", "maxDuration": 60.0, "timezone": "UTC"}
    assert json.loads(json.dumps(given)) == given
    assert rig.run(SLOT).sensor_arrival_at_ms == rig.now_ms - 60_000


def test_pursue__pipeline_that_is_not_there__says_so(rig: Rig) -> None:
    with pytest.raises(NotFoundError):
        rig.pipelines.starter.start_run(slot_of("none"), Cause.MARKER)
    assert rig.pipelines.starter.find_pipeline("none") is None


def test_lifecycle_definition__is_json_with_its_variables_open() -> None:
    text = lifecycle_definition()
    assert json.loads(text)["StartAt"] == "InitDefaults"
    assert "${OrchestratorFunctionArn}" in text
