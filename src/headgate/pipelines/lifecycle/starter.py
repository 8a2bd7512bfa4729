"""Lifecycle starter: starts one execution of the state machine for each start request."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from headgate.errors import NotFoundError
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.definition_reader import DefinitionReader
from headgate.pipelines.enums import Cause
from headgate.pipelines.event_writer import EventWriter
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.admission_actions import lifecycle_config
from headgate.pipelines.runs.rerun_rows import Rerun
from headgate.pipelines.runs.rows import Slot
from headgate.store.model.requests import Write
from headgate.telemetry import traceparent, traceparent_of

MACHINE: Final = "headgate-lifecycle"
FILE: Final = "statemachine.asl.json"
# Local activity names of the state machine's functions, by the variables of its definition.
FUNCTIONS: Final = {
    "OrchestratorFunctionArn": "headgate.pipelines.orchestrator",
    "orchestrator_arn": "headgate.pipelines.orchestrator",
    "EvaluatorFunctionArn": "headgate.pipelines.evaluator",
    "TriggerFunctionArn": "headgate.pipelines.trigger",
    "RunCheckerFunctionArn": "headgate.pipelines.run_checker",
    "sla_monitor_arn": "headgate.pipelines.sla_monitor",
}
_NAME_MAX: Final = 80
_OTHER: Final = re.compile(r"[^A-Za-z0-9_.-]")


def lifecycle_definition() -> str:
    """Return the shipped state machine with its variables unresolved."""
    packaged = resources.files("headgate.pipelines").joinpath(FILE)
    if packaged.is_file():
        return packaged.read_text()
    # In a checkout the file is where Terraform reads it.
    return (Path(__file__).parents[4] / "deploy" / FILE).read_text()


class LifecycleStarter:
    """Starts executions of the lifecycle. Starting the same name again changes nothing."""

    def __init__(
        self,
        definitions: DefinitionReader,
        events: EventWriter,
        start: Callable[[str, Json, float, Sequence[Write]], bool],
    ) -> None:
        """`start` takes name, input, delay in seconds and further writes; it returns whether the execution is new."""
        self._definitions = definitions
        self._events = events
        self._start = start

    def start_run(
        self,
        slot: Slot,
        cause: Cause,
        *,
        token: str = "",
        by: str = "",
        note: str = "",
        rerun_id: str = "",
        arrived_at: str = "",
        is_replay: bool = False,
        delay_seconds: float = 0.0,
    ) -> bool:
        """Start an execution for a period. False: the same start request has started one before.

        `token` distinguishes start requests: a marker version, a rerun id. `note` is stored with the run. Raises
        `NotFoundError` for an unknown pipeline.
        """
        pipeline, _ = self._definitions.newest(slot.pipeline_id)
        name = execution_name(slot, cause, token)
        machine_input: dict[str, Json] = {
            "pipelineId": slot.pipeline_id,
            "scheduleId": slot.schedule_id,
            "date": slot.date,
            "cause": cause.value,
            "replay": is_replay,
            "rerunId": rerun_id,
            "by": by,
            "note": note,
            "sensorArrivalAt": arrived_at,
            "config": lifecycle_config(pipeline),
            # A run that no request started has a trace of its own.
            "traceparent": traceparent() or traceparent_of(name),
        }
        detail: dict[str, Json] = {"execution": name, "cause": cause.value}
        event_writes = self._events.writes(EventName.EXECUTION_STARTED, slot, detail)
        return self._start(name, machine_input, delay_seconds, event_writes)

    def continue_run(self, name: str, state: Json) -> bool:
        """Start the execution that continues another with its state. False: it has been started before."""
        return self._start(name, state, 0.0, ())

    def start_rerun(self, rerun: Rerun, after: str = "") -> None:
        """Start an execution for a rerun; `after` names the execution that held the lock at the first attempt."""
        token = f"{rerun.rerun_id}-{_short(after)}" if after else rerun.rerun_id
        self.start_run(rerun.slot, Cause.RERUN, token=token, rerun_id=rerun.rerun_id, by=rerun.by, note=rerun.note)

    def find_pipeline(self, pipeline_id: str) -> Pipeline | None:
        """Return the newest definition of a pipeline, or None."""
        try:
            return self._definitions.newest(pipeline_id)[0]
        except NotFoundError:
            return None


def _short(text: str, characters: int = 8) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:characters]


def execution_name(slot: Slot, cause: Cause, token: str = "") -> str:
    """Return an execution name of at most 80 characters: readable, and the same for the same start request."""
    fields = [slot.pipeline_id, slot.schedule_id, slot.date, cause.value, *([token] if token else [])]
    plain = _OTHER.sub("_", "-".join(fields))
    # Ids may contain hyphens and long names are cut, so the digest makes the name unique.
    return f"{plain[: _NAME_MAX - 11]}-{_short(json.dumps(fields), 10)}"
