"""Lineage of definitions: health knows what pipelines read and write from what they are defined to.

The bus is told of every definition in the transaction that stores or removes it; what is written then is the definition
as it is at that moment. So events may come twice and in any order, and whoever is interrupted is told again. What
nobody told, because others wrote the row or nobody listened yet, is noticed when a run has ended.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Final

import structlog
from msgspec import Struct

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
_log = structlog.get_logger("headgate.loop")


class Edges(Struct, frozen=True):
    """What a pipeline reads and writes, under the names that the datasets are registered by."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class DefinitionLineage:
    """Keeps the lineage of pipelines in step with their definitions. Safe to use from many threads."""

    def __init__(self, pipelines: PipelineService, health: HealthService) -> None:
        self._definitions = pipelines.definitions
        self._now_ms = pipelines.parts.now_ms
        self._health = health
        self._lock = threading.Lock()
        # What this process has seen to be in the lineage.
        self._known: dict[str, Edges] = {}

    def handle(self, event: Event) -> None:
        """Take in that a definition was stored, changed or removed. Raises `TransientError` if it cannot be now."""
        self.tell(event.data_as(Notice).pipeline_id)

    def confirm(self, pipeline: Pipeline) -> None:
        """Tell what a pipeline reads and writes, unless this process knows that it is told."""
        with self._lock:
            known = self._known.get(pipeline.id)
        if known is None or known != self._edges(pipeline):
            self.tell(pipeline.id)

    def tell(self, pipeline_id: str) -> None:
        """Have the lineage say what the definition says now. Raises `TransientError`, also if that keeps changing."""
        for _ in range(_RACES_MAX):
            stored = self._newest(pipeline_id)
            try:
                edges = self._told(pipeline_id, stored)
            except UserError as exc:
                # It will not be right the next time either.
                _log.warning("lineage_refused", pipeline_id=pipeline_id, error=str(exc))
                return
            # Looked at again: of two who tell at once, the one with the older definition may have been the last.
            if edges is not None and self._newest(pipeline_id) == stored:
                self._remember(pipeline_id, edges)
                return
        raise StoreBusyError(f"pipeline {pipeline_id}: its definition keeps changing; its lineage is told later")

    def _told(self, pipeline_id: str, stored: StoredPipeline | None) -> Edges | None:
        """Tell a definition, and return what it says. None: the lineage is of a later one."""
        is_there = stored is not None and not stored.deleted
        edges = self._edges(stored.pipeline) if stored is not None and is_there else Edges()
        if edges == Edges() and not self._health.lineage.specs(producer_of(pipeline_id), limit=1).specs:
            # Most of those that name no dataset never did.
            return edges
        now = instant(self._now_ms())
        moments = (now,) if stored is None or not stored.at else (stored.at, now)
        # A later moment than its own, if that is behind: the clock was set back since the one before it.
        outcomes = (self._health.lineage.update(spec_of(pipeline_id, edges, at)).outcome for at in moments)
        return edges if any(outcome is not Outcome.STALE for outcome in outcomes) else None

    def _newest(self, pipeline_id: str) -> StoredPipeline | None:
        """Return the definition that is in force, or else that which was removed last."""
        found = self._definitions.find(pipeline_id)
        if found is not None:
            return found
        return next(iter(self._definitions.versions(pipeline_id, limit=1, consistent=True).pipelines), None)

    def _edges(self, pipeline: Pipeline) -> Edges:
        if pipeline.dry_run:
            # It starts nothing, which neither reads nor writes.
            return Edges()
        # Whoever is held by a dataset reads it.
        reads = (*pipeline.reads, *datasets_of(pipeline))
        return Edges(self._registered(pipeline.id, reads), self._registered(pipeline.id, pipeline.writes))

    def _registered(self, pipeline_id: str, names: tuple[str, ...]) -> tuple[str, ...]:
        found: set[str] = set()
        for name in names:
            try:
                found.add(self._health.registered(name))
            except InvalidIdError as exc:
                # A name that no dataset can have keeps the others from nothing.
                _log.warning("lineage_refused", pipeline_id=pipeline_id, dataset_urn=name, error=str(exc))
        return tuple(sorted(found))

    def _remember(self, pipeline_id: str, edges: Edges) -> None:
        with self._lock:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[pipeline_id] = edges


def producer_of(pipeline_id: str) -> str:
    """Return what a pipeline is called in the lineage."""
    return f"pipeline:{pipeline_id}"


def spec_of(pipeline_id: str, edges: Edges, at: str) -> LineageSpec:
    """Return the spec that a definition comes to: all of what it reads and writes, until it is told otherwise."""
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
