"""Definition cache: stored definitions, decoded once for each version."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from headgate.errors import NotFoundError
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.definition.model import Pipeline

CACHED_MAX: Final = 20_000


class KnownPipelines:
    """Reads definitions for the lifecycle. Versions are immutable and cached; the newest version is read each time."""

    def __init__(self, pipelines: PipelineStore) -> None:
        self._pipelines = pipelines
        self._versions: OrderedDict[tuple[str, int], Pipeline] = OrderedDict()
        self._lock = threading.Lock()

    def newest(self, pipeline_id: str) -> tuple[Pipeline, int]:
        """Return the newest definition of a pipeline and its version. Raises `NotFoundError`."""
        stored = self._pipelines.get(pipeline_id)
        self._keep(pipeline_id, stored.version, stored.pipeline)
        return stored.pipeline, stored.version

    def at(self, pipeline_id: str, version: int) -> Pipeline:
        """Return a version of a pipeline. Raises `NotFoundError`."""
        with self._lock:
            known = self._versions.get((pipeline_id, version))
        if known is not None:
            return known
        stored = self._pipelines.get(pipeline_id, version)
        self._keep(pipeline_id, version, stored.pipeline)
        return stored.pipeline

    def find(self, pipeline_id: str) -> Pipeline | None:
        """Return the newest definition of a pipeline, or None."""
        try:
            return self.newest(pipeline_id)[0]
        except NotFoundError:
            return None

    def dependents(self, pipeline_id: str) -> Sequence[str]:
        """Return the ids of the pipelines that depend on a pipeline, dataset or event type."""
        return [dependent.pipeline_id for dependent in self._pipelines.downstream_of(pipeline_id)]

    def _keep(self, pipeline_id: str, version: int, pipeline: Pipeline) -> None:
        with self._lock:
            self._versions[pipeline_id, version] = pipeline
            while len(self._versions) > CACHED_MAX:
                self._versions.popitem(last=False)
