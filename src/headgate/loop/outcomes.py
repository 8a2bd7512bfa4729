"""Outcomes: what becomes of runs changes the health of the datasets that their pipelines write.

It hears of events over the bus: each was written down with the change that it tells of, and is brought here until it
was taken in. So a crash loses nothing, and health that cannot be reached holds up no run. Heard twice, late or in
another order, events come to the same: what was overtaken is passed over, and a signal is written under its version.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import structlog

from headgate.durable.events import Event
from headgate.errors import StoreBusyError, UserError
from headgate.health.datasets import Dataset, DatasetStatus, Source
from headgate.health.service import HealthService
from headgate.health.signal_decisions import Verdict
from headgate.loop.outcome_signals import (
    MEANINGS,
    Meaning,
    evidence_of,
    is_overtaken,
    may_replace,
    producer_of,
    telling,
    update_of,
    weighed,
    window_of,
)
from headgate.notify.notices import Notice, event_type
from headgate.pipelines.definition import Pipeline
from headgate.pipelines.event_names import EventName
from headgate.pipelines.quarantine import QuarantineRecords
from headgate.pipelines.run_rows import Slot
from headgate.pipelines.service import PipelineService

# The types of events that are heard of.
TYPES: Final = tuple(event_type(name) for name in MEANINGS)
ACTOR: Final = "pipelines"
_RACES_MAX: Final = 10
_PAGE: Final = 200
_log = structlog.get_logger("headgate.loop")


class Outcomes:
    """Tells health what became of runs. Safe to use from many threads."""

    def __init__(self, pipelines: PipelineService, health: HealthService) -> None:
        self._pipelines = pipelines
        self._health = health
        self._quarantine = QuarantineRecords(pipelines.parts.store, pipelines.parts.clock)

    def handle(self, event: Event) -> None:
        """Take in an event of a pipeline. Raises `TransientError` if health cannot be reached now."""
        notice = event.data_as(Notice)
        pipeline = self._pipelines.known.find(notice.pipeline_id)
        if pipeline is None or pipeline.dry_run:
            # Deleted since, or nothing is written: there is no dataset that it speaks for.
            return
        for meaning in MEANINGS.get(EventName(notice.event), ()):
            for urn in pipeline.writes:
                try:
                    self._tell(notice, meaning, pipeline, urn)
                except UserError as exc:
                    # It will not be right the next time either, and must not keep the others from being told.
                    _log.warning("outcome_refused", pipeline_id=pipeline.id, dataset_urn=urn, error=str(exc))

    def _tell(self, notice: Notice, meaning: Meaning, pipeline: Pipeline, urn: str) -> None:
        dataset = self._dataset(urn)
        if dataset.status is DatasetStatus.DELETED:
            return
        slot = Slot(notice.pipeline_id, notice.schedule_id, notice.date)
        window = window_of(pipeline, slot, notice.at_ms)
        for _ in range(_RACES_MAX):
            # The signal first: whatever changes after this is either seen below or refuses the write.
            current = self._health.signals.get(dataset.dataset_urn, meaning.signal_type, consistent=True)
            if self._is_moot(notice, meaning, slot):
                return
            said = weighed(
                meaning, self._quarantine.check(pipeline.id, notice.date, blocking=pipeline.quarantine.blocking)
            )
            if said is None:
                return
            is_others = current is not None and self._writes(producer_of(current), urn)
            if not may_replace(current, said, pipeline.id, is_others=is_others):
                return
            update = update_of(
                notice,
                said,
                dataset.dataset_urn,
                window,
                evidence=self._proof(notice, said, dataset.dataset_urn),
                version=0 if current is None else current.version,
            )
            result = self._health.signals.update(update)
            if result.verdict is Verdict.UNAVAILABLE:
                raise StoreBusyError(result.message)
            if result.verdict is not Verdict.VERSION_CONFLICT:
                return
        raise StoreBusyError(f"signal {meaning.signal_type} of {urn}: it keeps changing; it is tried again")

    def _dataset(self, urn: str) -> Dataset:
        """Return what a pipeline says it writes as it is registered; one that nobody has is noted as discovered."""
        found = self._health.registry.find(urn)
        return found if found is not None else self._health.registry.discover(urn, Source(type="PIPELINE"), ACTOR)

    def _proof(self, notice: Notice, meaning: Meaning, urn: str) -> tuple[str, ...]:
        """Keep the run as evidence, and return its id if it was kept: of what is well, a sample is."""
        kept = self._health.evidence.put(evidence_of(notice, meaning, urn))
        return (kept.evidence_id,) if kept.stored else ()

    def _is_moot(self, notice: Notice, meaning: Meaning, slot: Slot) -> bool:
        if meaning.until_done:
            log = self._pipelines.parts.runs.log(slot)
            if log is not None and log.status.is_done:
                return True
        return is_overtaken(notice, self._later(notice, meaning))

    def _later(self, notice: Notice, meaning: Meaning) -> Iterator[tuple[int, str]]:
        """Give what was told of the same period and signal since, by moment and id."""
        names = telling(meaning.signal_type)
        cursor: str | None = None
        while True:
            page = self._pipelines.events.ls(
                notice.pipeline_id, since_ms=notice.at_ms, limit=_PAGE, cursor=cursor, descending=False
            )
            for each in page.events:
                if each.name in names and (each.schedule_id, each.date) == (notice.schedule_id, notice.date):
                    yield each.at_ms, each.event_id
            cursor = page.cursor
            if cursor is None:
                return

    def _writes(self, pipeline_id: str, urn: str) -> bool:
        found = self._pipelines.known.find(pipeline_id) if pipeline_id else None
        return found is not None and urn in found.writes
