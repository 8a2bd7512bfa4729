"""Health news: pipelines that wait for a dataset are woken when its health changes, and look for themselves."""

from __future__ import annotations

from headgate.durable.bus.events import Event
from headgate.feedback.subscriber_filter import dataset_of, sources_of
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.service import PipelineService


class HealthNews:
    """Hears of health over the bus. To be woken in vain does no harm, so that news may come twice."""

    def __init__(self, pipelines: PipelineService) -> None:
        self._pipelines = pipelines

    def handle(self, event: Event) -> None:
        """Wake whoever waits for the dataset that an event is about."""
        urn = dataset_of(event)
        for source in sources_of(urn):
            for pipeline_id in self._pipelines.known.dependents(source):
                self._pipelines.waiters.wake_all(pipeline_id, WaitKind.CHANGE, f"the health of {urn} has changed")
