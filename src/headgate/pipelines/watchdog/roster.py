"""Schedule loader: keeps the watchdog's schedule queue in step with the definitions, and the budget of a check."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Final

from headgate.clock import Clock
from headgate.errors import CorruptionError
from headgate.pipelines.catalog.rows import StoredPipeline
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.lifecycle.scheduler import ScheduledPipeline
from headgate.pipelines.watchdog.cursors import (
    Cursor,
    Cursors,
    QueuedSchedule,
    ScheduleQueue,
    ScheduleRef,
    entry_of,
    schedules_of,
)

_PROBLEMS_MAX: Final = 20


class CheckBudget:
    """Time limit of a check. The check asks between two items; the rest is left for the next tick."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._ends_at = clock.monotonic() + seconds

    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._clock.monotonic() >= self._ends_at


class CheckTally:
    """Counts findings by check, and collects the errors of each."""

    def __init__(self) -> None:
        self.findings: Counter[str] = Counter()
        self.problems: dict[str, list[str]] = {}

    def found(self, check: str, *, count: int = 1) -> None:
        """Count a finding."""
        self.findings[check] += count

    def failed(self, check: str, what: str, error: BaseException) -> None:
        """Record an item that could not be checked; the others still are."""
        problems = self.problems.setdefault(check, [])
        if len(problems) < _PROBLEMS_MAX:
            problems.append(f"{what}: {type(error).__name__}: {error}")


CHECK = "definitions"


class ScheduleLoader:
    """Loads schedules into the queue. An unreadable definition is reported and does not affect the others."""

    def __init__(self, pipelines: PipelineStore, cursors: Cursors, queue: ScheduleQueue) -> None:
        self._pipelines = pipelines
        self._cursors = cursors
        self._queue = queue
        self._is_loaded = False
        # Unreadable definitions and their errors: reported at every tick until they are repaired.
        self._bad: dict[str, CorruptionError] = {}

    def load(self, now: datetime) -> None:
        """Read all definitions, once."""
        if not self._is_loaded:
            self.reload(now)

    def reload(self, now: datetime) -> None:
        """Read all definitions, and remove deleted ones from the queue."""
        page = self._pipelines.all()
        self._bad = {bad.pipeline_id: CorruptionError(bad.problem) for bad in page.bad}
        present = {stored.pipeline.id for stored in page.pipelines} | self._bad.keys()
        for pipeline_id in self._queue.pipelines():
            if pipeline_id not in present:
                self._remove(pipeline_id)
        refs = [
            ScheduleRef(stored.pipeline.id, schedule_id)
            for stored in page.pipelines
            for schedule_id in schedules_of(stored.pipeline)
        ]
        cursors = dict(zip(refs, self._cursors.find_all(refs), strict=True))
        for stored in page.pipelines:
            self._queue_schedules(stored, cursors, now)
        self._is_loaded = True

    def update(self, pipeline_id: str, now: datetime) -> None:
        """Read one definition again, and remove it if it is gone."""
        try:
            stored = self._pipelines.find(pipeline_id)
        except CorruptionError as exc:
            # The last readable definition stays in force, as it does for the lifecycle.
            self._bad[pipeline_id] = exc
            return
        self._bad.pop(pipeline_id, None)
        if stored is None:
            self._remove(pipeline_id)
            return
        refs = [ScheduleRef(pipeline_id, schedule_id) for schedule_id in schedules_of(stored.pipeline)]
        self._queue_schedules(stored, dict(zip(refs, self._cursors.find_all(refs), strict=True)), now)

    def report(self, tally: CheckTally) -> None:
        """Report the unreadable definitions."""
        for pipeline_id, error in self._bad.items():
            tally.failed(CHECK, pipeline_id, error)

    def _queue_schedules(
        self, stored: StoredPipeline, cursors: dict[ScheduleRef, Cursor | None], now: datetime
    ) -> None:
        # A row from another program may lack a time: it counts from its first load.
        since = datetime.fromisoformat(stored.at) if stored.at else now
        defined = ScheduledPipeline(stored.pipeline, stored.version, since)
        entries: list[tuple[QueuedSchedule, datetime]] = []
        for schedule_id in schedules_of(stored.pipeline):
            cursor = cursors[ScheduleRef(stored.pipeline.id, schedule_id)]
            is_same = cursor is not None and cursor.definition_version == stored.version
            is_anew = cursor is not None and not is_same and self._was_deleted(stored)
            entry = entry_of(defined, schedule_id, cursor, is_anew=is_anew)
            next_at = entry.cursor.next_at if is_same else None
            entries.append((entry, now if next_at is None else next_at))
        self._queue.replace_pipeline(stored.pipeline.id, entries)

    def _was_deleted(self, stored: StoredPipeline) -> bool:
        """Whether a definition restores a deleted pipeline."""
        before = self._pipelines.find(stored.pipeline.id, stored.version - 1)
        return before is not None and before.deleted

    def _remove(self, pipeline_id: str) -> None:
        self._cursors.forget(self._queue.refs(pipeline_id))
        self._queue.remove_pipeline(pipeline_id)
