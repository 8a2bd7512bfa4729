"""Health listener: wakes the pipelines that wait for a dataset when its health, or the health upstream, changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.durable.bus.events import Event
from headgate.feedback.subscriber_filter import dataset_of, may_end_hold, sources_of
from headgate.pipelines.readiness.waiters import WaitKind
from headgate.pipelines.service import PipelineService


class HealthChangeListener:
    """Bus subscriber for health events. Idempotent: a wakeup only triggers another evaluation."""

    def __init__(self, pipelines: PipelineService, held_by: Callable[[str], Sequence[str]]) -> None:
        """Take the pipelines, and `held_by`, which returns the datasets that trouble of a dataset upstream holds."""
        self._pipelines = pipelines
        self._held_by = held_by

    def handle(self, event: Event) -> None:
        """Wake the pipelines that depend on the event's dataset, or on one that it held and may hold no longer."""
        urn = dataset_of(event)
        self._wake(urn, f"the health of {urn} has changed")
        if may_end_hold(event):
            for held in self._held_by(urn):
                self._wake(held, f"the health of {urn}, upstream of {held}, has changed")

    def _wake(self, urn: str, reason: str) -> None:
        for source in sources_of(urn):
            for pipeline_id in self._pipelines.known.dependents(source):
                self._pipelines.waiters.wake_all(pipeline_id, WaitKind.CHANGE, reason)
