"""Incident plans: the writes that open or join an incident, for the transaction of a caller."""

from __future__ import annotations

from msgspec import Struct

from headgate.health.model.incidents import Incident
from headgate.store.model.requests import Check, Write


class Opened(Struct, frozen=True):
    """The incident of a report. `is_new`: the report opened it; otherwise the report joined or reopened it."""

    incident: Incident
    is_new: bool


class IncidentPlan(Struct, frozen=True):
    """The writes that open, join or reopen an incident, conditional on the rows as read."""

    incident: Incident
    is_new: bool
    writes: list[Write]

    @property
    def writes_incident(self) -> bool:
        """Whether the incident row is written, and not only checked."""
        return any(not isinstance(each, Check) for each in self.writes)


class IncidentDrafts:
    """Incidents as earlier transactions of the same batch will leave them."""

    def __init__(self) -> None:
        self._incidents: dict[str, Incident] = {}
        self._by_dedup_key: dict[str, Incident] = {}

    def note(self, incident: Incident) -> None:
        self._incidents[incident.incident_id] = incident
        self._by_dedup_key.update(dict.fromkeys(incident.keys, incident))

    def incident(self, incident_id: str) -> Incident | None:
        return self._incidents.get(incident_id)

    def by_dedup_key(self, dedup_key: str) -> Incident | None:
        found = self._by_dedup_key.get(dedup_key)
        return None if found is None else self._incidents[found.incident_id]
