"""Health news: pipelines that wait for a dataset are woken when its health changes, and look for themselves."""

from __future__ import annotations

from typing import Any, Final

from headgate.durable.events import Event
from headgate.health.urns import unversioned
from headgate.pipelines.dependencies import dataset_source
from headgate.pipelines.service import PipelineService
from headgate.pipelines.waiting import WaitKind

# A signal that changed, and an incident that people or time have ended: the gate may say something else now.
TYPES: Final = ("headgate.signal.state_changed", "headgate.incident.resolved")


class HealthNews:
    """Hears of health over the bus. To be woken in vain does no harm, so that news may come twice."""

    def __init__(self, pipelines: PipelineService) -> None:
        self._pipelines = pipelines

    def handle(self, event: Event) -> None:
        """Wake whoever waits for the dataset that an event is about."""
        data: Any = event.decoded().data
        urn = str(data["dataset_urn"])
        # Rules may name a dataset with its version or without.
        for name in dict.fromkeys((urn, unversioned(urn))):
            for pipeline_id in self._pipelines.known.dependents(dataset_source(name)):
                self._pipelines.waiters.wake_all(pipeline_id, WaitKind.CHANGE, f"the health of {urn} has changed")
