"""Plans: what opening or joining an incident takes, before it is written."""

from __future__ import annotations

from msgspec import Struct

from headgate.health.model.incidents import Incident
from headgate.store.model.requests import Check, Write


class Opened(Struct, frozen=True):
    """The incident of a report. `is_new`: it was opened now; else the trouble joined it, or broke out again."""

    incident: Incident
    is_new: bool


class IncidentPlan(Struct, frozen=True):
    """What opening or joining an incident takes. Its writes pass only while things are as they were read."""

    incident: Incident
    is_new: bool
    writes: list[Write]

    @property
    def writes_incident(self) -> bool:
        """Whether the incident itself is written."""
        return any(not isinstance(each, Check) for each in self.writes)


class IncidentDrafts:
    """Incidents as they will be once the transactions before have been applied, for those that come after them."""

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
