"""GraphQL queries. The API is read-only: REST and gRPC write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Final

import strawberry
from strawberry import UNSET

from headgate.auth.roles import Permission
from headgate.errors import InvalidPayloadError, NotFoundError, QueryLimitError
from headgate.health.gate.decisions import GateQuestion, OnUnknown, Verb
from headgate.health.incidents.listing import IncidentFilter
from headgate.health.lineage.service import Entries
from headgate.health.model import enums, urns
from headgate.health.model.datasets import Dataset
from headgate.health.model.enums import IncidentStatus, Severity, SignalState, Tier
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import Signal
from headgate.health.model.volume_counts import DAYS
from headgate.health.registry.service import DatasetFilter
from headgate.serve.graphql.enums import Moment, reads
from headgate.serve.graphql.evidence_types import EvidenceType
from headgate.serve.graphql.loaders import Context
from headgate.serve.graphql.paging import (
    PAGE_MAX,
    PAGES_READ_MAX,
    DatasetFilterInput,
    IncidentFilterInput,
    Listed,
    PaginationInput,
    Shown,
    page_size,
    shown,
)
from headgate.serve.graphql.result_types import (
    DatasetConnectionType,
    DatasetEdgeType,
    GateAnswerType,
    IncidentConnectionType,
    IncidentContextType,
    IncidentEdgeType,
    PageInfoType,
    VolumePointType,
    radius_of,
)
from headgate.serve.graphql.types import (
    BlastRadiusType,
    DatasetType,
    IncidentType,
    Info,
    LineageEntryType,
    SignalStateSnapshotType,
    SignalStateType,
    found_incident,
)

SNAPSHOTS_MAX: Final = 1_000
ENTRIES_MAX: Final = 1_000
_ACTIVE: Final = (IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED)

_IncidentFilter = Annotated[IncidentFilterInput, strawberry.argument(name="filter")]
_DatasetFilter = Annotated[DatasetFilterInput, strawberry.argument(name="filter")]
_From = Annotated[Moment, strawberry.argument(name="from")]


@strawberry.type(name="Query")
class Query:
    """Root queries."""

    # Signals.

    @reads("The current signal of a dataset.")
    async def signal_state(self, info: Info, dataset_urn: str, signal_type: str) -> SignalStateType | None:
        context = _checked_context(info)
        found = context.health.signals.get(urns.dataset_urn(dataset_urn), enums.signal_type(signal_type))
        return None if found is None else SignalStateType.of(found)

    @reads("All current signals of a dataset.")
    async def dataset_signals(self, info: Info, dataset_urn: str) -> list[SignalStateType]:
        found = await info.context.loaders.signals.load(urns.dataset_urn(dataset_urn))
        return [SignalStateType.of(each) for each in found]

    @reads("CRITICAL signals, latest change first; at most 100.")
    async def critical_signals(
        self, info: Info, tier: Tier | None = UNSET, limit: int | None = PAGE_MAX
    ) -> list[SignalStateType]:
        size = page_size(PAGE_MAX if limit is None else limit, "limit")
        return [SignalStateType.of(each) for each in _critical(_checked_context(info), tier or None, size)]

    @reads("Transitions of a signal with windows ending in a time range, oldest first.")
    async def signal_history(
        self, info: Info, dataset_urn: str, signal_type: str, from_: _From, to: Moment
    ) -> list[SignalStateSnapshotType]:
        context = _checked_context(info)
        found = context.health.signals.history(urns.dataset_urn(dataset_urn), enums.signal_type(signal_type), from_, to)
        if len(found) > SNAPSHOTS_MAX:
            raise QueryLimitError(
                f"signalHistory of {dataset_urn}: more than {SNAPSHOTS_MAX} transitions; request a shorter range"
            )
        return [SignalStateSnapshotType.of(each) for each in found]

    @reads("Hourly event counts of a dataset over the last days, at most 14, oldest first.")
    async def volume_history(self, info: Info, dataset_urn: str, days: int = DAYS) -> list[VolumePointType]:
        found = _checked_context(info).health.volumes.history(urns.dataset_urn(dataset_urn), days)
        return [VolumePointType.of(each) for each in found.points]

    # Incidents.

    @reads("An incident.")
    async def incident(self, info: Info, incident_id: strawberry.ID) -> IncidentType | None:
        return await found_incident(info.context, incident_id, is_named=True)

    @reads("Incidents, newest first.")
    async def incidents(
        self, info: Info, filter_: _IncidentFilter, pagination: PaginationInput | None = UNSET
    ) -> IncidentConnectionType:
        context, wanted = _checked_context(info), filter_.wanted()
        first, after = _page(pagination)

        def fetch(cursor: str | None) -> Listed[Incident]:
            context.check_time()
            page = context.health.incident_listing.ls(wanted, limit=first, cursor=cursor)
            return Listed(_in_scope(context, page.incidents), page.cursor)

        page = shown(fetch, lambda each: (each.created_at, each.incident_id), first=first, after=after, descending=True)
        return IncidentConnectionType(
            edges=[IncidentEdgeType(cursor=cursor, node=IncidentType.of(each, context)) for cursor, each in page.rows],
            page_info=_page_info(page),
            total_estimate=len(page.rows) if page.is_all else None,
        )

    @reads("Open incidents: the newest hundred. `incidents` pages through all.")
    async def active_incidents(self, info: Info, severity: Severity | None = UNSET) -> list[IncidentType]:
        context = _checked_context(info)
        wanted = IncidentFilter(statuses=_ACTIVE, severities=(severity,) if severity else ())
        found: list[Incident] = []
        cursor: str | None = None
        for _ in range(PAGES_READ_MAX):
            context.check_time()
            page = context.health.incident_listing.ls(wanted, limit=PAGE_MAX, cursor=cursor)
            found += _in_scope(context, page.incidents)
            cursor = page.cursor
            if cursor is None or len(found) >= PAGE_MAX:
                break
        return [IncidentType.of(each, context) for each in found[:PAGE_MAX]]

    @reads("Full context of an incident.")
    async def incident_context(self, info: Info, id: strawberry.ID) -> IncidentContextType | None:
        # Authorized before the slow read of the context.
        if await found_incident(info.context, id, is_named=True) is None:
            return None
        try:
            story = _checked_context(info).health.contexts.of(id)
        except NotFoundError:
            return None
        return IncidentContextType.of(story, info.context)

    # Evidence.

    @reads("Evidence in the order of the ids, null where it is neither cached nor archived.")
    async def evidence(self, info: Info, ids: list[strawberry.ID]) -> list[EvidenceType | None]:
        _count(ids, "ids")
        # An exception in the list fails only its own element.
        return await asyncio.gather(*(_evidence(info.context, each) for each in ids), return_exceptions=True)  # type: ignore[return-value]

    # Datasets.

    @reads("A dataset by name, with or without a version.")
    async def dataset(self, info: Info, urn: str) -> DatasetType | None:
        found = await info.context.loaders.datasets.load(urns.dataset_urn(urn))
        if found is None:
            return None
        info.context.require(Permission.DATASET_READ, found.dataset_urn)
        return DatasetType.of(found)

    @reads("Datasets by URN.")
    async def datasets(
        self, info: Info, filter_: _DatasetFilter, pagination: PaginationInput | None = UNSET
    ) -> DatasetConnectionType:
        context = _checked_context(info)
        first, after = _page(pagination)
        fetch = _dataset_pages(context, filter_, first)
        page = shown(fetch, lambda each: (each.dataset_urn,), first=first, after=after, descending=False)
        return DatasetConnectionType(
            edges=[DatasetEdgeType(cursor=cursor, node=DatasetType.of(each)) for cursor, each in page.rows],
            page_info=_page_info(page),
            total_estimate=len(page.rows) if page.is_all else None,
        )

    # Lineage.

    @reads("Writers of a dataset; at most 1,000.")
    async def dataset_writers(self, info: Info, dataset_urn: str) -> list[LineageEntryType]:
        lineage = _checked_context(info).health.lineage
        return _entries(lambda: lineage.writers(dataset_urn, limit=ENTRIES_MAX))

    @reads("Readers of a dataset; at most 1,000.")
    async def dataset_readers(self, info: Info, dataset_urn: str) -> list[LineageEntryType]:
        lineage = _checked_context(info).health.lineage
        return _entries(lambda: lineage.readers(dataset_urn, limit=ENTRIES_MAX))

    @reads("Writers of a column; at most 1,000.")
    async def column_writers(self, info: Info, column_urn: str) -> list[LineageEntryType]:
        lineage = _checked_context(info).health.lineage
        return _entries(lambda: lineage.column_writers(column_urn, limit=ENTRIES_MAX))

    @reads("Readers of a column; at most 1,000.")
    async def column_readers(self, info: Info, column_urn: str) -> list[LineageEntryType]:
        lineage = _checked_context(info).health.lineage
        return _entries(lambda: lineage.column_readers(column_urn, limit=ENTRIES_MAX))

    @reads("Downstream impact of a dataset.")
    async def blast_radius(self, info: Info, dataset_urn: str) -> BlastRadiusType:
        return radius_of(_checked_context(info).health.blast_radii.downstream(dataset_urn))

    # The gate.

    @reads("Whether datasets may be read or published now, why, and until when; at most 100.")
    async def gate(
        self,
        info: Info,
        dataset_urns: list[str],
        verb: Verb = Verb.READ,
        on_unknown: OnUnknown = OnUnknown.WARN,
        max_age_seconds: float | None = None,
    ) -> GateAnswerType:
        _count(dataset_urns, "datasetUrns")
        if max_age_seconds is not None and not max_age_seconds > 0:
            raise InvalidPayloadError(f"maxAgeSeconds is {max_age_seconds}: must be above 0")
        context = _checked_context(info)
        question = GateQuestion(
            principal=context.principal.name, verb=verb, on_unknown=on_unknown, age_seconds_max=max_age_seconds
        )
        return GateAnswerType.of(context.health.gatekeeper.check(dataset_urns, question))


def _checked_context(info: Info) -> Context:
    """Return the context of a field before its read. Raises `DeadlineExceededError`."""
    info.context.check_time()
    return info.context


def _critical(context: Context, tier: enums.Tier | None, size: int) -> list[Signal]:
    found: list[Signal] = []
    cursor: str | None = None
    for _ in range(PAGES_READ_MAX):
        context.check_time()
        page = context.health.signals.breaches(states=(SignalState.CRITICAL,), tier=tier, limit=size, cursor=cursor)
        found += context.reached(page.signals)
        cursor = page.cursor
        if cursor is None or len(found) >= size:
            break
    return found[:size]


async def _evidence(context: Context, evidence_id: str) -> EvidenceType | None:
    found = await context.loaders.evidence.load(evidence_id)
    if found is None:
        return None
    context.require(Permission.EVIDENCE_READ, found.dataset_urn)
    return EvidenceType.of(found)


def _in_scope(context: Context, incidents: list[Incident]) -> list[Incident]:
    return [each for each in incidents if context.principal.reaches(each.primary_dataset_urn)]


def _dataset_pages(context: Context, asked: DatasetFilterInput, size: int) -> Callable[[str | None], Listed[Dataset]]:
    tiers = tuple(dict.fromkeys(asked.tier or ()))
    wanted = DatasetFilter(
        tier=tiers[0] if len(tiers) == 1 else None,
        owner_team=asked.owner_team or None,
        source_type=asked.source_type or None,
        search=asked.search or None,
    )

    def fetch(cursor: str | None) -> Listed[Dataset]:
        context.check_time()
        page = context.health.registry.ls(wanted, limit=size, cursor=cursor)
        found = [
            each
            for each in page.datasets
            if context.principal.reaches(each.dataset_urn) and (not tiers or each.tier in tiers)
        ]
        if isinstance(asked.in_breach, bool):
            found = _breached(context, found, is_wanted=asked.in_breach)
        return Listed(found, page.cursor)

    return fetch


def _breached(context: Context, datasets: list[Dataset], *, is_wanted: bool) -> list[Dataset]:
    context.check_time()
    signals = context.health.signals.of_datasets([each.dataset_urn for each in datasets]) if datasets else []
    return [
        each
        for each, its in zip(datasets, signals, strict=True)
        if any(signal.state.is_breach for signal in its) is is_wanted
    ]


def _entries(read: Callable[[], Entries]) -> list[LineageEntryType]:
    return [LineageEntryType.of(each) for each in read().entries]


def _page(given: PaginationInput | None) -> tuple[int, str | None]:
    asked = given or PaginationInput()
    return page_size(asked.first, "first"), asked.after or None


def _page_info(page: Shown[Dataset] | Shown[Incident]) -> PageInfoType:
    return PageInfoType(has_next_page=page.has_more, end_cursor=page.end_cursor)


def _count(given: list[str] | list[strawberry.ID], name: str) -> None:
    if not 1 <= len(given) <= PAGE_MAX:
        raise QueryLimitError(f"{name}: {len(given)} given; send 1 to {PAGE_MAX}")
