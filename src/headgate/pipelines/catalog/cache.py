"""Definition cache: stored definitions, decoded once for each version."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from headgate.errors import NotFoundError
from headgate.pipelines.catalog.rows import StoredPipeline
from headgate.pipelines.catalog.store import PipelineStore
from headgate.pipelines.definition.model import Pipeline

CACHED_MAX: Final = 20_000


class KnownPipelines:
    """Reads definitions for the lifecycle. Versions are immutable and cached; the newest version is read each time."""

    def __init__(self, pipelines: PipelineStore) -> None:
        self._pipelines = pipelines
        self._versions: OrderedDict[tuple[str, int], StoredPipeline] = OrderedDict()
        self._lock = threading.Lock()

    def newest(self, pipeline_id: str) -> tuple[Pipeline, int]:
        """Return the newest definition of a pipeline and its version. Raises `NotFoundError`."""
        stored = self._pipelines.get(pipeline_id)
        self._keep(pipeline_id, stored.version, stored)
        return stored.pipeline, stored.version

    def at(self, pipeline_id: str, version: int) -> Pipeline:
        """Return a version of a pipeline. Raises `NotFoundError`."""
        return self._stored(pipeline_id, version).pipeline

    def with_origin(self, pipeline_id: str, version: int) -> tuple[Pipeline, bool]:
        """Return a version of a pipeline, and whether it is from the project folder. Raises `NotFoundError`."""
        # Read once: the seal is checked on the definition that is returned.
        stored = self._stored(pipeline_id, version)
        return stored.pipeline, self._pipelines.is_from_folder(stored)

    def find(self, pipeline_id: str) -> Pipeline | None:
        """Return the newest definition of a pipeline, or None."""
        try:
            return self.newest(pipeline_id)[0]
        except NotFoundError:
            return None

    def dependents(self, pipeline_id: str) -> Sequence[str]:
        """Return the ids of the pipelines that depend on a pipeline, dataset or event type."""
        return [dependent.pipeline_id for dependent in self._pipelines.downstream_of(pipeline_id)]

    def _stored(self, pipeline_id: str, version: int) -> StoredPipeline:
        with self._lock:
            known = self._versions.get((pipeline_id, version))
        if known is not None:
            return known
        stored = self._pipelines.get(pipeline_id, version)
        self._keep(pipeline_id, version, stored)
        return stored

    def _keep(self, pipeline_id: str, version: int, stored: StoredPipeline) -> None:
        with self._lock:
            self._versions[pipeline_id, version] = stored
            while len(self._versions) > CACHED_MAX:
                self._versions.popitem(last=False)
