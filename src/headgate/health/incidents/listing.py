"""Incident listing: pages of incidents by status, severity, dataset, team, signature and time, newest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.health.incidents.decisions import mttr_seconds
from headgate.health.incidents.rows import Sealer, Unsealed, incident_of
from headgate.health.model.enums import IncidentStatus, Severity
from headgate.health.model.incidents import Incident
from headgate.health.model.paging import MergedPages, Partition, Place, Span
from headgate.store.catalogue.tables import INCIDENT_INDEX
from headgate.store.keyring import Keyring
from headgate.store.model.values import Item
from headgate.store.port import Store

PAGE_MAX: Final = 100
# A statistic samples at most this many incidents.
SAMPLED_MAX: Final = 5_000


class IncidentFilter(Struct, frozen=True, kw_only=True):
    """Filter of a listing. An empty field matches everything."""

    statuses: tuple[IncidentStatus, ...] = ()
    severities: tuple[Severity, ...] = ()
    dataset_urn: str | None = None
    owner_team: str | None = None
    failure_signature: str | None = None
    signal_type: str | None = None
    since: str = ""
    until: str = "9999"


class IncidentPage(Struct, frozen=True):
    """A page of incidents, newest first, and the cursor of the next page."""

    incidents: list[Incident]
    cursor: str | None = None


class Recovery(Struct, frozen=True, kw_only=True):
    """Time to resolution of incidents. `complete` is false if there were more than were sampled."""

    resolved: int
    mttr_seconds: float | None
    by_severity: dict[str, float]
    false_positives: int
    complete: bool


class IncidentListing:
    """Lists incidents and computes statistics over them."""

    def __init__(self, store: Store, keyring: Keyring, *, sealer: Sealer | None = None) -> None:
        self._pages = MergedPages(store, keyring)
        self._sealer = sealer if sealer is not None else Unsealed()

    def ls(self, wanted: IncidentFilter, *, limit: int = 50, cursor: str | None = None) -> IncidentPage:
        """Return a page of the incidents that match. Raises `CursorError`.

        One index serves each query: the dataset's, else the team's, else that of statuses and severities. Other fields
        are filtered row by row, so a page may be short although its cursor is set. A signature is one of them: its
        index holds only the first signature of an incident, and a joined incident has several.
        """
        page = self._pages.page(
            _partitions(wanted),
            lambda row: Place(row["created_at"], row["incident_id"]),
            limit=limit,
            cursor=cursor,
            span=Span(wanted.since, wanted.until),
            keep=lambda row: _is_wanted(row, wanted),
            question=wanted,
        )
        return IncidentPage([incident_of(row, self._sealer) for row in page.items], page.cursor)

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the number of open and acknowledged incidents by severity, up to a limit for each status."""
        found: dict[str, dict[str, int]] = {}
        for status in (IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED):
            listed = self.ls(IncidentFilter(statuses=(status,)), limit=1000).incidents
            found[status.value] = dict(Counter(each.severity.value for each in listed))
        return found

    def recovery(self, wanted: IncidentFilter) -> Recovery:
        """Return the time to resolution of the matching resolved incidents."""
        wanted = replace(wanted, statuses=(IncidentStatus.RESOLVED,))
        found: list[Incident] = []
        cursor: str | None = None
        while len(found) < SAMPLED_MAX:
            page = self.ls(wanted, limit=PAGE_MAX, cursor=cursor)
            found += page.incidents
            cursor = page.cursor
            if cursor is None:
                break
        real = [each for each in found if each.merged_into is None]
        times: dict[str, list[float]] = {}
        for each in real:
            times.setdefault(each.severity.value, []).append(mttr_seconds(each) or 0.0)
        return Recovery(
            resolved=len(real),
            mttr_seconds=_mean([each for listed in times.values() for each in listed]),
            by_severity={severity: _mean(listed) or 0.0 for severity, listed in sorted(times.items())},
            false_positives=sum(each.resolution is not None and each.resolution.false_positive for each in real),
            complete=cursor is None,
        )


def _partitions(wanted: IncidentFilter) -> list[Partition]:
    statuses: Sequence[IncidentStatus] = tuple(dict.fromkeys(wanted.statuses or IncidentStatus))
    if wanted.dataset_urn is not None:
        return [Partition(INCIDENT_INDEX, "dataset-time-index", f"DS#{wanted.dataset_urn}")]
    if wanted.owner_team is not None:
        return [
            Partition(INCIDENT_INDEX, "team-status-index", f"TEAM#{wanted.owner_team}#{status}") for status in statuses
        ]
    # The sort key of this index starts with the severity: one query per status and severity, merged by time.
    return [
        Partition(INCIDENT_INDEX, "status-severity-index", f"STATUS#{status}", f"{severity}#")
        for status in statuses
        for severity in dict.fromkeys(wanted.severities or Severity)
    ]


def _is_wanted(row: Item, wanted: IncidentFilter) -> bool:
    return (
        (not wanted.statuses or row["status"] in wanted.statuses)
        and (not wanted.severities or row["severity"] in wanted.severities)
        and wanted.dataset_urn in (None, row["primary_dataset_urn"])
        and wanted.owner_team in (None, row["owner_team"])
        and (wanted.failure_signature is None or wanted.failure_signature in row["failure_signatures"])
        and (wanted.signal_type is None or wanted.signal_type in row["signal_types"])
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
