"""Subscriber filter: drops health events of datasets that no pipeline depends on, before they are published."""

from __future__ import annotations

from typing import Any, Final

from headgate.durable.bus.events import Event
from headgate.health.model.enums import SignalState
from headgate.health.model.urns import unversioned
from headgate.pipelines.readiness.waiters import POLLED
from headgate.pipelines.schedule.dependencies import dataset_source
from headgate.store.catalogue.tables import DEPENDENCY, PIPELINES
from headgate.store.model.requests import Query
from headgate.store.port import Store

# Events after which the gate of a dataset may decide differently.
TYPES: Final = ("headgate.signal.state_changed", "headgate.incident.resolved")
# The subscription that delivers these events to pipelines.
SUBSCRIPTION: Final = "headgate.loop.news"


def dataset_of(event: Event) -> str:
    """Return the dataset of a health event."""
    data: Any = event.decoded().data
    return str(data["dataset_urn"])


def may_end_hold(event: Event) -> bool:
    """Whether a dataset may have recovered, so that the gate no longer holds datasets downstream of it."""
    data: Any = event.decoded().data
    return event.type != TYPES[0] or data.get("previous_state") == SignalState.CRITICAL.value


def sources_of(dataset_urn: str) -> list[str]:
    """Return the dependency sources of a dataset: rules name it with or without its version."""
    return [dataset_source(name) for name in dict.fromkeys((dataset_urn, unversioned(dataset_urn)))]


def has_no_subscriber(store: Store, event: Event) -> bool:
    """Whether a health event concerns no pipeline. Most do not, and each delivery costs three commits.

    The recovery of a dataset may concern every waiting pipeline.
    A pipeline that adds the dependency concurrently may miss the event; it evaluates again after its interval.
    Raises the store's errors.
    """
    if event.type not in TYPES:
        return False
    # A pipeline may wait for a dataset downstream. The lineage says for which; the subscriber reads it.
    waiters = [POLLED] if may_end_hold(event) else []
    queries = [
        Query(
            table=PIPELINES,
            partition=DEPENDENCY.key(upstream_id=source, downstream_id="_").partition,
            consistent=True,
            limit=1,
        )
        for source in sources_of(dataset_of(event))
    ]
    return not any(page.items for page in store.query_many([*queries, *waiters]))
