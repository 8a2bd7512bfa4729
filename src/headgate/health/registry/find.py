"""Dataset finder: reads a dataset by its URN with or without `:vN`, through the cache or from the store."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headgate.health.model.datasets import Dataset, DatasetStatus
from headgate.health.registry.changes import StoredDataset
from headgate.health.registry.rows import Versions, alias_name, dataset_of, latest_key, versions_key, versions_of
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache, Loaded
from headgate.store.catalogue.tables import DATASET_REGISTRY
from headgate.store.port import Store


class DatasetFinder:
    """Reads datasets. A URN without a version names its highest registered version."""

    def __init__(self, store: Store, cache: Cache) -> None:
        self._store = store
        self._cache = cache

    def find(self, urn: str) -> Dataset | None:
        """Return a dataset in use, or None. A registered one takes precedence over a discovered one."""
        found = self._cached(urn)
        if _rank(found) == _REGISTERED:
            return found
        other = self._other_name(urn)
        named = None if other is None else self._cached(other)
        return _better(found, named)

    def find_many(self, urns: Sequence[str]) -> dict[str, Dataset]:
        """Return the datasets in use among these, by the given URNs, chosen as `find` does.

        At most three calls to the store, whatever is cached. Raises `TransientError`.
        """
        found = self._latest(urns)
        others = self._other_names([urn for urn in urns if _rank(found.get(urn)) < _REGISTERED])
        named = self._latest(list(dict.fromkeys(others.values())))
        best: dict[str, Dataset] = {}
        for urn in urns:
            chosen = _better(found.get(urn), named.get(others.get(urn, "")))
            if chosen is not None:
                best[urn] = chosen
        return best

    def now(self, urn: str) -> Dataset | None:
        """Return a dataset from the store: under this URN if it is in use, else under its other form.

        A deleted one is returned if there is no other, under either form.
        """
        found = self.held(urn).dataset
        if _rank(found):
            return found
        other = alias_name(urn)
        if other is None:
            item = self._store.get(DATASET_REGISTRY, versions_key(urn), consistent=True)
            other = _version_name(urn, versions_of(item).last())
        named = None if other is None else self.held(other).dataset
        return named if _rank(named) or found is None else found

    def held(self, urn: str) -> StoredDataset:
        """Return everything stored under exactly this URN, for a change."""
        name = alias_name(urn)
        keys = [latest_key(urn)] if name is None else [latest_key(urn), versions_key(name)]
        item, *others = self._store.get_many(DATASET_REGISTRY, keys, consistent=True)
        versions = versions_of(others[0]) if others else None
        return StoredDataset(urn, item, None if item is None else dataset_of(item), versions)

    def wrote(self, dataset: Dataset, versions: Versions | None) -> None:
        """Update the cache after a commit. The cache keeps the newer version."""
        self._cache.wrote(cache_keys.dataset_config(dataset.dataset_urn), dataset, dataset.config_version)
        name = alias_name(dataset.dataset_urn)
        if name is not None and versions is not None:
            self._cache.wrote(_versions_cache_key(name), versions, versions.version)

    def _cached(self, urn: str) -> Dataset | None:
        def load() -> Loaded[Dataset] | None:
            item = self._store.get(DATASET_REGISTRY, latest_key(urn))
            found = None if item is None else dataset_of(item)
            return None if found is None else Loaded(found, found.config_version)

        answer = self._cache.get(cache_keys.dataset_config(urn), load, Dataset)
        if answer.value is None or not answer.stale:
            return answer.value
        return replace(answer.value, stale=True, age_seconds=answer.age_seconds)

    def _latest(self, urns: Sequence[str]) -> dict[str, Dataset]:
        rows = self._store.get_many(DATASET_REGISTRY, [latest_key(urn) for urn in urns]) if urns else []
        return {urn: dataset_of(row) for urn, row in zip(urns, rows, strict=True) if row is not None}

    def _other_names(self, urns: Sequence[str]) -> dict[str, str]:
        """Return the other URNs to try for datasets that are not registered under theirs."""
        others = {urn: name for urn in urns if (name := alias_name(urn)) is not None}
        short = [urn for urn in urns if urn not in others]
        rows = self._store.get_many(DATASET_REGISTRY, [versions_key(urn) for urn in short]) if short else []
        for urn, row in zip(short, rows, strict=True):
            name = _version_name(urn, versions_of(row).highest())
            if name is not None:
                others[urn] = name
        return others

    def _other_name(self, urn: str) -> str | None:
        """Return the other URN to try for a dataset that is not registered under this one."""
        name = alias_name(urn)
        if name is not None:
            return name

        def load() -> Loaded[Versions] | None:
            item = self._store.get(DATASET_REGISTRY, versions_key(urn))
            found = versions_of(item)
            return None if item is None else Loaded(found, found.version)

        versions = self._cache.get(_versions_cache_key(urn), load, Versions).value
        return None if versions is None else _version_name(urn, versions.highest())


_REGISTERED = 2


def _rank(dataset: Dataset | None) -> int:
    if dataset is None or dataset.status is DatasetStatus.DELETED:
        return 0
    return 1 if dataset.status is DatasetStatus.DISCOVERED else _REGISTERED


def _better(own: Dataset | None, other: Dataset | None) -> Dataset | None:
    """Return which of the datasets under the two forms of a URN is meant, or None if neither is in use."""
    best = other if _rank(other) > _rank(own) else own
    return best if _rank(best) else None


def _version_name(name: str, version: int | None) -> str | None:
    return None if version is None else f"{name}:v{version}"


def _versions_cache_key(name: str) -> cache_keys.Key:
    # Config versions start at 1, so 0 is free for the row of versions.
    return cache_keys.dataset_config(name, 0)
