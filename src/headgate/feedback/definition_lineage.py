"""Definition lineage: writes the reads and writes of pipeline definitions to the lineage of health.

An event is published in the transaction that stores or removes a definition. The subscriber writes the definition that
is current at that time, so events may arrive twice and in any order. The end of a run confirms the lineage, for
definitions whose event was never published.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Final

import structlog
from msgspec import Struct

from headgate.clock import epoch_ms
from headgate.durable.bus.events import Event
from headgate.errors import InvalidIdError, StoreBusyError, UserError
from headgate.health.lineage.manifests import Outcome
from headgate.health.lineage.specs import TTL_SECONDS_MAX, LineageSpec
from headgate.health.model.timestamps import instant
from headgate.health.service import HealthService
from headgate.notify.notices import Notice, event_type
from headgate.pipelines.catalog.rows import StoredPipeline
from headgate.pipelines.definition.model import Pipeline
from headgate.pipelines.events.names import EventName
from headgate.pipelines.schedule.dependencies import datasets_of
from headgate.pipelines.service import PipelineService

TYPES: Final = (event_type(EventName.PIPELINE_DEFINED), event_type(EventName.PIPELINE_DELETED))
_SOURCE: Final = "definition"
_RACES_MAX: Final = 10
_KNOWN_MAX: Final = 20_000
_log = structlog.get_logger("headgate.feedback")


class DatasetEdges(Struct, frozen=True):
    """The registered names of the datasets that a pipeline reads and writes."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class DefinitionLineage:
    """Keeps lineage in sync with pipeline definitions. Safe for use from many threads."""

    def __init__(self, pipelines: PipelineService, health: HealthService) -> None:
        self._definitions = pipelines.definitions
        self._clock = pipelines.clock
        self._health = health
        self._lock = threading.Lock()
        # Edges that this process has written or confirmed.
        self._confirmed: dict[str, DatasetEdges] = {}

    def handle(self, event: Event) -> None:
        """Apply a stored, changed or removed definition. Raises `TransientError` if health is unavailable."""
        self.sync(event.data_as(Notice).pipeline_id)

    def confirm(self, pipeline: Pipeline) -> None:
        """Write the lineage of a pipeline, unless this process has confirmed it already."""
        with self._lock:
            confirmed = self._confirmed.get(pipeline.id)
        if confirmed is None or confirmed != self._edges(pipeline):
            self.sync(pipeline.id)

    def sync(self, pipeline_id: str) -> None:
        """Write the lineage of the current definition. Raises `TransientError`, also if it keeps changing."""
        for _ in range(_RACES_MAX):
            stored = self._newest(pipeline_id)
            try:
                edges = self._write(pipeline_id, stored)
            except UserError as exc:
                # A retry would fail again.
                _log.warning("lineage rejected", pipeline_id=pipeline_id, error=str(exc))
                return
            # Read again: of two concurrent syncs the one with the older definition may have written last.
            if edges is not None and self._newest(pipeline_id) == stored:
                self._remember(pipeline_id, edges)
                return
        raise StoreBusyError(f"pipeline {pipeline_id}: its definition keeps changing; its lineage is written later")

    def _write(self, pipeline_id: str, stored: StoredPipeline | None) -> DatasetEdges | None:
        """Write the lineage of a definition and return its edges. None: the lineage is of a later definition."""
        edges = self._edges(stored.pipeline) if stored is not None and not stored.deleted else DatasetEdges()
        if edges == DatasetEdges() and not self._health.lineage.specs(producer_of(pipeline_id), limit=1).specs:
            # Most pipelines without datasets never had any.
            return edges
        now = instant(epoch_ms(self._clock))
        moments = (now,) if stored is None or not stored.at else (stored.at, now)
        # If its own time is stale because the clock was set back, the current time is used.
        outcomes = (self._health.lineage.update(spec_of(pipeline_id, edges, at)).outcome for at in moments)
        return edges if any(outcome is not Outcome.STALE for outcome in outcomes) else None

    def _newest(self, pipeline_id: str) -> StoredPipeline | None:
        """Return the current definition, or the last one that was removed."""
        found = self._definitions.find(pipeline_id)
        if found is not None:
            return found
        return next(iter(self._definitions.versions(pipeline_id, limit=1, consistent=True).pipelines), None)

    def _edges(self, pipeline: Pipeline) -> DatasetEdges:
        if pipeline.dry_run:
            # A dry run starts no job.
            return DatasetEdges()
        # A dataset rule counts as a read.
        reads = (*pipeline.reads, *datasets_of(pipeline))
        return DatasetEdges(self._registered(pipeline.id, reads), self._registered(pipeline.id, pipeline.writes))

    def _registered(self, pipeline_id: str, names: tuple[str, ...]) -> tuple[str, ...]:
        found: set[str] = set()
        for name in names:
            try:
                found.add(self._health.registered(name))
            except InvalidIdError as exc:
                # An invalid name does not block the others.
                _log.warning("lineage rejected", pipeline_id=pipeline_id, dataset_urn=name, error=str(exc))
        return tuple(sorted(found))

    def _remember(self, pipeline_id: str, edges: DatasetEdges) -> None:
        with self._lock:
            if len(self._confirmed) >= _KNOWN_MAX:
                self._confirmed.clear()
            self._confirmed[pipeline_id] = edges


def producer_of(pipeline_id: str) -> str:
    """Return the producer id of a pipeline in the lineage."""
    return f"pipeline:{pipeline_id}"


def spec_of(pipeline_id: str, edges: DatasetEdges, at: str) -> LineageSpec:
    """Return the lineage spec of a definition: the complete set of its reads and writes."""
    producer_id = producer_of(pipeline_id)
    content = "\n".join((*edges.reads, "", *edges.writes))
    digest = hashlib.blake2b(content.encode(), digest_size=12).hexdigest()
    return LineageSpec(
        spec_id=f"lspec:{producer_id}:{_SOURCE}:{digest}",
        producer_id=producer_id,
        producer_name=pipeline_id,
        updated_at=at,
        dataset_reads=edges.reads,
        dataset_writes=edges.writes,
        ttl_seconds=TTL_SECONDS_MAX,
    )
