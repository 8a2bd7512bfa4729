"""Outcome writer: applies run events to the health signals of the datasets that a pipeline writes.

Events arrive over the bus from the transactional outbox, at least once and in any order. Superseded events are skipped
and signals are written under optimistic versions, so that the result does not depend on order or repetition. An outage
of health delays no run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import structlog
from msgspec.structs import replace

from headgate.clock import epoch_ms
from headgate.durable.bus.events import Event
from headgate.errors import ConflictError, StoreBusyError, UserError
from headgate.feedback.definition_lineage import DefinitionLineage
from headgate.feedback.outcome_signals import (
    SIGNAL_EFFECTS,
    SignalEffect,
    events_for,
    evidence_of,
    is_superseded,
    update_of,
    verdict_of,
    window_of,
    with_quarantine,
)
from headgate.feedback.writer_verdicts import (
    WriterVerdict,
    WriterVerdicts,
    supersedes,
    with_signal_verdict,
    worst_verdict,
)
from headgate.health.model import enums
from headgate.health.model.datasets import UNOWNED, Dataset, DatasetStatus, Source
from headgate.health.model.signals import Signal, UpdateVerdict
from headgate.health.service import HealthService
from headgate.notify.notices import Notice, event_type
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.events.names import EventName
from headgate.pipelines.runs.rows import Slot
from headgate.pipelines.service import PipelineService

# The event types that it subscribes to.
TYPES: Final = tuple(event_type(name) for name in SIGNAL_EFFECTS)
ACTOR: Final = "pipelines"
_RACES_MAX: Final = 10
_PAGE: Final = 200
_log = structlog.get_logger("headgate.feedback")


class Outcomes:
    """Bus subscriber that writes run outcomes to health. Safe for use from many threads."""

    def __init__(self, pipelines: PipelineService, health: HealthService, lineage: DefinitionLineage) -> None:
        self._pipelines = pipelines
        self._health = health
        self._lineage = lineage
        self._verdicts = WriterVerdicts(pipelines.store)
        self._quarantine = pipelines.quarantine

    def handle(self, event: Event) -> None:
        """Apply an event of a pipeline. Raises `TransientError` if health is unavailable."""
        notice = event.data_as(Notice)
        pipeline = self._pipelines.known.find(notice.pipeline_id)
        if pipeline is None or pipeline.dry_run:
            # Deleted meanwhile, or it writes nothing.
            return
        for effect in SIGNAL_EFFECTS.get(EventName(notice.event), ()):
            for urn in pipeline.writes:
                try:
                    self._apply(notice, effect, pipeline, urn)
                except UserError as exc:
                    # A retry would fail again, and must not block the other datasets.
                    _log.warning("outcome rejected", pipeline_id=pipeline.id, dataset_urn=urn, error=str(exc))
        # Last, because it is not urgent.
        self._lineage.confirm(pipeline)

    def _apply(self, notice: Notice, event_effect: SignalEffect, pipeline: Pipeline, urn: str) -> None:
        dataset = self._dataset(urn, pipeline)
        if dataset.status is DatasetStatus.DELETED:
            return
        slot = Slot(notice.pipeline_id, notice.schedule_id, notice.date)
        window = window_of(pipeline, slot, notice.at_ms)
        for _ in range(_RACES_MAX):
            # Reads the signal first: a later change is either read below or makes the write conflict.
            current = self._health.signals.get(dataset.dataset_urn, event_effect.signal_type, consistent=True)
            if self._is_superseded(notice, event_effect, slot):
                return
            effect = with_quarantine(
                event_effect, self._quarantine.check(pipeline.id, notice.date, blocking=pipeline.quarantine.blocking)
            )
            if effect is None:
                return
            verdicts = with_signal_verdict(self._verdicts.of(dataset.dataset_urn, effect.signal_type), current)
            before = verdicts.get(pipeline.id)
            verdict = verdict_of(notice, effect, urn, dataset.dataset_urn, window, before)
            if not supersedes(before, verdict, effect.clears_reason):
                return
            verdict = replace(verdict, evidence=self._store_evidence(notice, effect, dataset.dataset_urn))
            if self._store_verdict(verdict, before) and self._update_signal(verdict, verdicts, current):
                return
        raise StoreBusyError(f"signal {event_effect.signal_type} of {urn}: it keeps changing; it is tried again")

    def _store_verdict(self, verdict: WriterVerdict, before: WriterVerdict | None) -> bool:
        """Store a verdict, before its signal is updated. False on a concurrent verdict of the same writer."""
        if before is not None and before.order == verdict.order:
            return True
        try:
            self._verdicts.put(verdict, epoch_ms(self._pipelines.clock))
        except ConflictError:
            return False
        return True

    def _update_signal(self, own: WriterVerdict, verdicts: Mapping[str, WriterVerdict], current: Signal | None) -> bool:
        """Write the worst verdict to the signal. False if the signal has changed concurrently."""
        others = [each for each in verdicts.values() if each.pipeline_id != own.pipeline_id and self._is_writer(each)]
        result = self._health.signals.update(update_of(worst_verdict(own, others, current), current))
        if result.verdict in (UpdateVerdict.UNAVAILABLE, UpdateVerdict.DATASET_NOT_FOUND):
            # Another process has just registered it; this process's cache follows soon.
            raise StoreBusyError(result.message)
        # A later window of another writer is a race as well.
        return result.verdict not in (UpdateVerdict.VERSION_CONFLICT, UpdateVerdict.STALE_WINDOW)

    def _dataset(self, urn: str, pipeline: Pipeline) -> Dataset:
        """Return the registered dataset of a name; an unknown one is discovered, with the pipeline's tier and owner."""
        return self._health.registry.discover(
            urn,
            Source(type="PIPELINE"),
            ACTOR,
            tier=enums.tier(pipeline.tier),
            owner_team=pipeline.owner or UNOWNED,
        )

    def _store_evidence(self, notice: Notice, effect: SignalEffect, urn: str) -> tuple[str, ...]:
        """Store the run as evidence, and return its id if it was stored: successes are sampled."""
        stored = self._health.evidence.put(evidence_of(notice, effect, urn))
        return (stored.evidence_id,) if stored.stored else ()

    def _is_superseded(self, notice: Notice, effect: SignalEffect, slot: Slot) -> bool:
        if effect.until_done:
            log = self._pipelines.stores.runs.log(slot)
            if log is not None and log.status.is_done:
                return True
        return is_superseded(notice, self._later_events(notice, effect))

    def _later_events(self, notice: Notice, effect: SignalEffect) -> Iterator[tuple[int, str]]:
        """Yield time and id of the events since the notice that affect the same period and signal."""
        names = events_for(effect.signal_type)
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

    def _is_writer(self, verdict: WriterVerdict) -> bool:
        """Whether the pipeline of a verdict still writes the dataset."""
        pipeline = self._pipelines.known.find(verdict.pipeline_id)
        return pipeline is not None and not {verdict.written_as, verdict.dataset_urn}.isdisjoint(pipeline.writes)
