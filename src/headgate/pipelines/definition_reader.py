"""Definition reader: gives the lifecycle the definitions and timetables of pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.runs.rows import Run
from headgate.pipelines.schedule.calendars import Calendars
from headgate.pipelines.schedule.timetables import Timetable, timetables


class DefinitionSource(Protocol):
    """Returns stored definitions. Both methods raise `NotFoundError`."""

    def newest(self, pipeline_id: str) -> tuple[Pipeline, int]:
        """Return the newest definition of a pipeline and its version."""

    def at(self, pipeline_id: str, version: int) -> Pipeline:
        """Return a version of a pipeline."""


class DefinitionReader:
    """Reads definitions, and combines them with the calendars of the project."""

    def __init__(self, source: DefinitionSource, calendars: Callable[[], Calendars]) -> None:
        self.calendars = calendars
        self.newest = source.newest
        self._at = source.at

    def of_run(self, run: Run) -> Pipeline:
        """Return the definition that a run was created under. Raises `NotFoundError`."""
        return self._at(run.pipeline_id, run.definition_version)

    def timetable(self, pipeline: Pipeline, schedule_id: str) -> Timetable | None:
        """Return the timetable of a schedule, or None if the pipeline has no such schedule."""
        return next((each for each in timetables(pipeline, self.calendars()) if each.schedule_id == schedule_id), None)
