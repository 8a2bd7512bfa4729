"""Which news of health pipelines await: of datasets that one of them depends on."""

from __future__ import annotations

from typing import Any, Final

from headgate.durable.bus.events import Event
from headgate.health.model.urns import unversioned
from headgate.pipelines.schedule.dependencies import dataset_source
from headgate.store.catalogue.tables import DEPENDENCY, PIPELINES
from headgate.store.model.requests import Query
from headgate.store.port import Store

# A signal that changed, and an incident that people or time have ended: the gate may say something else now.
TYPES: Final = ("headgate.signal.state_changed", "headgate.incident.resolved")
# By which pipelines hear of it.
SUBSCRIPTION: Final = "headgate.loop.news"


def dataset_of(event: Event) -> str:
    """Return the dataset that news is about."""
    data: Any = event.decoded().data
    return str(data["dataset_urn"])


def sources_of(dataset_urn: str) -> list[str]:
    """Return under what those are listed who wait: rules may name a dataset with its version or without."""
    return [dataset_source(name) for name in dict.fromkeys((dataset_urn, unversioned(dataset_urn)))]


def is_in_vain(store: Store, event: Event) -> bool:
    """Whether an event is news that no pipeline awaits. Most is, and to deliver it takes three commits.

    A pipeline that comes to depend on the dataset at this very moment may miss it, as one may that comes to wait: then
    it looks when its interval is over. Raises what the store raises.
    """
    if event.type not in TYPES:
        return False
    queries = [
        Query(
            table=PIPELINES,
            partition=DEPENDENCY.key(upstream_id=source, downstream_id="_").partition,
            consistent=True,
            limit=1,
        )
        for source in sources_of(dataset_of(event))
    ]
    return not any(page.items for page in store.query_many(queries))
