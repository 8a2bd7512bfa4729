"""The budget of a check: how long it may take, and what it came to.

The roster of the watchdog: which schedules there are, kept in step with the definitions.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

from headgate.clock import Clock
from headgate.errors import CorruptionError
from headgate.pipelines.catalog.rows import StoredPipeline
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.lifecycle.scheduler import Defined
from headgate.pipelines.watchdog.cursors import Agenda, Cursor, Cursors, Entry, ScheduleRef, entry_of, schedules_of

_PROBLEMS_MAX: Final = 20


class Budget:
    """How long a check may go on. Asked between two things to do: what is left is for the next tick."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._ends_at = clock.monotonic() + seconds

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._clock.monotonic() >= self._ends_at


class Tally:
    """What checks found, by name, and what each could not look at."""

    def __init__(self) -> None:
        self.findings: Counter[str] = Counter()
        self.problems: dict[str, list[str]] = {}

    def found(self, check: str, *, count: int = 1) -> None:
        """Count a finding."""
        self.findings[check] += count

    def failed(self, check: str, what: str, error: BaseException) -> None:
        """Note that something could not be looked at. The rest is."""
        problems = self.problems.setdefault(check, [])
        if len(problems) < _PROBLEMS_MAX:
            problems.append(f"{what}: {type(error).__name__}: {error}")


CHECK = "definitions"


class Roster:
    """Puts schedules on the agenda. A definition that cannot be read is reported, and touches no other."""

    def __init__(self, pipelines: PipelineStore, cursors: Cursors, agenda: Agenda) -> None:
        self._pipelines = pipelines
        self._cursors = cursors
        self._agenda = agenda
        self._is_loaded = False
        # Those that cannot be read now, and why: reported with every tick until they are mended.
        self._bad: dict[str, CorruptionError] = {}

    def load(self, now: datetime) -> None:
        """Read all definitions, once."""
        if not self._is_loaded:
            self.reload(now)

    def reload(self, now: datetime) -> None:
        """Read all definitions, and forget those that are gone."""
        page = self._pipelines.all()
        self._bad = {bad.pipeline_id: CorruptionError(bad.problem) for bad in page.bad}
        there = {stored.pipeline.id for stored in page.pipelines} | self._bad.keys()
        for pipeline_id in self._agenda.pipelines():
            if pipeline_id not in there:
                self._gone(pipeline_id)
        refs = [
            ScheduleRef(stored.pipeline.id, schedule_id)
            for stored in page.pipelines
            for schedule_id in schedules_of(stored.pipeline)
        ]
        cursors = dict(zip(refs, self._cursors.find_all(refs), strict=True))
        for stored in page.pipelines:
            self._enter(stored, cursors, now)
        self._is_loaded = True

    def learn(self, pipeline_id: str, now: datetime) -> None:
        """Take over a definition as it is now, or forget it if there is none."""
        try:
            stored = self._pipelines.find(pipeline_id)
        except CorruptionError as exc:
            # What was known of it stays in force, as it does for those who run it.
            self._bad[pipeline_id] = exc
            return
        self._bad.pop(pipeline_id, None)
        if stored is None:
            self._gone(pipeline_id)
            return
        refs = [ScheduleRef(pipeline_id, schedule_id) for schedule_id in schedules_of(stored.pipeline)]
        self._enter(stored, dict(zip(refs, self._cursors.find_all(refs), strict=True)), now)

    def report(self, tally: Tally) -> None:
        """Say which definitions cannot be read."""
        for pipeline_id, error in self._bad.items():
            tally.failed(CHECK, pipeline_id, error)

    def _enter(self, stored: StoredPipeline, cursors: dict[ScheduleRef, Cursor | None], now: datetime) -> None:
        # One that others put there does not say since when it is; from the first look at it on, then.
        since = datetime.fromisoformat(stored.at) if stored.at else now
        defined = Defined(stored.pipeline, stored.version, since)
        entries: list[tuple[Entry, datetime]] = []
        for schedule_id in schedules_of(stored.pipeline):
            cursor = cursors[ScheduleRef(stored.pipeline.id, schedule_id)]
            is_same = cursor is not None and cursor.definition_version == stored.version
            is_anew = cursor is not None and not is_same and self._was_deleted(stored)
            entry = entry_of(defined, schedule_id, cursor, is_anew=is_anew)
            next_at = entry.cursor.next_at if is_same else None
            entries.append((entry, now if next_at is None else next_at))
        self._agenda.enter(stored.pipeline.id, entries)

    def _was_deleted(self, stored: StoredPipeline) -> bool:
        """Whether a definition brings back a pipeline that had been deleted."""
        before = self._pipelines.find(stored.pipeline.id, stored.version - 1)
        return before is not None and before.deleted

    def _gone(self, pipeline_id: str) -> None:
        self._cursors.forget(self._agenda.refs(pipeline_id))
        self._agenda.leave(pipeline_id)
