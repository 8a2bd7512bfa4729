"""GraphQL loaders: batch the reads of many fields of one query into one store call.

A query runs in its own thread with its own event loop (see `engine`), so a loader may block: all fields that can run
concurrently have requested their keys by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from strawberry.dataloader import DataLoader

from headgate.auth.principals import Principal, may, require
from headgate.auth.roles import Permission
from headgate.errors import CorruptionError, DeadlineExceededError, HeadgateError, TransientError
from headgate.health.evidence.rows import Evidence
from headgate.health.lineage.rows import LineageEntry, entry_of, side
from headgate.health.lineage.specs import EdgeKind
from headgate.health.model import urns
from headgate.health.model.datasets import Dataset, DatasetStatus
from headgate.health.model.enums import IncidentStatus
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal
from headgate.health.registry.rows import dataset_of, latest_key
from headgate.health.service import HealthService
from headgate.store.catalogue.tables import DATASET_REGISTRY, INCIDENT_INDEX
from headgate.store.model.requests import Query

# Limits per dataset within a list: newest incidents, writers and readers.
INCIDENTS_READ: Final = 20
ENTRIES_MAX: Final = 100
_IN_USE: Final = frozenset({DatasetStatus.ACTIVE, DatasetStatus.DEPRECATED})


class Loaders:
    """Reads of one query. Each key is read once."""

    def __init__(self, health: HealthService, check: Callable[[], None]) -> None:
        """Read from `health`; `check` raises once the query has timed out."""
        self._health = health
        self._check = check
        self.datasets: DataLoader[str, Dataset | None] = DataLoader(self._datasets)
        self.incidents: DataLoader[str, Incident | None] = DataLoader(self._incidents)
        self.signals: DataLoader[str, list[Signal]] = DataLoader(self._signals)
        self.open_incidents: DataLoader[str, list[Incident]] = DataLoader(self._open_incidents)
        self.evidence: DataLoader[str, Evidence | None] = DataLoader(self._evidence)
        self.entries: DataLoader[tuple[EdgeKind, str], list[LineageEntry]] = DataLoader(self._entries)

    async def _datasets(self, dataset_urns: list[str]) -> list[Dataset | BaseException | None]:
        self._check()
        found: dict[str, Dataset] = {}
        try:
            rows = self._health.store.get_many(DATASET_REGISTRY, [latest_key(urn) for urn in dataset_urns])
        except TransientError:
            rows = []  # The registry caches, and marks stale results.
        for row in rows:
            if row is not None:
                dataset = dataset_of(row)
                found[dataset.dataset_urn] = dataset
        # A dataset that is not found may be registered under the other form of its name.
        return [
            found[urn] if urn in found and found[urn].status in _IN_USE else _or_error(self._find, urn)
            for urn in dataset_urns
        ]

    def _find(self, urn: str) -> Dataset | None:
        self._check()
        return self._health.registry.find(urn)

    async def _incidents(self, incident_ids: list[str]) -> list[Incident | None]:
        self._check()
        return self._health.incidents.get_many(incident_ids)

    async def _signals(self, dataset_urns: list[str]) -> list[list[Signal]]:
        self._check()
        return self._health.signals.of_datasets(dataset_urns)

    async def _open_incidents(self, dataset_urns: list[str]) -> list[list[Incident]]:
        self._check()
        queries = [
            Query(
                table=INCIDENT_INDEX,
                index="dataset-time-index",
                partition=f"DS#{urn}",
                limit=INCIDENTS_READ,
                descending=True,
            )
            for urn in dataset_urns
        ]
        pages = self._health.store.query_many(queries)
        ids = [[row["incident_id"] for row in page.items if row["status"] != IncidentStatus.RESOLVED] for page in pages]
        found = await self.incidents.load_many([each for some in ids for each in some])
        by_id = {each.incident_id: each for each in found if each is not None and each.is_open}
        return [[by_id[each] for each in some if each in by_id] for some in ids]

    async def _evidence(self, evidence_ids: list[str]) -> list[Evidence | BaseException | None]:
        self._check()
        found = self._health.evidence.get_many(evidence_ids)
        return [
            CorruptionError(f"evidence {each}: cannot be read: {found.unreadable[each]}")
            if each in found.unreadable
            else found.evidence.get(each)
            for each in evidence_ids
        ]

    async def _entries(self, wanted: list[tuple[EdgeKind, str]]) -> list[list[LineageEntry]]:
        self._check()
        queries = [Query(table=side(kind)[0], partition=urn, limit=ENTRIES_MAX) for kind, urn in wanted]
        pages = self._health.store.query_many(queries)
        return [[entry_of(kind, row) for row in page.items] for (kind, _), page in zip(wanted, pages, strict=True)]


class Context:
    """Shared state of a query: caller, deadline and loaders."""

    def __init__(self, health: HealthService, principal: Principal, ends_at: float) -> None:
        """Take the caller, and the deadline on the monotonic clock."""
        self.health = health
        self.principal = principal
        self.loaders = Loaders(health, self.check_time)
        self._ends_at = ends_at

    def check_time(self) -> None:
        """Raise `DeadlineExceededError` if the query has timed out. Called before each read."""
        if self.health.clock.monotonic() >= self._ends_at:
            raise DeadlineExceededError("the query took too long; request less, or retry in a moment")

    def registered(self, given: str) -> str:
        """Return the registered name of a dataset, or the given one if there is none or the registry is unavailable."""
        if not urns.is_dataset_urn(given):
            return given
        try:
            return self.health.registered(given)
        except TransientError:
            return given

    def require(self, permission: Permission, dataset_urn: str) -> None:
        """Raise `ForbiddenError` unless the caller has the permission on a dataset."""
        require(self.principal, permission, dataset_urn)

    def sees_secrets(self, dataset_urn: str) -> bool:
        """Whether the caller may see the secret fields of incidents of a dataset."""
        return may(self.principal, Permission.SECRET_FIELDS_READ, dataset_urn)

    def reached(self, signals: Sequence[Signal]) -> list[Signal]:
        """Return the signals of datasets in scope."""
        return [each for each in signals if self.principal.reaches(each.dataset_urn)]


def _or_error(find: Callable[[str], Dataset | None], urn: str) -> Dataset | BaseException | None:
    """Return the value or the error: one failed key does not fail the others."""
    try:
        return find(urn)
    except HeadgateError as exc:
        return exc
