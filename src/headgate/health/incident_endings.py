"""Why an incident is over by itself: its signals are OK again, or fail in ways that are another incident's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headgate.health.incident_values import Incident, Link
from headgate.health.vocabulary import SignalState
from headgate.store.model.values import Item

ALL_OK: Final = "all its signals are OK again"
_OTHERS_OK: Final = "its other signals are OK again"


def links_ever(incident: Incident) -> tuple[Link, ...]:
    """Return the signals that an incident has, and those of its dataset that it may have had."""
    had = (Link(incident.primary_dataset_urn, each) for each in incident.signal_types)
    return tuple(dict.fromkeys((*incident.links, *had)))


def ending(incident: Incident, links: Sequence[Link], rows: Sequence[Item | None]) -> str:
    """Return why an incident is over whose own signals are all OK, from the rows of all that it ever had."""
    elsewhere = [
        _elsewhere(incident, link, row)
        for link, row in zip(links, rows, strict=True)
        if row is not None and row["state"] != SignalState.OK and row.get("incident_id") != incident.incident_id
    ]
    if not elsewhere:
        return ALL_OK
    is_all = len(elsewhere) == sum(row is not None for row in rows)
    return "; ".join(elsewhere if is_all else [*elsewhere, _OTHERS_OK])


def _elsewhere(incident: Incident, link: Link, row: Item) -> str:
    is_own = link.dataset_urn == incident.primary_dataset_urn
    named = link.signal_type if is_own else f"{link.signal_type} of {link.dataset_urn}"
    other, signature = row.get("incident_id"), row.get("failure_signature")
    if other is None:
        return f"{named} is {row['state']}, and no longer of this incident"
    return f"{named} fails another way now, {signature}: see {other}"
