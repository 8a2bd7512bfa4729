"""Definition reader: gives the lifecycle the definitions and timetables of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.timetables import Timetable, timetables


class DefinitionSource(Protocol):
    """Returns stored definitions. All methods raise `NotFoundError`."""

    def newest(self, pipeline_id: str) -> tuple[Pipeline, int]:
        """Return the newest definition of a pipeline and its version."""

    def at(self, pipeline_id: str, version: int) -> Pipeline:
        """Return a version of a pipeline."""

    def with_origin(self, pipeline_id: str, version: int) -> tuple[Pipeline, bool]:
        """Return a version of a pipeline, and whether it is from the project folder, so that it may run programs."""


class DefinitionReader:
    """Reads definitions, and combines them with the calendars of the project."""

    def __init__(self, source: DefinitionSource, calendars: Callable[[], Calendars]) -> None:
        self.calendars = calendars
        self.newest = source.newest
        self._at = source.at
        self._with_origin = source.with_origin

    def of_run(self, run: Run) -> Pipeline:
        """Return the definition that a run was created under. Raises `NotFoundError`."""
        return self._at(run.pipeline_id, run.definition_version)

    def with_origin(self, run: Run) -> tuple[Pipeline, bool]:
        """Return the definition of a run, and whether it is from the project folder. Raises `NotFoundError`."""
        return self._with_origin(run.pipeline_id, run.definition_version)

    def timetable(self, pipeline: Pipeline, schedule_id: str) -> Timetable | None:
        """Return the timetable of a schedule, or None if the pipeline has no such schedule."""
        return next((each for each in timetables(pipeline, self.calendars()) if each.schedule_id == schedule_id), None)
