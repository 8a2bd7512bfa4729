"""Blast refresh: brings the blast radius of open incidents in line with the lineage when that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from headgate.errors import NotFoundError
from headgate.health.incidents.decisions import with_radius
from headgate.health.incidents.listing import IncidentFilter, IncidentListing
from headgate.health.incidents.service import Incidents
from headgate.health.model.enums import IncidentStatus
from headgate.health.model.incidents import BlastRadius, Incident

PAGE: Final = 200
_OPEN: Final = IncidentFilter(statuses=(IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED))


class BlastRefresh:
    """Refreshes stored blast radii. Safe to run in any number of processes: each write is conditional."""

    def __init__(
        self,
        incidents: Incidents,
        listing: IncidentListing,
        *,
        revision: Callable[[], int],
        downstream: Callable[[str], BlastRadius],
    ) -> None:
        """Take `revision`, which changes with the lineage, and `downstream`, the whole radius of a dataset."""
        self._incidents = incidents
        self._listing = listing
        self._revision = revision
        self._downstream = downstream
        self._refreshed_at: int | None = None

    def sweep(self) -> int:
        """Refresh all open incidents if the lineage changed, and return how many differ. Raises `TransientError`."""
        revision = self._revision()
        if revision == self._refreshed_at:
            return 0
        count = sum(self._refresh(each) for each in self._open())
        self._refreshed_at = revision
        return count

    def _open(self) -> Iterator[Incident]:
        cursor: str | None = None
        while True:
            page = self._listing.ls(_OPEN, limit=PAGE, cursor=cursor)
            yield from page.incidents
            cursor = page.cursor
            if cursor is None:
                return

    def _refresh(self, incident: Incident) -> bool:
        radius = self._downstream(incident.primary_dataset_urn)
        if incident.blast_radius == radius:
            return False
        try:
            self._incidents.change_by_system(
                incident.incident_id, lambda found, now_ms: with_radius(found, radius, now_ms)
            )
        except NotFoundError:
            return False
        return True
