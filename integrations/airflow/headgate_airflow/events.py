"""Run events: the OpenLineage event of a task instance. Pure.

All tries of a task instance are one run, under an id that follows from the task instance. So an event that is sent
again changes nothing, and only the last try decides on the datasets.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from headgate_airflow import __version__

# Names of datasets in this namespace are URNs of Headgate.
URN_NAMESPACE: Final = "headgate"
PRODUCER: Final = f"https://pypi.org/project/headgate-airflow/{__version__}"
_RUN_IDS: Final = uuid.UUID("7a5d3c0e-52a4-5c0b-9c2f-6d0a4b1f8e21")
_EVENT_SCHEMA: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = "https://openlineage.io/spec/facets"
_MESSAGE_LENGTH_MAX: Final = 2_000


class RunEventType(StrEnum):
    """The state that an event reports. RUNNING with an error: a try failed, and another follows."""

    START = "START"
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    FAIL = "FAIL"


@dataclass(frozen=True)
class TaskInstance:
    """A task instance. `map_index` is -1 unless the task is mapped."""

    dag_id: str
    task_id: str
    run_id: str
    map_index: int = -1
    interval_start: datetime | None = None
    interval_end: datetime | None = None

    @property
    def job_name(self) -> str:
        """The job: that of OpenLineage, and for a mapped task one for each index, so that none hides another."""
        name = f"{self.dag_id}.{self.task_id}"
        return name if self.map_index < 0 else f"{name}.{self.map_index}"

    @property
    def run_uuid(self) -> str:
        return str(uuid.uuid5(_RUN_IDS, "\0".join((self.dag_id, self.task_id, self.run_id, str(self.map_index)))))


@dataclass(frozen=True)
class Datasets:
    """What a task reads and writes: URNs, or pairs of an OpenLineage namespace and name."""

    inputs: Sequence[str | tuple[str, str]] = ()
    outputs: Sequence[str | tuple[str, str]] = ()


def run_event(
    kind: RunEventType,
    task: TaskInstance,
    datasets: Datasets,
    at: datetime,
    *,
    namespace: str,
    error: BaseException | str | None = None,
) -> dict[str, Any]:
    """Return the event of a task instance at a time."""
    facets: dict[str, Any] = {}
    if task.interval_start is not None:
        nominal = {"nominalStartTime": _instant(task.interval_start)}
        if task.interval_end is not None:
            nominal["nominalEndTime"] = _instant(task.interval_end)
        facets["nominalTime"] = _facet("1-0-1/NominalTimeRunFacet.json", nominal)
    if error is not None:
        said = {"message": _message(error), "programmingLanguage": "python"}
        facets["errorMessage"] = _facet("1-0-1/ErrorMessageRunFacet.json", said)
    job_type = {"processingType": "BATCH", "integration": "AIRFLOW", "jobType": "TASK"}
    return {
        "eventType": kind.value,
        "eventTime": _instant(at),
        "producer": PRODUCER,
        "schemaURL": _EVENT_SCHEMA,
        "run": {"runId": task.run_uuid, "facets": facets},
        "job": {
            "namespace": namespace,
            "name": task.job_name,
            "facets": {"jobType": _facet("2-0-3/JobTypeJobFacet.json", job_type)},
        },
        "inputs": [_dataset(each) for each in datasets.inputs],
        "outputs": [_dataset(each) for each in datasets.outputs],
    }


def _dataset(given: str | tuple[str, str]) -> dict[str, str]:
    namespace, name = (URN_NAMESPACE, given) if isinstance(given, str) else given
    return {"namespace": namespace, "name": name}


def _facet(schema: str, members: dict[str, Any]) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": f"{_FACETS}/{schema}", **members}


def _message(error: BaseException | str) -> str:
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return text[:_MESSAGE_LENGTH_MAX]


def _instant(moment: datetime) -> str:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
