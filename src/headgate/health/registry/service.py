"""Dataset registry: registers datasets and changes their configs, with every version and an audit log.

A change archives the current config and writes the new one, its position in the change feed, the event and the audit
entry in one transaction, conditional on the version. Versions have no gaps, and a crash leaves no partial change. URNs
with and without `:vN` find each other: a dataset that is not registered under one form is looked up under the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.auth.audit_entry import AuditLog
from headgate.clock import Clock
from headgate.errors import (
    AlreadyExistsError,
    ConflictError,
    IllegalTransitionError,
    StoreBusyError,
)
from headgate.health.model.datasets import UNOWNED, Dataset, DatasetSpec, DatasetStatus, Metadata, Source
from headgate.health.model.enums import Tier
from headgate.health.model.events import EventWrites, no_event_writes
from headgate.health.model.urns import dataset_urn
from headgate.health.observer import HealthObserver, NullObserver
from headgate.health.registry.aliases import Alias, AliasIndex
from headgate.health.registry.change_feed import Change, Changes, Feed
from headgate.health.registry.changes import (
    EVENT_SOURCE,
    EVENT_TYPE,
    UNCHECKED,
    ChangeAuthor,
    ChangeStamp,
    DesiredState,
    check_ticket,
    check_version,
    is_repeat,
    needs_settling,
    plan,
    present,
)
from headgate.health.registry.degraded_lookup import FallbackOnMiss, Lookup, Lookups, LookupStats
from headgate.health.registry.field_sources import Described, completed, described
from headgate.health.registry.fields import FieldIndex
from headgate.health.registry.find import DatasetFinder
from headgate.health.registry.last_known import LastKnown
from headgate.health.registry.listing import DatasetFilter, Datasets, Listing
from headgate.health.registry.merge_patch import check_stated, merged
from headgate.health.registry.name_cache import NameCache, ProfileCache
from headgate.health.registry.rows import (
    Versions,
    checked_spec,
    dataset_of,
    fields_of,
    latest_key,
    read_spec,
    spec_of,
    written,
)
from headgate.health.registry.versions import FieldChange, History, Versioned, differences
from headgate.health.retirement import Retirement
from headgate.ids import IdMaker
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache
from headgate.store.catalogue.tables import DATASET_REGISTRY
from headgate.store.keyring import Keyring
from headgate.store.port import Store

__all__ = [
    "EVENT_SOURCE",
    "EVENT_TYPE",
    "UNCHECKED",
    "Alias",
    "Change",
    "Changes",
    "Chunk",
    "DatasetFilter",
    "Datasets",
    "FallbackOnMiss",
    "FieldChange",
    "Lookup",
    "LookupStats",
    "Registry",
    "Versioned",
    "read_spec",
]

# Conflicts with other changes of the dataset, or of another one in the same shard of the feed.
ATTEMPTS_MAX: Final = 64
EXPORT_CHUNK: Final = 100
_EVERYTHING: Final = DatasetFilter()


class Chunk(Struct, frozen=True):
    """A chunk of an export. After the last one, `changes` continues from its checkpoint."""

    datasets: list[Dataset]
    checkpoint: str
    has_more: bool = False


# Returns the requested change, or None if there is nothing to change. Raises if it is not allowed.
_Decide = Callable[[Dataset | None], DesiredState | None]


class Registry:
    """Registers, changes, finds and lists datasets. Safe to use from many threads."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        store: Store,
        clock: Clock,
        ids: IdMaker,
        cache: Cache,
        audit: AuditLog,
        keyring: Keyring,
        *,
        event_writes: EventWrites = no_event_writes,
        retirement: Retirement | None = None,
        observer: HealthObserver | None = None,
        tier_1_needs_ticket: bool = True,
        last_known_path: Path | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._audit = audit
        self._event_writes = event_writes
        self._retirement = retirement
        self._observer = observer if observer is not None else NullObserver()
        self._tier_1_needs_ticket = tier_1_needs_ticket
        self._finder = DatasetFinder(store, cache)
        self._feed = Feed(store)
        self._history = History(store)
        self._listing = Listing(store, keyring)
        self.fields = FieldIndex(store)
        self._names = AliasIndex(store, clock, cache, audit)
        self._known = LastKnown(clock, last_known_path)
        self._lookups = Lookups(self._finder, self._known, clock, self._observer)
        changes = partial(cache.changes_elsewhere, cache_keys.CacheKind.DATASET_CONFIG)
        # Caches of the registered URN and the profile of each dataset.
        self.names = NameCache(self._lookups.find, self._lookups.find_many, clock, changes)
        self.profiles = ProfileCache(self._lookups.find_many, clock, changes)

    # Changes.

    def create(
        self, urn: str, spec: DatasetSpec, *, actor: str, ticket: str | None = None, reason: str = ""
    ) -> Dataset:
        """Register a dataset. A discovered or deleted one is registered again and its versions continue.

        Raises `AlreadyExistsError`, `ApprovalRequiredError` for a deleted one of TIER_1 without a ticket,
        `InvalidIdError` for an invalid URN, and `InvalidPayloadError` naming an invalid field.
        """
        wanted = DesiredState(checked_spec(spec), DatasetStatus.ACTIVE)

        def decide(current: Dataset | None) -> DesiredState:
            if current is not None and current.status is DatasetStatus.DISCOVERED:
                return DesiredState(*_with_status(completed(wanted.spec, current), DatasetStatus.ACTIVE))
            if current is not None and current.status is not DatasetStatus.DELETED:
                raise AlreadyExistsError(
                    f"dataset {urn}: already registered, at version {current.config_version}; update it",
                    current=written(current),
                )
            return wanted

        return self._change(urn, decide, ChangeAuthor(actor, "dataset.create", ticket, reason))

    def update(
        self,
        urn: str,
        spec: DatasetSpec,
        *,
        expected_version: int,
        actor: str,
        ticket: str | None = None,
        reason: str = "",
        stated: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Replace the whole config of a dataset. Repeating the same update changes nothing and returns the dataset.

        `expected_version` -1 skips the version check. `stated` is the config as the caller wrote it: one that leaves
        out a field that is set is refused. A discovered dataset becomes registered. Raises `VersionConflictError`,
        which carries the current config, `DatasetNotFoundError`, and as `create` does.
        """
        requested = checked_spec(spec)

        def decide(current: Dataset | None) -> DesiredState | None:
            found = present(urn, current)
            wanted = _unless_same(found, DesiredState(requested, _registered(found)), expected_version)
            if stated is not None and wanted is not None:
                check_stated(urn, found, stated)
            return wanted

        return self._change(urn, decide, ChangeAuthor(actor, "dataset.update", ticket, reason))

    def patch(
        self,
        urn: str,
        patch: Mapping[str, Any],
        *,
        expected_version: int,
        actor: str,
        ticket: str | None = None,
        reason: str = "",
    ) -> Dataset:
        """Apply a merge patch (RFC 7396) to the config of a dataset: null resets a field, others stay as they are.

        The patch is applied to the version that is current when it is committed. Raises as `update` does.
        """

        def decide(current: Dataset | None) -> DesiredState | None:
            found = present(urn, current)
            spec = read_spec(merged(written(spec_of(found)), patch))
            return _unless_same(found, DesiredState(spec, _registered(found)), expected_version)

        return self._change(urn, decide, ChangeAuthor(actor, "dataset.update", ticket, reason))

    def rollback(
        self,
        urn: str,
        version: int,
        *,
        actor: str,
        expected_version: int = UNCHECKED,
        ticket: str | None = None,
        reason: str = "",
    ) -> Dataset:
        """Restore the config of an earlier version as a new version. The status stays.

        Raises as `update` does, and `DatasetNotFoundError` if there is no such version.
        """
        earlier = spec_of(self._history.version(urn, version))

        def decide(current: Dataset | None) -> DesiredState | None:
            found = present(urn, current)
            return _unless_same(found, DesiredState(earlier, found.status), expected_version)

        return self._change(
            urn, decide, ChangeAuthor(actor, "dataset.rollback", ticket, reason or f"to version {version}")
        )

    def delete(
        self,
        urn: str,
        *,
        actor: str,
        expected_version: int = UNCHECKED,
        ticket: str | None = None,
        reason: str = "",
    ) -> Dataset:
        """Mark a dataset as deleted and remove it from listings. Its versions stay; `restore` brings it back.

        Deleting twice changes nothing. Raises as `update` does.
        """
        by = ChangeAuthor(actor, "dataset.delete", ticket, reason)
        return self._move(urn, DatasetStatus.DELETED, expected_version, by)

    def merge_into(self, urn: str, into: str, *, actor: str, ticket: str | None = None, reason: str = "") -> Dataset:
        """Mark a dataset as deleted because it was merged into another one. Raises as `update` does."""

        def decide(current: Dataset | None) -> DesiredState:
            found = present(urn, current)
            return DesiredState(spec_of(found), DatasetStatus.DELETED, merged_into=into)

        return self._change(urn, decide, ChangeAuthor(actor, "dataset.merge", ticket, reason or f"into {into}"))

    def deprecate(
        self,
        urn: str,
        *,
        actor: str,
        expected_version: int = UNCHECKED,
        ticket: str | None = None,
        reason: str = "",
    ) -> Dataset:
        """Mark a dataset as deprecated. It stays listed and found. Raises as `update` does."""
        by = ChangeAuthor(actor, "dataset.deprecate", ticket, reason)
        return self._move(urn, DatasetStatus.DEPRECATED, expected_version, by)

    def restore(
        self,
        urn: str,
        *,
        actor: str,
        expected_version: int = UNCHECKED,
        ticket: str | None = None,
        reason: str = "",
    ) -> Dataset:
        """Make a deprecated or deleted dataset active again. Raises as `update` does."""
        by = ChangeAuthor(actor, "dataset.restore", ticket, reason)
        return self._move(urn, DatasetStatus.ACTIVE, expected_version, by)

    def discover(
        self,
        urn: str,
        source: Source | None,
        actor: str,
        *,
        tier: Tier = Tier.TIER_3,
        owner_team: str = UNOWNED,
        metadata: Metadata | None = None,
    ) -> Dataset:
        """Return the dataset of this URN in any status; if there is none, add it as discovered, with its metadata.

        A registered dataset is never changed, also under concurrent discovery. One that is only discovered and has no
        owner takes the tier and owner of what it is discovered from. Raises `InvalidIdError`.
        """
        known = self._finder.find(dataset_urn(urn))
        if known is not None and not _is_adopted(known, tier, owner_team):
            return known
        if known is not None:
            urn = known.dataset_urn
        present = self._finder.now(urn)
        if present is not None and not _is_adopted(present, tier, owner_team):
            # Another process added it, and the cache of this one holds its absence.
            self._wrote(present, None)
            return present
        spec, sources = checked_spec(DatasetSpec(source=source, tier=tier, owner_team=owner_team)), dict[str, str]()
        if metadata is not None:
            spec, sources = described(spec, sources, metadata)

        def decide(current: Dataset | None) -> DesiredState | None:
            if current is None:
                return DesiredState(spec, DatasetStatus.DISCOVERED, sources)
            if not _is_adopted(current, tier, owner_team):
                return None
            owned = replace(spec_of(current), tier=min(tier, current.tier), owner_team=owner_team)
            return DesiredState(owned, DatasetStatus.DISCOVERED)

        return self._change(urn, decide, ChangeAuthor(actor, "dataset.discover"))

    def describe(self, urn: str, metadata: Metadata, *, actor: str) -> Dataset | None:
        """Store the metadata that a tool reports. Values that a person set are kept. None if the dataset is not in use.

        Raises `ApprovalRequiredError` for a dataset of TIER_1, whose config only people change.
        """
        known = self._lookups.find(urn)
        if known is None or described(spec_of(known), known.field_sources, metadata).spec == spec_of(known):
            return known

        def decide(current: Dataset | None) -> DesiredState | None:
            found = present(urn, current)
            after = described(spec_of(found), found.field_sources, metadata)
            is_same = after.spec == spec_of(found)
            return None if is_same else DesiredState(checked_spec(after.spec), found.status, after.sources)

        return self._change(known.dataset_urn, decide, ChangeAuthor(actor, "dataset.describe"))

    # Reads.

    def get(self, urn: str, *, version: int | None = None) -> Dataset:
        """Return a dataset from the store, or one of its versions.

        Raises `DatasetNotFoundError`, also for a deleted dataset unless a version is given.
        """
        if version is not None:
            return self._history.version(dataset_urn(urn), version)
        return present(urn, self._finder.now(dataset_urn(urn)))

    def find(self, urn: str) -> Dataset | None:
        """Return a dataset by either form of its URN, or None if it is not registered or deleted.

        Answers may be as old as the cache allows. During an outage, an older one is flagged `stale` with its age.
        Raises `TransientError` if there is none.
        """
        return self._lookups.find(urn)

    def ever(self, urn: str) -> Dataset | None:
        """Return a dataset as `find` does, including a deleted one, so that the gate can report the deletion."""
        return self._lookups.find(urn) or self._finder.now(dataset_urn(urn))

    def held(self, urn: str) -> Dataset | None:
        """Return the dataset stored under exactly this URN, deleted or not."""
        return self._finder.held(urn).dataset

    def stored(self, urns: Sequence[str]) -> dict[str, Dataset]:
        """Return the datasets stored under exactly these URNs, deleted or not, in one call to the store."""
        keys = [latest_key(urn) for urn in urns]
        rows = self._store.get_many(DATASET_REGISTRY, keys, consistent=True) if keys else []
        return {urn: dataset_of(row) for urn, row in zip(urns, rows, strict=True) if row is not None}

    def lookup(self, urn: str, fallback_on_miss: FallbackOnMiss = FallbackOnMiss.WARN) -> Lookup:
        """Return a dataset or its replacement: see `degraded_lookup`."""
        return self._lookups.lookup(urn, fallback_on_miss)

    @property
    def stats(self) -> LookupStats:
        """Counts of degraded lookups."""
        return self._lookups.stats

    def history(self, urn: str, *, limit: int = 50, cursor: str | None = None) -> Versioned:
        """Return the versions of a dataset, newest first. Raises `DatasetNotFoundError`."""
        return self._history.page(dataset_urn(urn), limit=limit, cursor=cursor)

    def diff(self, urn: str, from_version: int, to_version: int) -> list[FieldChange]:
        """Return the fields in which two versions of a dataset differ. Raises `DatasetNotFoundError`."""
        before, after = (self._history.version(urn, version) for version in (from_version, to_version))
        return differences(fields_of(before), fields_of(after))

    def ls(self, wanted: DatasetFilter = _EVERYTHING, *, limit: int = 50, cursor: str | None = None) -> Datasets:
        """Return a page of datasets by URN: see `listing`."""
        return self._listing.page(wanted, limit=limit, cursor=cursor)

    def changes(self, after: str | None = None, *, limit: int = 100) -> Changes:
        """Return the changes since a checkpoint, or all for None: see `change_feed`."""
        return self._feed.after(after, limit)

    def export(self, after: str | None = None, *, limit: int = EXPORT_CHUNK) -> Chunk:
        """Return the next chunk of all datasets, deleted ones included, or of those changed since a checkpoint.

        Each is current. One that changes before the last chunk is read appears again.
        """
        found = self._feed.after(after, limit)
        keys = [latest_key(change.dataset_urn) for change in found.changes]
        items = self._store.get_many(DATASET_REGISTRY, keys, consistent=True) if keys else []
        datasets = [dataset_of(item) for item in items if item is not None]
        return Chunk(datasets, found.checkpoint, found.has_more)

    # Aliases.

    def alias(self, namespace: str, name: str, urn: str, *, why: str, actor: str) -> Alias:
        """Point an alias at a dataset, replacing its former target.

        Raises `DatasetNotFoundError` if the dataset is not registered.
        """
        return self._names.put(namespace, name, self.get(urn).dataset_urn, why=why, actor=actor)

    def unalias(self, namespace: str, name: str, *, why: str, actor: str) -> Alias:
        """Remove an alias. Raises `NotFoundError` if it does not exist."""
        return self._names.put(namespace, name, None, why=why, actor=actor)

    def named(self, namespace: str, name: str) -> str | None:
        """Return the dataset URN of an alias, or None."""
        return self._names.get(namespace, name)

    def aliases(self, urn: str) -> list[Alias]:
        """Return the aliases of a dataset, each with its author and reason."""
        return self._names.of(dataset_urn(urn))

    def close(self) -> None:
        """Save the last-known datasets for the next process."""
        self._known.save()

    # Transactions.

    def _move(self, urn: str, status: DatasetStatus, expected_version: int, by: ChangeAuthor) -> Dataset:
        def decide(current: Dataset | None) -> DesiredState | None:
            # A deleted dataset can be restored or deleted again; other changes need one in use.
            is_deleted = current is not None and current.status is DatasetStatus.DELETED
            if current is None or (is_deleted and status is DatasetStatus.DEPRECATED):
                current = present(urn, current)
            if status is DatasetStatus.ACTIVE and current.status is DatasetStatus.DISCOVERED:
                raise IllegalTransitionError(f"dataset {urn}: only discovered; create it to register it")
            return _unless_same(current, DesiredState(spec_of(current), status), expected_version)

        return self._change(urn, decide, by)

    def _change(self, urn: str, decide: _Decide, by: ChangeAuthor) -> Dataset:
        """Make a change, and decide again after each conflict."""
        dataset_urn(urn)
        change_id = self._ids.make("cfg")
        for _ in range(ATTEMPTS_MAX):
            held = self._finder.held(urn)
            if held.dataset is not None and held.item is not None and held.item.get("change_id") == change_id:
                # An earlier attempt was committed, and its answer was lost.
                return self._done(held.dataset, held.versions)
            wanted = decide(held.dataset)
            if wanted is None:
                assert held.dataset is not None
                self._wrote(held.dataset, held.versions)
                return held.dataset
            check_ticket(held, wanted, by, tier_1_needs_ticket=self._tier_1_needs_ticket)
            at = ChangeStamp(int(self._clock.seconds() * 1000), change_id, self._feed.next_place(urn))
            made = plan(held, wanted, by, at, self._event_writes)
            try:
                self._audit.commit(made.writes, made.entry)
            except ConflictError:
                continue
            done = self._done(made.dataset, made.versions)
            if self._retirement is not None and needs_settling(held.dataset, done):
                self._retirement.on_dataset_changed(urn)
            return done
        raise StoreBusyError(f"dataset {urn}: {ATTEMPTS_MAX} conflicts with other writers; try again")

    def _done(self, dataset: Dataset, versions: Versions | None) -> Dataset:
        self._wrote(dataset, versions)
        self._observer.on_dataset_changed(dataset)
        return dataset

    def _wrote(self, dataset: Dataset, versions: Versions | None) -> None:
        self._finder.wrote(dataset, versions)
        self.names.forget()
        self.profiles.forget()


def _registered(dataset: Dataset) -> DatasetStatus:
    """Return the status after a change of the config, which registers a dataset that was only discovered."""
    return DatasetStatus.ACTIVE if dataset.status is DatasetStatus.DISCOVERED else dataset.status


def _is_adopted(known: Dataset, tier: Tier, owner_team: str) -> bool:
    """Whether a dataset that is only discovered and unowned takes the tier and owner of its discoverer."""
    is_free = known.status is DatasetStatus.DISCOVERED and known.owner_team == UNOWNED
    return is_free and (owner_team != UNOWNED or tier < known.tier)


def _with_status(found: Described, status: DatasetStatus) -> tuple[DatasetSpec, DatasetStatus, dict[str, str]]:
    return found.spec, status, found.sources


def _unless_same(current: Dataset, wanted: DesiredState, expected_version: int) -> DesiredState | None:
    """Return the requested change, or None if there is nothing to change. Raises `VersionConflictError`."""
    if wanted[:2] == (spec_of(current), current.status) and is_repeat(current, expected_version):
        return None
    check_version(current, expected_version)
    return wanted
