"""Health listener: wakes the pipelines that wait for a dataset when its health changes."""

from __future__ import annotations

from headgate.durable.bus.events import Event
from headgate.feedback.subscriber_filter import dataset_of, sources_of
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.service import PipelineService


class HealthChangeListener:
    """Bus subscriber for health events. Idempotent: a wakeup only triggers another evaluation."""

    def __init__(self, pipelines: PipelineService) -> None:
        self._pipelines = pipelines

    def handle(self, event: Event) -> None:
        """Wake the pipelines that depend on the event's dataset."""
        urn = dataset_of(event)
        for source in sources_of(urn):
            for pipeline_id in self._pipelines.known.dependents(source):
                self._pipelines.waiters.wake_all(pipeline_id, WaitKind.CHANGE, f"the health of {urn} has changed")
