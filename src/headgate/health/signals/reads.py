"""Signal reads: one signal, the signals of datasets, those in breach, and their history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headgate.errors import InvalidPayloadError
from headgate.health.model.enums import SignalState, Tier
from headgate.health.model.paging import MergedPages, Partition, Place
from headgate.health.model.signals import Signal, Snapshot, signal_key
from headgate.health.signals.rows import breach_partition, history_partition, month_of, signal_of, snapshot_of
from headgate.store.cache import keys as cache_keys
from headgate.store.cache.read_through import Cache, Loaded
from headgate.store.catalogue.tables import BREACH_SHARDS, SIGNAL_HISTORY, SIGNAL_STATE
from headgate.store.keyring import Keyring
from headgate.store.model.requests import Query, Range, Sort
from headgate.store.model.values import Item
from headgate.store.port import Store

SIGNALS_OF_A_DATASET_MAX: Final = 500
HISTORY_MAX: Final = 10_000
_MONTHS_MAX: Final = 120


class BreachPage(Struct, frozen=True):
    """A page of signals in breach, newest first, and the cursor of the next page."""

    signals: list[Signal]
    cursor: str | None = None


class SignalLookups:
    """Reads the signals of one store. Safe to use from many threads. Raises what the store raises."""

    def __init__(self, store: Store, cache: Cache, keyring: Keyring) -> None:
        self._store = store
        self._cache = cache
        self._pages = MergedPages(store, keyring)

    def get(self, dataset_urn: str, signal_type: str, *, consistent: bool = False) -> Signal | None:
        """Return a signal, or None. One that came from the cache while the store was unavailable is marked stale."""
        key = signal_key(dataset_urn, signal_type)

        def load() -> Loaded[Signal] | None:
            row = self._store.get(SIGNAL_STATE, key, consistent=True)
            return None if row is None else Loaded(signal_of(row), row["version"])

        found = self._cache.get(cache_keys.signal_state(dataset_urn, signal_type), load, Signal, consistent=consistent)
        if found.value is None or not found.stale:
            return found.value
        return replace(found.value, stale=True, age_seconds=found.age_seconds)

    def remembered(self, dataset_urn: str, signal_type: str) -> Signal | None:
        """Return a signal from this process's cache, or None."""
        return self._cache.peek(cache_keys.signal_state(dataset_urn, signal_type), Signal)

    def of_dataset(
        self, dataset_urn: str, signal_types: Iterable[str] = (), *, consistent: bool = False
    ) -> list[Signal]:
        """Return the signals of a dataset, all or those of some types."""
        wanted = frozenset(signal_types)
        query = Query(table=SIGNAL_STATE, partition=dataset_urn, limit=SIGNALS_OF_A_DATASET_MAX, consistent=consistent)
        found = [signal_of(row) for row in self._store.query(query).items]
        return [each for each in found if not wanted or each.signal_type in wanted]

    def of_datasets(self, dataset_urns: Sequence[str]) -> list[list[Signal]]:
        """Return the signals of each of several datasets, in one call to the store."""
        pages = self._store.query_many(
            [Query(table=SIGNAL_STATE, partition=urn, limit=SIGNALS_OF_A_DATASET_MAX) for urn in dataset_urns]
        )
        return [[signal_of(row) for row in page.items] for page in pages]

    def breaches(
        self,
        *,
        states: Sequence[SignalState] = (SignalState.CRITICAL, SignalState.WARNING),
        tier: Tier | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> BreachPage:
        """Return signals in one of some states, of one tier or all, last changed first."""
        tiers = tuple(Tier) if tier is None else (tier,)
        partitions = [
            Partition(SIGNAL_STATE, "breach-index", breach_partition(state, each, shard))
            for state in dict.fromkeys(states)
            for each in tiers
            for shard in range(BREACH_SHARDS)
        ]
        page = self._pages.page(partitions, lambda row: Place(row["breach_sk"], ""), limit=limit, cursor=cursor)
        return BreachPage([signal_of(row) for row in page.items], page.cursor)

    def history(self, dataset_urn: str, signal_type: str, since: str, until: str) -> list[Snapshot]:
        """Return the transitions of a signal whose windows ended in a period, oldest first.

        Raises `InvalidPayloadError` for a period of more than ten years, or one that ends before it starts.
        """
        if since > until:
            raise InvalidPayloadError(f"history of {dataset_urn} {signal_type}: from {since} is after to {until}")
        span = Sort(Range.BETWEEN, since, f"{until}#~")
        queries = [
            Query(
                table=SIGNAL_HISTORY,
                partition=history_partition(dataset_urn, signal_type, month),
                sort=span,
                limit=1000,
            )
            for month in _months(since, until)
        ]
        found: list[Item] = []
        for query, page in zip(queries, self._store.query_many(queries) if queries else [], strict=True):
            found += page.items
            while page.cursor is not None and len(found) < HISTORY_MAX:
                page = self._store.query(replace(query, cursor=page.cursor))
                found += page.items
        return [snapshot_of(row) for row in found[:HISTORY_MAX]]


def _months(since: str, until: str) -> list[str]:
    """Return the months of a period. Raises `InvalidPayloadError` for too many."""
    year, month = int(since[:4]), int(since[5:7])
    last, found = month_of(until), list[str]()
    while f"{year:04d}{month:02d}" <= last:
        found.append(f"{year:04d}{month:02d}")
        year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        if len(found) > _MONTHS_MAX:
            raise InvalidPayloadError(f"history from {since} to {until}: more than {_MONTHS_MAX} months; ask for less")
    return found
