"""Loaders: what many fields of one query need is read in one call to the store.

A query runs in a thread of its own with an event loop of its own (see `graphql_engine`), so that a loader may wait for
the store: everything that can be asked for at the same time has been, by then.
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

# Of one dataset, where it is one of many: the newest incidents, and so many writers and readers.
INCIDENTS_LOOKED_AT: Final = 20
ENTRIES_MAX: Final = 100
_IN_USE: Final = frozenset({DatasetStatus.ACTIVE, DatasetStatus.DEPRECATED})


class Loaders:
    """Reads for one query. Each thing is read once, whoever asks for it how often."""

    def __init__(self, health: HealthService, check: Callable[[], None]) -> None:
        """Take what to read from, and `check`, which raises once the query has run out of time."""
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
            rows = []  # The registry has a memory, and says of what it remembers that it is old.
        for row in rows:
            if row is not None:
                dataset = dataset_of(row)
                found[dataset.dataset_urn] = dataset
        # What is not in use under this name may be under the other form of it, which the registry knows.
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
                limit=INCIDENTS_LOOKED_AT,
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
            CorruptionError(f"evidence {each}: it may be there, but: {found.unreadable[each]}")
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
    """What the fields of one query share: who asks, until when, and what was read already."""

    def __init__(self, health: HealthService, principal: Principal, ends_at: float) -> None:
        """Take who asks, and when by the clock's monotonic seconds the answer must be there."""
        self.health = health
        self.principal = principal
        self.loaders = Loaders(health, self.check_time)
        self._ends_at = ends_at

    def check_time(self) -> None:
        """Raise `DeadlineExceededError` if the time for the query is up. Called before each read."""
        if self.health.clock.monotonic() >= self._ends_at:
            raise DeadlineExceededError("the query took too long; ask for less at a time, or try again in a moment")

    def registered(self, given: str) -> str:
        """Return the name that a dataset is registered under; the given one if there is none, or nobody can tell."""
        if not urns.is_dataset_urn(given):
            return given
        try:
            return self.health.registered(given)
        except TransientError:
            return given

    def require(self, permission: Permission, dataset_urn: str) -> None:
        """Raise `ForbiddenError` unless who asks may do this to a dataset."""
        require(self.principal, permission, dataset_urn)

    def sees_secrets(self, dataset_urn: str) -> bool:
        """Whether who asks may see the secret fields of an incident of a dataset."""
        return may(self.principal, Permission.SECRET_FIELDS_READ, dataset_urn)

    def reached(self, signals: Sequence[Signal]) -> list[Signal]:
        """Return the signals of datasets that are in scope."""
        return [each for each in signals if self.principal.reaches(each.dataset_urn)]


def _or_error(find: Callable[[str], Dataset | None], urn: str) -> Dataset | BaseException | None:
    """Return what is found, or why it is not: one of many does not take the others with it."""
    try:
        return find(urn)
    except HeadgateError as exc:
        return exc
