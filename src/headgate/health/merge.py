"""Dataset merge: joins two datasets that are one table, with their names, signals, incidents, evidence and lineage.

Every step is idempotent and the merged dataset is retired last: a merge that was interrupted is finished by another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.clock import Clock
from headgate.errors import ConflictError, IllegalTransitionError, InvalidPayloadError
from headgate.health.incidents.listing import IncidentFilter, IncidentListing
from headgate.health.incidents.service import Incidents
from headgate.health.lineage.rows import LineageEntry
from headgate.health.lineage.service import Lineage
from headgate.health.lineage.specs import LineageSpec
from headgate.health.model import urns
from headgate.health.model.datasets import Dataset, DatasetStatus
from headgate.health.model.incidents import Incident
from headgate.health.model.signals import ANY_VERSION, Signal, SignalUpdate, SignalValue
from headgate.health.model.timestamps import instant
from headgate.health.registry.listing import DatasetFilter
from headgate.health.registry.service import Registry
from headgate.health.results.service import ReportedResults
from headgate.health.signals.rows import history_partition
from headgate.health.signals.writer import Signals
from headgate.store.catalogue.tables import EVIDENCE_CACHE, SIGNAL_HISTORY
from headgate.store.model.conditions import absent, exists
from headgate.store.model.requests import Put, Query, Write
from headgate.store.model.schema import Key
from headgate.store.port import Store

# Datasets that a search for duplicates reads; beyond that the answer says that it is incomplete.
SEARCHED_MAX: Final = 20_000
LISTED_MAX: Final = 200
# The history is kept for a year at most.
MONTHS: Final = 13
_PAGE: Final = 1_000
_TOGETHER: Final = 50
# Producers of the lineage that are pipelines of this server.
_PIPELINE: Final = "pipeline:"


class Duplicate(Struct, frozen=True, kw_only=True):
    """Two datasets that seem to be one table: the same name in namespaces of one system."""

    dataset_urn: str
    into_urn: str
    reason: str


class Duplicates(Struct, frozen=True, kw_only=True):
    """Proposed merges. Not `complete`: there are more datasets than were compared, or more proposals than listed."""

    duplicates: list[Duplicate]
    complete: bool = True


class Merged(Struct, frozen=True, kw_only=True):
    """What a merge moved."""

    dataset_urn: str
    into_urn: str
    names: int
    signals: int
    transitions: int
    results: int
    incidents: int
    evidence: int
    producers: int


def proposals(datasets: Sequence[Dataset]) -> list[Duplicate]:
    """Return the datasets that seem to be one table, each with the one to merge it into.

    A dataset of a namespace with an authority (`duckdb://shop.duckdb`), as OpenLineage names it, is kept over one that
    is named by the system alone (`duckdb`); a registered one over a discovered one. Two namespaces with different
    authorities are two systems.
    """
    groups: dict[tuple[str, str], list[Dataset]] = {}
    for each in datasets:
        source = each.source
        if source is not None and source.namespace and source.name:
            system = source.namespace.partition("://")[0].casefold()
            groups.setdefault((system, source.name.casefold()), []).append(each)
    found = []
    for (system, name), group in sorted(groups.items()):
        whole = [each for each in group if "://" in _namespace(each)]
        authorities = {_namespace(each).casefold() for each in whole}
        if len(group) < 2 or len(authorities) > 1:
            continue
        kept = min(group, key=_rank)
        found += [
            Duplicate(
                dataset_urn=each.dataset_urn,
                into_urn=kept.dataset_urn,
                reason=f"both are {name} in {system}: {_namespace(each)} and {_namespace(kept)}",
            )
            for each in sorted(group, key=lambda one: one.dataset_urn)
            if each is not kept
        ]
    return found


class DatasetMerges:
    """Finds and merges datasets that are one table. Safe to use from many threads."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        registry: Registry,
        signals: Signals,
        incidents: Incidents,
        listing: IncidentListing,
        lineage: Lineage,
        results: ReportedResults,
    ) -> None:
        self._store = store
        self._clock = clock
        self._registry = registry
        self._signals = signals
        self._incidents = incidents
        self._listing = listing
        self._lineage = lineage
        self._results = results

    def find(self) -> Duplicates:
        """Return the proposed merges."""
        datasets: list[Dataset] = []
        cursor: str | None = None
        while True:
            page = self._registry.ls(DatasetFilter(), limit=_PAGE, cursor=cursor)
            datasets += page.datasets
            cursor = page.cursor
            if cursor is None or len(datasets) >= SEARCHED_MAX:
                break
        found = proposals(datasets)
        return Duplicates(duplicates=found[:LISTED_MAX], complete=cursor is None and len(found) <= LISTED_MAX)

    def merge(self, urn: str, into_urn: str, *, actor: str, reason: str, ticket: str | None = None) -> Merged:
        """Merge a dataset into another one, which gets its history, and retire it.

        Repeating it finishes a merge that was interrupted. Raises `DatasetNotFoundError`, `InvalidPayloadError` without
        a reason, `ApprovalRequiredError` for a dataset of TIER_1 without a ticket, and `IllegalTransitionError` if it
        is unsafe: an incident of the dataset is open, or a pipeline names it in its definition.
        """
        if not reason.strip():
            raise InvalidPayloadError(f"merge of {urn}: reason is missing; it is recorded in the audit log")
        gone, into = self._registry.get(urn), self._registry.get(into_urn)
        old, new = gone.dataset_urn, into.dataset_urn
        self._check(old, new)
        moved = Merged(
            dataset_urn=old,
            into_urn=new,
            names=self._names(gone, new, actor, reason),
            producers=self._move_lineage(old, new),
            signals=self._move_signals(old, new),
            transitions=self._move_history(old, new),
            results=self._results.move(old, new),
            incidents=self._move_incidents(old, new),
            evidence=self._move_evidence(old, new),
        )
        self._registry.fields.move(old, new)
        self._registry.merge_into(old, new, actor=actor, reason=reason, ticket=ticket)
        return moved

    def _check(self, old: str, new: str) -> None:
        if old == new:
            raise IllegalTransitionError(f"dataset {old}: it cannot be merged into itself")
        still_open = [each for each in self._all_incidents(old) if each.is_open]
        if still_open:
            raise IllegalTransitionError(
                f"dataset {old}: incident {still_open[0].incident_id} is open; resolve it before the merge"
            )
        for entry in self._entries(old):
            if entry.entity_id.startswith(_PIPELINE):
                raise IllegalTransitionError(
                    f"dataset {old}: pipeline {entry.entity_name} names it; change its definition to {new} first"
                )

    def _names(self, gone: Dataset, new: str, actor: str, reason: str) -> int:
        """Point every name of the dataset at the other one, so that later events of its tools are about that one."""
        pairs = [(each.namespace, each.name) for each in self._registry.aliases(gone.dataset_urn)]
        source = gone.source
        if source is not None and source.namespace and source.name:
            pairs.append((source.namespace, source.name))
        pairs = list(dict.fromkeys(pairs))
        for namespace, name in pairs:
            self._registry.alias(namespace, name, new, why=f"merged: {reason}", actor=actor)
        return len(pairs)

    def _move_signals(self, old: str, new: str) -> int:
        """Apply the signals to the other dataset; the order of windows decides which value is current."""
        found = self._signals.of_datasets([old])[0]
        for signal in found:
            update = SignalUpdate(
                dataset_urn=new,
                signal_type=signal.signal_type,
                value=_unlinked(signal),
                expected_version=ANY_VERSION,
            )
            self._signals.update(update)
        return len(found)

    def _move_history(self, old: str, new: str) -> int:
        count = 0
        types = [each.signal_type for each in self._signals.of_datasets([old])[0]]
        for signal_type in types:
            for month in self._months():
                count += self._copy(
                    history_partition(old, signal_type, month), history_partition(new, signal_type, month)
                )
        return count + self._copy(f"{old}#VOLUME#HOURS", f"{new}#VOLUME#HOURS")

    def _copy(self, partition: str, into: str) -> int:
        """Copy the rows of a partition of the history, except those that the other one has."""
        count, cursor = 0, None
        while True:
            page = self._store.query(Query(table=SIGNAL_HISTORY, partition=partition, limit=_TOGETHER, cursor=cursor))
            writes: list[list[Write]] = [[Put(SIGNAL_HISTORY, {**item, "PK": into}, absent())] for item in page.items]
            for error in self._store.transact_many(writes) if writes else []:
                if error is not None and not isinstance(error, ConflictError):
                    raise error
                count += error is None
            cursor = page.cursor
            if cursor is None:
                return count

    def _months(self) -> Iterator[str]:
        at = instant(int(self._clock.seconds() * 1000))
        year, month = int(at[:4]), int(at[5:7])
        for _ in range(MONTHS):
            yield f"{year:04d}{month:02d}"
            year, month = (year, month - 1) if month > 1 else (year - 1, 12)

    def _move_incidents(self, old: str, new: str) -> int:
        def renamed(incident: Incident, _now_ms: int) -> Incident:
            if incident.primary_dataset_urn != old:
                return incident
            merged = tuple(dict.fromkeys((*incident.merged_datasets, old)))
            return replace(incident, primary_dataset_urn=new, merged_datasets=merged, version=incident.version + 1)

        found = self._all_incidents(old)
        for incident in found:
            self._incidents.change_by_system(incident.incident_id, renamed)
        return len(found)

    def _move_evidence(self, old: str, new: str) -> int:
        """Move the evidence that is not archived yet; the archive keeps the name under which it was written."""
        count = 0
        while True:
            page = self._store.query(
                Query(table=EVIDENCE_CACHE, index="dataset-time-index", partition=old, limit=_TOGETHER)
            )
            moved = 0
            for item in page.items:
                key = Key(item["evidence_id"])
                current = self._store.get(EVIDENCE_CACHE, key, consistent=True)
                if current is None or current["dataset_urn"] != old:
                    # The index lags behind the row.
                    continue
                self._store.update(EVIDENCE_CACHE, key, set={"dataset_urn": new}, condition=exists())
                moved += 1
            count += moved
            if not moved:
                return count

    def _all_incidents(self, urn: str) -> list[Incident]:
        found: list[Incident] = []
        cursor: str | None = None
        while True:
            page = self._listing.ls(IncidentFilter(dataset_urn=urn), limit=_TOGETHER, cursor=cursor)
            found += page.incidents
            cursor = page.cursor
            if cursor is None:
                return found

    def _move_lineage(self, old: str, new: str) -> int:
        """Write the lineage of each writer and reader again, with the other dataset in its place."""
        entries = {each.entity_id: each for each in self._entries(old)}
        at = instant(int(self._clock.seconds() * 1000))
        for entry in entries.values():
            known = self._lineage.by_producer(entry.entity_id)
            if not known.complete:
                raise IllegalTransitionError(f"dataset {old}: {entry.entity_id} has too many datasets to be moved")
            spec = LineageSpec(
                spec_id="",
                producer_id=entry.entity_id,
                producer_name=entry.entity_name,
                producer_type=entry.entity_type,
                confidence=entry.confidence,
                updated_at=at,
                commit="",
                dataset_reads=_renamed(known.dataset_reads, old, new),
                dataset_writes=_renamed(known.dataset_writes, old, new),
                column_reads=_renamed_columns(known.column_reads, old, new),
                column_writes=_renamed_columns(known.column_writes, old, new),
            )
            digest = hashlib.blake2b(f"{spec.digest}{at}".encode(), digest_size=8).hexdigest()
            self._lineage.update(replace(spec, spec_id=f"lspec:{entry.entity_id}:merge:{digest}"))
        return len(entries)

    def _entries(self, urn: str) -> list[LineageEntry]:
        found: list[LineageEntry] = []
        for side in (self._lineage.writers, self._lineage.readers):
            cursor: str | None = None
            while True:
                page = side(urn, limit=_PAGE, cursor=cursor)
                found += page.entries
                cursor = page.cursor
                if cursor is None:
                    break
        return found


def _unlinked(signal: Signal) -> SignalValue:
    return replace(signal.value, incident_id=None)


def _renamed(targets: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(new if each == old else each for each in targets))


def _renamed_columns(targets: Sequence[str], old: str, new: str) -> tuple[str, ...]:
    def renamed(target: str) -> str:
        column = urns.column(target)
        return urns.column_urn(new, column.name) if column.dataset_urn == old else target

    return tuple(dict.fromkeys(map(renamed, targets)))


def _namespace(dataset: Dataset) -> str:
    return "" if dataset.source is None else dataset.source.namespace or ""


def _rank(dataset: Dataset) -> tuple[bool, bool, str]:
    return "://" not in _namespace(dataset), dataset.status is DatasetStatus.DISCOVERED, dataset.dataset_urn
