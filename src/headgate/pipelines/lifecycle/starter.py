"""Starting: one execution of the lifecycle for one pursuit of a period."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from headgate.errors import NotFoundError
from headgate.pipelines.context import Parts
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.enums import Cause
from headgate.pipelines.events.names import EventName
from headgate.pipelines.lifecycle.admission_actions import lifecycle_config
from headgate.pipelines.runs.rerun_rows import Rerun
from headgate.pipelines.runs.rows import Slot
from headgate.store.model.requests import Write

MACHINE: Final = "headgate-lifecycle"
FILE: Final = "statemachine.asl.json"
# What the functions of the lifecycle are called here, by the variables of its definition.
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
    """Return the lifecycle as it is shipped, its variables not filled in."""
    packaged = resources.files("headgate.pipelines").joinpath(FILE)
    if packaged.is_file():
        return packaged.read_text()
    # In a checkout the file is where Terraform reads it.
    return (Path(__file__).parents[4] / "deploy" / FILE).read_text()


class Starter:
    """Starts executions of the lifecycle. `start` of the same name again changes nothing."""

    def __init__(self, parts: Parts, start: Callable[[str, Json, float, Sequence[Write]], bool]) -> None:
        """Take `start`, which starts the machine, by name, input and delay in seconds, and says whether it is new.

        Its last argument is what is written with a new one.
        """
        self._parts = parts
        self._start = start

    def pursue(
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
        """Have a period pursued. False: the same wish has started an execution before.

        `token` tells one wish from another: a version of a marker, the id of a rerun. `note` is what whoever asks has
        to say about it, and stays with the run. Raises `NotFoundError` if there
        is no such pipeline.
        """
        pipeline, _ = self._parts.definitions.newest(slot.pipeline_id)
        name = execution_name(slot, cause, token)
        given: dict[str, Json] = {
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
        }
        detail: dict[str, Json] = {"execution": name, "cause": cause.value}
        return self._start(name, given, delay_seconds, self._parts.tells(EventName.EXECUTION_STARTED, slot, detail))

    def pursue_rerun(self, rerun: Rerun, after: str = "") -> None:
        """Have a rerun pursued; `after` tells another try from the first, which found the lock taken."""
        token = f"{rerun.rerun_id}-{_short(after)}" if after else rerun.rerun_id
        self.pursue(rerun.slot, Cause.RERUN, token=token, rerun_id=rerun.rerun_id, by=rerun.by, note=rerun.note)

    def knows(self, pipeline_id: str) -> Pipeline | None:
        """Return a pipeline, or None if there is none of this id."""
        try:
            return self._parts.definitions.newest(pipeline_id)[0]
        except NotFoundError:
            return None


def _short(text: str, characters: int = 8) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:characters]


def execution_name(slot: Slot, cause: Cause, token: str = "") -> str:
    """Return a name for a pursuit: readable, the same for the same wish, and at most 80 characters."""
    parts = [slot.pipeline_id, slot.schedule_id, slot.date, cause.value, *([token] if token else [])]
    plain = _OTHER.sub("_", "-".join(parts))
    # Names of pipelines and schedules have hyphens too, so that the text alone does not tell wishes apart.
    return f"{plain[: _NAME_MAX - 11]}-{_short(json.dumps(parts), 10)}"
