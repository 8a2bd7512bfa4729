"""Outcomes: what becomes of runs changes the health of the datasets that their pipelines write.

It hears of events over the bus: each was written down with the change that it tells of, and is brought here until it
was taken in. So a crash loses nothing, and health that cannot be reached holds up no run. Heard twice, late or in
another order, events come to the same: what was overtaken is passed over, and a signal is written under its version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import structlog
from msgspec.structs import replace

from headgate.durable.bus.events import Event
from headgate.errors import ConflictError, StoreBusyError, UserError
from headgate.feedback.definition_lineage import DefinitionLineage
from headgate.feedback.outcome_signals import (
    MEANINGS,
    Meaning,
    evidence_of,
    is_overtaken,
    telling,
    update_of,
    weighed,
    window_of,
    word_of,
)
from headgate.feedback.writer_verdicts import Word, Words, may_follow, prevailing, remembered
from headgate.health.model.datasets import Dataset, DatasetStatus, Source
from headgate.health.model.signals import Signal, UpdateVerdict
from headgate.health.service import HealthService
from headgate.notify.notices import Notice, event_type
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.events.names import EventName
from headgate.pipelines.readiness.quarantine import QuarantineRecords
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.service import PipelineService

# The types of events that are heard of.
TYPES: Final = tuple(event_type(name) for name in MEANINGS)
ACTOR: Final = "pipelines"
_RACES_MAX: Final = 10
_PAGE: Final = 200
_log = structlog.get_logger("headgate.loop")


class Outcomes:
    """Tells health what became of runs. Safe to use from many threads."""

    def __init__(self, pipelines: PipelineService, health: HealthService, lineage: DefinitionLineage) -> None:
        self._pipelines = pipelines
        self._health = health
        self._lineage = lineage
        self._words = Words(pipelines.parts.store)
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
        # Last: it holds up nothing that is urgent.
        self._lineage.confirm(pipeline)

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
            words = remembered(self._words.of(dataset.dataset_urn, said.signal_type), current)
            before = words.get(pipeline.id)
            word = word_of(notice, said, urn, dataset.dataset_urn, window, before)
            if not may_follow(before, word, said.takes_back):
                return
            word = replace(word, evidence=self._proof(notice, said, dataset.dataset_urn))
            if self._say(word, before) and self._show(word, words, current):
                return
        raise StoreBusyError(f"signal {meaning.signal_type} of {urn}: it keeps changing; it is tried again")

    def _say(self, word: Word, before: Word | None) -> bool:
        """Keep a word, before anything is made of it. False: its writer has said something else meanwhile."""
        if before is not None and before.place == word.place:
            return True
        try:
            self._words.say(word, self._pipelines.parts.now_ms())
        except ConflictError:
            return False
        return True

    def _show(self, own: Word, words: Mapping[str, Word], current: Signal | None) -> bool:
        """Have the signal show what its writers say together. False: it has changed meanwhile."""
        others = [word for word in words.values() if word.pipeline_id != own.pipeline_id and self._is_writer(word)]
        result = self._health.signals.update(update_of(prevailing(own, others, current), current))
        if result.verdict in (UpdateVerdict.UNAVAILABLE, UpdateVerdict.DATASET_NOT_FOUND):
            # It was found a moment ago: another process has just registered it, which is known here soon.
            raise StoreBusyError(result.message)
        # Of another writer with a later window, it is a race as well.
        return result.verdict not in (UpdateVerdict.VERSION_CONFLICT, UpdateVerdict.STALE_WINDOW)

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

    def _is_writer(self, word: Word) -> bool:
        """Whether the pipeline of a word still writes the dataset."""
        found = self._pipelines.known.find(word.pipeline_id)
        return found is not None and not {word.written_as, word.dataset_urn}.isdisjoint(found.writes)
