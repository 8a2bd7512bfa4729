"""Parts: what the functions of the lifecycle work with. Locally the engine calls them, on AWS a Lambda does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from msgspec import Struct

from headgate.clock import Clock
from headgate.errors import ConflictError
from headgate.ids import IdMaker
from headgate.pipelines.definition.model import Json, Pipeline
from headgate.pipelines.events.names import EventName
from headgate.pipelines.readiness.evaluation_log import Evaluations
from headgate.pipelines.rules.facts import FactReader
from headgate.pipelines.runs.controls import Controls
from headgate.pipelines.runs.directives import Directives
from headgate.pipelines.runs.job_log import JobLog
from headgate.pipelines.runs.late_data import LateData
from headgate.pipelines.runs.locks import Locks
from headgate.pipelines.runs.markers import Markers
from headgate.pipelines.runs.reruns import Reruns
from headgate.pipelines.runs.rows import Run, Slot
from headgate.pipelines.runs.store import Runs
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.timetables import Timetable, timetables
from headgate.pipelines.sensors import Sensors
from headgate.store.model.requests import Write
from headgate.store.port import Store
from headgate.triggers.contract import Trigger


class Definitions(Protocol):
    """The pipelines as they are defined. Both raise `NotFoundError`."""

    def newest(self, pipeline_id: str) -> tuple[Pipeline, int]:
        """Return a pipeline and its version."""

    def at(self, pipeline_id: str, version: int) -> Pipeline:
        """Return a pipeline as it was."""


class Tells(Protocol):
    """Makes the writes that tell of an event, for the transaction of what it tells of."""

    def __call__(self, name: EventName, slot: Slot, detail: Mapping[str, Json], *, once: str = "") -> list[Write]:
        """Return the writes. With `once`, they are refused if something was told under that text before."""


class Parts(Struct, frozen=True, kw_only=True):
    """Everything that an action may need."""

    store: Store
    clock: Clock
    ids: IdMaker
    definitions: Definitions
    calendars: Callable[[], Calendars]
    runs: Runs
    locks: Locks
    reruns: Reruns
    markers: Markers
    controls: Controls
    directives: Directives
    job_log: JobLog
    late_data: LateData
    sensors: Sensors
    evaluations: Evaluations
    facts: FactReader
    trigger: Trigger
    tells: Tells

    def now_ms(self) -> int:
        """Return the time in milliseconds."""
        return int(self.clock.seconds() * 1000)

    def now(self) -> datetime:
        """Return the time."""
        return datetime.fromtimestamp(self.clock.seconds(), UTC)

    def pipeline_of(self, run: Run) -> Pipeline:
        """Return the definition that a run goes by."""
        return self.definitions.at(run.pipeline_id, run.definition_version)

    def timetable(self, pipeline: Pipeline, schedule_id: str) -> Timetable | None:
        """Return when a schedule of a pipeline is due, or None if it has no schedule of this name."""
        return next((each for each in timetables(pipeline, self.calendars()) if each.schedule_id == schedule_id), None)

    def tell(self, name: EventName, slot: Slot, **detail: Json) -> None:
        """Tell of something that changes nothing by itself."""
        self.store.transact(self.tells(name, slot, detail))

    def tell_once(self, once: str, name: EventName, slot: Slot, **detail: Json) -> bool:
        """Tell of something under a text, if nothing was. False: it was."""
        try:
            self.store.transact(self.tells(name, slot, detail, once=once))
        except ConflictError:
            return False
        return True
