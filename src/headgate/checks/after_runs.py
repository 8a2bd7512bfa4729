"""After runs: a completed run makes the checks of the datasets that its pipeline writes due.

Pipelines that wait for a dataset are woken when a check has measured the runs that they waited for.

The event arrives over the bus from the run's own transaction; the request is stored before it is acknowledged, so that
no crash loses it.
"""

from __future__ import annotations

from typing import Final

from headgate.checks.catalog import CheckCatalog
from headgate.checks.state import CheckStates
from headgate.durable.bus.events import Event
from headgate.health.model.urns import unversioned
from headgate.health.service import HealthService
from headgate.notify.notices import Notice, event_type
from headgate.pipelines.events.names import EventName
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.schedule.dependencies import dataset_source
from headgate.pipelines.service import PipelineService

TYPES: Final = (event_type(EventName.PIPELINE_COMPLETED),)
SUBSCRIPTION: Final = "headgate.checks.after-runs"


class AfterRuns:
    """Bus subscriber. Safe to use from many threads."""

    def __init__(
        self, pipelines: PipelineService, health: HealthService, catalog: CheckCatalog, states: CheckStates
    ) -> None:
        self._pipelines = pipelines
        self._health = health
        self._catalog = catalog
        self._states = states

    def handle(self, event: Event) -> None:
        """Request the checks of the datasets that a completed run wrote. Raises `TransientError`."""
        notice = event.data_as(Notice)
        pipeline = self._pipelines.known.find(notice.pipeline_id)
        if pipeline is None or pipeline.dry_run or not pipeline.writes:
            return
        written = {self._health.registered(urn) for urn in pipeline.writes}
        for known in self._catalog.all():
            if known.file.after_runs and self._health.registered(known.file.dataset) in written:
                self._states.request(known.key, f"run {notice.run_id}", known.digest)

    def wake_readers(self, dataset_urn: str) -> None:
        """Have the pipelines that wait for a dataset evaluate. Raises `TransientError`; they also do at intervals."""
        for name in dict.fromkeys((dataset_urn, unversioned(dataset_urn))):
            for pipeline_id in self._pipelines.known.dependents(dataset_source(name)):
                self._pipelines.waiters.wake_all(pipeline_id, WaitKind.CHANGE, f"a check of {dataset_urn} has measured")
